"""Recipes: references, seeds, changes, and the faults that a person makes in them."""

import json
import pickle
import shutil
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pytest
import yaml

from raydense.data.settings import ImportSettings
from raydense.data.tables import commit_table
from raydense.errors import InputError, InputErrors
from raydense.evaluation.evaluate import evaluate
from raydense.evaluation.settings import AnswerSettings, EvaluateSettings
from raydense.recipes.content import recipe_file, recipe_named
from raydense.recipes.recipe import Recipe, plan, run, state
from raydense.recipes.stage import Stage
from raydense.recipes.sweep import Sweep
from raydense.retrieval.search import search
from raydense.retrieval.settings import SearchSettings
from raydense.storage import Draft, provenance
from raydense.training.method import method_of
from raydense.training.methods.retriever import Retriever
from raydense.training.settings import TrainSettings

RECIPES = recipe_file("quickstart").parent
RECIPE = """
seed: 7
given:
  tau: 0.05
stages:
  data:
    do: sample
    passages: 200
  words:
    do: index
    kind: bm25
    corpus: $data/corpus
  train:
    do: train
    objective: retriever
    model: tiny
    corpus: $data/corpus
    queries: $data/queries
    examples: mine
    temperature: $tau
  report:
    do: evaluate
    run: [BM25=$words, other/run]
    qrels: $data/qrels/test
"""


@pytest.fixture
def recipe(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text(RECIPE)
    return file


def test_names_become_folders_and_seeds_are_shared(recipe):
    read = Recipe.read(recipe, "out")
    data, words, train, report = read.stages
    assert data.settings.seed == 7
    assert words.settings.corpus == "out/data/corpus"
    assert words.needs == ("data",)
    assert train.settings.temperature == 0.05
    assert report.settings.run == ["BM25=out/words", "other/run"]


def test_changes_from_the_command_line(recipe):
    read = Recipe.read(recipe, "out", ("seed=3", "train.lr=1e-4", "tau=0.1", "data.passages=300"))
    assert (read.stages[0].settings.seed, read.stages[0].settings.passages) == (3, 300)
    assert (read.stages[2].settings.lr, read.stages[2].settings.temperature) == (1e-4, 0.1)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("do: sample", "do: smaple", "stages.data.do: unknown verb 'smaple'; did you mean 'sample'?"),
        ("do: sample", "do: export", "stages.data.do: its output is a plain file"),
        ("passages: 200", "passages: many", "stages.data.passages: input should be a valid integer"),
        ("passages: 200", "pasages: 200", "stages.data.pasages: unknown key; did you mean 'passages'?"),
        (
            "$data/corpus\n  train",
            "$dta/corpus\n  train",
            "stages.words.corpus: $dta is no earlier stage and not given; did you mean 'data'?",
        ),
        ("do: index", "do: index\n    bm25.k1: 2", "stages.words.bm25.k1: is a key of a group; write bm25: {k1: VALUE}"),
        ("$data/corpus", "$words/corpus", "stages.words.corpus: $words stands behind this stage; put it before"),
        ("passages: 200", "passages: 200\n    output: out/words", "stages.words.output: lies in the folder of $data, or around it"),
        ("kind: bm25", "kind: bm25\n    output: out/data/words", "stages.words.output: lies in the folder of $data, or around it"),
        (
            "passages: 200\n  words:\n",
            "passages: 200\n    output: out/a/b\n  words:\n    output: out/a\n",
            "stages.words.output: lies in the folder of $data, or around it",
        ),
        ("seed: 7", "sed: 7", "sed: unknown key; did you mean 'seed'?"),
        ("  words:\n    do: index", "  words:\n    du: index", "stages.words: has no `do:`"),
        (
            "do: index\n    kind: bm25\n    corpus: $data/corpus",
            "do: search\n    pool: nq\n    queries: q",
            "stages.words.index: a recipe says which index",
        ),
        ("stages:", "stages: [", "not YAML"),
    ],
)
def test_a_fault_names_file_and_key(recipe, old, new, message):
    assert old in RECIPE
    recipe.write_text(RECIPE.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        Recipe.read(recipe, "out")
    assert message in str(caught.value)
    assert str(recipe) in str(caught.value)


def test_every_fault_is_found_in_one_reading(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text("""
sed: 7
defaults: {corpus: $daat/corpus, quries: $data/queries}
stages:
  data: {do: sample, pasages: 200, queries_each: x}
  words: {do: indx}
  dense: {do: index, kind: faiss, embeddings: [$vectors]}
  found: {do: search, index: $words, queries: q, k: $depth, depth: 3}
  mined: {do: mine, run: $found, queries: q, qrels: $data/qrels/train, negatives: none, output: ../elsewhere}
""")
    with pytest.raises(InputErrors) as caught:
        Recipe.read(file, tmp_path / "out", ("nothing=3", "mined.depth"))
    lines = str(caught.value).splitlines()
    assert [line.removeprefix(f"{file}: ").partition("; ")[0] for line in lines] == [
        "sed: unknown key",
        "--set nothing=3: the recipe is given no 'nothing'",
        "--set mined.depth: has no '='",
        "defaults.corpus: $daat is no stage and not given",
        "stages.data.pasages: unknown key",
        "stages.data.queries_each: unknown key",
        "stages.words.do: unknown verb 'indx'",
        "stages.dense.embeddings: $vectors is no earlier stage and not given",
        "stages.found.k: $depth is no earlier stage and not given",
        "stages.found.depth: unknown key",
        "stages.mined.output: lies outside of the recipe's folder",
        "stages.mined.negatives: input should be a valid integer, unable to parse string as an integer (given: 'none')",
    ]
    assert pickle.loads(pickle.dumps(caught.value)).args[0].args == caught.value.args[0].args


def test_a_twin_is_its_base_with_other_values(recipe, tmp_path):
    (tmp_path / "twins").mkdir()
    twin = tmp_path / "twins" / "small.yaml"
    twin.write_text("""
base: ../recipe.yaml
given: {tau: 0.2}
stages:
  data: {passages: 300}
  words: {do: sample, passages: 100}
  train: {max_steps: 5, temperature: null}
  report: null
  more: {do: sample, passages: 150}
""")
    data, words, train, more = Recipe.read(twin, "out").stages
    assert (data.settings.passages, data.settings.seed) == (300, 7)
    assert (words.verb, words.settings.passages) == ("sample", 100)
    assert (train.settings.max_steps, train.settings.model, train.settings.temperature) == (5, "tiny", None)
    assert (more.name, more.settings.passages) == ("more", 150)
    assert len(Recipe.read(recipe, "out").stages) == 4


def test_a_new_stage_comes_before_the_first_that_names_it(recipe, tmp_path):
    twin = tmp_path / "twin.yaml"
    twin.write_text("""
base: recipe.yaml
stages:
  last: {do: sample, passages: 100}
  first: {do: train, objective: retriever, model: tiny, corpus: $data/corpus, queries: $data/queries, examples: x}
  second: {do: train, objective: retriever, model: $first, corpus: $data/corpus, queries: $data/queries, examples: x}
  train: {model: $second}
  ran: {do: search, index: $words, queries: $data/queries}
  report: {run: [BM25=$words, dense=$ran]}
  later: {do: sample, passages: 100}
""")
    names = [stage.name for stage in Recipe.read(twin, "out").stages]
    assert names == ["data", "words", "first", "second", "train", "ran", "report", "last", "later"]


def test_a_new_stage_comes_before_the_first_that_names_it_in_a_sweep(recipe, tmp_path):
    twin = tmp_path / "twin.yaml"
    twin.write_text("""
base: recipe.yaml
stages:
  warm: {do: train, objective: retriever, model: tiny, corpus: $data/corpus, queries: $data/queries, examples: x}
sweep:
  variants:
    cold: {}
    warm: {train.model: $warm}
""")
    for trial in Sweep.read(twin, "out").trials:
        names = [stage.name for stage in trial.recipe.stages]
        assert names.index("warm") == names.index("train") - 1


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("small.yaml", "small.yaml: base: is no other recipe"),
        ("3", "no other"),
        ("no.yaml", "no such file"),
        ("quickstrat", "small.yaml: base: quickstrat: no such recipe; did you mean 'quickstart'?"),
    ],
)
def test_a_base_must_be_another_recipe(tmp_path, base, message):
    twin = tmp_path / "small.yaml"
    twin.write_text(f"base: {base}\nstages: {{}}\n")
    with pytest.raises(InputError) as caught:
        Recipe.read(twin, "out")
    assert message in str(caught.value)


def test_a_base_may_be_the_name_of_a_recipe_that_comes_along(tmp_path):
    (tmp_path / "scifact-tiny").mkdir()
    (tmp_path / "own.yaml").write_text("base: scifact-tiny\nstages: {retriever: {epochs: 3}}\n")
    own, base = (Recipe.read(file, "out").stages for file in (tmp_path / "own.yaml", recipe_file("scifact-tiny")))
    assert [stage.name for stage in own] == [stage.name for stage in base]
    assert own[4].settings.epochs == 3
    (tmp_path / "scifact-tiny.yaml").write_text("base: scifact-tiny\nstages: {retriever: {epochs: 4}}\n")
    assert Recipe.read(tmp_path / "scifact-tiny.yaml", "out").stages[4].settings.epochs == 4


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Run #2", "Run #2"),
        ("#2", "#2"),
        ("Run # a comment", "Run # a comment"),
        ("null # none", "raydense report"),
        ("'Run #2'", "Run #2"),
        ("a#b", "a#b"),
        ("1e-5", "1e-5"),
        ("012", "012"),
        ("12:30", "12:30"),
        ("no", "no"),
        ("2024-01-02", "2024-01-02"),
        ("|", "|"),
        ("&x", "&x"),
    ],
)
def test_a_text_of_the_command_line_stays_what_it_is(recipe, text, value):
    assert Recipe.read(recipe, "out", (f"report.title={text}",)).stages[-1].settings.title == value


def test_a_comment_behind_a_number_stays_one(recipe):
    assert Recipe.read(recipe, "out", ("data.passages=300 # few",)).stages[0].settings.passages == 300


def test_an_output_in_the_source_of_its_recipe_is_wrong_before_anything_is_written(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/corpus.jsonl").write_text("{}")
    (tmp_path / "r.yaml").write_text(f"stages: {{data: {{do: import, format: beir, input: {tmp_path}/in}}}}\n")
    read = Recipe.read(tmp_path / "r.yaml", tmp_path / "in/out")
    assert state(read.stages[0])[0] == "wrong"
    with pytest.raises(InputError, match="which it is made from; give an --output outside of it"):
        list(run(read))
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["corpus.jsonl"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("trian.lr=1", "no stage 'trian'; did you mean 'train'"),
        ("nothing=1", "the recipe is given no 'nothing'; known: seed, tau"),
        ("words=3", "--set words=3: is a stage; give one of its settings, as words.KEY=VALUE"),
        ("report.title=2024", """put quotes around it; with --set, inside others: KEY='"..."'"""),
        ("train.lr", "has no '='; give stage.key=value"),
    ],
)
def test_a_change_of_what_is_not_there_is_refused(recipe, change, message):
    with pytest.raises(InputError, match=message):
        Recipe.read(recipe, "out", (change,))


def test_a_value_that_is_to_be_given_says_how(recipe, tmp_path):
    recipe.write_text(RECIPE.replace("tau: 0.05", "tau: 0.05\n  mine:").replace("examples: mine", "examples: $mine"))
    missing = r"stages\.train\.{}: missing; give it by --set mine=VALUE, or in given$"
    with pytest.raises(InputError, match=missing.format("examples")):
        Recipe.read(recipe, "out")
    with pytest.raises(InputError, match=missing.format(r"dev\.qrels")):
        Recipe.read(recipe, "out", ("train.examples=mine", "train.dev.qrels=$mine", "mine=null"))
    found = plan(Recipe.read(recipe, tmp_path / "out", ("mine=nowhere",)))
    assert "nowhere: no such folder" in found[2]["note"]
    assert "give another by --set mine=PATH" in found[2]["note"]


def test_state_follows_the_folder(recipe, tmp_path):
    read = Recipe.read(recipe, tmp_path / "out")
    data, words = read.stages[:2]
    assert state(data) == ("ready", "")
    assert state(words)[0] == "waits"
    draft = Draft.open(data.settings.output, "dataset", provenance("sample", data.settings))
    assert state(data) == ("ready", "")
    draft.commit("one", lambda path: path.write_text("one"), 0)
    assert state(data) == ("begun", "1 file committed")
    draft.finish(0)
    assert state(data)[0] == "done"
    Path(data.settings.output, "one").unlink()
    assert state(data) == ("begun", "as one is missing or damaged")
    assert state(words)[0] == "waits"
    Path(data.settings.output, "one").write_text("one")
    changed = Recipe.read(recipe, tmp_path / "out", ("data.passages=999",)).stages[0]
    status, words_ = state(changed)
    assert status == "changed"
    assert "settings.passages: 200 -> 999" in words_
    assert [row["state"] for row in plan(read)][:2] == ["done", "wrong"]  # the data set that was made has no corpus


def test_an_import_whose_source_is_gone_stays_done(recipe, tmp_path):
    """As a download that is deleted once it is imported; a source with other files is another one."""
    source = tmp_path / "raw"
    source.mkdir()
    (source / "corpus.jsonl").write_text("{}")
    recipe.write_text(RECIPE.replace("do: sample\n    passages: 200", f"do: import\n    format: beir\n    input: {source}"))
    data, other = (Recipe.read(recipe, tmp_path / "out", changes).stages[0] for changes in ((), ("data.shard_rows=9",)))
    draft = Draft.open(data.settings.output, "dataset", provenance("import", data.settings))
    draft.commit("one", lambda path: path.write_text("one"), 0)
    begun = tmp_path / "begun"
    shutil.copytree(data.settings.output, begun)
    draft.finish(3)
    assert state(data) == ("done", "3 rows")

    (source / "notes.txt").touch()
    status, words = state(data)
    assert status == "changed"
    assert f"; {source} has other files than before: take back what was added or changed" in words

    shutil.rmtree(source)
    assert state(data) == ("done", f"3 rows; its source {source} is gone")
    status, words = state(other)
    assert status == "changed"
    assert "settings.shard_rows: 25000 -> 9" in words
    assert "delete" not in words
    assert f"its source {source} is gone" in words
    half = data.settings.model_copy(update={"output": str(begun)})
    assert state(Stage("data", "import", half, ())) == ("changed", f"begun, and its source {source} is gone: put it back to go on")
    by_name = {"format": "ir_datasets", "input": "beir/scifact/test", "output": str(tmp_path / "named")}
    named = [ImportSettings.read(by_name | {"input": name}) for name in ("beir/scifact/test", "beir/nq")]
    Draft.open(tmp_path / "named", "dataset", provenance("import", named[0])).finish(3)
    assert [state(Stage("data", "import", one, ()))[0] for one in named] == ["done", "changed"]


def test_a_report_that_is_done_stays_done(tmp_path):
    run, qrels = Draft.open(tmp_path / "bm25", "run", {}), Draft.open(tmp_path / "qrels", "qrels", {})
    hit = {"query_id": ["q"], "passage_id": ["p"]}
    commit_table(run, "run.parquet", pa.table({**hit, "rank": [1], "score": [1.0]}))
    commit_table(qrels, "qrels.parquet", pa.table({**hit, "relevance": [1]}))
    run.finish(1), qrels.finish(1)
    settings = EvaluateSettings(run=[f"BM25={tmp_path}/bm25"], qrels=str(tmp_path / "qrels"), output=str(tmp_path / "out"))
    evaluate(settings)
    assert state(Stage("report", "evaluate", settings, ())) == ("done", "1 rows")
    renamed = settings.model_copy(update={"run": [f"other={tmp_path}/bm25"]})
    assert state(Stage("report", "evaluate", renamed, ()))[0] == "changed"


@pytest.mark.parametrize("file", sorted(RECIPES.glob("*.yaml")), ids=lambda file: file.stem)
def test_nothing_is_wrong_with_a_recipe_that_comes_along_but_missing_data(file: Path, tmp_path: Path) -> None:
    """A sample needs none; there a report may draw the curves of a joint training, which no other stage reads as a model."""
    recipe = Recipe.read(file, tmp_path)
    assert recipe.description
    missing = "\n" if file.stem == "quickstart" or file.stem.endswith("-sample") else ": no such f"
    rows = plan(recipe)
    assert [(row["stage"], row["note"]) for row in rows if row["state"] == "wrong" and missing not in row["note"]] == []
    assert {row["state"] for row in rows} <= {"ready", "waits", "wrong"}


def test_a_training_that_leaves_its_temperature_to_the_model_stays_done(tmp_path):
    for kind in ("corpus", "queries", "examples"):
        Draft.open(tmp_path / kind, kind, {}).finish(1)
    inputs = {kind: str(tmp_path / kind) for kind in ("corpus", "queries", "examples")}
    asked = TrainSettings(objective="retriever", model="tiny", output=str(tmp_path / "model"), **inputs)
    completed = method_of(asked).completed(asked)
    assert (asked.temperature, completed.temperature) == (None, 1.0)
    Draft.open(tmp_path / "model", "model", provenance("train", completed)).finish(0)
    assert state(Stage("retriever", "train", asked, ()))[0] == "done"
    assert state(Stage("retriever", "train", asked.replaced({"lr": 0.5}), ()))[0] == "changed"


def test_a_run_by_a_pool_is_known_by_what_the_pool_searched_with(tmp_path, monkeypatch):
    """Its search parameters are the pool's, which a recipe does not say; the pool is closed by now."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for kind in ("index", "queries"):
        Draft.open(tmp_path / kind, kind, {}).finish(0)
    inputs = {name: str(tmp_path / name) for name in ("index", "queries")}
    made = provenance("search", SearchSettings(output="o", search_params="nprobe=32", **inputs))
    stage = f"{{do: search, pool: nq, index: {inputs['index']}, queries: {inputs['queries']}}}"
    (tmp_path / "recipe.yaml").write_text(f"stages:\n  run: {stage}\n")

    def stages(*changes):
        return Recipe.read(tmp_path / "recipe.yaml", tmp_path / "out", changes).stages

    draft = Draft.open(tmp_path / "out" / "run", "run", made)
    draft.commit("run-00000.parquet", lambda path: path.write_text("a block"), 1)
    draft.close()
    assert [state(stage)[0] for stage in (*stages(), *stages("run.k=7"))] == ["begun", "changed"]
    with pytest.raises(InputError, match=r"a pool with a name|no search pool of the name"):  # what is half done needs it
        search(stages()[0].settings)
    run = Draft.open(tmp_path / "out" / "run", "run", made).finish(1)
    assert [state(stage)[0] for stage in (*stages(), *stages("run.k=7"))] == ["done", "changed"]
    assert run.manifest["made_from"]["settings"]["search_params"] == "nprobe=32"
    for given in (inputs, {"queries": inputs["queries"]}):
        again = search(SearchSettings(pool="nq", output=str(tmp_path / "out" / "run"), **given))
        assert again.fingerprint == run.fingerprint
    with pytest.raises(InputError, match=r"settings\.k: 100 -> 7"):
        search(SearchSettings(pool="nq", output=str(tmp_path / "out" / "run"), k=7, **inputs))
    with pytest.raises(InputError, match=r"settings\.search_params: nprobe=32 -> "):
        search(SearchSettings(output=str(tmp_path / "out" / "run"), **inputs))


DEFAULTS = """
defaults: {corpus: $data/corpus, queries: $data/queries, qrels: $data/qrels/test, answers: {k: [1]}}
stages:
  data: {do: sample, passages: 200}
  words: {do: index, kind: bm25}
  vectors: {do: index, kind: faiss, embeddings: e}
  found: {do: search, index: $words, qrels: null}
  mined: {do: mine, run: $found, qrels: $data/qrels/train}
  report: {do: evaluate, run: $found, answers: {match: token}}
"""


def test_a_default_is_for_every_stage_that_has_the_setting_and_does_not_set_it(tmp_path):
    (tmp_path / "recipe.yaml").write_text(DEFAULTS)
    stages = {stage.name: stage for stage in Recipe.read(tmp_path / "recipe.yaml", "out").stages}
    assert stages["words"].settings.corpus == "out/data/corpus"
    assert stages["words"].needs == ("data",)
    assert stages["vectors"].settings.corpus is None
    assert stages["found"].settings.queries == "out/data/queries"
    assert stages["found"].settings.qrels is None
    assert stages["mined"].settings.qrels == "out/data/qrels/train"
    assert stages["report"].settings.qrels == "out/data/qrels/test"
    assert (stages["report"].settings.answers.match, stages["report"].settings.answers.k) == ("token", [1])
    changed = Recipe.read(tmp_path / "recipe.yaml", "out", ("defaults.queries=other", "found.queries=own")).stages
    assert [stage.settings.queries for stage in changed[3:]] == ["own", "other", "other"]


@pytest.mark.parametrize(
    ("model", "own", "taken"), [("", "", False), ("model: m, ", "", True), ("model: m, ", "model: null, ", False), ("", "model: m, ", True)]
)
def test_a_default_of_labels_by_a_model_is_for_those_that_have_one(tmp_path, model, own, taken):
    """Also where the model is a default itself."""
    (tmp_path / "recipe.yaml").write_text(f"""
defaults: {{{model}corpus: $data/corpus, queries: $data/queries, block: 64, token_budget: 9, concurrency: "1,2", background: true}}
stages:
  data: {{do: sample, passages: 200}}
  labels: {{do: label, {own}run: x}}
""")
    labels = Recipe.read(tmp_path / "recipe.yaml", "out").stages[1].settings
    assert (labels.block, labels.token_budget, labels.concurrency, labels.background) == (
        (64, 9, (1, 2), True) if taken else (256, 0, (1, 0), False)
    )


def test_a_default_that_a_search_does_not_use_is_for_others(tmp_path):
    (tmp_path / "recipe.yaml").write_text("""
defaults: {queries_on_cpu: true}
stages:
  words: {do: search, index: i, queries: q}
  dense: {do: search, index: i, queries: q, model: m}
""")
    words, dense = (stage.settings for stage in Recipe.read(tmp_path / "recipe.yaml", "out").stages)
    assert (words.queries_on_cpu, dense.queries_on_cpu) == (False, True)


def test_a_recipe_changes_the_defaults_of_its_base(tmp_path):
    (tmp_path / "recipe.yaml").write_text(DEFAULTS)
    (tmp_path / "own.yaml").write_text("base: recipe.yaml\ndefaults: {queries: other, qrels: null}\n")
    report = Recipe.read(tmp_path / "own.yaml", "out").stages[-1].settings
    assert (report.queries, report.qrels) == ("other", None)


@pytest.mark.parametrize(
    ("stages", "changes"),
    [
        ("found: {k: 50}", ()),  # the base of this one has the null
        ("report: {qrels: null}", ("found.k=50",)),
        ("", ("found.qrels=null", "report.qrels=null", "report.answers.k=null")),
    ],
)
def test_a_null_keeps_a_default_switched_off_through_base_and_set(tmp_path, stages, changes):
    (tmp_path / "recipe.yaml").write_text(DEFAULTS)
    (tmp_path / "between.yaml").write_text("base: recipe.yaml\nstages: {report: {answers: {k: null}}}\n")
    (tmp_path / "own.yaml").write_text(f"base: between.yaml\nstages: {{{stages}}}\n")
    found, mined, report = Recipe.read(tmp_path / "own.yaml", "out", changes).stages[3:]
    assert found.settings.qrels is None
    assert mined.settings.qrels == "out/data/qrels/train"
    off = "report" in stages or "report.qrels=null" in changes
    assert report.settings.qrels == (None if off else "out/data/qrels/test")
    assert report.settings.answers == AnswerSettings(match="token")


def test_a_null_of_a_variant_keeps_a_default_switched_off(tmp_path):
    (tmp_path / "recipe.yaml").write_text(
        DEFAULTS.replace(", qrels: null", "") + "sweep: {variants: {on: {}, off: {found.qrels: null}, other: {defaults.qrels: null}}}\n"
    )
    trials = Sweep.read(tmp_path / "recipe.yaml", tmp_path / "out").trials
    on, off, other = ({stage.name: stage.settings.qrels for stage in trial.recipe.stages[3:]} for trial in trials)
    assert (on["found"] == on["report"], off["found"], off["report"]) == (True, None, on["report"])
    assert (other["found"], other["report"]) == (None, None)


def test_a_default_that_is_given_as_null_is_left_out(tmp_path):
    text = DEFAULTS.replace("defaults: {", "given: {wide: null}\ndefaults: {k: $wide, ", 1)
    assert text != DEFAULTS
    (tmp_path / "recipe.yaml").write_text(text)
    assert Recipe.read(tmp_path / "recipe.yaml", "out").stages[3].settings.k == 100


def test_a_path_below_what_is_given_as_null_is_refused(tmp_path):
    stages = {"words": {"do": "index", "kind": "bm25", "corpus": "$set/corpus"}}
    with pytest.raises(
        InputError, match=r"r\.yaml: stages\.words\.corpus: \$set is given no value; give it by --set set=VALUE, or in given"
    ):
        Recipe.build({"given": {"set": None}, "stages": stages}, tmp_path, "r.yaml")


def test_nulls_below_a_key_whose_value_is_a_mapping_stay(tmp_path):
    """As the models of OpenAI need them; in YAML as in the JSON of the command line."""
    body = {"max_tokens": None, "top_k": 5, "more": {"a": None}}
    stage = {"do": "generate", "corpus": "c", "endpoint": {"url": "http://localhost/v1", "model": "m", "extra_body": body}}
    [built] = Recipe.build({"given": {}, "stages": {"written": stage}}, tmp_path, "r.yaml").stages
    assert json.loads(built.settings.endpoint.extra_body) == body
    defaults = {"endpoint": stage["endpoint"]}
    [built] = Recipe.build(
        {"given": {}, "defaults": defaults, "stages": {"written": {"do": "generate", "corpus": "c"}}}, tmp_path, "r.yaml"
    ).stages
    assert json.loads(built.settings.endpoint.extra_body) == body


def test_a_null_leaves_out_a_key_of_another_method(tmp_path):
    """Such as the one that the base has, by which only its own class knows what is a key."""
    inputs = "corpus: c, queries: q, examples: e, model: m"
    (tmp_path / "base.yaml").write_text(f"stages: {{r: {{do: train, objective: pair, alpha: 0.2, {inputs}}}}}\n")
    (tmp_path / "own.yaml").write_text("base: base.yaml\nstages: {r: {objective: retriever, alpha: null, own_key: null}}\n")
    assert Recipe.read(tmp_path / "own.yaml", "out").stages[0].settings.objective == "retriever"


def test_a_null_of_an_unknown_key_is_refused(tmp_path):
    (tmp_path / "recipe.yaml").write_text(DEFAULTS)
    for change in ("found.qrelz=null", "report.answers.matsh=null"):
        with pytest.raises(InputError, match=r"unknown key; did you mean"):
            Recipe.read(tmp_path / "recipe.yaml", "out", (change,))


def test_what_only_the_end_of_a_run_would_refuse_is_refused_before(tmp_path):
    (tmp_path / "no model").mkdir()
    (tmp_path / "r.yaml").write_text(f"""
defaults: {{corpus: $data/corpus, queries: $data/queries, query_length: 48, passage_length: 99}}
stages:
  data: {{do: sample, passages: 300}}
  vectors: {{do: encode, model: {tmp_path}/no model}}
  of-queries: {{do: encode, model: {tmp_path}/no model, queries: $data/queries}}
  report: {{do: evaluate, run: [x], qrels: $data/qrels/test, metrics: [nDGC@10]}}
""")
    with pytest.raises(InputError, match=r"stages\.report\.metrics: unknown metric 'nDGC@10'; did you mean 'nDCG@10'\?"):
        Recipe.read(tmp_path / "r.yaml", tmp_path / "out")
    (tmp_path / "r.yaml").write_text((tmp_path / "r.yaml").read_text().replace("nDGC", "nDCG"))
    read = Recipe.read(tmp_path / "r.yaml", tmp_path / "out")
    assert (read.stages[1].settings.query_length, read.stages[1].settings.passage_length) == (None, 99)
    assert (read.stages[2].settings.query_length, read.stages[2].settings.passage_length) == (48, None)
    assert f"model: {tmp_path}/no model: no config.json; give a model folder" in plan(read)[1]["note"]


SAMPLED = {"corpus": "$data/corpus", "queries": "$data/queries", "qrels": "$data/qrels/test"}
SOURCES = {"examples": ["a=x", "b=y"], "queries": "$data/queries", "corpus": "$data/corpus"}


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"do": "evaluate", "run": ["x"], "qrels": "q", "corpus": "c", "answers": {"match": "token"}}, "queries: missing; answers.match needs it"),
        ({"do": "evaluate", "run": ["x"], "qrels": "q", "queries": "q", "answers": {"match": "token"}}, "corpus: missing; answers.match needs it"),
        ({"do": "evaluate", "run": ["$found", "$found"], "qrels": "q"}, "run: two of run have the same name, 'found'; write NAME=folder"),
        ({"do": "evaluate", "run": ["x"], "qrels": "q", "models": ["m=a", "m=b"]}, "models: two of models have the same name, 'm'; write"),
        ({"do": "fuse", "run": ["a=$found", "a=x"]}, "run: two of run have the same name, 'a'; write NAME=folder"),
        ({"do": "search", "index": ["$words", "$words"], "queries": "q"}, "index: two of index have the same name, 'words'; write"),
        ({"do": "annotate", "run": ["$found", "found=x"], **SAMPLED}, "run: two of run have the same name, 'found'; write"),
        ({"do": "annotate", "run": ["x"], "model": ["m", "a/b/../../m"], **SAMPLED}, "model: two of model have the same name, 'm'; write"),
        ({"do": "adjudicate", "annotation": "a", "qrels": "q", "threshold": 0.5, "run": ["x", "x"]}, "run: two of run have the same name, 'x'"),
        ({"do": "mix", **SOURCES, "queries": ["a=x", "c=y"]}, "queries: 'c' is no source: they are a, b; name each as in examples"),
        ({"do": "mix", **SOURCES, "run": ["a=$found"]}, "run: 'a' has a run, and no qrels; give the judgements of its queries, too"),
        ({"do": "mix", **SOURCES, "examples": ["$found", "$found"]}, "examples: two of examples have the same name, 'found'; write"),
        ({"do": "mine", "run": "$found", **SAMPLED, "skip": 9, "depth": 9}, "skip 9 leaves nothing of depth 9: give a larger depth"),
    ],
)  # fmt: skip
def test_what_the_settings_of_a_stage_alone_show_is_refused_when_it_is_read(tmp_path, values, fault):
    words = {"do": "index", "kind": "bm25", "corpus": "$data/corpus"}
    found = {"do": "search", "index": "$words", "queries": "$data/queries"}
    stages = {"data": {"do": "sample"}, "words": words, "found": found, "last": values}
    with pytest.raises(InputError) as caught:
        Recipe.build({"given": {}, "stages": stages}, tmp_path / "out", "r.yaml")
    assert str(caught.value).startswith(f"r.yaml: stages.last: {fault}")


def test_outputs_with_the_same_last_part_are_told_apart(tmp_path):
    shared = {"negatives": 1, "corpus": "$data/corpus", "queries": "$data/queries", "examples": "x"}
    joint = {"do": "train", "objective": "joint", "model": "tiny", "reranker": "tiny-encoder", **shared}
    models = ["$one/retriever", "$two/retriever"]
    report = {"do": "evaluate", "run": ["a/run", "b/run"], "qrels": "$data/qrels/test", "models": models}
    stages = {"data": {"do": "sample"}, "one": joint, "two": joint, "report": report}
    read = Recipe.build({"given": {}, "stages": stages}, tmp_path / "out", "r.yaml")
    assert read.stages[3].settings.models == [f"{tmp_path}/out/{name}/retriever" for name in ("one", "two")]


def test_a_default_that_names_a_stage_behind_all_that_have_it_is_refused(recipe, tmp_path):
    """A new stage that a default alone names stands last, where the default would be for no stage."""
    twin = tmp_path / "twin.yaml"
    found = {"do": "search", "index": "$words", "queries": "$data/queries"}

    def written(report):
        stages = {"found": found, "clean": {"do": "split", "corpus": "$data/corpus", "unit": "words"}, "report": report}
        twin.write_text(yaml.safe_dump({"base": "recipe.yaml", "defaults": {"corpus": "$clean"}, "stages": stages}))
        recipe.write_text(RECIPE.replace("$words, other/run", "$found"))
        return twin

    with pytest.raises(InputError) as refused:
        Recipe.read(written({}), tmp_path / "out")
    message = "defaults.corpus: names $clean, which stands behind every stage that has this setting; name it in one of them"
    assert str(refused.value).startswith(f"{twin}: {message}")
    assert Recipe.read(written({"corpus": "$clean"}), tmp_path / "out").stages[-1].settings.corpus == str(tmp_path / "out" / "clean")


def test_a_default_that_no_stage_has_is_refused(tmp_path):
    (tmp_path / "recipe.yaml").write_text(DEFAULTS.replace("defaults: {", "defaults: {corpsu: x, "))
    with pytest.raises(InputError, match=r"defaults\.corpsu: no stage has this setting; did you mean 'corpus'\?"):
        Recipe.read(tmp_path / "recipe.yaml", "out")


def test_a_key_given_twice_is_refused_with_its_line(tmp_path):
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("    kind: bm25\n", "    kind: bm25\n    kind: faiss\n"))
    with pytest.raises(InputError, match=r"recipe\.yaml:12: 'kind' is given twice; leave one of them out"):
        Recipe.read(tmp_path / "recipe.yaml", "out")


@pytest.mark.parametrize("value", ["!!int abc", "1" * 4_301, "!!bool maybe", "!!timestamp soon"])
def test_what_yaml_itself_cannot_read_is_refused(recipe, tmp_path, value):
    (tmp_path / "odd.yaml").write_text(f"stages:\n  data: {value}\n")
    with pytest.raises(InputError, match=r"odd\.yaml: not YAML: "):
        Recipe.read(tmp_path / "odd.yaml", "out")
    with pytest.raises(InputError, match=r"--set data\.passages: .* is not YAML"):
        Recipe.read(recipe, "out", (f"data.passages={value}",))


@pytest.mark.parametrize("part", ["stages", "given", "defaults"])
def test_a_base_without_keys_is_refused(recipe, tmp_path, part):
    recipe.write_text(f"{RECIPE if part == 'defaults' else 'description: d'}\n{part}: [1, 2]\n")
    (tmp_path / "twin.yaml").write_text(f"base: recipe.yaml\n{part}: {{data: {{passages: 3}}}}\n")
    with pytest.raises(InputError, match=rf"recipe\.yaml: {part}: holds no keys"):
        Recipe.read(tmp_path / "twin.yaml", "out")


def test_keys_that_are_no_text_or_empty_are_refused(recipe):
    with pytest.raises(InputError, match=r"--set words\.=0\.9|stages\.words"):
        Recipe.read(recipe, "out", ("words.=0.9",))
    for old, new in (("stages:\n", "defaults: {1: 2}\nstages:\n"), ("  tau: 0.05\n", "  tau: 0.05\n  1: 2\n")):
        recipe.write_text(RECIPE.replace(old, new))
        with pytest.raises(InputError, match=r"(defaults|given)\.1: is no name; put quotes around it"):
            Recipe.read(recipe, "out")


def test_what_is_nested_too_deeply_is_refused(recipe, tmp_path):
    (tmp_path / "deep.yaml").write_text("stages: " + "[\n" * 10_000)
    with pytest.raises(InputError, match=r"deep\.yaml: nested too deeply"):
        Recipe.read(tmp_path / "deep.yaml", "out")
    with pytest.raises(InputError, match=r"--set words\.kind"):
        Recipe.read(recipe, "out", ("words.kind=" + "[\n" * 10_000,))


@pytest.mark.parametrize("output", ["../elsewhere", "/elsewhere", "out/../../x"])
def test_an_output_outside_of_the_recipes_folder_is_refused(recipe, output):
    with pytest.raises(InputError, match=r"stages\.words\.output: lies outside of the recipe's folder; leave it out"):
        Recipe.read(recipe, "out", (f"words.output={output}",))
    assert Recipe.read(recipe, "out", ("words.output=out/sub/words",)).stages[1].settings.output == "out/sub/words"


def test_a_recipe_is_found_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert recipe_named("quickstart") == str(RECIPES / "quickstart.yaml")
    with pytest.raises(InputError, match=r"^quickstrat: no such recipe; did you mean 'quickstart'\?"):
        recipe_named("quickstrat")
    assert recipe_named("my/own.yaml") == "my/own.yaml"
    (tmp_path / "own-data").mkdir()
    assert recipe_named("own-data") == str(RECIPES / "own-data.yaml"), "a folder with data of that name is no recipe"
    (tmp_path / "quickstart").write_text("stages: {}")
    assert recipe_named("quickstart") == "quickstart"


def test_examples_without_the_scores_that_a_method_learns_from_are_wrong(tmp_path):
    rows = {"query_id": ["q"], "positives": [[0]], "negatives": [[1]]}
    for name, scores in (("plain", {}), ("scored", {"positive_scores": [[1.0]], "negative_scores": [[0.5]]})):
        draft = Draft.open(tmp_path / name, "examples", {})
        commit_table(draft, "examples.parquet", pa.table(rows | scores))
        draft.finish(1)

    def planned(objective, examples):
        given = {"model": "tiny", "corpus": "$data/corpus", "queries": "$data/queries", "examples": str(tmp_path / examples)}
        train = {"do": "train", "objective": objective, "negatives": 1, **given}
        recipe = Recipe.build({"given": {}, "stages": {"data": {"do": "sample"}, "train": train}}, tmp_path / "out", "r.yaml")
        return plan(recipe)[1]

    for objective in ("margin-mse", "kl"):
        row = planned(objective, "plain")
        lacks = f"examples: {tmp_path}/plain: has no teacher's scores, which objective {objective} learns from; give examples of"
        assert (row["state"], row["note"].startswith(lacks)) == ("wrong", True)
        assert planned(objective, "scored")["state"] == "waits"
    assert planned("retriever", "plain")["state"] == "waits"


MINED = {"do": "mine", "run": "$found", "negatives": 4, "corpus": "$data/corpus", "queries": "$data/queries", "qrels": "$data/qrels/train"}


@pytest.mark.parametrize(
    ("mined", "trained", "note"),
    [
        ({}, {"negatives": 4}, ""),
        ({}, {"negatives": 5}, "negatives: takes 5 of each query, and $mined has negatives 4: give it 5, or take fewer"),
        ({"shortage": "drop"}, {"negatives": 4}, ""),
        ({"shortage": "drop", "min_negatives": 1}, {"negatives": 1}, ""),
        ({"shortage": "drop", "min_negatives": 1}, {"negatives": 2}, "negatives: takes 2 of each query, and $mined has min_negatives 1: give it 2, or take fewer"),
        ({"shortage": "fail", "min_negatives": 3}, {"negatives": 4}, "negatives: takes 4 of each query, and $mined has min_negatives 3: give it 4, or take fewer"),
        ({"min_negatives": 1}, {"negatives": 4}, ""),
        ({"negatives": 3}, {"negatives": 4, "examples": "$both/examples"}, "negatives: takes 4 of each query, and $mined has negatives 3: give it 4, or take fewer"),
        ({"negatives": 3}, {"negatives": 4, "examples": "$more", "more_examples": "$mined"}, "negatives: takes 4 of each query, and $mined has negatives 3: give it 4, or take fewer"),
        ({}, {"objective": "multi-positive", "positives": 3, "negatives": 5}, "negatives: takes 5 of each query, and $mined has negatives 4: give it 5, or take fewer"),
    ],
)  # fmt: skip
def test_examples_that_may_have_fewer_negatives_than_are_taken_are_wrong(tmp_path, mined, trained, note):
    """The training would end so, after all that its examples are made of."""
    stages = {
        "data": {"do": "sample"},
        "words": {"do": "index", "kind": "bm25", "corpus": "$data/corpus"},
        "found": {"do": "search", "index": "$words", "queries": "$data/queries"},
        "more": MINED,
        "mined": MINED | mined,
        "both": {"do": "mix", "examples": ["a=$more", "b=$mined"], **TEXTS},
        "last": {**TRAINED, "objective": "retriever", "examples": "$mined", **trained},
    }
    row = plan(Recipe.build({"given": {}, "stages": stages}, tmp_path / "out", "r.yaml"))[-1]
    assert (row["state"], row["note"]) == (("wrong", note) if note else ("waits", row["note"]))


def test_examples_that_are_made_are_asked_how_many_negatives_they_have(tmp_path):
    Draft.open(tmp_path / "out" / "mined", "examples", {}).finish(1)
    stages = {
        "data": {"do": "sample"},
        "words": {"do": "index", "kind": "bm25", "corpus": "$data/corpus"},
        "found": {"do": "search", "index": "$words", "queries": "$data/queries"},
        "mined": MINED | {"min_negatives": 1, "shortage": "drop"},
        "last": {**TRAINED, "objective": "retriever", "examples": "$mined", "negatives": 4},
    }
    assert plan(Recipe.build({"given": {}, "stages": stages}, tmp_path / "out", "r.yaml"))[-1]["state"] == "waits"


@pytest.mark.parametrize(
    ("missing", "note"),
    [
        ("", ""),
        ("qrels/train.tsv", "qrels: $data has no qrels/train; it has corpus, qrels/test, queries"),
        ("queries.jsonl.gz", "queries: $data has no queries; it has corpus, qrels/test, qrels/train"),
    ],
)
def test_a_part_that_an_import_will_not_make_is_wrong(tmp_path, missing, note):
    (tmp_path / "beir" / "qrels").mkdir(parents=True)
    for name in {"corpus.jsonl", "queries.jsonl.gz", "qrels/test.tsv", "qrels/train.tsv"} - {missing}:
        (tmp_path / "beir" / name).touch()
    data = {"do": "import", "format": "beir", "input": str(tmp_path / "beir")}
    words = {"do": "index", "kind": "bm25", "corpus": "$data/corpus"}
    found = {"do": "search", "index": "$words", "queries": "$data/queries", "qrels": "$data/qrels/train"}
    recipe = Recipe.build({"given": {}, "stages": {"data": data, "words": words, "found": found}}, tmp_path / "out", "r.yaml")
    row = plan(recipe)[2]
    assert (row["state"], row["note"]) == (("wrong", note) if note else ("waits", "for words, data"))


@pytest.mark.parametrize(
    ("format", "files", "note"),
    [
        ("dpr", {"psgs_w100.tsv.gz": "", "biencoder-train.json": '[{"question": "q", "positive_ctxs": []}]'}, ""),
        ("dpr", {"psgs_w100.tsv.gz": "", "nq-train.json": '[{"positive_ctxs": []}]'}, "corpus, examples/nq-train, qrels/nq-train, queries"),
        ("dpr", {"psgs_w100.tsv": "", "biencoder-train.json": '[{"question": "\\"positive_ctxs\\":", "ctxs": []}]'}, "corpus, queries, run"),
        ("dureader", {"part-00": "", "passage2id.map.json": "", "train/dual.biencoder-train.tsv": ""}, "corpus, examples/dual.biencoder-train, qrels/train, queries"),
        ("dureader", {"part-00": "", "biencoder-train.json": '{"question": "q", "answer_paragraphs": []}'}, "corpus, qrels/biencoder-train, queries"),
        ("dureader", {"notes.txt": ""}, ""),  # which the import refuses
    ],
)  # fmt: skip
def test_a_file_that_an_import_of_a_paper_lacks_is_missed_before_it(tmp_path, format, files, note):
    for name, text in files.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(text)
    stages = {
        "data": {"do": "import", "format": format, "input": str(tmp_path / "in")},
        "trained": {**TRAINED, "objective": "retriever", "examples": "$data/examples/biencoder-train"},
    }
    row = plan(Recipe.build({"given": {}, "stages": stages}, tmp_path / "out", "r.yaml"))[1]
    wrong = f"examples: $data has no examples/biencoder-train; it has {note}"
    assert (row["state"], row["note"]) == (("wrong", wrong) if note else ("waits", "for data"))


def test_the_corpus_of_a_data_set_that_is_named_is_looked_for(tmp_path):
    data = {"do": "import", "format": "ir_datasets", "input": "beir/scifact/test", "corpus": str(tmp_path / "nowhere")}
    recipe = Recipe.build({"given": {}, "stages": {"data": data}}, tmp_path / "out", "r.yaml")
    assert plan(recipe)[0]["note"] == f"corpus: {tmp_path}/nowhere: no such folder; give a folder of kind corpus"


@pytest.mark.parametrize("unjudged", [0, 0.5])
def test_a_sample_has_unjudged_positives_only_where_it_makes_some(tmp_path, unjudged):
    data = {"do": "sample", "unjudged": unjudged}
    words = {"do": "index", "kind": "bm25", "corpus": "$data/corpus"}
    found = {"do": "search", "index": "$words", "queries": "$data/queries", "qrels": "$data/qrels/unjudged"}
    recipe = Recipe.build({"given": {}, "stages": {"data": data, "words": words, "found": found}}, tmp_path / "out", "r.yaml")
    assert plan(recipe)[2]["state"] == ("waits" if unjudged else "wrong")


@pytest.mark.parametrize("models", [["m=tiny"], ["tiny", "x=other"]])
def test_tiny_is_refused_where_several_trained_models_are_read(models):
    with pytest.raises(InputError, match="models: tiny is a small model from scratch"):
        EvaluateSettings.read({"models": models, "run": ["r"], "output": "-"})


def test_tiny_is_refused_where_a_trained_model_is_read():
    with pytest.raises(InputError, match=r"own-data\.yaml: stages\.vectors-0\.model: tiny is a small model from scratch"):
        Recipe.read(recipe_file("own-data"), "out", ("encoder=tiny",))
    assert Recipe.read(recipe_file("medquad-tiny"), "out").stages[4].settings.model == "tiny"


@pytest.mark.parametrize(
    ("change", "stage", "note"),
    [
        ("words.corpus=nowhere/corpus", "words", "corpus: nowhere/corpus: no such folder; give a folder of kind corpus"),
        ("words.corpus=data/corpus", "words", "corpus: data/corpus: no such folder; give a folder of kind corpus; the output of a stage is written $data/corpus"),
        ("words.corpus=$data", "words", "corpus: $data is dataset, not corpus; name one of its parts, as $data/corpus"),
        ("found.index=$data/corpus", "found", "index: $data/corpus is corpus, not index"),
        ("found.queries=$words", "found", "queries: $words is index, not queries"),
        ("found.qrels=$data/qrels/tset", "found", "qrels: $data has no qrels/tset; it has corpus, qrels/dev, qrels/test, qrels/train, queries"),
        ("vectors.model=elsewhere", "vectors", "model: elsewhere: no such file or folder"),
        ("report.run=[BM25=$words]", "report", "run: $words is index, not run"),
        ("other.input=nowhere", "other", "input: nowhere: no such file or folder"),
    ],
)  # fmt: skip
def test_a_plan_names_an_input_that_will_not_be_there(tmp_path, monkeypatch, change, stage, note):
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    Path("recipe.yaml").write_text("""
defaults: {corpus: $data/corpus, queries: $data/queries}
stages:
  data: {do: sample, passages: 200}
  other: {do: import, format: beir, input: in, corpus: null}
  words: {do: index, kind: bm25}
  trained: {do: train, objective: retriever, model: tiny, examples: $data/qrels/train}
  vectors: {do: encode, model: $trained}
  found: {do: search, index: $words, qrels: $data/qrels/test}
  report: {do: evaluate, run: [BM25=$found], qrels: $data/qrels/test}
""")
    rows = {row["stage"]: row for row in plan(Recipe.read("recipe.yaml", "out"))}
    assert {row["state"] for row in rows.values()} == {"ready", "waits"}
    rows = {row["stage"]: row for row in plan(Recipe.read("recipe.yaml", "out", (change,)))}
    assert [name for name, row in rows.items() if row["state"] == "wrong"] == [stage]
    assert rows[stage]["note"] == note


def test_a_folder_that_is_given_to_a_recipe_is_not_taken_for_the_output_of_a_stage(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stages = {"data": {"do": "sample"}, "words": {"do": "index", "kind": "bm25", "corpus": "$texts"}}
    recipe = Recipe.build({"given": {"texts": "data/texts"}, "stages": stages}, "out", "r.yaml")
    note = "corpus: data/texts: no such folder; give a folder of kind corpus; give another by --set texts=PATH"
    assert plan(recipe)[1]["note"] == note


TEXTS = {"corpus": "$data/corpus", "queries": "$data/queries"}
TRAINED = {"do": "train", "model": "tiny", **TEXTS, "examples": "$data/qrels/train"}


class Unnamed(Retriever):
    """A method that does not say what it trains."""

    models: ClassVar[dict[str, str]] = {}


@pytest.mark.parametrize(
    ("values", "note"),
    [
        ({"do": "rerank", "model": "$retriever", "run": "$found"}, "model: $retriever is retriever, not re-ranker"),
        ({"do": "rerank", "model": "$joint/retriever", "run": "$found"}, "model: $joint/retriever is retriever, not re-ranker"),
        ({"do": "rerank", "model": "$encoder", "run": "$found"}, "model: $encoder is encoder, not re-ranker"),
        ({"do": "label", "model": "$retriever", "run": "$found"}, "model: $retriever is retriever, not re-ranker"),
        ({"do": "annotate", "model": ["$reranker", "b=$retriever"], "run": "$found", "qrels": "$data/qrels/test"}, "model: $retriever is retriever, not re-ranker"),
        ({"do": "encode", "model": "$reranker", "queries": None}, "model: $reranker is re-ranker, not retriever or encoder"),
        ({"do": "encode", "model": "$generator", "queries": None}, "model: $generator is generator, not retriever or encoder"),
        ({"do": "search", "model": "$joint/reranker", "index": "$words", "corpus": None}, "model: $joint/reranker is re-ranker, not retriever or encoder"),
        ({"do": "generate", "model": "$retriever", "queries": None}, "model: $retriever is retriever, not generator"),
        ({**TRAINED, "objective": "retriever", "negatives": 1, "refresh": {"every": 1, "reranker": "$retriever"}}, "refresh.reranker: $retriever is retriever, not re-ranker"),
        ({"do": "encode", "model": "$joint/retrievr", "queries": None}, "model: $joint has no retrievr; it has reranker, retriever"),
        ({"do": "encode", "model": "$joint/retriever/query_encoder", "queries": None}, ""),
        ({"do": "rerank", "model": "$reranker", "run": "$found"}, ""),
        ({"do": "rerank", "model": "$joint/reranker", "run": "$found"}, ""),
        ({"do": "encode", "model": "$joint/retriever", "queries": None}, ""),
        ({"do": "encode", "model": "$encoder", "queries": None}, ""),
        ({"do": "generate", "model": "$generator", "queries": None}, ""),
        ({"do": "rerank", "model": "$unnamed", "run": "$found"}, ""),
        ({**TRAINED, "objective": "reranker", "negatives": 1, "model": "$retriever"}, ""),
    ],
)  # fmt: skip
def test_a_model_that_was_trained_for_something_else_is_wrong(tmp_path, values, note):
    stages = {
        "data": {"do": "sample"},
        "words": {"do": "index", "kind": "bm25", "corpus": "$data/corpus"},
        "found": {"do": "search", "index": "$words", "queries": "$data/queries"},
        "encoder": {"do": "pretrain", "method": "mlm", "model": "tiny", "corpus": "$data/corpus"},
        "retriever": {**TRAINED, "objective": "retriever"},
        "unnamed": {**TRAINED, "objective": f"{__name__}:Unnamed"},
        "reranker": {**TRAINED, "objective": "reranker", "negatives": 1},
        "generator": {**TRAINED, "objective": "generator"},
        "joint": {**TRAINED, "objective": "joint", "reranker": "$reranker", "negatives": 1},
        "last": {key: value for key, value in (TEXTS | values).items() if value is not None},
    }
    recipe = Recipe.build({"given": {}, "stages": stages}, tmp_path / "out", "r.yaml")
    row = plan(recipe)[-1]
    assert (row["state"], row["note"]) == (("wrong", note) if note else ("waits", row["note"]))


def test_a_model_that_was_made_before_is_checked_too(tmp_path):
    Draft.open(tmp_path / "out" / "retriever", "model", {}).finish(1)
    (tmp_path / "out" / "retriever" / "config.json").write_text("{}")
    reranked = {"do": "rerank", "model": "$retriever", "run": "$found", **TEXTS}
    found = {"do": "search", "index": "x", "queries": "$data/queries"}
    stages = {"data": {"do": "sample"}, "found": found, "retriever": {**TRAINED, "objective": "retriever"}, "last": reranked}
    recipe = Recipe.build({"given": {}, "stages": stages}, tmp_path / "out", "r.yaml")
    assert plan(recipe)[-1]["note"] == "model: $retriever is retriever, not re-ranker"


@pytest.mark.parametrize("steps", [100, 1000])
def test_own_data_is_trained_for_more_than_half_of_its_steps_at_any_length(tmp_path, steps):
    """Patience must not end a longer training inside its warm-up, which is a share of the steps."""
    stages = {stage.name: stage for stage in Recipe.read(recipe_file("own-data"), tmp_path, (f"retriever.max_steps={steps}",)).stages}
    training = stages["retriever"].settings
    every = training.dev.every or -(-steps // 10)
    assert training.dev.patience * every > max(steps / 2, training.warmup * steps)
