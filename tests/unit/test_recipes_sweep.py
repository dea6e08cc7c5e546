"""Sweeps: the grid, variants, which stages trials share, and the faults that a person makes in them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from raydense.cli import main
from raydense.errors import InputError, InputErrors
from raydense.evaluation.sweep_chart import Axis, bars_svg, chart_svg
from raydense.evaluation.trials import markdown_table, summarise, text_table
from raydense.recipes.content import recipe_file
from raydense.recipes.inputs import _fewer_negatives
from raydense.recipes.recipe import Recipe
from raydense.recipes.sweep import Sweep, plan_sweep, trial_to_calibrate
from raydense.storage import Artifact, Draft
from raydense.training.settings import LoopSettings, TrainSettings

RECIPE = """
given: {tau: 0.05, base: tiny, encoder: models/encoder}
stages:
  data: {do: sample, passages: 200, seed: 1}
  train: {do: train, objective: pair, model: $base, corpus: $data/corpus, queries: $data/queries, examples: $data/qrels/train, temperature: $tau}
  vectors: {do: encode, model: $train, corpus: $data/corpus}
  dense: {do: index, kind: faiss, embeddings: $vectors}
  found: {do: search, index: $dense, model: $train, queries: $data/queries}
  words: {do: index, kind: bm25, corpus: $data/corpus}
  bm25: {do: search, index: $words, queries: $data/queries}
  report: {do: evaluate, run: [$bm25, dense=$found], qrels: $data/qrels/test}
sweep:
  seed: [1, 2]
  variants:
    complete: {}
    without passage-centric: {train.alpha: 0}
"""


SWEPT = [file for file in (Path(__file__).parents[2] / "jobs" / "recipes").glob("*.yaml") if "\nsweep:" in file.read_text()]


def write(folder: Path, text: str = RECIPE) -> Path:
    file = folder / "recipe.yaml"
    file.write_text(text)
    return file


def read(file: Path, output: str | Path = "out", changes: tuple[str, ...] = ()) -> Sweep:
    sweep = Sweep.read(file, output, changes)
    assert sweep is not None
    return sweep


def folders(sweep: Sweep) -> list[dict[str, str]]:
    return [{stage.name: stage.settings.output for stage in trial.recipe.stages} for trial in sweep.trials]


def with_sweep(text: str) -> str:
    return RECIPE[: RECIPE.index("sweep:")] + text


def test_variants_are_crossed_with_the_grid_and_seeds(tmp_path):
    sweep = read(write(tmp_path, RECIPE + "  tau: [0.05, 1]\n"))
    names = [trial.name for trial in sweep.trials]
    assert len(names) == 8
    assert names[:3] == ["complete, tau=0.05, seed=1", "complete, tau=0.05, seed=2", "complete, tau=1, seed=1"]
    assert {trial.variant for trial in sweep.trials[:2]} == {"complete, tau=0.05"}
    found = {(train.alpha, train.temperature, train.seed) for t in sweep.trials for train in [t.recipe.stages[1].settings]}
    assert found == {(a, tau, seed) for a in (0.1, 0) for tau in (0.05, 1) for seed in (1, 2)}


def test_a_variant_leaves_a_key_out_and_names_other_stages(tmp_path):
    recipe = RECIPE.replace("temperature: $tau", "temperature: $tau, alpha: 0.2")
    change = "without passage-centric: {train.objective: retriever, train.alpha: null}\n    zero-shot: {vectors.model: $encoder}"
    trials = read(write(tmp_path, recipe.replace("without passage-centric: {train.alpha: 0}", change))).trials
    settings = [{stage.name: stage.settings for stage in trial.recipe.stages} for trial in trials]
    assert [(s["train"].objective, getattr(s["train"], "alpha", None)) for s in settings[::2]] == [
        ("pair", 0.2),
        ("retriever", None),
        ("pair", 0.2),
    ]
    assert settings[4]["vectors"].model == "models/encoder"
    assert settings[4]["train"] == settings[0]["train"]


def test_a_grid_alone_and_seeds_alone(tmp_path):
    names = [t.name for t in read(write(tmp_path, with_sweep("sweep: {train.alpha: [0, 0.5], data.passages: [200]}"))).trials]
    assert names == ["train.alpha=0, data.passages=200", "train.alpha=0.5, data.passages=200"]
    seeds = read(write(tmp_path, with_sweep("sweep: {train.seed: [3, 4]}"))).trials
    assert [(t.variant, t.seed) for t in seeds] == [("recipe", "train.seed=3"), ("recipe", "train.seed=4")]


def test_a_sweep_of_one_number_has_an_axis(tmp_path):
    def axis(text):
        return read(write(tmp_path, with_sweep(f"sweep: {text}"))).axis

    values = {"train.alpha=0": 0, "train.alpha=0.5": 0.5}
    assert axis("{train.alpha: [0, 0.5], seed: [1, 2]}") == Axis("train.alpha", values, dict.fromkeys(values, ""))
    assert axis("{train.alpha: [0, 0.5], train.temperature: [1, 2]}") is None
    rates = {"train.lr=1e-5": 1e-5, "train.lr=3E-5": 3e-5}
    assert axis("{train.lr: [1e-5, 3E-5]}") == Axis("train.lr", rates, dict.fromkeys(rates, "")), "text to YAML"
    assert axis("{train.alpha: [0.5], seed: [1, 2]}") is None
    assert axis("{train.precision: [fp32, bf16]}") is None
    assert axis("{train.alpha: [0, 0.5], variants: {a: {}, b: {train.lr: 1}}}") is None
    assert axis("{train.alpha: [0, 0.5], variants: {a: {}}}") is None


def test_a_variant_may_give_a_group_the_rest_of_its_keys(tmp_path):
    modes = "{sync: {train.refresh: {mode: sync}}, async: {train.refresh: {mode: async}}}"
    sweep = read(write(tmp_path, with_sweep(f"sweep: {{train.refresh.every: [1, 2], variants: {modes}}}")))
    refreshes = [next(s for s in t.recipe.stages if s.name == "train").settings.refresh for t in sweep.trials]
    assert [(r.mode, r.every) for r in refreshes] == [("sync", 1), ("sync", 2), ("async", 1), ("async", 2)]


def test_a_key_may_have_lists(tmp_path):
    sweep = read(write(tmp_path, with_sweep('sweep: {report.metrics: [["nDCG@10"], ["RR@10", "MAP"]], train.alpha: [0, 0.5]}')))
    assert [t.name for t in sweep.trials[::2]] == [
        'report.metrics=["nDCG@10"], train.alpha=0',
        'report.metrics=["RR@10", "MAP"], train.alpha=0',
    ]
    assert [t.report.settings.metrics for t in sweep.trials[::2]] == [["nDCG@10"], ["RR@10", "MAP"]]
    assert sweep.axis is not None
    assert sweep.axis.lines == {t.variant: t.variant.split("=")[1].removesuffix(", train.alpha") for t in sweep.trials}
    alone = read(write(tmp_path, with_sweep('sweep: {report.metrics: [["nDCG@10"], ["RR@10"]]}')))
    assert (len(alone.trials), alone.axis) == (2, None)


def test_a_key_may_have_dates(tmp_path):
    text = with_sweep("sweep:\n  base: [2024-01-01, 2024-02-01]\n").replace("$base", "$base/model")
    assert [trial.name for trial in read(write(tmp_path, text)).trials] == ["base=2024-01-01", "base=2024-02-01"]


def test_a_number_crossed_with_words_has_a_line_for_each_word(tmp_path):
    sweep = read(write(tmp_path, with_sweep("sweep: {train.precision: [fp32, bf16], train.alpha: [0, 0.5], data.passages: [200]}")))
    assert sweep.axis is not None
    assert [(sweep.axis.values[t.variant], sweep.axis.lines[t.variant]) for t in sweep.trials] == [
        (0, "fp32"), (0.5, "fp32"), (0, "bf16"), (0.5, "bf16"),
    ]  # fmt: skip
    means = dict(zip([t.variant for t in sweep.trials], [0.1, 0.2, 0.3, 0.4], strict=True))
    rows = {variant: {"metrics": {"RR@10": {"mean": mean, "spread": None}}} for variant, mean in means.items()}
    words = {
        e.text for e in ElementTree.fromstring(chart_svg({"DPR": rows, "BM25": rows}, sweep.axis)).iter("{http://www.w3.org/2000/svg}text")
    }
    assert {"train.alpha", "RR@10", "DPR, fp32", "DPR, bf16", "BM25, fp32", "BM25, bf16"} <= words


def test_the_chart_has_the_mean_and_spread_of_each_run(tmp_path):
    def row(mean, spread):
        return {"metrics": {"RR@10": {"mean": mean, "spread": spread}, "R@50": {"mean": 1.0, "spread": None}}}

    runs = {"joint retriever": {"four": row(0.2, 0.05), "sixteen": row(0.4, None)}, "joint re-ranker": {"four": row(0.3, 0.1)}}
    axis = Axis("joint.negatives", {"four": 3, "sixteen": 15}, {"four": "", "sixteen": ""})
    svg = chart_svg(runs, axis)
    root = ElementTree.fromstring(svg)
    words = {e.text.strip() for e in root.iter("{http://www.w3.org/2000/svg}text") if e.text}
    assert {"joint.negatives", "RR@10", "joint retriever", "joint re-ranker", "3", "15"} <= words
    assert "R@50" not in words
    assert svg == chart_svg(runs, axis)


def test_the_bars_have_each_run_and_where_there_are_several_each_variant():
    def row(mean, spread):
        return {"metrics": {"RR@10": {"mean": mean, "spread": spread}, "R@50": {"mean": 1.0, "spread": None}}}

    def words(svg):
        return [e.text.strip() for e in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text") if e.text]

    runs = {"BM25": {"recipe": row(0.2, None)}, "DPR": {"recipe": row(0.4, 0.1)}}
    assert {"BM25", "DPR", "RR@10"} <= set(words(bars_svg(runs)))
    several = bars_svg({"BM25": {"one": row(0.2, None)}, "DPR": {"one": row(0.4, 0.1), "two": row(0.3, 0.1)}})
    assert {"BM25", "DPR, one", "DPR, two"} <= set(words(several))
    assert several == bars_svg({"BM25": {"one": row(0.2, None)}, "DPR": {"one": row(0.4, 0.1), "two": row(0.3, 0.1)}})
    assert bars_svg({"DPR": {"one": {"metrics": {}}}}) == ""
    stages = "retriever.examples=$mine_1_easy, retriever.model=$pre_2_x"
    assert f"DPR, {stages}" in words(bars_svg({"DPR": {stages: row(0.4, 0.1), "two": row(0.3, 0.1)}}))


def test_what_is_the_same_is_shared(tmp_path):
    one, two, three, four = folders(read(write(tmp_path)))
    every = [one, two, three, four]
    assert [len({f[name] for f in every}) for name in one] == [1, 4, 4, 4, 4, 1, 1, 4]  # no seed shapes bm25's index
    assert all(Path(folder).name == name and Path(folder).parts[:2] == ("out", "stages") for f in every for name, folder in f.items())
    assert one["words"] == two["words"] == three["words"]


def test_identity_is_of_what_shapes_a_stage(tmp_path):
    (tmp_path / "other").mkdir()
    first = folders(read(write(tmp_path)))
    assert first == folders(read(write(tmp_path, RECIPE + "  train.workers: [2]\n"))), "workers share out the work only"
    assert first == folders(read(write(tmp_path, RECIPE.replace("{train.alpha: 0}", "{train.alpha: 0.0, train.engine.zero: 1}"))))
    grown = folders(read(write(tmp_path, RECIPE.replace("[1, 2]", "[1, 2, 3]"))))
    assert [f for f in grown if f in first] == first, "a grid that grows keeps what is there"
    moved = folders(read(write(tmp_path), tmp_path / "ä other"))
    assert [{n: Path(f).parent.name for n, f in one.items()} for one in moved] == [
        {n: Path(f).parent.name for n, f in one.items()} for one in first
    ]
    changed = folders(read(write(tmp_path), changes=("train.epochs=2",)))
    assert {name for name in first[0] if first[0][name] != changed[0][name]} == {"train", "vectors", "dense", "found", "report"}


def test_a_given_path_counts_by_what_it_names(tmp_path, monkeypatch):
    """However it is spelled, and from whichever folder; a folder that is named by the spelling, as earlier versions did, is kept."""
    text = RECIPE.replace("{do: sample, passages: 200, seed: 1}", "{do: import, format: beir, input: data/squad}")
    text = text.replace("$base", "$encoder")
    for folder in ("data/squad", "models/encoder", "elsewhere"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    output = tmp_path / "out"
    first = folders(read(write(tmp_path, text), output))
    for squad, encoder in (
        ("data/squad/", "./models/encoder"),
        (tmp_path / "data" / "squad", tmp_path / "models" / "encoder"),
        ("data/../data/squad", "models//encoder/"),
    ):
        assert folders(read(write(tmp_path, text), output, (f"data.input={squad}", f"encoder={encoder}"))) == first
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert folders(read(write(tmp_path, text), output, ("data.input=../data/squad", "encoder=../models/encoder"))) == first
    monkeypatch.chdir(tmp_path)
    spelled = {"data": "fd8f5687f619", "train": "17e9854fd4c5"}
    assert all(spelled[name] not in first[0][name] for name in spelled)
    for name, digest in spelled.items():
        (output / "stages" / digest / name).mkdir(parents=True)
    kept = folders(read(write(tmp_path, text), output))
    spelled |= {"dense": "060a379f78d1", "report": "21e3882da72e"}  # of which nothing is there, but all that they are made from
    assert {name: Path(kept[0][name]).parent.name for name in spelled} == spelled


def test_names_that_are_no_paths_count_as_they_are(tmp_path, monkeypatch):
    text = RECIPE.replace("{do: sample, passages: 200, seed: 1}", "{do: import, format: ir_datasets, input: beir/scifact/test}")
    text = text.replace("$base", "owner/name")
    first = folders(read(write(tmp_path, text), tmp_path / "out"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert folders(read(write(tmp_path, text), tmp_path / "out")) == first


def test_a_trial_reads_what_it_shares(tmp_path):
    for trial, of in zip((sweep := read(write(tmp_path))).trials, folders(sweep), strict=True):
        stages = {stage.name: stage.settings for stage in trial.recipe.stages}
        assert stages["words"].corpus == f"{of['data']}/corpus"
        assert stages["report"].run == [of["bm25"], f"dense={of['found']}"]


def test_the_plan_has_each_distinct_stage_once(tmp_path):
    rows = plan_sweep(read(write(tmp_path), tmp_path / "out"))
    assert [row["trials"] for row in rows if row["stage"] == "data"] == [[1, 2, 3, 4]]
    assert [row["trials"] for row in rows if row["stage"] == "words"] == [[1, 2, 3, 4]]
    assert [row["state"] for row in rows if row["stage"] in ("data", "train")] == ["ready", *["waits"] * 4]
    assert len(rows) == 3 + 4 * 5
    assert not (tmp_path / "out").exists(), "a plan makes nothing"


def test_the_trial_to_calibrate_is_the_first_with_the_most_to_do(tmp_path):
    sweep = read(write(tmp_path), tmp_path / "out")
    rows = plan_sweep(sweep)
    assert trial_to_calibrate(sweep, rows) is sweep.trials[0]
    for row in rows:
        row["state"] = "done" if 1 in row["trials"] or (2 in row["trials"] and row["stage"] == "train") else row["state"]
    assert trial_to_calibrate(sweep, rows) is sweep.trials[2]


def test_the_plan_of_the_command_line(tmp_path, capsys):
    command = ["plan", str(write(tmp_path)), "--output", str(tmp_path / "out")]
    with pytest.raises(SystemExit, match="0"):
        main(command)
    printed = capsys.readouterr().out
    assert "without passage-centric, seed=2: 0 of 8 stages done" in printed
    of_table = [line.split("  ")[0] for line in printed.splitlines() if " MiB" in line and "about" in line]
    assert {"data", "train (4)"} <= set(of_table)
    assert len(set(of_table)) == len(of_table), "two rows that nothing tells apart"
    assert "23 stages for all 4 trials" in printed
    assert "bm25     search      1 for 4: 1 waits; each 5,600 queries x 100" in printed
    with pytest.raises(SystemExit, match="0"):
        main([*command, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (len(found["trials"]), len(found["stages"])) == (4, 23)


@cache
def ours(recipe: str) -> Sweep:
    return read(recipe_file(recipe))


@pytest.mark.parametrize("file", SWEPT, ids=lambda file: file.stem)
def test_every_sweep_of_ours_is_valid(file):
    assert len(ours(file.stem).trials) > 1


@pytest.mark.parametrize("name", ["query-as-context-medquad-sweep", "query-as-context-medquad-controls"])
def test_variants_of_pre_training_make_as_many_updates(name):
    """An epoch leaves out passages that have no context: one that is alone in its answer, or without a question."""
    encoders = [stage.settings for trial in ours(name).trials for stage in trial.recipe.stages if stage.name == "encoder"]
    assert {one.max_steps for one in encoders if isinstance(one, LoopSettings)} == {337}


@pytest.mark.parametrize("name", ["pair-sample-sweep", "pair-medquad-sweep", "pair-medquad-half-sweep"])
def test_variants_of_pair_make_as_many_updates_in_both_stages_together(name):
    """Of epochs of labels each would make fewer, by the queries that the teacher is unsure of, and one stage alone half of them."""
    updates = set()
    for trial in ours(name).trials:
        one = {stage.name: stage.settings for stage in trial.recipe.stages}
        first, second = one["stage-1"], one["stage-2"]
        updates.add(second.max_steps + (first.max_steps if second.model == first.output else 0))
    assert len(updates) == 1


def test_variants_of_joint_training_learn_from_as_many_lists():
    joints = [stage.settings for trial in ours("rocketqav2-msmarco-sweep").trials for stage in trial.recipe.stages if stage.name == "joint"]
    assert [one.epochs * (2 if one.more_examples else 1) for one in joints] == [4] * len(joints)


@pytest.mark.parametrize("file", SWEPT, ids=lambda file: file.stem)
def test_examples_of_trials_have_as_many_negatives_as_are_taken_of_each_query(file):
    """As test_recipes_constants.py has it of recipes."""
    stages = [(stage, list(trial.recipe.stages[:i])) for trial in ours(file.stem).trials for i, stage in enumerate(trial.recipe.stages)]
    trained = [(one.name, _fewer_negatives(one.settings, earlier)) for one, earlier in stages if isinstance(one.settings, TrainSettings)]
    assert not [(name, fault) for name, fault in trained if fault]


@pytest.mark.parametrize("file", SWEPT, ids=lambda file: file.stem)
def test_no_sweep_of_ours_makes_an_exact_index_of_the_same_vectors_twice(file):
    """The seed is a part of each index of vectors, though an exact one draws nothing: the recipe gives one to an index that trials share."""
    made = {}
    for stage in (stage for trial in ours(file.stem).trials for stage in trial.recipe.stages if stage.verb == "index"):
        if stage.settings.kind == "faiss":
            made.setdefault((stage.settings.embeddings, stage.settings.factory), set()).add(stage.settings.output)
    assert [folders for folders in made.values() if len(folders) > 1] == []


def test_a_recipe_without_a_sweep_has_none_and_one_with_it_is_still_a_recipe(tmp_path):
    assert len(Recipe.read(write(tmp_path), "out").stages) == 8
    assert Sweep.read(write(tmp_path, with_sweep("")), "out") is None


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ("sweep: {}", "sweep: is empty; give KEY: [VALUES] lines"),
        ("sweep: [1]", "sweep: is empty"),
        ("sweep: {train.alpha: []}", "sweep.train.alpha: holds no values"),
        ("sweep: {train.alpha: 0.1}", "sweep.train.alpha: holds no values; give a list"),
        ("sweep: {train.alhpa: [0.1]}", "sweep.train.alhpa: unknown key; did you mean 'alpha'?"),
        ("sweep: {trian.alpha: [0.1]}", "sweep.trian.alpha: no stage 'trian'; did you mean 'train'?"),
        ("sweep: {sed: [1]}", "sweep.sed: the recipe is given no 'sed'; did you mean 'seed'?"),
        ("sweep: {variants: {}}", "sweep.variants: holds no variants"),
        ("sweep: {variants: {one: 3}}", "sweep.variants.one: holds no keys"),
        ("sweep: {variants: {one: {train.alhpa: 3}}}", "sweep.variants.one.train.alhpa: unknown key; did you mean 'alpha'?"),
        ("sweep: {train.alpha: [0.1, 3]}", "stages.train.alpha: input should be less than or equal to 1 (given: 3)"),
        ("sweep: {seed: [1, 1]}", "sweep: (recipe, seed=1) makes the same as (recipe, seed=1)"),
        ("sweep: {variants: {one: {}, two: {train.alpha: 0.1}}}", "sweep: (two) makes the same as (one)"),
        ("sweep: {variants: {a b: {}, a/b: {train.alpha: 0}}}", "sweep: two trials are called 'a-b'"),
        ("sweep: {data.output: [a]}", "stages.data.output: stages of a sweep are given their folders"),
        (
            "sweep: {train.refresh.every: [1, 2], variants: {with: {}, without: {train.refresh: null}}}",
            "sweep.variants.without.train.refresh: is swept, as train.refresh.every; leave one of them out",
        ),
        (
            "sweep: {train.refresh: [null, {every: 1}], train.refresh.every: [1, 2]}",
            "sweep.train.refresh: is swept, as train.refresh.every",
        ),
        ("sweep: {train.alpha: [0.1], variants: {a: {train.alpha: 0.5}}}", "sweep.variants.a.train.alpha: is swept, as train.alpha"),
        ("sweep: {seed: [1]}\ndefualts: {}", "defualts: unknown key; did you mean 'defaults'?"),
    ],
)
def test_a_fault_is_one_line_with_file_and_key(tmp_path, sweep, message):
    file = write(tmp_path, with_sweep(sweep))
    with pytest.raises(InputError) as caught:
        Sweep.read(file, "out")
    assert message in str(caught.value)
    assert str(file) in str(caught.value)


def test_every_fault_of_a_sweep_is_found_in_one_reading(tmp_path):
    with pytest.raises(InputErrors) as caught:
        read(write(tmp_path, with_sweep("sweep: {sed: [1], seed: 3, variants: {one: 3, two: {trian.alpha: 1}}}")))
    assert [fault.args[1].rpartition(": ")[2] for fault in caught.value.args] == [
        "sweep.sed",
        "sweep.seed",
        "sweep.variants.one",
        "sweep.variants.two.trian.alpha",
    ]


def test_a_swept_recipe_needs_a_report_and_no_change_of_what_is_swept(tmp_path):
    with pytest.raises(InputError, match="has no evaluate stage"):
        read(write(tmp_path, "stages: {data: {do: sample}}\nsweep: {seed: [1]}"))
    with pytest.raises(InputError, match="--set seed=3: is swept"):
        read(write(tmp_path), changes=("seed=3",))
    with pytest.raises(InputError, match=r"--set train\.refresh=null: is swept"):
        read(write(tmp_path, with_sweep("sweep: {train.refresh.every: [1, 2]}")), changes=("train.refresh=null",))
    with pytest.raises(InputError, match=r"--set train\.alpha=3: is what the variants low, high set"):
        read(
            write(tmp_path, with_sweep("sweep: {variants: {low: {train.alpha: 0.1}, high: {train.alpha: 0.5}, same: {}}}")),
            changes=("train.alpha=3",),
        )


def test_variants_in_other_scripts_have_folders_of_their_own(tmp_path):
    names = [
        t.recipe.output.name
        for t in read(write(tmp_path, with_sweep("sweep: {variants: {有噪声: {}, 无噪声的: {train.alpha: 0.5}}}"))).trials
    ]
    assert names == ["有噪声", "无噪声的"]
    long = with_sweep(f"sweep: {{variants: {{{'有噪声' * 40}: {{}}, {'有噪声' * 41}: {{train.alpha: 0.5}}}}}}")
    names = [t.recipe.output.name for t in read(write(tmp_path, long)).trials]
    assert len(set(names)) == 2
    assert max(len(name.encode()) for name in names) <= 120


def test_a_trial_of_long_values_has_a_folder_that_can_be_made(tmp_path):
    values = [f"{word} {'of the corpus ' * 30}" for word in ("query", "question")]
    sweep = read(write(tmp_path, with_sweep(f"sweep: {{train.query_prefix: {values}}}")), tmp_path / "out")
    folders_ = [Path(trial.recipe.output) for trial in sweep.trials]
    assert len({folder.name for folder in folders_}) == 2
    for folder in folders_:
        folder.mkdir(parents=True)


QUERIES = [f"q{i}" for i in range(40)]


def report(folder: Path, values: dict[str, np.ndarray]) -> Artifact:
    """A report artifact with the per-query RR@10 of runs."""
    draft = Draft.open(folder, "report", {"names": list(values)})
    tables = [pa.table({"run": [run] * len(QUERIES), "query_id": QUERIES, "RR@10": of}) for run, of in values.items()]
    draft.commit("per_query.parquet", lambda path: pq.write_table(pa.concat_tables(tables), path), 0)
    each = {run: {"metrics": {"RR@10": float(of.mean())}} for run, of in values.items()}
    return draft.finish(0, result={"runs": each} if len(each) > 1 else next(iter(each.values())))


def test_mean_spread_and_significance_over_seeds(tmp_path):
    rng = np.random.default_rng(0)
    first = rng.random((3, 40))
    better = np.clip(first + rng.normal(0.1, 0.15, (3, 40)), 0, 1)
    bm25 = rng.random(40)
    reports = {
        name: {f"seed={seed}": report(tmp_path / f"{name}{seed}", {"bm25": bm25, "dense": of[seed]}) for seed in range(3)}
        for name, of in (("complete", first), ("better", better))
    }
    summary = summarise(reports)
    rows = summary["runs"]["dense"]
    assert rows["better"]["seeds"] == ["seed=0", "seed=1", "seed=2"]
    measured = rows["better"]["metrics"]["RR@10"]
    assert measured["values"] == better.mean(axis=1).tolist()
    assert (measured["mean"], measured["spread"]) == pytest.approx((better.mean(), better.mean(axis=1).std(ddof=1)))
    assert "significance" not in rows["complete"]
    found = rows["better"]["significance"]["RR@10"]
    assert found["difference"] == pytest.approx((better - first).mean())
    assert found["wins"] + found["ties"] + found["losses"] == 40, "a pair a query, not a pair a query and seed"
    gaps = (better - first).mean(axis=0)
    assert found["p_t_test"] == pytest.approx(stats.ttest_1samp(gaps, 0).pvalue)
    assert found["p_randomisation"] == pytest.approx(
        stats.permutation_test((gaps,), np.mean, permutation_type="samples", n_resamples=9_999, random_state=1).pvalue, abs=0.01
    )
    assert summary["runs"]["bm25"]["better"]["significance"]["RR@10"]["p_randomisation"] == 1
    assert "(10,000 sign flips, " in summary["tests"]
    table = text_table(summary, {"bm25"})
    assert f"better    3      {measured['mean']:.4f} ± {measured['spread']:.4f} ▲▲" in table
    assert table.count("(all)") == 1
    assert "| better | 3 |" in markdown_table(summary, set())
    json.dumps(summary, allow_nan=False)


def test_one_seed_has_no_spread_and_only_shared_seeds_are_compared(tmp_path):
    values = np.linspace(0, 1, 40)
    one = report(tmp_path / "one", {"dense": values})
    two = report(tmp_path / "two", {"dense": values[::-1] * 0.5})
    rows = summarise({"first": {"s1": one}, "second": {"s1": two, "s2": one}, "third": {"s2": two}, "none": {}})["runs"]["dense"]
    assert rows["first"]["metrics"]["RR@10"]["spread"] is None
    assert rows["second"]["significance"]["RR@10"]["difference"] == pytest.approx(-0.25)
    assert rows["third"]["significance"] == {}
    assert "none" not in rows


def test_a_seed_counts_only_where_both_variants_have_the_metric(tmp_path):
    """One seed of the second variant has no value, for all queries or for some: the first variant's of that seed is left out, too."""
    rng = np.random.default_rng(3)
    first, second = rng.random((3, 40)), rng.random((3, 40))
    second[2] = np.nan
    second[1, :5] = np.nan
    reports = {
        name: {f"seed={seed}": report(tmp_path / f"{name}{seed}", {"dense": of[seed]}) for seed in range(3)}
        for name, of in (("complete", first), ("other", second))
    }
    found = summarise(reports)["runs"]["dense"]["other"]["significance"]["RR@10"]
    gaps = np.nanmean(second - first, axis=0)
    assert found["difference"] == pytest.approx(gaps.mean())
    assert found["p_t_test"] == pytest.approx(stats.ttest_1samp(gaps, 0).pvalue)
