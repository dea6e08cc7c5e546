"""The command line: light imports, flags from settings, one line and an exit code for every fault."""

import json
import logging
import re
import shlex
import sys
from functools import partial
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from raydense.cli import app, main
from raydense.cli.asking import read_search
from raydense.cli.examples import EXAMPLES
from raydense.cli.flags import read
from raydense.cli.suite import read_evaluate
from raydense.recipes.stage import VERBS
from raydense.runtime import progress
from raydense.runtime.verbosity import limit_logs
from raydense.storage import Draft

ROOT = Path(__file__).parents[2]


def call(*arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    printed = capsys.readouterr()
    return stopped.value.code, printed.out, printed.err


@pytest.mark.parametrize("verb", [*VERBS, "run", "plan", "demo", "doctor", "submit", "serve"])
def test_help_of_every_verb_teaches(verb, capsys):
    code, out, _ = call(verb, "--help", capsys=capsys)
    assert code == 0
    assert " FLOAT" not in out, "a number is NUMBER"
    for name in VERBS[verb].settings.all_fields() if verb in VERBS else ():
        assert f"--{name.replace('_', '-')}" in out


@pytest.mark.parametrize("verb", EXAMPLES)
def test_the_example_of_a_help_is_a_command_that_can_be_read(verb, capsys):
    _, out, _ = call(verb, "--help", capsys=capsys)
    assert out.endswith(f"\n  Example:\n    {EXAMPLES[verb]}\n")
    raydense, name, *words = shlex.split(EXAMPLES[verb])
    assert (raydense, name) == ("raydense", verb)
    given = app.commands[verb].make_context(verb, list(words)).params
    flags = {key: value for key, value in given.items() if key not in ("config", "as_json", "address")}
    own = {"evaluate": read_evaluate, "search": read_search}
    settings = own.get(verb, partial(read, VERBS[verb].settings))(None, flags)
    assert settings.output == words[words.index("--output") + 1]


def test_the_verbs_that_a_new_user_asks_for_have_an_example():
    assert {name for name, verb in VERBS.items() if "construction" in verb.home} <= set(EXAMPLES)
    assert {"import", "index", "search", "mine", "train", "encode", "rerank", "fuse", "evaluate"} <= set(EXAMPLES)


def test_help_shows_folders_as_such_and_defaults_as_they_are_typed(capsys):
    _, out, _ = call("annotate", "--help", capsys=capsys)
    assert "--run FOLDER" in out
    assert "--corpus FOLDER" in out
    assert "--model MODEL" in out
    assert "[1,0]" in out
    assert "Resources and operation (no part of the fingerprint of the output):" in out
    helps = [call(verb, "--help", capsys=capsys)[1] for verb in VERBS]
    assert not any(re.search(r"\[\(.*\)\]", text) for text in helps), "a tuple as Python writes it"
    for name, verb in VERBS.items():
        for key, kind in verb.settings.inputs().items():
            words = re.search(rf"^ +--{key.replace('_', '-')} (\S+)", dict(zip(VERBS, helps, strict=True))[name], re.MULTILINE)
            assert words is None or words[1] == {"source": "PATH", "model": "MODEL"}.get(kind, "FOLDER"), (name, key)


def test_help_and_reference_show_the_range_of_a_number(capsys):
    asked = {verb: " ".join(call(verb, "--help", capsys=capsys)[1].split()) for verb in ("serve", "generate", "encode", "sample")}
    assert "the others follow in their order [50; 1 to 1,000]" in asked["serve"]
    assert "together have this probability [0.95; above 0 to 1]" in asked["generate"]
    assert "else 128 [at least 8]" in asked["generate"]
    assert "passages to make, rounded up to whole entities [5000; at least 100]" in asked["sample"]
    assert "test queries [500]" in asked["sample"], "no range of a count"
    assert "makes another world [1]" in asked["sample"], "no limit of a number format"
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert "| `rerank_depth` | whole number, 1 to 1,000 | `50` |" in page
    assert "| `concurrency` | resource | `1,0` |" in page


def test_help_says_of_a_verb_what_it_has(capsys):
    words = " ".join(call("pretrain", "--help", capsys=capsys)[1].split())
    assert "cross_batch" not in words
    assert "draw of negatives" not in words
    assert "labelled, and with model scored" in " ".join(call("label", "--help", capsys=capsys)[1].split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "Did you mean one of: 'pretrain', 'train'?"),
        (["train", "--lrr", "1"], "Did you mean '--lr'?"),
        (["index", "--output", "o", "--kind", "fais"], "--kind: input should be 'faiss' or 'bm25' (given: 'fais')"),
        (["search", "--output", "o", "--index", "i"], "--queries: missing; give it: the queries"),
        (["train", "--output", "o"], "--objective: missing"),
        (["search", "a question", "--config", "x.yaml", "--index", "i"], "--config: a question takes no file of settings"),
        (
            ["search", "a question", "--queries", "q", "--index", "i"],
            "--queries: is for many queries; leave it out, or leave out the question",
        ),
        (
            ["search", "a question", "--index", "i", "--threads", "2"],
            "--threads: is for many queries; leave it out, or leave out the question",
        ),
        (["search", "--index", "i", "--threads", "2"], "--threads: is for many queries; leave it out, or give --queries and --output"),
        (
            ["search", "--index", "i", "--queries", "q", "--output", "o", "--corpus", "c"],
            "--corpus: is for questions; leave it out, or ask a question without queries and output",
        ),
        (["search", "--config", "s.yaml", "--rerank-depth", "9"], "--rerank-depth: is for questions"),
        (["evaluate", "--run", "nowhere", "--qrels", "q", "--output", "o"], "no such folder"),
        (["run", "nowhere.yaml", "--output", "o"], "nowhere.yaml: no such file"),
        (["demo", "--output", ""], "--output: is empty; give the folder for the outputs of all stages"),
        (
            ["search", "--index", "i", "--queries", "q", "--output", "o", "--queries-on-cpu"],
            "a search without model does not use queries_on_cpu: leave it out",
        ),
        (
            ["search", "--index", "i", "--queries", "q", "--output", "o", "--prompt-name", "web"],
            "a search without model does not use prompt_name: leave it out",
        ),
        (
            ["search", "a question", "--index", "i", "--query-prefix", "q: "],
            "a search without model does not use query_prefix: leave it out",
        ),
        (["serve", "--index", "i", "--model", "m", "--prompt-name", "web", "--query-prefix", ""], "leave one out"),
        (
            ["encode", "--model", "m", "--corpus", "c", "--prompt-name", "web", "--output", "o"],
            "encode with corpus does not use prompt_name",
        ),
        (["serve"], "serving needs index, or pool"),
        (["serve", "--pool", "p", "--shard-replicas", "2"], "serving by pool does not use shard_replicas: leave it out"),
        (["serve", "--index", "nowhere"], "nowhere: no such folder; give a folder of kind index"),
    ],
)
def test_bad_input_is_one_line_and_2(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(*arguments, capsys=capsys)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert "Traceback" not in err
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def test_flags_override_the_file_and_its_unknown_keys_are_named(tmp_path, capsys):
    config = tmp_path / "index.yaml"
    config.write_text("kind: bm25\ncorpus: nowhere\nshard: 3\n")
    code, _, err = call("index", "--config", str(config), "--output", str(tmp_path / "o"), capsys=capsys)
    assert code == 2
    assert f"{config}: shard: unknown key; did you mean 'shards'?" in err
    config.write_text("kind: bm25\ncorpus: nowhere\n")
    code, _, err = call("index", "--config", str(config), "--shards", "-1", "--output", str(tmp_path / "o"), capsys=capsys)
    assert err.startswith("raydense: --shards: input should be ")
    code, _, err = call("index", "--config", str(config), capsys=capsys)
    assert err.startswith("raydense: --output: missing")
    code, _, err = call("index", "--config", str(config), "--embeddings", "e", "--output", str(tmp_path / "o"), capsys=capsys)
    assert (code, err) == (2, "raydense: kind bm25 does not use embeddings: leave it out\n")
    code, _, err = call("train", "--config", str(config), "--objective", "pairr", "--output", str(tmp_path / "o"), capsys=capsys)
    assert err.startswith("raydense: --objective: no method 'pairr'")
    code, _, err = call("index", "--config", str(config), "--corpus", "elsewhere", "--output", str(tmp_path / "o"), capsys=capsys)
    assert code == 2
    assert "elsewhere: no such folder" in err


def test_serve_takes_a_file_of_settings(tmp_path, capsys):
    config = tmp_path / "serve.yaml"
    config.write_text("index: nowhere\ngpus_per_replica: -1\n")
    code, _, err = call("serve", "--config", str(config), capsys=capsys)
    assert (code, err.startswith(f"raydense: {config}: gpus_per_replica: input should be greater")) == (2, True)
    code, _, err = call("serve", "--config", str(config), "--gpus-per-replica", "0", capsys=capsys)
    assert (code, err.endswith("/nowhere: no such folder; give a folder of kind index\n")) == (2, True)


def test_quiet_prints_results_and_errors_alone(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("RAYDENSE_VERBOSITY", "")
    sizes = ["--passages", "200", "--train-queries", "50", "--dev-queries", "10", "--test-queries", "10"]
    code, out, err = call("sample", *sizes, "--output", str(tmp_path / "d"), "--quiet", capsys=capsys)
    assert (code, out, err) == (0, f"sample: {tmp_path}/d (dataset, 203 rows)\n", "")
    code, out, err = call("sample", "--quiet", capsys=capsys)
    assert (code, out) == (2, "")
    assert "--output: missing" in err
    code, _, err = call("pool", "status", "--verbose", "--quiet", capsys=capsys)
    assert code == 2
    assert "--quiet and --verbose exclude each other" in err


def test_a_recipe_without_a_report_prints_what_it_made(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("RAYDENSE_VERBOSITY", "")
    recipe = tmp_path / "small.yaml"
    recipe.write_text("stages:\n  data: {do: sample, passages: 200, train_queries: 50, dev_queries: 10, test_queries: 10}\n")
    code, out, err = call("run", str(recipe), "--output", str(tmp_path / "o"), "--quiet", capsys=capsys)
    assert (code, out, err) == (0, f"run: {tmp_path}/o (data)\n", "")


def test_verbose_leaves_the_logs_of_libraries_on(capsys, monkeypatch):
    for verbosity, level in (("verbose", logging.INFO), ("", logging.ERROR)):
        monkeypatch.setenv("RAYDENSE_VERBOSITY", verbosity)
        logging.getLogger("library").setLevel(logging.INFO)
        limit_logs("library", "ERROR")
        assert logging.getLogger("library").level == level


def test_plan_as_json(tmp_path, capsys):
    code, out, _ = call(
        "plan", str(ROOT / "jobs" / "recipes" / "quickstart.yaml"), "--output", str(tmp_path / "o"), "--json", capsys=capsys
    )
    assert code == 0
    stages, total = json.loads(out)["stages"], json.loads(out)["total"]
    estimate = stages[0].pop("estimate")
    assert set(estimate) == {"seconds", "error", "gpu_hours", "memory_bytes", "output_bytes", "measured"}
    assert total["unknown"] == []
    needs = "about 5,000 passages and 5,600 queries to make"
    assert stages[0] == {"stage": "data", "verb": "sample", "state": "ready", "stops": False, "note": "", "needs": needs, "seconds": None}


def test_a_stage_from_the_command_line_is_not_run_twice(tmp_path, capsys):
    arguments = [
        "sample",
        "--passages",
        "200",
        "--train-queries",
        "50",
        "--dev-queries",
        "10",
        "--test-queries",
        "10",
        "--output",
        str(tmp_path / "d"),
    ]
    code, out, _ = call(*arguments, "--json", capsys=capsys)
    assert code == 0
    made = json.loads(out)
    assert made["kind"] == "dataset"
    before = (tmp_path / "d" / "manifest.json").stat().st_mtime_ns
    code, out, _ = call(*arguments, "--json", capsys=capsys)
    assert (code, json.loads(out)) == (0, made)
    assert (tmp_path / "d" / "manifest.json").stat().st_mtime_ns == before
    code, _, err = call(*arguments, "--seed", "9", capsys=capsys)
    assert code == 2
    assert "settings.seed: 1 -> 9" in err


def test_the_reference_follows_the_settings():
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        from make_reference import reference
    finally:
        sys.path.pop(0)
    assert (ROOT / "docs" / "reference.md").read_text(encoding="utf-8") == reference(), "run `make docs`"


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("raydense run quick", {"quickstart", "quickstart-sweep"}),
        ("raydense index --kind b", {"bm25"}),
        ("raydense train --objective p", {"pair"}),
        ("raydense sea", {"search"}),
        ("raydense search --dro", {"--drop-identical"}),
    ],
)
def test_a_shell_completes_verbs_flags_choices_and_recipes(words, offered):
    *before, incomplete = words.split()[1:]
    found = ShellComplete(app, {}, "raydense", "_RAYDENSE_COMPLETE").get_completions(before, incomplete)
    assert {item.value for item in found} == offered


def test_a_shell_completes_paths():
    (found,) = ShellComplete(app, {}, "raydense", "_RAYDENSE_COMPLETE").get_completions(["encode", "--model"], "enc")
    assert (found.type, found.value) == ("file", "enc")


def test_verify_prints_no_file_onto_the_line_of_its_progress(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "_LIVE_EVERY_S", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", sys.stderr)  # one terminal
    draft = Draft.open(tmp_path / "x", "run", {})
    draft.commit("one.txt", lambda path: path.write_text("text"), 1)
    draft.finish(1)
    (tmp_path / "x" / "one.txt").write_text("TEXT")
    code, _, shown = call("verify", str(tmp_path), capsys=capsys)
    assert code == 1
    assert "verify: 1 files" in shown
    assert f"\r\x1b[2K{tmp_path}/x/one.txt: holds other bytes" in shown


def test_verify_names_a_damaged_file_and_the_fix(tmp_path, capsys):
    made = tmp_path / "out" / "x"
    draft = Draft.open(made, "run", {"a": 1})
    draft.commit("one.txt", lambda path: path.write_text("text"), 1)
    draft.finish(1)
    code, out, err = call("verify", str(tmp_path / "out"), capsys=capsys)
    assert (code, out, err) == (0, f"verify: {tmp_path}/out: 1 files are as they were written\n", "")
    (made / "one.txt").write_text("TEXT")
    code, out, _ = call("verify", str(tmp_path / "out"), capsys=capsys)
    fix = f"delete it, and run the stage that made {made} again: it makes only this"
    assert (code, out) == (1, f"{made}/one.txt: holds other bytes than were written (sha256); {fix}\n")
    code, out, err = call("verify", str(tmp_path / "out"), "--json", capsys=capsys)
    damaged = {"artifact": str(made), "file": "one.txt", "wrong": "holds other bytes than were written (sha256)"}
    assert (code, json.loads(out), err) == (1, {"folder": f"{tmp_path}/out", "files": 1, "damaged": [damaged]}, "")
    (made / "one.txt").write_text("text")
    code, out, _ = call("verify", str(tmp_path / "out"), "--json", capsys=capsys)
    assert (code, json.loads(out)["damaged"]) == (0, [])
    (tmp_path / "empty").mkdir()
    assert call("verify", str(tmp_path / "empty"), capsys=capsys)[0] == 2
