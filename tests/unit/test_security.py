"""What docs/security.md promises and needs no Ray: names that stay inside, no pickle, no code of a model folder, no secrets printed."""

from __future__ import annotations

import ast
import json
import shutil
import sys
from pathlib import Path

import pytest

import raydense
from raydense.cli import main
from raydense.errors import InputError
from raydense.inference.settings import EncodeSettings
from raydense.models.dual_encoder import DualEncoder
from raydense.recipes.recipe import Recipe
from raydense.retrieval.settings import SearchSettings
from raydense.storage import Artifact, Draft, provenance

PASSWORD = "a-very-secret-word"
PICKLES = {"pickle", "cloudpickle", "joblib", "dill", "pd", "pandas"}
READS_PICKLE = {"load", "loads", "Unpickler", "read_pickle"}
ARGUMENTS = {"weights_only", "allow_pickle", "trust_remote_code"}


@pytest.mark.parametrize("name", ["../outside.txt", "/etc/passwd", "a/../../outside.txt", "..\\outside.txt"])
def test_a_manifest_names_no_file_outside(tmp_path: Path, name: str) -> None:
    draft = Draft.open(tmp_path / "out", "report", {"x": 1})
    draft.commit("a.txt", lambda path: path.write_text("a"), 1)
    draft.finish(1)
    (tmp_path / "outside.txt").write_text("a")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    manifest["files"][0]["path"] = name
    (tmp_path / "out" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="names a file outside its folder"):
        Artifact.open(tmp_path / "out")


@pytest.mark.parametrize("name", ["../outside", "/etc", "a/../../outside"])
def test_a_model_folder_names_no_module_outside(tmp_path: Path, tiny_folder: Path, name: str) -> None:
    """Neither for its pooling nor for its weights, which modules.json names where the folder itself has none."""
    DualEncoder.load(tiny_folder).save(tmp_path / "model")
    shutil.copytree(tmp_path / "model" / "1_Pooling", tmp_path / "outside")
    shutil.copytree(tiny_folder, tmp_path / "outside", dirs_exist_ok=True)
    modules = tmp_path / "model" / "modules.json"
    (tmp_path / "model" / "raydense.json").unlink()
    listed = json.loads(modules.read_text())
    for number, module in enumerate(listed[:2]):
        wrong = [*listed[:number], module | {"path": name}, *listed[number + 1 :]]
        modules.write_text(json.dumps(wrong))
        with pytest.raises(InputError, match=r"modules\.json: names a folder outside its own"):
            DualEncoder.load(tmp_path / "model")


@pytest.mark.parametrize("family", ["of-its-own", "bert"])
def test_no_code_of_a_model_folder_is_run(tmp_path: Path, tiny_folder: Path, family: str) -> None:
    folder, ran = tmp_path / "model", tmp_path / "ran"
    shutil.copytree(tiny_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": family, "auto_map": {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer | {"auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]}}))
    (folder / "evil.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    if family == "bert":  # transformers has its own code for that
        DualEncoder.load(folder)
    else:
        with pytest.raises(InputError) as refused:
            DualEncoder.load(folder)
        assert "\n" not in str(refused.value)
        assert str(folder) in str(refused.value)
    assert not ran.exists()


def test_no_class_that_a_folder_names_is_imported(tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even one that is installed: what is imported is the choice of who runs raydense, not of who made the folder."""
    shutil.copytree(tiny_folder, folder := tmp_path / "model")
    (tmp_path / "named_by_a_folder.py").write_text("class Pooling: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([modules[0], modules[1] | {"type": "named_by_a_folder.Pooling"}, *modules[2:]]))
    with pytest.raises(InputError, match=r"is made of .*named_by_a_folder\.Pooling"):
        DualEncoder.load(folder)
    assert "named_by_a_folder" not in sys.modules


def test_pickled_weights_are_refused(tmp_path: Path, tiny_folder: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder, folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="its weights are a pickle, which can run code when read"):
        DualEncoder.load(folder)


def test_nothing_of_raydense_reads_a_pickle_from_a_folder() -> None:
    """Calls that can: torch.load gets weights_only=True, numpy.load leaves pickles out, and pickle itself is for Ray's own rows.

    They are known by their dotted names, so that such a name is not to be imported from its module, either.
    """
    found = []
    for file in Path(raydense.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in {*PICKLES, "torch", "numpy"}:
                found += [f"{file.name}: from {node.module} import {one.name}" for one in node.names if one.name in READS_PICKLE]
            if isinstance(node, ast.Call):
                words = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg in ARGUMENTS}
                called = ast.unparse(node.func)
                module, _, name = called.rpartition(".")
                unsafe = module.partition(".")[0] == "torch" and name == "load" and words.get("weights_only") != "True"
                unsafe |= "allow_pickle" in words or words.get("trust_remote_code", "False") != "False"
                if unsafe or (module.partition(".")[0] in PICKLES and name in READS_PICKLE):
                    found.append(f"{file.name}: {called}")
    assert found == ["pipeline.py: pickle.loads"]


def test_credentials_in_a_path_are_refused_and_not_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = f"s3://user:{PASSWORD}@bucket/corpus"
    recipe = tmp_path / "r.yaml"
    recipe.write_text(f"stages:\n  words: {{do: index, kind: bm25, corpus: '{bad}'}}\n")
    search = ["search", "--index", bad, "--queries", "q", "--output", str(tmp_path / "o")]
    for words in (
        search,
        ["evaluate", "--run", f"BM25={bad}", "--qrels", "q", "--output", str(tmp_path / "o")],
        ["sample", "--output", f"s3://bucket/out?secret_key={PASSWORD}"],
        ["run", str(recipe), "--output", str(tmp_path / "o")],
        ["plan", str(recipe), "--output", bad],
        ["sample", "--output", f"file://user:{PASSWORD}@host/out"],
        ["sample", "--output", f"file:///out?secret_key={PASSWORD}"],
        ["submit", *search, "--address", "http://127.0.0.1:1"],
    ):
        with pytest.raises(SystemExit) as ended:
            main(words)
        printed = "".join(capsys.readouterr())
        assert ended.value.code == 2
        assert any(words in printed for words in ("carries more than a bucket and a path", "names a machine", "has '?' or '#' in it"))
        assert PASSWORD not in printed


@pytest.mark.parametrize("given", [True, False])
def test_credentials_in_the_address_of_a_cluster_too(
    given: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = f"https://user:{PASSWORD}@127.0.0.1:1"
    monkeypatch.setenv("RAY_ADDRESS", "" if given else bad)
    with pytest.raises(SystemExit) as ended:
        main(["submit", "list", *(["--address", bad] if given else [])])
    printed = "".join(capsys.readouterr())
    assert ended.value.code == 2
    assert f"{'--address' if given else 'RAY_ADDRESS'}: contains credentials" in printed
    assert PASSWORD not in printed


def test_the_provenance_of_an_artifact_names_no_place(tmp_path: Path, tiny_folder: Path) -> None:
    """Neither paths nor names of buckets reach a manifest, a report or a tracker: inputs are fingerprints."""
    draft = Draft.open(tmp_path / "corpus", "corpus", {"x": 1})
    draft.finish(1)
    made_from = provenance("encode", EncodeSettings(model=str(tiny_folder), corpus=str(tmp_path / "corpus"), output="s3://bucket/out"))
    assert str(tmp_path) not in json.dumps(made_from)
    assert "bucket" not in json.dumps(made_from)
    assert not {"index", "queries", "output"} & SearchSettings(index="s3://b/i", queries="s3://b/q", output="s3://b/o").shaping().keys()


def test_a_recipe_reads_no_other_scheme(tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text(f"stages:\n  words: {{do: index, kind: bm25, corpus: 'http://user:{PASSWORD}@host/corpus'}}\n")
    with pytest.raises(InputError, match="http:// is not a place that can be read") as refused:
        Recipe.read(recipe, tmp_path / "out")
    assert PASSWORD not in str(refused.value)
