"""Models of the Hub by name, from a server on the loopback that speaks its protocol."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import torch

from raydense.cli.flags import read
from raydense.cli.work import needed, verb_work
from raydense.data.exporting import export
from raydense.data.settings import ExportSettings
from raydense.errors import InputError, fixable
from raydense.evaluation.settings import EvaluateSettings
from raydense.inference.settings import EncodeSettings
from raydense.models.dual_encoder import DualEncoder
from raydense.recipes.inputs import wrong_input
from raydense.recipes.recipe import Recipe, plan, state
from raydense.recipes.stage import Stage
from raydense.storage import Artifact, Draft, Place, fingerprint_of, is_hub_name, model_place, provenance
from tests.inference_world import make_corpus

REPOSITORY = "owner/tiny-encoder"
_REFUSED = ("models/retriever--v2", "models/x-", "models/x.git", f"models/{97 * 'x'}")
COMMIT = hashlib.sha1(b"first").hexdigest()


class Hub:
    """One repository of one commit, `main`; what was asked for."""

    def __init__(self, folder: Path) -> None:
        self.files = files_of(folder)
        self.files |= {"pytorch_model.bin": b"a pickle", "evil.py": b"raise SystemExit", "README.md": b"# hello"}
        self.fetched: list[str] = []
        self.asked: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self._answer(body=False)

            def do_GET(self) -> None:
                self._answer(body=True)

            def _answer(self, body: bool) -> None:
                path = unquote(urlsplit(self.path).path)
                hub.asked.append(path)
                if (
                    path in (f"/api/models/{REPOSITORY}/revision/{name}" for name in ("main", COMMIT))
                    or path == f"/api/models/{REPOSITORY}"
                ):
                    listed = [{"rfilename": name} for name in hub.files]
                    return self._send(200, json.dumps({"id": REPOSITORY, "sha": COMMIT, "siblings": listed}).encode(), body)
                if path.startswith(f"/api/models/{REPOSITORY}/tree/"):
                    listed = [{"type": "file", "path": name, "size": len(of), "oid": _tag(of)} for name, of in hub.files.items()]
                    return self._send(200, json.dumps(listed).encode(), body)
                name = path.partition(f"/{REPOSITORY}/resolve/")[2].partition("/")[2]
                if name not in hub.files:
                    missing = "RepoNotFound" if REPOSITORY not in path else "RevisionNotFound" if "/api/" in path else "EntryNotFound"
                    return self._send(404, b"{}", body, {"X-Error-Code": missing})
                if body:
                    hub.fetched.append(name)
                of = hub.files[name]
                return self._send(
                    200, of, body, {"ETag": f'"{_tag(of)}"', "X-Repo-Commit": COMMIT, "Content-Type": "application/octet-stream"}
                )

            def _send(self, code: int, content: bytes, body: bool, headers: dict[str, str] | None = None) -> None:
                self.send_response(code)
                for key, value in {"Content-Type": "application/json", "Content-Length": str(len(content)), **(headers or {})}.items():
                    self.send_header(key, value)
                self.end_headers()
                if body:
                    self.wfile.write(content)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def files_of(folder: Path) -> dict[str, bytes]:
    """The files in a folder by their paths, as an upload has them."""
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def _tag(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@pytest.fixture
def hub(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    hub = Hub(tiny_folder)
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{hub.server.server_port}")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    yield hub
    hub.server.shutdown()
    hub.server.server_close()


def test_a_model_is_fetched_once_without_pickles_and_code_and_read_as_its_folder(hub: Hub, tiny_folder: Path, texts: list[str]) -> None:
    model = DualEncoder.load(f"hf://{REPOSITORY}")
    assert model.config == DualEncoder.load(tiny_folder).config
    assert not {"pytorch_model.bin", "evil.py", "README.md"} & set(hub.fetched)
    assert {"model.safetensors", "tokenizer.json", "1_Pooling/config.json"} <= set(hub.fetched)
    before = len(hub.fetched)
    DualEncoder.load(f"hf://{REPOSITORY}")
    assert len(hub.fetched) == before


def test_what_other_tools_fetch_of_the_same_commit_is_no_part_of_a_model(hub: Hub) -> None:
    folder = Place.of(f"hf://{REPOSITORY}").local()
    before = fingerprint_of(f"hf://{REPOSITORY}")
    assert before == fingerprint_of(folder)  # as it was when every file of the folder counted
    (folder / "onnx").mkdir()
    for name in ("README.md", "pytorch_model.bin", "onnx/model.onnx"):
        (folder / name).write_text("of sentence-transformers")
    assert fingerprint_of(f"hf://{REPOSITORY}") == before
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").write_text("{}")
    assert fingerprint_of(f"hf://{REPOSITORY}") != before


def test_a_bare_name_means_the_hub_everywhere_and_its_commit_goes_to_workers_and_into_the_manifest(hub: Hub, tmp_path: Path) -> None:
    make_corpus(tmp_path / "corpus", 3, shard_rows=3)
    given = {"model": REPOSITORY, "corpus": "corpus", "output": "o"}
    recipe = {"given": {}, "stages": {"encode-1": {"do": "encode", "model": REPOSITORY, "corpus": "corpus"}}}
    asked = [read(EncodeSettings, None, given), EncodeSettings(**given), Recipe.build(recipe, "o", "here").stages[0].settings]
    assert [one.model for one in asked] == 3 * [REPOSITORY]
    assert [one.located().model for one in asked] == 3 * [f"hf://{REPOSITORY}@{COMMIT}"]
    assert DualEncoder.load(REPOSITORY).config == DualEncoder.load(f"hf://{REPOSITORY}").config
    assert wrong_input(Stage("encode-1", "encode", asked[1], ()), []) == ""
    draft = Draft.open(tmp_path / "o", "embeddings", provenance("encode", asked[0]))
    draft.commit("x", lambda path: path.write_text("x"), 1)
    made_from = draft.finish(1).manifest["made_from"]
    assert made_from["commits"] == {"model": f"hf://{REPOSITORY}@{COMMIT}"}
    assert made_from["inputs"]["model"] == fingerprint_of(f"hf://{REPOSITORY}@{COMMIT}")
    assert Artifact.open(tmp_path / "o").rows == 1


def test_a_submitted_job_takes_a_model_of_the_hub_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    work = verb_work("encode", EncodeSettings(model=REPOSITORY, corpus="corpus", output="o"))
    assert work.words[work.words.index("--model") + 1] == REPOSITORY
    assert needed(work.stages) == [str(tmp_path / "corpus")]


def test_offline_what_is_in_the_cache_is_read_and_else_refused(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match=rf"hf://{REPOSITORY}: not in the cache, and the Hub does not answer; connect"):
        DualEncoder.load(f"hf://{REPOSITORY}")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    commit = Place.of(f"hf://{REPOSITORY}").located
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert Place.of(f"hf://{REPOSITORY}").located == Place.of(commit).located == commit


def test_what_is_not_on_the_hub_is_refused_in_one_line(hub: Hub) -> None:
    for name, message in (
        ("hf://nobody/nothing", "hf://nobody/nothing: no such model on the Hub; check owner"),
        ("nobody/nothing", "^nobody/nothing: no such folder, and no such model on the Hub; check owner"),
        ("hf://one-word", "is no name of a model on the Hub"),
        ("one-word", "one-word: no such model folder; give its folder"),
        *((name, f"^{name}: no such folder, and no name of a model on the Hub; give the model's folder") for name in _REFUSED),
        *((f"hf://{name}", f"^hf://{name}: is no name of a model on the Hub; give the model's folder") for name in _REFUSED),
    ):
        with pytest.raises(InputError, match=message) as refused:
            DualEncoder.load(name)
        assert "\n" not in str(refused.value)
    settings = EncodeSettings(model="nobody/nothing", corpus="corpus", output="o")
    assert "no such folder, and no such model" in wrong_input(Stage("encode", "encode", settings, ()), [])


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/hub/x"), "/hub/x: no space left; free some and run again, "),
        (OSError(errno.EROFS, "Read-only file system", "/home/me/hf/hub"), "/home/me/hf/hub: read-only file system; set HF_HOME to "),
        (ConnectionResetError(errno.ECONNRESET, "reset"), "a/b: cannot be fetched from the Hub (ConnectionResetError); try again, "),
    ],
)
def test_a_disk_that_takes_no_model_is_named_and_a_network_is_tried_again(
    error: OSError, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setenv("HF_HOME", "/home/me/hf")
    monkeypatch.setattr("huggingface_hub.snapshot_download", fails)
    with pytest.raises(Exception) as caught:  # noqa: PT011
        model_place("a/b")
    found = fixable(caught.value)
    assert found is not None
    assert found[1].startswith(line)


def test_a_model_that_a_stage_is_to_make_is_not_asked_for(hub: Hub) -> None:
    stages = {
        "retriever-1": {"do": "train", "objective": "retriever", "model": "tiny", "corpus": "c", "queries": "q", "examples": "e"},
        "encode": {"do": "encode", "model": "$retriever-1", "corpus": "c"},
    }
    recipe = Recipe.build({"given": {}, "stages": stages}, "out", "here")
    assert (plan(recipe)[1]["state"], hub.asked) == ("wrong", [])  # for its corpus
    assert state(recipe.stages[1]) == ("waits", "for retriever-1")
    assert hub.asked == []


def test_settings_tell_names_of_models_of_the_hub_without_asking_it(hub: Hub) -> None:
    models = [f"hf://{REPOSITORY}", "hf://owner/other@refs/pr/1"]
    given = {"output": "o", "run": ["r"], "qrels": "q"}
    assert EvaluateSettings.read(given | {"models": models}).models == models
    with pytest.raises(InputError, match="two of models have the same name, 'tiny-encoder'"):
        EvaluateSettings.read(given | {"models": [models[0], f"tiny-encoder={models[1]}"]})
    assert not hub.asked
    assert Place.name_of(models[0]) == Place.of(models[0]).name == "tiny-encoder"


def test_a_folder_of_this_machine_comes_before_the_hub(hub: Hub, tiny_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_folder, tmp_path / REPOSITORY)
    assert DualEncoder.load(REPOSITORY).dimension
    assert model_place(REPOSITORY).located == str(tmp_path / REPOSITORY)
    (tmp_path / "out").mkdir()
    assert not is_hub_name("out/retriever")  # to be made, or mistyped: its folder is there
    assert not any(map(is_hub_name, ("tiny", "/a/b", "./a/b", "s3://a/b", "a/b/c")))
    assert is_hub_name("other/name@v1.0")
    assert hub.fetched == []


@pytest.mark.parametrize("shared", [True, False])
def test_an_exported_model_is_the_same_from_the_hub(hub, tiny_folder, tmp_path, shared):
    model = DualEncoder.load(tiny_folder, query_prefix="ask: ", passage_length=33, shared=shared)
    draft = Draft.open(tmp_path / "model", "model", {"stage": "train"})
    draft.commit_tree(model.save)
    export(ExportSettings(format="hub", model=draft.finish(0), output=tmp_path / "exported"))
    hub.files = files_of(tmp_path / "exported")
    again = DualEncoder.load(f"hf://{REPOSITORY}")
    assert again.config == model.config
    for (name, ours), theirs in zip(model.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name
