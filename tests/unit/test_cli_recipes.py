"""`run` and `plan`: a fault that is known before the first stage stops both, and an error names its stage."""

import json
import re
import shutil
from pathlib import Path

import pytest

from raydense.cli import main
from raydense.errors import InputError
from raydense.recipes.content import load_recipe, recipe_file, recipe_names
from raydense.recipes.recipe import Recipe, run
from raydense.storage import Draft

RECIPE = """
defaults: {corpus: $data/corpus, queries: $data/queries}
stages:
  data: {do: sample, passages: 200}
  words: {do: index, kind: bm25, corpus: nowhere/corpus}
  found: {do: search, index: $words}
  report: {do: evaluate, run: [BM25=$found], qrels: nowhere/qrels}
"""
MISSING = "nowhere/corpus: no such folder; give a folder of kind corpus"


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.yaml").write_text(RECIPE)
    return tmp_path


def call(capsys, *arguments: str) -> tuple[object, str, list[str]]:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    out, err = capsys.readouterr()
    return stopped.value.code, out, err.splitlines()


def test_the_recipes_are_listed_with_a_sentence_and_the_names_that_they_are_given(capsys):
    code, out, err = call(capsys, "plan", "--list")
    names, sentences = out.splitlines()[::2], out.splitlines()[1::2]
    assert (code, err) == (0, [])
    assert [line.split()[0] for line in names] == recipe_names()
    assert all(re.fullmatch(r" {4}\S.{19,}[^.]", line) for line in sentences)
    assert "    Generation-augmented retrieval (Mao et al. 2021)" in {line[:52] for line in sentences}
    content = load_recipe(recipe_file("pair-medquad-sweep"))  # it has no stages of its own, and all names from its base
    assert f"pair-medquad-sweep  [{', '.join(content['given'])}]" in names


def test_a_plan_with_a_wrong_stage_is_printed_and_ends_with_2(here, capsys):
    code, out, expected = call(capsys, "plan", "r.yaml", "--output", "out")
    assert (code, len(expected)) == (2, 1)
    assert expected[0].startswith(f"raydense: r.yaml: a run would stop at stages words, report; corpus: {MISSING}")
    assert f"words   index     wrong    corpus: {MISSING}" in out.splitlines()
    code, out, err = call(capsys, "plan", "r.yaml", "--output", "out", "--json")
    assert (code, err) == (2, expected)
    assert [row["state"] for row in json.loads(out)["stages"]] == ["ready", "wrong", "waits", "wrong"]


@pytest.mark.parametrize("verb", ["plan", "run"])
def test_every_fault_of_a_recipe_is_a_line(here, capsys, verb):
    (here / "r.yaml").write_text(RECIPE.replace("passages", "pasages").replace("kind: bm25", "kind: bm52"))
    code, out, err = call(capsys, verb, "r.yaml", "--output", "out")
    assert (code, out, len(err)) == (2, "", 2)
    assert err[0] == "raydense: r.yaml: stages.data.pasages: unknown key; did you mean 'passages'?"
    assert err[1].startswith("raydense: r.yaml: stages.words.kind: input should be 'faiss' or 'bm25' (given: 'bm52')")


def test_a_plan_of_a_sweep_shows_what_is_wrong(here, capsys):
    (here / "r.yaml").write_text(f"{RECIPE}sweep: {{seed: [1, 2]}}\n")
    code, out, err = call(capsys, "plan", "r.yaml", "--output", "out")
    assert (code, len(err)) == (2, 1)
    assert f"1 wrong; corpus: {MISSING}" in out


@pytest.mark.parametrize("sweep", ["", "sweep: {seed: [1, 2]}\n"])
def test_a_run_is_refused_before_its_first_stage(here, capsys, sweep):
    (here / "r.yaml").write_text(RECIPE + sweep)
    code, out, err = call(capsys, "run", "r.yaml", "--output", "out")
    assert (code, out) == (2, "")
    assert err == [
        f"raydense: r.yaml: stages.words: corpus: {MISSING}",
        "raydense: r.yaml: stages.report: qrels: nowhere/qrels: no such folder; give a folder of kind qrels",
    ]
    assert not (here / "out").exists()


def test_each_fault_of_a_sweep_names_the_trials_that_have_it(here, capsys):
    variants = "{a: {words.corpus: nowhere/a}, b: {words.corpus: nowhere/b}, c: {words.corpus: nowhere/b, words.bm25.k1: 0.8}}"
    (here / "r.yaml").write_text(f"{RECIPE}sweep: {{variants: {variants}}}\n".replace("qrels: nowhere/qrels", "qrels: $data/qrels/test"))
    code, _, err = call(capsys, "run", "r.yaml", "--output", "out")
    assert code == 2
    assert err == [
        "raydense: r.yaml: stages.words (of a): corpus: nowhere/a: no such folder; give a folder of kind corpus",
        "raydense: r.yaml: stages.words (of b, c): corpus: nowhere/b: no such folder; give a folder of kind corpus",
    ]
    code, out, _ = call(capsys, "plan", "r.yaml", "--output", "out")
    assert code == 2
    assert "nowhere/a: no such folder" in out
    assert "nowhere/b: no such folder" in out


def test_what_was_made_from_something_else_is_refused_before_the_first_stage(here, capsys):
    (here / "r.yaml").write_text(
        "stages:\n  one: {do: sample, passages: 200, train_queries: 50}\n  two: {do: sample, passages: 200, train_queries: 50}\n"
    )
    stage = Recipe.read("r.yaml", "out").stages[1]
    stage.run()
    code, _, err = call(capsys, "run", "r.yaml", "--output", "out", "--set", "two.passages=300")
    assert code == 2
    assert err[-1].startswith("raydense: r.yaml: stages.two: made from something else (settings.passages: 200 -> 300)")
    assert not (here / "out" / "one").exists()
    code, out, err = call(capsys, "plan", "r.yaml", "--output", "out", "--set", "two.passages=300")
    assert (code, len(err)) == (2, 1)
    assert err[0].startswith("raydense: r.yaml: a run would stop at stage two; made from something else (settings.passages: 200 -> 300)")
    assert "changed  made from something else" in out


CHAIN = """
stages:
  data: {do: sample, passages: 200, train_queries: 50, dev_queries: 10, test_queries: 10}
  one: {do: perturb, kind: typo, queries: $data/queries}
  two: {do: perturb, kind: typo, queries: $one}
  three: {do: perturb, kind: typo, queries: $two}
  other: {do: perturb, kind: typo, queries: $data/queries}
"""


def test_a_changed_stage_names_all_that_was_made_from_it(here, capsys):
    (here / "r.yaml").write_text(CHAIN)
    for stage in Recipe.read("r.yaml", "out").stages:
        stage.run()
    code, _, err = call(capsys, "run", "r.yaml", "--output", "out", "--set", "one.rate=0.3")
    assert code == 2
    assert "delete out/one to make it again; with it what was made from it: out/two, out/three; or give" in err[-1]
    code, out, err = call(capsys, "plan", "r.yaml", "--output", "out", "--set", "one.rate=0.3")
    assert (code, len(err)) == (2, 1)
    rows = [line.split(maxsplit=3) for line in out.partition("\n\n")[0].splitlines()]
    assert [row[2] for row in rows] == ["done", "changed", "changed", "changed", "done"]
    assert rows[3][3].startswith("made from two, which may change")

    shutil.rmtree("out/one")  # and no more than that: the stage is made, and the next names what is left
    code, _, err = call(capsys, "run", "r.yaml", "--output", "out", "--set", "one.rate=0.3")
    assert code == 2
    assert "stages.two: made from something else" in err[-1]
    assert "delete out/two to make it again; with it what was made from it: out/three; or" in err[-1]
    for name in ("two", "three"):
        shutil.rmtree(f"out/{name}")
    assert [stage.name for stage, _, _ in run(Recipe.read("r.yaml", "out", ("one.rate=0.3",)))] == ["data", "one", "two", "three", "other"]


def test_a_plan_of_which_nothing_is_known_has_no_times(here, capsys):
    (here / "r.yaml").write_text("stages: {data: {do: import, format: beir, input: nowhere}}")
    code, out, _ = call(capsys, "plan", "r.yaml", "--output", "out", "--json")
    total = json.loads(out)["total"]
    assert (code, total["unknown"]) == (2, ["data"])
    assert not total.keys() & {"seconds", "error", "gpu_hours"}
    assert "total" not in call(capsys, "plan", "r.yaml", "--output", "out")[1]


@pytest.mark.parametrize("verb", ["run", "plan", "submit"])
def test_an_empty_output_is_refused(here, capsys, verb):
    words = [verb] if verb != "submit" else ["submit", "run"]
    assert call(capsys, *words, "r.yaml", "--output", "")[2] == [
        "raydense: --output: is empty; give the folder for the outputs of all stages"
    ]


def test_a_plan_to_make_deleted_inputs_again_ends_with_0(here, capsys):
    data = "{do: sample, passages: 200, train_queries: 50, dev_queries: 10, test_queries: 10}"
    (here / "r.yaml").write_text(f"stages:\n  data: {data}\n  words: {{do: index, kind: bm25, corpus: $data/corpus}}\n")
    recipe = Recipe.read("r.yaml", "out")
    recipe.stages[0].run()
    Draft.open("out/words", "index", {"verb": "index"}).finish(0)
    shutil.rmtree("out/data")
    code, out, err = call(capsys, "plan", "r.yaml", "--output", "out")
    assert code == 0, err
    assert [line.split()[2] for line in out.partition("\n\n")[0].splitlines()] == ["ready", "changed"]


def test_an_error_of_a_stage_names_it(here, capsys, monkeypatch):
    (here / "beir" / "qrels").mkdir(parents=True)
    (here / "beir" / "corpus.jsonl").write_text('{"_id": "1", "text": 7}\n')
    (here / "beir" / "queries.jsonl").write_text("")
    (here / "r.yaml").write_text("stages:\n  data: {do: import, format: beir, input: beir}\n")
    code, _, err = call(capsys, "run", "r.yaml", "--output", "out")
    assert code == 2
    assert err[-1].startswith("raydense: r.yaml: stages.data: beir/corpus.jsonl:1: 'text' is 7, not a string")
    with pytest.raises(InputError):
        list(run(Recipe.read("r.yaml", "out")))

    def fail(settings: object) -> None:
        raise RuntimeError("no fault of the user")

    monkeypatch.setattr("raydense.data.importing.import_dataset", fail)
    with pytest.raises(RuntimeError, match="no fault of the user"):
        list(run(Recipe.read("r.yaml", "out")))
    assert capsys.readouterr().err.splitlines()[-1] == "r.yaml: stages.data: no fault of the user"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "--concurrent", "4"), "--concurrent: there is one trial, as the recipe has no `sweep:`; leave it out"),
        (
            ("submit", "run", "--address", "http://127.0.0.1:9", "--concurrent", "4"),
            "--concurrent: there is one trial, as the recipe has no",
        ),
        (("plan", "--address", "127.0.0.1:9"), "--address: nothing is measured without --calibrate; leave it out, or give --calibrate"),
        (("plan", "--calibrate-seconds", "9"), "--calibrate-seconds: nothing is measured without --calibrate; leave it out"),
    ],
)
def test_a_flag_without_effect_is_refused(here, capsys, words, message):
    (here / "r.yaml").write_text("stages: {data: {do: sample}}")
    code, out, err = call(capsys, *words, "r.yaml", "--output", str(here / "out"))
    assert (code, out, len(err)) == (2, "", 1)
    assert message in err[0]
    assert not (here / "out").exists()
