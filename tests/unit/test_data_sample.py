"""The sample: same seed same bytes, its promises about queries and qrels, and memory that does not grow with the size."""

import re
from pathlib import Path

import bm25s
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import Stemmer

from raydense.data.sample import FACTS, World
from raydense.data.sample import sample as make_sample
from raydense.data.settings import SampleSettings
from raydense.data.store import PassageStore
from raydense.data.tables import read_table
from raydense.errors import InputError
from raydense.storage import Artifact

SMALL = {"passages": 700, "train_queries": 300, "dev_queries": 20, "test_queries": 40}


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sample(SampleSettings(output=str(tmp_path_factory.mktemp("sample") / "s"), **SMALL)).path


def files_of(folder: Path) -> dict[str, str]:
    return {f"{a}/{f.path}": f.sha256 for a in Artifact.open(folder).summary["parts"] for f in Artifact.open(folder / a).files}


def test_same_seed_same_bytes_and_another_seed_another_world(sample: Path, tmp_path: Path) -> None:
    again = make_sample(SampleSettings(output=str(tmp_path / "again"), **SMALL))
    other = make_sample(SampleSettings(output=str(tmp_path / "other"), seed=2, **SMALL))
    assert files_of(again.path) == files_of(sample)
    assert again.fingerprint == Artifact.open(sample).fingerprint != other.fingerprint
    theirs = files_of(other.path)
    assert not [name for name, digest in files_of(sample).items() if "/id_" not in name and theirs[name] == digest]


def test_made_again_does_nothing_and_refuses_other_settings(sample: Path) -> None:
    before = (sample / "corpus" / "corpus-00000.arrow").stat().st_mtime_ns
    assert make_sample(SampleSettings(output=str(sample), **SMALL)).rows == 700
    assert (sample / "corpus" / "corpus-00000.arrow").stat().st_mtime_ns == before
    with pytest.raises(InputError, match=r"settings.seed: 1 -> 9"):
        make_sample(SampleSettings(output=str(sample), seed=9, **SMALL))


def test_qrels_name_what_is_there_and_the_passage_holds_the_answer(sample: Path) -> None:
    store, queries = PassageStore(sample / "corpus"), read_table(sample / "queries", "queries")
    answers = dict(zip(queries["query_id"].to_pylist(), queries["answers"].to_pylist(), strict=True))
    wanted = {"train": 300, "dev": 20, "test": 40}
    several = 0
    for split, count in wanted.items():
        qrels = read_table(sample / "qrels" / split, "qrels")
        rows = store.rows_of(qrels["passage_id"])
        assert rows.min() >= 0
        judged = qrels["query_id"].to_pylist()
        assert len(set(judged)) == count
        assert all(q.startswith(split) for q in judged)
        several += len(judged) > count
        for query, text in zip(judged, store.passages(rows), strict=True):
            assert answers[query][0].lower() in text.lower()
    assert several == 3, "some queries of each split have more than one passage that answers"


def test_many_notes_make_many_positives_in_other_words(tmp_path: Path) -> None:
    made = make_sample(SampleSettings(output=str(tmp_path / "s"), notes=12, **SMALL)).path
    store = PassageStore(made / "corpus")
    qrels = read_table(made / "qrels/train", "qrels").to_pandas()
    counts = qrels.groupby("query_id").size()
    assert 0.5 < (counts >= 3).mean() < 0.75, "0.62 by the binomial distribution: a note is about one of six facts"
    texts = store.passages(store.rows_of(pa.array(qrels["passage_id"], pa.string())))
    words = {row: text.lower() for row, text in zip(qrels.index, texts, strict=True)}
    table = read_table(made / "queries", "queries").to_pandas().set_index("query_id")["answers"]
    assert all(table[query][0].lower() in words[row] for row, query in qrels["query_id"].items())
    assert len(set(texts)) > 0.95 * len(set(qrels["passage_id"]))


def test_no_question_of_one_split_asks_for_a_fact_of_another(sample: Path) -> None:
    asked = {s: set(read_table(sample / "qrels" / s, "qrels")["passage_id"].to_pylist()) for s in ("train", "dev", "test")}
    assert not asked["train"] & asked["test"]
    assert not asked["train"] & asked["dev"]
    assert not asked["dev"] & asked["test"]
    texts = read_table(sample / "queries", "queries")["text"].to_pylist()
    assert len(set(texts)) == len(texts)


def test_documents_have_several_passages_and_names_share_words(sample: Path) -> None:
    table = PassageStore(sample / "corpus").slice(0, 700)
    sizes = table.group_by("doc_id").aggregate([([], "count_all")])["count_all"].to_pylist()
    assert sorted(set(sizes)) == [1, FACTS]
    names = set(table["title"].to_pylist())
    assert len(names) == 100
    assert all(len(name.split()) == 2 for name in names)
    assert len({name.split()[0] for name in names}) < 60, "first words are shared"
    assert all(re.fullmatch(r"[A-Z0-9].*\.", text) and "{" not in text for text in table["text"].to_pylist())


def test_bm25_finds_the_entity_but_not_the_fact(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        folder = make_sample(SampleSettings(output=str(tmp_path / str(seed)), seed=seed)).path
        assert 0.2 <= bm25_mrr(folder) <= 0.4


def bm25_mrr(folder: Path) -> float:
    store, queries, qrels = (
        PassageStore(folder / "corpus"),
        read_table(folder / "queries", "queries"),
        read_table(folder / "qrels/test", "qrels"),
    )
    stemmer, rows = Stemmer.Stemmer("english"), np.arange(len(store))
    retriever = bm25s.BM25(method="lucene", k1=0.9, b=0.4)
    retriever.index(bm25s.tokenize(store.passages(rows), stopwords="en", stemmer=stemmer, show_progress=False), show_progress=False)
    test = queries.filter(pc.starts_with(queries["query_id"], "test"))
    tokens = bm25s.tokenize(test["text"].to_pylist(), stopwords="en", stemmer=stemmer, show_progress=False)
    found, _ = retriever.retrieve(tokens, k=10, show_progress=False)
    positives: dict[str, set[int]] = {}
    for query, row in zip(qrels["query_id"].to_pylist(), store.rows_of(qrels["passage_id"]).tolist(), strict=True):
        positives.setdefault(query, set()).add(row)
    hits = zip(test["query_id"].to_pylist(), found.tolist(), strict=True)
    return float(np.mean([next((1 / (i + 1) for i, row in enumerate(top) if row in positives[q]), 0.0) for q, top in hits]))


def test_twins_share_their_words_in_the_other_order() -> None:
    names = World(7 * 400, 5).names(np.arange(400))
    for one, other in zip(names[::2], names[1::2], strict=True):
        assert one.split() == other.split()[::-1]


@pytest.mark.parametrize("seed", [0, -1, 2**63])
def test_any_seed_makes_different_names(seed: int) -> None:
    world = World(7 * 400, seed)
    assert len(set(world.names(np.arange(400)))) == 400


def test_smallest_world(tmp_path: Path) -> None:
    made = make_sample(SampleSettings(output=str(tmp_path / "s"), passages=100, train_queries=60, dev_queries=5, test_queries=5))
    assert 100 <= made.rows < 100 + FACTS + 1


def test_too_few_facts_for_the_queries(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"train_queries: 100 passages have facts for \d+ train queries only, not 4800"):
        make_sample(SampleSettings(output=str(tmp_path / "s"), passages=100, dev_queries=5, test_queries=5))


def test_some_notes_answer_a_training_query_and_are_not_judged_for_it(tmp_path: Path) -> None:
    def pairs(folder: Path, split: str) -> set[tuple[str, str]]:
        qrels = read_table(folder / "qrels" / split, "qrels")
        return set(zip(qrels["query_id"].to_pylist(), qrels["passage_id"].to_pylist(), strict=True))

    whole, some, none = (
        make_sample(SampleSettings(output=str(tmp_path / str(share)), notes=12, unjudged=share, **SMALL)).path for share in (0.0, 0.5, 1.0)
    )
    assert not (whole / "qrels" / "unjudged").exists()
    for folder in (some, none):
        assert pairs(folder, "train") | pairs(folder, "unjudged") == pairs(whole, "train")
        assert not pairs(folder, "train") & pairs(folder, "unjudged")
        assert {query for query, _ in pairs(folder, "train")} == {query for query, _ in pairs(whole, "train")}, "each keeps a positive"
        for split in ("dev", "test"):
            assert pairs(folder, split) == pairs(whole, split)
    notes = {(q, p) for q, p in pairs(whole, "train") if p.startswith("note-")}
    assert pairs(none, "unjudged") == notes
    assert 0.4 * len(notes) < len(pairs(some, "unjudged")) < 0.6 * len(notes)


def test_a_share_of_no_notes_is_refused() -> None:
    with pytest.raises(InputError, match="unjudged is a share of the notes, and notes is 0"):
        SampleSettings(output="o", notes=0, unjudged=0.5)
    assert SampleSettings(output="o", notes=0).notes == 0
