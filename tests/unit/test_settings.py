"""Settings: one model gives the schema, the flags, the help and the validation."""

import pytest

from raydense.errors import InputError
from raydense.evaluation.settings import EvaluateSettings, FuseSettings
from raydense.inference.settings import EncodeSettings
from raydense.recipes.stage import VERBS
from raydense.retrieval.settings import CompareSettings, IndexSettings, SearchSettings
from raydense.storage import Draft
from raydense.training.settings import TrainSettings

TRAIN = {"objective": "retriever", "model": "m", "corpus": "c", "queries": "q", "examples": "e", "output": "o"}


@pytest.mark.parametrize("verb", VERBS)
def test_every_field_has_a_description(verb):
    for name, field in VERBS[verb].settings.all_fields().items():
        assert field.description, f"{verb}.{name} has no description"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"modle": "x"}, "train.modle: unknown key; did you mean 'model'?"),
        ({"seed": -1}, "train.seed: input should be greater than or equal to 0"),
        ({"epochs": "inf"}, "train.epochs: input should be a finite number"),
        ({"lr": "fast"}, "train.lr: input should be a valid number, unable to parse string as a number (given: 'fast')"),
        ({"lr": -1}, "train.lr: input should be greater than 0"),
        ({"loss": "pointwise"}, "objective retriever does not use loss: leave it out"),
        ({"objective": "pair", "in_batch": False, "in_batch_queries": True}, "in_batch_queries needs in_batch"),
        ({"objective": "joint"}, "reranker: missing; give it: the re-ranker"),
        ({"objective": "joint", "reranker": "r", "negatives": 0}, "a joint without in_batch needs negatives of at least 1"),
        ({"objective": "joint", "reranker": "r", "negatives": 0, "in_batch": True, "batch_size": 1}, "it has none: batch_size / accum"),
        (
            {"negatives": 0, "batch_size": 1},
            "batch_size / accumulation is 1 query; give negatives, a larger batch_size, or less accumulation",
        ),
        ({"negatives": 0, "batch_size": 8, "accumulation": 8}, "batch_size / accumulation is 1 query; give negatives"),
        ({"negatives": 0, "batch_size": 8, "accumulation": 2, "workers": 4, "cross_batch": False}, "workers, without cross_batch, is 1"),
        ({"objective": "joint", "reranker": "r", "teacher": "static", "loss": "pointwise"}, "a static teacher does not use loss"),
        ({"optimizer": "lamb"}, "lamb needs the norm of each weight, and DeepSpeed keeps weights in flat pieces: use engine.name ddp"),
        ({"positives": 2}, "objective retriever does not use positives: leave it out"),
        ({"in_batch": False, "cross_batch": True}, "a training without in_batch does not use cross_batch"),
        ({"dev": {"every": 5}}, "train.dev.qrels: missing; give it: judgements of the dev queries"),
        ({"dev_every": 5}, "train.dev_every: was renamed; write dev.every"),
        ({"objective": "reranker", "refresh_every": 5}, "train.refresh_every: was renamed; write refresh.every"),
        ({"batch_size": 10, "workers": 4}, "batch_size 10 must divide by workers x accumulation"),
        ({"in_batch": False, "negatives": 0}, "needs negatives of at least 1"),
        ({"engine": {"name": "ddp", "zero": 2}}, "engine ddp does not use zero: leave it out"),
        ({"objective": "reranker", "temperature": 0.05}, "objective reranker does not use temperature: leave it out"),
        (
            {"objective": "reranker", "query_length": 8, "in_batch": True},
            "objective reranker does not use in_batch, query_length: leave them out",
        ),
    ],
)
def test_a_bad_setting_is_one_line_with_key_and_fix(change, message):
    with pytest.raises(InputError) as caught:
        TrainSettings.read({**TRAIN, **change}, "train.")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_key_is_described():
    with pytest.raises(InputError, match=r"train\.queries: missing; give it: the queries"):
        TrainSettings.read({k: v for k, v in TRAIN.items() if k != "queries"}, "train.")


def test_resources_inputs_and_the_output_are_no_part_of_what_shapes_the_output():
    one = TrainSettings.read(TRAIN).shaping()
    two = TrainSettings.read({**TRAIN, "workers": 4, "output": "elsewhere", "model": "other", "checkpoint_every": 7}).shaping()
    assert one == two
    assert TrainSettings.read({**TRAIN, "lr": 1e-3}).shaping() != one


def test_a_folder_may_have_a_blank_and_a_comma_in_its_name():
    for given in ("my runs/one, two", ["my runs/one, two"]):
        assert EvaluateSettings(run=given, qrels="q", output="o").run == ["my runs/one, two"]


def test_a_list_that_is_too_short_says_how_many_it_needs():
    with pytest.raises(InputError, match=r"fuse.run: needs 2 or more, not 1"):
        FuseSettings.read({"run": ["a"], "output": "o"}, "fuse.")


def test_words_and_pairs_are_read_from_text():
    settings = EvaluateSettings.read({"run": "a", "qrels": "q", "metrics": "nDCG@10 RR@10", "output": "o"})
    assert settings.metrics == ["nDCG@10", "RR@10"]
    shown = "P(judged_only=True,rel=2)@5"  # as ir-measures writes it
    for given in (f"{shown} RR@10", f"{shown},RR@10", (shown, "RR@10"), [shown, "RR@10"]):
        assert EvaluateSettings.read({"run": "a", "qrels": "q", "metrics": given, "output": "o"}).metrics == [shown, "RR@10"]
    for given, pair in {"1,4": (1, 4), "4": (4, 4), 4: (4, 4), (1, 4): (1, 4)}.items():
        assert EncodeSettings.read({"model": "m", "corpus": "c", "output": "o", "concurrency": given}).concurrency == pair


@pytest.mark.parametrize(
    ("gpus", "message"), [(-3, "greater than or equal to -1"), (4, "less than or equal to 1"), (-0.5, "give -1, or 0 to 1")]
)
def test_an_actor_has_at_most_one_gpu(gpus, message):
    with pytest.raises(InputError, match=message):
        EncodeSettings.read({"model": "m", "corpus": "c", "output": "o", "gpus_per_actor": gpus})


def test_an_index_takes_what_its_kind_needs():
    with pytest.raises(InputError, match="kind faiss needs embeddings"):
        IndexSettings.read({"kind": "faiss", "output": "o"})
    with pytest.raises(InputError, match="kind bm25 does not use embeddings"):
        IndexSettings.read({"kind": "bm25", "corpus": "c", "embeddings": "e", "output": "o"})


def test_no_stemmer_and_no_stop_words_may_be_written_as_null():
    given = {"kind": "bm25", "corpus": "c", "output": "o"}
    null, none = (IndexSettings.read({**given, "bm25": {"stemmer": name, "stopwords": name}}) for name in (None, "none"))
    assert null.shaping() == none.shaping()


def test_factories_may_be_a_list():
    text, listed = (
        CompareSettings.read({"embeddings": "e", "output": "o", "factories": given})
        for given in ("Flat RaBitQ,Refine(SQ8)", ["Flat", "RaBitQ,Refine(SQ8)"])
    )
    assert listed.named == ["Flat", "RaBitQ,Refine(SQ8)"]
    assert listed.shaping() == text.shaping()
    for given in ([], [1], ""):
        with pytest.raises(InputError, match="factories"):
            CompareSettings.read({"embeddings": "e", "output": "o", "factories": given})


@pytest.mark.parametrize(
    ("values", "unused"),
    [
        ({"kind": "bm25", "corpus": "c", "factory": "Flat", "train_sample": 1_000}, "kind bm25 does not use factory, train_sample"),
        ({"kind": "faiss", "embeddings": "e", "bm25": {"k1": 1.2}}, "kind faiss does not use bm25: leave it out"),
        ({"kind": "bm25", "corpus": "c", "stopwords": "none"}, "--stopwords: was renamed; write --bm25.stopwords"),
    ],
)
def test_a_setting_of_the_other_kind_is_refused(values, unused):
    with pytest.raises(InputError) as caught:
        IndexSettings.read({**values, "output": "o"}, "--")
    assert str(caught.value).startswith(unused)


def test_what_is_not_given_or_given_to_every_stage_is_not_refused():
    assert IndexSettings.read({"kind": "bm25", "corpus": "c", "output": "o", "seed": 7}).seed == 7
    assert TrainSettings.read({**TRAIN, "query_length": None}).query_length is None


def test_artifacts_and_paths_stand_for_folders(tmp_path):
    made = Draft.open(tmp_path / "c", "corpus", {}).finish(0)
    settings = IndexSettings(kind="bm25", corpus=made, output=tmp_path / "i")
    assert (settings.corpus, settings.output) == (str(tmp_path / "c"), str(tmp_path / "i"))


def test_what_an_objective_means_by_default():
    def read(objective, **change):
        return TrainSettings.read({**TRAIN, "objective": objective, **change})

    assert read("pair").in_batch
    assert read("pair").shared
    assert read("pair", shared=False).shared is False
    joint = read("joint", reranker="r")
    assert (joint.in_batch, joint.loss, joint.teacher, joint.direction) == (False, "listwise", "dynamic", "de_ce")
    assert read("reranker", loss="pointwise").loss == "pointwise"


def test_workers_shape_what_each_trains_alone():
    def shaping(**change):
        return TrainSettings.read({**TRAIN, "batch_size": 64, **change}).shaping()

    assert shaping(workers=1) == shaping(workers=2)
    assert shaping(workers=1, cross_batch=False) != shaping(workers=2, cross_batch=False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "a search needs index, or pool"),
        (
            {"pool": "nq", "shard_replicas": 2, "search_params": "nprobe=4"},
            "a search by pool does not use search_params, shard_replicas: leave them out",
        ),
    ],
)
def test_a_search_has_an_index_or_a_pool(given, message):
    with pytest.raises(InputError, match=message):
        SearchSettings.read({"queries": "q", "output": "o", **given})
    by_pool, by_index = ({"queries": "q", "output": "o", **one} for one in ({"pool": "nq"}, {"index": "ix"}))
    assert SearchSettings.read(by_pool).shaping() == SearchSettings.read(by_index).shaping()
