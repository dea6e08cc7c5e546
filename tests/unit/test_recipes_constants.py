"""The large recipes have the constants of docs/guides/papers-constants.md: a change of one is seen here, and is a change of that page."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from raydense.data.settings import MixSettings
from raydense.evaluation.settings import EvaluateSettings, FuseSettings
from raydense.forecast import Holds
from raydense.inference.settings import RerankSettings
from raydense.mining.settings import LabelSettings, MineSettings
from raydense.recipes.content import recipe_file
from raydense.recipes.inputs import _examples_from, _fewer_negatives
from raydense.recipes.recipe import Recipe
from raydense.recipes.stage import Stage
from raydense.retrieval.settings import IndexSettings, SearchSettings
from raydense.training.forecasts import _steps
from raydense.training.method import method_of
from raydense.training.settings import LoopSettings, RefreshedSettings, TrainSettings, VectorSettings

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "papers-constants.md"
RECIPES = sorted(recipe_file("own-data").parent.glob("*.yaml"))
LARGE = [file for file in RECIPES if re.search(r"-(msmarco|nq|wq|trec|trivia|squad|multi)$", file.stem)]
TABLES = [  # which reproduce tables of the papers, on their data or in small
    file for file in RECIPES if re.search(r"-(msmarco|nq|wq|trec|trivia|multi)(-sweep)?$|^(dureader|overlap|out-of-domain)", file.stem)
]
MARCO, NQ, DUREADER = 502_939, 58_812, 86_395  # training queries

RETRIEVER = {
    "objective": "retriever",
    "lr": 3e-5,
    "warmup": 0.1,
    "weight_decay": 0,
    "negatives": 1,
    "batch_size": 4096,
    "optimizer": "adamw",
}
RERANKER = {
    "objective": "reranker",
    "lr": 1e-5,
    "warmup": 0,
    "weight_decay": 0.01,
    "epochs": 2,
    "negatives": 4,
    "batch_size": 52,
    "pair_length": 160,
}
NQ_RERANKER = RERANKER | {"negatives": 1, "batch_size": 32}
PAIR = RETRIEVER | {"objective": "pair", "alpha": 0.1, "epochs": 40, "optimizer": "lamb"}
PAIR_2 = RETRIEVER | {"epochs": 42.5, "optimizer": "lamb"}
JOINT = {
    "objective": "joint",
    "lr": 1e-5,
    "warmup": 0,
    "weight_decay": 0.01,
    "dropout": 0.1,
    "negatives": 127,
    "batch_size": 96,
    "epochs": 2,
}
NQ_JOINT = JOINT | {"negatives": 31, "epochs": 3}
DPR = {"objective": "retriever", "lr": 2e-5, "warmup": 0.1, "weight_decay": 0, "clip": 2.0, "negatives": 1, "batch_size": 128, "epochs": 40}
ANCE = {"lr": 1e-6, "batch_size": 64, "optimizer": "lamb", "max_steps": 210_000, "warmup": 0.024, "weight_decay": 0, "in_batch": False}
NQ_ANCE = ANCE | {"lr": 1e-5, "batch_size": 128, "max_steps": 136_000, "warmup": 0.0074, "clip": 2.0}
FINE_TUNED = {"objective": "retriever", "lr": 2e-5, "warmup": 0.1, "weight_decay": 0.01, "negatives": 15, "batch_size": 64}
MULTIPLE = {
    "objective": "multi-positive",
    "positives": 3,
    "negatives": 1,
    "batch_size": 16,
    "lr": 1e-5,
    "warmup": 0.1,
    "weight_decay": 0,
    "clip": 2.0,
}
DUREADER_CE = RERANKER | {"batch_size": 12, "epochs": 7.7, "pair_length": 384}

# each training, its constants, and its updates where that page has them, from the examples of an epoch
TRAININGS: list[tuple[str, str, dict[str, Any], tuple[int, int] | None]] = [
    ("rocketqa-msmarco", "retriever-1", RETRIEVER | {"epochs": 170}, (MARCO, 20_740)),
    ("rocketqa-msmarco", "reranker-1", RERANKER, (MARCO, 19_342)),
    ("rocketqa-msmarco", "retriever-2", RETRIEVER | {"epochs": 42.5}, (MARCO, 5_185)),
    ("rocketqa-msmarco", "retriever-3", RETRIEVER | {"epochs": 40}, (MARCO + 1_700_000, 21_480)),
    ("rocketqa-nq", "retriever-1", RETRIEVER | {"batch_size": 1024, "epochs": 30}, (NQ, 1_710)),
    ("rocketqa-nq", "reranker-1", NQ_RERANKER, (NQ, 3_674)),
    ("rocketqa-nq", "retriever-2", RETRIEVER | {"batch_size": 1024, "epochs": 30}, (NQ, 1_710)),
    ("rocketqa-nq", "retriever-3", RETRIEVER | {"batch_size": 1024, "epochs": 30}, None),
    ("pair-msmarco", "retriever-0", DPR, None),
    ("pair-msmarco", "teacher", RERANKER, (MARCO, 19_342)),
    ("pair-msmarco", "stage-1", PAIR, (1_800_000, 17_560)),
    ("pair-msmarco", "stage-2", PAIR_2, (MARCO, 5_185)),
    ("rocketqav2-nq", "reranker-1", NQ_RERANKER, (NQ, 3_674)),
    ("pair-nq", "retriever-0", DPR | {"query_length": 256, "passage_length": 256}, None),
    ("main-table-nq", "dpr", DPR | {"query_length": 256, "passage_length": 256}, None),
    ("pair-nq", "teacher", NQ_RERANKER, (NQ, 3_674)),
    ("pair-nq", "stage-1", PAIR | {"optimizer": "adamw", "cross_batch": False}, (1_800_000, 17_560)),
    ("pair-nq", "stage-2", RETRIEVER | {"batch_size": 512, "epochs": 40}, (NQ, 4_560)),
    ("rocketqav2-msmarco", "retriever-1", RETRIEVER | {"epochs": 170}, (MARCO, 20_740)),
    ("rocketqav2-msmarco", "reranker-1", RERANKER, (MARCO, 19_342)),
    ("rocketqav2-msmarco", "joint", JOINT, (2 * MARCO, 20_954)),
    ("rocketqav2-nq", "retriever-1", RETRIEVER | {"batch_size": 1024, "epochs": 30}, (NQ, 1_710)),
    ("rocketqav2-nq", "joint", NQ_JOINT, (2 * NQ, 3_675)),
    ("main-table-msmarco", "dpr", DPR, None),
    ("main-table-msmarco", "ance", ANCE, None),
    ("main-table-msmarco", "retriever-3", RETRIEVER | {"epochs": 40}, (MARCO + 1_700_000, 21_480)),
    ("main-table-msmarco", "pair-1", PAIR, (1_800_000, 17_560)),
    ("main-table-msmarco", "pair", PAIR_2, (MARCO, 5_185)),
    ("main-table-msmarco", "joint", JOINT, (2 * MARCO, 20_954)),
    ("main-table-nq", "ance", NQ_ANCE, None),
    ("main-table-nq", "retriever-3", RETRIEVER | {"batch_size": 1024, "epochs": 30}, None),
    ("main-table-nq", "pair", RETRIEVER | {"batch_size": 512, "epochs": 40}, (NQ, 4_560)),
    ("main-table-nq", "joint", NQ_JOINT, (2 * NQ, 3_675)),
    ("dureader-baselines-dureader", "retriever", RETRIEVER | {"batch_size": 256, "epochs": 103}, (DUREADER, 34_711)),
    ("dureader-baselines-dureader", "reranker", DUREADER_CE, (DUREADER, 55_432)),
    ("overlap-dureader", "reranker-with", DUREADER_CE, None),
    ("overlap-dureader", "reranker-without", DUREADER_CE, None),
    (
        "query-as-context-cocondenser-msmarco",
        "encoder-2",
        {"batch_size": 2048, "lr": 1e-4, "max_steps": 120_000, "weight_decay": 0.01},
        None,
    ),
    (
        "query-as-context-cotmae-msmarco",
        "encoder-2",
        {"layers": 1, "mask": 0.3, "context_mask": 0.45, "batch_size": 16384, "lr": 4e-4, "max_steps": 50_000, "warmup": 0.1},
        None,
    ),
    ("query-as-context-cocondenser-msmarco", "retriever-1", FINE_TUNED | {"epochs": 3}, None),
    ("query-as-context-cocondenser-msmarco", "retriever-2", FINE_TUNED | {"epochs": 1.5}, None),
    ("query-as-context-beir-msmarco", "retriever-2", FINE_TUNED | {"negatives": 1, "batch_size": 75, "epochs": 10, "warmup": 0.015}, None),
    ("multiple-positives-nq", "retriever", MULTIPLE | {"epochs": 40}, None),
    ("multiple-positives-wq", "retriever", MULTIPLE | {"epochs": 100}, None),
    ("multiple-positives-trec", "retriever", MULTIPLE | {"epochs": 100}, None),
]


@cache
def stages_of(recipe: str) -> tuple[Stage, ...]:
    return Recipe.read(recipe_file(recipe), "out").stages


def settings_of(recipe: str) -> list[Any]:
    return [stage.settings for stage in stages_of(recipe)]


def followed(recipe: str) -> list[Any]:
    """The trainings with dev queries."""
    return [one for one in settings_of(recipe) if getattr(one, "dev", None)]


def reported(recipe: str) -> set[str]:
    return {one.qrels for one in settings_of(recipe) if isinstance(one, EvaluateSettings)}


@pytest.mark.parametrize(
    ("recipe", "stage", "constants", "updates"), TRAININGS, ids=[f"{recipe}-{stage}" for recipe, stage, _, _ in TRAININGS]
)
def test_a_training_has_the_constants_of_the_page(
    recipe: str, stage: str, constants: dict[str, Any], updates: tuple[int, int] | None
) -> None:
    settings = next(one.settings for one in stages_of(recipe) if one.name == stage)
    assert isinstance(settings, LoopSettings)
    assert {key: getattr(settings, key) for key in constants} == constants
    if updates:
        steps = _steps(settings, Holds(updates[0]))
        assert steps is not None
        assert steps.rows == updates[1]
        assert re.search(rf"\| {updates[1]:,}\b", PAGE.read_text("utf-8")), "the table of updates has it"


# scripts with the scopes `query_` and `titlepara_`, DPR's two encoders; PAIR has one
TWO_ENCODERS = {
    **{f"rocketqa-{of}": {"retriever-1", "retriever-2", "retriever-3"} for of in ("msmarco", "nq")},
    **{f"rocketqav2-{of}": {"retriever-1"} for of in ("msmarco", "nq")},
    **{f"pair-{of}": {"retriever-0"} for of in ("msmarco", "nq")},
    **{f"main-table-{of}": {"retriever-1", "retriever-2", "retriever-3", "dpr"} for of in ("msmarco", "nq")},
    **{f"multiple-positives-{of}": {"retriever"} for of in ("nq", "wq", "trec", "trivia", "squad", "multi")},
    "dureader-baselines-dureader": {"retriever"},
}


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_two_encoders_are_trained_where_the_scripts_have_two(file: Path) -> None:
    """The small twins have one, as their tables were measured; what goes on from two encoders keeps both."""
    trained = {one.name: one.settings for one in stages_of(file.stem)}
    two = TWO_ENCODERS.get(file.stem.removesuffix("-sweep"), set())
    assert {name for name, one in trained.items() if getattr(one, "shared", None) is False} == two


ON_PURPOSE = {  # stages that read texts, or make vectors, as no other of their recipe
    ("distillation-sample", "margin-mse"),  # margins of vectors of length 1 are too small for the teacher's
    ("main-table-nq", "dpr"),  # DPR's script has 256 tokens on both sides
    ("pair-nq", "retriever-0"),
    ("main-table-nq", "ance"),
}


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_retrievers_of_one_recipe_read_texts_alike(file: Path) -> None:
    """A stage that starts from another takes what it does not set; a table that compares them compares nothing else."""
    stages = {one.settings.output: one.settings for one in stages_of(file.stem)}

    def of(one: Any, key: str) -> Any:
        value, start = getattr(one, key, None), stages.get(getattr(one, "model", ""))
        return of(start, key) if value is None and start is not None else value

    reads = {
        tuple(of(one, key) for key in ("pooling", "normalize", "query_length", "passage_length"))
        for name, one in stages.items()
        if isinstance(one, VectorSettings) and (file.stem.removesuffix("-sweep"), Path(name).name) not in ON_PURPOSE
    }
    assert len(reads) <= 1


@pytest.mark.parametrize("data", ["msmarco", "nq"])
def test_the_main_table_trains_rocketqav2_as_its_own_recipe(data: str) -> None:
    """From as large models: RocketQA's own re-ranker is larger than RocketQAv2's."""
    own, table = ({s.name: s.settings for s in stages_of(f"{of}-{data}")} for of in ("rocketqav2", "main-table"))
    differs = {"output", "examples", "more_examples", "reranker", "dev"}
    for one, other in (("reranker-1", "reranker-base"), ("joint", "joint")):
        values = [{key: value for key, value in of.model_dump().items() if key not in differs} for of in (own[one], table[other])]
        assert values[0] == values[1]
    joint: Any = table["joint"]
    assert joint.reranker == table["reranker-base"].output


@pytest.mark.parametrize(("data", "of_bm25"), [("msmarco", 1_000), ("nq", 100)])
def test_rerankers_of_a_table_start_from_one_size(data: str, of_bm25: int) -> None:
    """RocketQAv2, table 3: one of the retriever's size, before and after joint training, on 50 candidates and on BM25's 1,000."""
    for name, start in (("main-table", "reranker-base"), ("rocketqav2", "reranker-1")):
        stages: dict[str, Any] = {one.name: one.settings for one in stages_of(f"{name}-{data}")}
        reranked = {one.output: one for one in stages.values() if isinstance(one, RerankSettings)}
        rows = [reranked[folder] for run in stages["report"].run if (folder := run.partition("=")[2]) in reranked]
        assert {one.model for one in rows} == {stages[start].output, f"{stages['joint'].output}/reranker"}
        bm25 = stages["bm25-dev"]
        assert bm25.k == of_bm25
        assert {(one.run == bm25.output, one.depth) for one in rows} == {(True, of_bm25), (False, 50)}


@pytest.mark.parametrize(
    ("recipe", "constants"),
    [
        *((name, (1.2, 0.75)) for name in ("dureader-baselines-dureader", "overlap-dureader")),
        *((f"dureader-baselines-{name}", (0.9, 0.4)) for name in ("cmed", "demo", "chinese")),
        ("overlap-squad", (0.9, 0.4)),
    ],
)
def test_bm25_of_dureader_is_elasticsearchs(recipe: str, constants: tuple[float, float]) -> None:
    """The small versions stay as they were measured."""
    settings = settings_of(recipe)
    assert {(one.bm25.k1, one.bm25.b) for one in settings if isinstance(one, IndexSettings) and one.kind == "bm25"} == {constants}


def test_small_sets_are_upsampled_as_dprs() -> None:
    mix = next(one.settings for one in stages_of("multiple-positives-multi") if one.name == "all")
    assert isinstance(mix, MixSettings)
    assert dict(zip([one.partition("=")[0] for one in mix.examples], mix.weights, strict=True)) == {
        "nq": 1,
        "trivia": 1,
        "wq": 4,
        "trec": 4,
    }


def test_both_halves_of_the_zero_shot_table_are_pre_trained_by_their_recipes() -> None:
    for method, beir in (("cocondenser", "beir"), ("cotmae", "beir-cotmae")):
        own, zero_shot = (
            {one.name: one.settings for one in stages_of(f"query-as-context-{name}-msmarco")}["encoder-2"] for name in (method, beir)
        )
        assert own == zero_shot


@pytest.mark.parametrize(
    ("data", "refresh"),
    [
        ("msmarco", {"depth": 200, "negatives": 20, "without_answers": None}),
        ("nq", {"depth": 101, "negatives": 100, "without_answers": "token"}),
    ],
)
def test_ance_takes_its_new_negatives_from_the_hits_of_its_scripts(data: str, refresh: dict[str, Any]) -> None:
    """`--negative_sample 20` of `--topk_training 200`; on NQ those of the first 100 without the positive that hold no answer."""
    ance = next(one.settings for one in stages_of(f"main-table-{data}") if one.name == "ance")
    assert isinstance(ance, RefreshedSettings)
    assert ance.refresh is not None
    assert {key: getattr(ance.refresh, key) for key in refresh} == refresh


@pytest.mark.parametrize("pseudo", [0, 1_234, 100_000, 1_700_000])
def test_step_4_on_natural_questions_has_the_updates_of_the_scripts(pseudo: int) -> None:
    """`run_dual_encoder_train.sh`: 30 epochs of so many whole batches of 512 rows on each of 2 cards."""
    settings = next(one.settings for one in stages_of("rocketqa-nq") if one.name == "retriever-3")
    assert isinstance(settings, LoopSettings)
    steps = _steps(settings, Holds(NQ + pseudo))
    assert steps is not None
    assert steps.rows == (NQ + pseudo) // 512 // 2 * 30


@pytest.mark.parametrize("recipe", ["rocketqa-msmarco", "rocketqav2-msmarco", "main-table-msmarco"])
def test_step_1_has_four_random_passages_of_each_query(recipe: str) -> None:
    stages: dict[str, Any] = {stage.name: stage.settings for stage in stages_of(recipe)}
    assert (stages["negatives-1"].random, stages["negatives-1"].negatives, stages["retriever-1"].negatives) == (4, 4, 1)
    assert str(stages["retriever-1"].examples).endswith("negatives-1")
    if "dpr" in stages:
        assert stages["negatives-dpr"].random == 0, "DPR's are BM25's"


@pytest.mark.parametrize("recipe", ["rocketqa-sample", "rocketqa-medquad"])
def test_hard_negatives_differ_from_denoised_ones_by_the_denoising_alone(recipe: str) -> None:
    stages: dict[str, Any] = {stage.name: stage.settings for stage in stages_of(recipe)}
    alike = [stages[name].model_dump(exclude={"examples", "output"}) for name in ("retriever-2", "retriever-hard")]
    assert alike[0] == alike[1]
    hard, denoised = stages["hard"], stages["denoised"]
    assert (hard.run, hard.negatives, hard.depth, hard.qrels) == (denoised.run, denoised.negatives, denoised.depth, denoised.qrels)
    assert denoised.s_pos == 1, "no positives but those of the qrels"


@pytest.mark.parametrize("recipe", ["rocketqav2-msmarco", "rocketqav2-nq"])
def test_lists_of_one_kind_and_of_the_other_are_as_long(recipe: str) -> None:
    stages = {stage.name: stage.settings for stage in stages_of(recipe)}
    joint: Any = stages["joint"]
    assert (joint.examples, joint.more_examples) == (stages["undenoised"].output, stages["denoised"].output)
    assert {getattr(stages[name], "negatives", None) for name in ("joint", "undenoised", "denoised")} == {joint.negatives}


def test_examples_have_as_many_negatives_as_are_taken_of_each_query() -> None:
    """A twin takes the settings of its base for the examples, and may train with more negatives. Trials: test_recipes_sweep.py."""
    trained = [
        (file.stem, one.name, _fewer_negatives(one.settings, list(stages_of(file.stem)[:place])))
        for file in RECIPES
        for place, one in enumerate(stages_of(file.stem))
        if isinstance(one.settings, TrainSettings)
    ]
    assert trained
    assert [one for one in trained if one[-1]] == []


def test_no_training_is_refused_for_a_query_whose_candidates_are_all_left_out() -> None:
    """By a margin, an answer or a threshold: of one query among thousands that is likely, and it comes to light after days."""
    made = {
        (file.stem, maker.name, maker.settings.shortage)
        for file in RECIPES
        for place, one in enumerate(stages_of(file.stem))
        if isinstance(one.settings, TrainSettings) and method_of(one.settings).draws(one.settings).negatives
        for path in (one.settings.examples, one.settings.more_examples)
        for maker in (_examples_from(path, list(stages_of(file.stem)[:place])) if path else ())
        if isinstance(maker.settings, LabelSettings) or maker.settings.without_answers or maker.settings.margins
    }
    assert made
    assert sorted(one for one in made if one[-1] == "keep") == []


def test_no_fusion_is_tuned_on_what_is_reported() -> None:
    tuned = [(file.stem, one) for file in RECIPES for one in settings_of(file.stem) if isinstance(one, FuseSettings) and one.qrels]
    assert tuned
    assert [(recipe, one.output) for recipe, one in tuned if one.qrels in reported(recipe)] == []


def test_no_step_is_chosen_on_what_is_reported() -> None:
    """Of several methods in one table those that may choose would be ahead by it."""
    chooses = [(file.stem, one) for file in RECIPES for one in followed(file.stem) if one.dev.keep == "best"]
    assert chooses
    for recipe, one in chooses:
        mixed = {
            f"{mix.output}/qrels": {q.partition("=")[2] or q for q in mix.qrels}
            for mix in settings_of(recipe)
            if isinstance(mix, MixSettings)
        }
        assert not mixed.get(one.dev.qrels, {one.dev.qrels}) & reported(recipe), (recipe, one.output)


def test_a_query_whose_only_hit_is_its_positive_ends_no_training() -> None:
    """Of half a million queries BM25 finds for some no passage but the positive."""
    mined = []
    for file in LARGE:
        settings = settings_of(file.stem)
        bm25 = {one.output for one in settings if isinstance(one, IndexSettings) and one.kind == "bm25"}
        found = {one.output for one in settings if isinstance(one, SearchSettings) and one.index in bm25}
        mined += [(file.stem, one) for one in settings if isinstance(one, MineSettings) and one.run in found and not one.random]
    assert mined
    assert [(recipe, one.output) for recipe, one in mined if one.shortage != "drop"] == []


def test_the_hybrid_of_multiple_positives_is_dprs() -> None:
    stages = {stage.name: stage.settings for stage in stages_of("multiple-positives-multi")}
    fused = {name: one for name, one in stages.items() if isinstance(one, FuseSettings)}
    searched = {one.output: one for one in stages.values() if isinstance(one, SearchSettings)}
    assert len(fused) == 4
    for name, one in fused.items():
        assert (one.method, one.scale, one.weights) == ("sum", False, [1, 1.1])
        report: Any = stages[name.replace("hybrid", "report")]
        assert [(searched[run].qrels, searched[run].k) for run in one.run] == [(report.qrels, 2_000)] * 2


@pytest.mark.parametrize("file", TABLES, ids=lambda file: file.stem)
def test_recall_is_the_papers_where_a_table_of_theirs_is_made(file: Path) -> None:
    """Their Recall@k counts queries with a positive among the first k; R@k falls with every positive of a query."""
    reports = [one for one in settings_of(file.stem) if isinstance(one, EvaluateSettings)]
    assert not [metric for report in reports for metric in report.metrics if metric.startswith("R@")]
    assert not file.stem.endswith("-nq") or all(report.answers is not None for report in reports)


def test_a_dev_metric_among_millions_of_passages_has_hard_ones() -> None:
    measured = [(file.stem, one) for file in LARGE for one in followed(file.stem)]
    assert measured
    assert [(recipe, one.output) for recipe, one in measured if not one.dev.run] == []
