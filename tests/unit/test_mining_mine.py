"""mine(): against a slow reading in plain Python, and the traps that other miners fell into."""

from __future__ import annotations

import hashlib
import math
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import raydense.data.answers as answers
import raydense.mining.answers as mining_answers
import raydense.mining.mine as mining
from raydense.data.draws import draw
from raydense.data.store import CorpusWriter, PassageStore
from raydense.data.tables import read_table
from raydense.errors import InputError
from raydense.mining.mine import mine
from raydense.mining.negatives import random_rows
from raydense.mining.settings import MineSettings
from raydense.storage import Artifact, Draft
from tests.mining_world import Run, examples_of, worlds, write_table, write_world


def mine_world(root: Path, output: str = "examples", **settings: object) -> Artifact:
    folders = {name: str(root / name) for name in ("run", "corpus", "queries", "qrels")}
    return mine(MineSettings.read({**folders, "output": str(root / output), **settings}))


def slowly(texts: list[str], qrels: list[tuple[str, str, int]], run: Run, s: MineSettings) -> dict[str, tuple[list[int], set[int], int]]:
    """Positives, allowed rows and number of negatives of each query, read off the definition one passage at a time."""
    found = {}
    for query, hits in run.items():
        relevant = sorted((-r, int(p[1:])) for q, p, r in qrels if q == query and r >= 1)
        if not relevant:
            continue
        banned = {texts[row] for _, row in relevant}
        allowed = []
        for rank, (passage, _) in enumerate(hits, 1):
            row = int(passage[1:])
            if s.skip < rank <= s.depth and texts[row] not in banned:
                banned.add(texts[row])
                allowed.append(row)
        scores = {int(p[1:]): score for p, score in hits}
        allowed = [row for row in allowed if not near(scores[row], min(scores.get(row, float("-inf")) for _, row in relevant), s)]
        count = min(len(allowed), s.negatives)
        if count >= (s.min_negatives or s.negatives) or s.shortage == "keep":
            found[query] = ([row for _, row in relevant], allowed, count)
    return found


def near(score: float, positive: float, s: MineSettings) -> bool:
    """Whether a margin leaves a negative out, by the words of `mine_hard_negatives`."""
    if s.max_score is not None and score > s.max_score:
        return True
    if s.absolute_margin is not None and score + s.absolute_margin > positive:
        return True
    return s.relative_margin is not None and (math.isinf(positive) or score > positive - abs(positive) * s.relative_margin)


MARGINS = st.fixed_dictionaries(
    {},
    optional={"max_score": st.sampled_from([2.0, 4.5]), "absolute_margin": st.sampled_from([0.0, 1.5]), "relative_margin": st.just(0.25)},
)


@given(
    world=worlds(),
    margins=st.one_of(st.just({}), MARGINS),
    negatives=st.integers(1, 6),
    window=st.tuples(st.integers(0, 3), st.integers(1, 20)),
    pick=st.sampled_from(["random", "top"]),
    shortage=st.sampled_from(["keep", "drop"]),
    least=st.none() | st.just(1),
    cuts=st.integers(1, 4),
    block=st.integers(1, 30),
)
@settings(max_examples=25, deadline=None)
def test_equals_the_slow_reading(world, margins, negatives, window, pick, shortage, cuts, block, least):
    texts, qrels, run = world
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(mining, "BLOCK_ROWS", block)
        root = Path(folder)
        write_world(root, texts, qrels, run, cuts)
        asked = {"negatives": negatives, "skip": window[0], "depth": sum(window), "pick": pick, "shortage": shortage, **margins}
        asked |= {"min_negatives": least} if least else {}
        s = MineSettings(output="x", run="x", corpus="x", queries="x", qrels="x", **asked)
        expected = slowly(texts, qrels, run, s)
        if not expected:
            with pytest.raises(InputError, match=r"no example is left|no query has a positive"):
                mine_world(root, **asked)
            return
        artifact = mine_world(root, **asked)
        found = examples_of(artifact)
        assert list(found) == list(expected)
        for query, (positives, allowed, count) in expected.items():
            example = found[query]
            assert example["positives"] == positives
            assert len(example["negatives"]) == len(set(example["negatives"])) == count
            assert set(example["negatives"]) <= set(allowed)
            if pick == "top":
                assert example["negatives"] == allowed[:count]
            scores = {int(p[1:]): score for p, score in run[query]}
            assert example["negative_scores"] == [scores[row] for row in example["negatives"]]
        sizes = Counter(count for _, _, count in expected.values())
        assert artifact.summary["negatives"] == [sizes[i] for i in range(negatives + 1)]
        assert artifact.rows == artifact.summary["kept"] == len(expected)
        assert artifact.summary["kept"] + sum(artifact.summary["dropped"].values()) == artifact.summary["queries"]
        assert artifact.summary["corpus"] == PassageStore(root / "corpus").fingerprint


@given(world=worlds(), negatives=st.integers(1, 6), random=st.integers(1, 6), cuts=st.integers(1, 4), block=st.integers(1, 30))
@settings(max_examples=12, deadline=None)
def test_random_passages_are_any_others_of_the_corpus(world, negatives, random, cuts, block):
    """These worlds are so small that every passage is drawn, so that a query has as many as there are other texts."""
    texts, qrels, run = world
    negatives += random
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(mining, "BLOCK_ROWS", block)
        root = Path(folder)
        write_world(root, texts, qrels, run, cuts)
        s = MineSettings(output="x", run="x", corpus="x", queries="x", qrels="x", negatives=negatives - random)
        expected = slowly(texts, qrels, run, s)
        assume(expected)
        alone = examples_of(mine_world(root, "alone", negatives=negatives - random))
        both = mine_world(root, negatives=negatives, random=random)
        for query, example in examples_of(both).items():
            positives, first = expected[query][0], alone[query]["negatives"]
            assert example["negatives"][: len(first)] == first
            drawn = example["negatives"][len(first) :]
            taken = {texts[row] for row in positives + first}
            assert len({texts[row] for row in drawn} - taken) == len(drawn) == min(random, len(set(texts) - taken))
            assert example["negative_scores"][len(first) :] == [None] * len(drawn)
        counted = sum(example["negative_sources"].count("random") for example in examples_of(both).values())
        assert both.summary["sources"]["negatives"].get("random", 0) == counted


def test_random_rows_are_uniform_and_of_each_query_its_own():
    hashes = np.arange(2_000, dtype=np.uint64)
    query, row = random_rows(1, hashes, 1_000_003, 4)
    each = len(row) // len(hashes)
    assert each > 2 * 4
    assert query.tolist() == np.repeat(np.arange(2_000), each).tolist()
    assert 0 <= row.min() < 200
    assert 1_000_003 > row.max() > 1_000_003 - 200
    assert len(np.unique(row)) > 0.95 * len(row)
    counted = np.bincount(row * 100 // 1_000_003, minlength=100)
    assert ((counted - len(row) / 100) ** 2 / (len(row) / 100)).sum() < 180, "chi-square with 99 degrees of freedom"
    again = random_rows(1, hashes[7:8], 1_000_003, 4)[1]
    assert again.tolist() == row[query == 7].tolist(), "whatever the other queries are"
    assert random_rows(2, hashes[7:8], 1_000_003, 4)[1].tolist() != again.tolist()
    few = random_rows(1, hashes, 9, 4)[1].reshape(-1, 9)
    assert (np.sort(few, axis=1) == np.arange(9)).all()
    assert len(np.unique(few[:, 0])) == 9


@pytest.mark.parametrize("more", [{"random": 3}, {"random": 1, "keep_scores": True}, {"random": 1, "hybrid": {"labels": "x"}}])
def test_random_passages_that_cannot_be_are_refused(more: dict[str, object]):
    with pytest.raises(InputError, match=r"random 3 is more than the 2 negatives|random passages have no score of a teacher"):
        MineSettings.read(dict.fromkeys(("output", "run", "corpus", "queries", "qrels"), "x") | {"negatives": 2} | more)


def digest(artifact: Artifact) -> list[str]:
    return [hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(artifact.path.glob("*.parquet"))]


TEXTS = ["gold", "silver", "gold", "lead", "tin", "lead", "iron", "zinc"]
QRELS = [("q", "p1", 1), ("q", "p0", 2), ("q", "p3", 0)]
RUN: Run = {"q": [("p2", 3.0), ("p1", 2.0), ("p5", 0.0), ("p3", 0.0), ("p6", -1.5), ("p4", -2.0), ("p0", -9.0)]}


def test_margins_leave_out_what_is_too_near_to_the_positive_and_count_it(tmp_path: Path):
    run: Run = {"q": [("p6", 9.0), ("p2", 8.0), ("p1", 7.9), ("p5", 7.7), ("p3", 7.5), ("p0", 7.0), ("p4", 5.0)], "r": [("p4", 1.0)]}
    texts = ["gold", "silver", "copper", "lead", "tin", "brass", "iron"]
    write_world(tmp_path, texts, [("q", "p1", 1), ("r", "p0", 1)], run)
    artifact = mine_world(tmp_path, max_score=8.5, absolute_margin=0.2, relative_margin=0.1, pick="top")
    assert examples_of(artifact)["q"]["negatives"] == [0, 4]
    assert examples_of(artifact)["r"]["negatives"] == []  # its positive is not in the run: all of it ranks higher
    removed = artifact.summary["removed"]
    assert [removed[name] for name in ("positive", "max score", "absolute margin", "relative margin")] == [1, 1, 2, 2]


def test_all_positives_and_their_texts_are_left_out_and_counted(tmp_path: Path):
    write_world(tmp_path, TEXTS, QRELS, RUN, kind="bm25")
    artifact = mine_world(tmp_path, pick="top", negatives=3)
    example = examples_of(artifact)["q"]
    assert example["positives"] == [0, 1]
    assert example["negatives"] == [5, 6, 4]
    assert example["negative_scores"] == [0.0, -1.5, -2.0]
    assert example["negative_sources"] == ["bm25"] * 3
    assert artifact.summary["removed"] == {"skipped rank": 0, "positive": 2, "text of a positive": 1, "repeated text": 1}
    assert artifact.summary["candidates"] == 7


def test_a_positive_of_the_same_question_under_another_id_is_no_negative(tmp_path: Path):
    """Of the run, at random, and where the other query is not in the run."""
    texts, hits = [f"text {i}" for i in range(6)], [(f"p{i}", 9.0 - i) for i in range(6)]
    asked = {"q1": "what is asthma", "q2": "what is asthma"}
    write_world(tmp_path, texts, [("q1", "p0", 1), ("q2", "p1", 1), ("q3", "p2", 1)], {"q1": hits, "q3": hits}, asked=asked)
    found = examples_of(mine_world(tmp_path, negatives=6, pick="top"))
    assert found["q1"]["positives"] == [0]
    assert found["q1"]["negatives"] == [2, 3, 4, 5]
    assert found["q3"]["negatives"] == [0, 1, 3, 4, 5]
    at_random = examples_of(mine_world(tmp_path, "random", negatives=6, random=6))
    assert sorted(at_random["q1"]["negatives"]) == [2, 3, 4, 5]


def test_a_teachers_scores_of_positives_are_kept(tmp_path: Path):
    """At whatever rank the run has one; null where it has none. Nothing else changes."""
    write_world(tmp_path, TEXTS, [*QRELS, ("q", "p7", 1)], RUN)
    plain, kept = (
        mine_world(tmp_path, name, pick="top", depth=5, **more) for name, more in (("plain", {}), ("kept", {"keep_scores": True}))
    )
    (example,) = examples_of(kept).values()
    assert example.pop("positives") == [0, 1, 7]
    assert example.pop("positive_scores") == [-9.0, 2.0, None]
    (without,) = examples_of(plain).values()
    assert without.pop("positives") == [0, 1, 7]
    assert example == without
    assert "teacher" not in plain.manifest["made_from"]["settings"]
    with pytest.raises(InputError, match="with hybrid all scores are those of the labels: leave one out"):
        mine_world(tmp_path, "x", keep_scores=True, hybrid={"labels": "x"})


def test_scores_of_positives_need_no_look_up_of_all_hits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Those below the depth are many: of a run of 1,000 hits, and a depth of 200, four fifths."""
    hits = [(f"p{i}", 100.0 - i) for i in range(100)]
    write_world(tmp_path, [f"text {i}" for i in range(100)], [("q", "p90", 1)], {"q": hits})
    looked, known_rows = [], PassageStore.known_rows
    monkeypatch.setattr(PassageStore, "known_rows", lambda self, ids, where: looked.append(len(ids)) or known_rows(self, ids, where))
    found = examples_of(mine_world(tmp_path, negatives=8, depth=8, pick="top", keep_scores=True, max_score=99.0))
    assert found["q"]["negatives"] == list(range(1, 8))
    assert found["q"]["positive_scores"] == [10.0]
    assert sum(looked) < 20


@pytest.mark.parametrize("more", [{}, {"keep_scores": True}, {"absolute_margin": 0.5}])
def test_of_a_re_ranked_run_the_scored_hits_are_candidates(tmp_path: Path, more: dict[str, object], capsys: pytest.CaptureFixture[str]):
    """Those that it keeps below its depth have other scores: no teacher's, and none to compare with a positive's."""
    cut = {q: hits[:3] for q, hits in RUN.items()}
    for name, run, depth in (("kept", RUN, 3), ("cut", cut, 100)):
        write_world(tmp_path / name, TEXTS, QRELS, run, stage="rerank", depth=depth)
    found, wanted = (mine_world(tmp_path / name, pick="top", depth=50, **more) for name in ("kept", "cut"))
    assert examples_of(found) == examples_of(wanted)
    assert found.summary["candidates"] == wanted.summary["candidates"] == 3
    assert (found.summary["depth"], wanted.summary["depth"]) == (3, 50)
    line = f"mine: {tmp_path / 'kept' / 'run'} has scores of the re-ranker down to rank 3: it is the depth, not 50"
    assert [one for one in capsys.readouterr().err.splitlines() if "scores of the re-ranker" in one] == [line]


def test_skipping_all_scored_hits_of_a_re_ranked_run_is_refused(tmp_path: Path) -> None:
    write_world(tmp_path, TEXTS, QRELS, RUN, stage="rerank", depth=3)
    with pytest.raises(InputError, match=r"run: skip 3 leaves nothing of its 3 scores of the re-ranker; give a smaller skip, or"):
        mine_world(tmp_path, skip=3)
    assert examples_of(mine_world(tmp_path, skip=2))


def test_shortage_is_reported_never_filled(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_world(tmp_path, TEXTS, [*QRELS, ("absent", "p4", 1), ("none", "p4", 0)], {**RUN, "none": [("p1", 1.0)]})
    artifact = mine_world(tmp_path, negatives=5)
    assert len(examples_of(artifact)["q"]["negatives"]) == 3
    assert artifact.summary["short"] == 2
    assert artifact.summary["dropped"] == {"no positive": 1, "not in the run": 1, "too few negatives": 0}
    assert "nothing was filled in" in capsys.readouterr().err
    with pytest.raises(InputError, match="no example is left"):
        mine_world(tmp_path, "dropped", negatives=5, shortage="drop")
    with pytest.raises(InputError, match="2 queries have fewer than 5 negatives, the first is 'q'"):
        mine_world(tmp_path, "failed", negatives=5, shortage="fail")
    assert not (tmp_path / "failed").exists()


def test_margins_that_leave_nothing_are_named_and_leave_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """With other margins the same output is made."""
    write_world(tmp_path, TEXTS, QRELS, {"q": [("p0", 9.0), *RUN["q"]]})
    with pytest.raises(InputError, match=r"no example is left: of \d+ candidates .*[1-9] absolute margin.* were removed.*smaller margins"):
        mine_world(tmp_path, absolute_margin=1000, shortage="drop")
    kept = mine_world(tmp_path, absolute_margin=1000)
    assert [row["negatives"] for row in examples_of(kept).values()] == [[]]
    assert "mine: 1 of them have no negative, which a training with negatives refuses" in capsys.readouterr().err


def test_a_draw_depends_on_seed_query_and_passage_alone(tmp_path: Path):
    texts = [f"text {i}" for i in range(200)]
    hits = [(f"p{i}", 200.0 - i) for i in range(1, 200)]
    qrels = [("a", "p0", 1), ("b", "p0", 1)]
    write_world(tmp_path / "two", texts, qrels, {"a": hits, "b": hits})
    write_world(tmp_path / "one", texts, qrels[1:], {"b": hits})
    two, one = mine_world(tmp_path / "two", negatives=10), mine_world(tmp_path / "one", negatives=10)
    assert examples_of(two)["b"] == examples_of(one)["b"]
    assert examples_of(two)["a"]["negatives"] != examples_of(two)["b"]["negatives"]
    other = mine_world(tmp_path / "two", "other", negatives=10, seed=7)
    assert examples_of(other)["b"]["negatives"] != examples_of(two)["b"]["negatives"]
    fewer = mine_world(tmp_path / "two", "fewer", negatives=4)
    assert examples_of(fewer)["b"]["negatives"] == examples_of(two)["b"]["negatives"][:4]
    assert digest(mine_world(tmp_path / "two", "again", negatives=10)) == digest(two)


def test_random_numbers_are_uniform():
    """Each of 50 passages is in the first 10 of 50 for a fifth of 20,000 queries: chi-square with 49 degrees of freedom."""
    queries = np.random.default_rng(0).integers(0, 2**63, 20_000).astype(np.uint64)
    numbers = draw(3, np.repeat(queries, 50), np.tile(np.arange(50), len(queries))).reshape(-1, 50)
    taken = np.bincount(np.argsort(numbers, axis=1)[:, :10].ravel(), minlength=50)
    assert ((taken - 4_000) ** 2 / (4_000 * 0.8)).sum() < 100


def test_unknown_ids_and_torn_queries_are_refused(tmp_path: Path):
    write_world(tmp_path / "run", TEXTS, QRELS, {"q": [("p99", 1.0)]})
    with pytest.raises(InputError, match="names passage 'p99'"):
        mine_world(tmp_path / "run")
    write_world(tmp_path / "qrels", TEXTS, [("q", "p77", 1), ("q", "p78", 0)], RUN)
    with pytest.raises(InputError, match="names passage 'p77'"):
        mine_world(tmp_path / "qrels")
    write_world(tmp_path / "skip", TEXTS, QRELS, RUN)
    with pytest.raises(InputError, match="leaves nothing"):
        mine_world(tmp_path / "skip", skip=9, depth=9)
    part = read_table(tmp_path / "skip" / "run", "run")
    torn = pa.concat_tables([part, part.set_column(0, "query_id", pa.array(["r"] * 7)), part])
    write_table(tmp_path / "skip" / "queries2", "queries", [pa.table({"query_id": ["q", "r"], "text": ["a", "b"]})])
    write_table(tmp_path / "skip" / "torn", "run", [torn])
    with pytest.raises(InputError, match="rows of query 'q' are not adjacent"):
        mine_world(tmp_path / "skip", run=str(tmp_path / "skip" / "torn"), queries=str(tmp_path / "skip" / "queries2"))


def test_a_run_of_another_corpus_is_refused(tmp_path):
    qrels, run = [("q0", "p0", 1)], {"q0": [("p0", 3.0), ("p1", 2.0), ("p2", 1.0)]}
    write_world(tmp_path, ["text 0", "text 1", "text 2"], qrels, run, corpus="c" * 64)
    with pytest.raises(InputError, match=r"run: was made with another corpus than \S+corpus"):
        mine_world(tmp_path)
    own = Artifact.open(tmp_path / "corpus").fingerprint
    write_world(tmp_path / "own", ["text 0", "text 1", "text 2"], qrels, run, corpus=own)
    assert mine_world(tmp_path / "own").rows == 1


def test_judgements_of_passages_that_the_corpus_lacks_are_left_out_and_counted(tmp_path, capsys):
    write_world(tmp_path / "whole", TEXTS, QRELS, RUN)
    write_world(tmp_path / "some", TEXTS, [("q", "p77", 2), *QRELS, ("without", "p78", 1)], RUN | {"without": [("p1", 1.0)]})
    whole = mine_world(tmp_path / "whole")
    capsys.readouterr()
    some = mine_world(tmp_path / "some")
    assert examples_of(some) == examples_of(whole)
    assert some.summary["dropped"]["no positive"] == whole.summary["dropped"]["no positive"] + 1
    line = f"mine: 2 of {len(QRELS) + 2} judgements of {tmp_path / 'some' / 'qrels'} name passages that the corpus lacks: left out"
    assert capsys.readouterr().err.splitlines().count(line) == 1


ANSWERED = [
    ("a b kiwi c", ""),
    ("no fruit", "The Kiwi"),
    ("kiwis", ""),
    ("a fig", ""),
    ("ki wi", "a fig 1999"),
    ("nothing", ""),
]


def write_answered(root: Path, answers: dict[str, list[str] | None]) -> None:
    """Passages of ANSWERED, which all queries find in their order; the last is the positive of each."""
    write_world(root, ["x"], [("q", "p0", 1)], {"q": [("p0", 1.0)]})
    shutil.rmtree(root / "corpus")
    draft = Draft.open(root / "corpus", "corpus", {"test": "corpus"})
    writer, (texts, titles) = CorpusWriter(draft, 3), zip(*ANSWERED, strict=True)
    writer.add(pa.table({"passage_id": [f"p{i}" for i in range(len(texts))], "title": titles, "text": texts}))
    writer.finish()
    ids, last = list(answers), len(ANSWERED) - 1
    queries = pa.table({"query_id": ids, "text": ids, "answers": pa.array(answers.values(), pa.list_(pa.string()))})
    write_table(root / "asked", "queries", [queries])
    write_table(root / "judged", "qrels", [pa.table({"query_id": ids, "passage_id": [f"p{last}"] * len(ids), "relevance": [1] * len(ids)})])
    rows = [(q, f"p{i}", i + 1, 9.0 - i) for q in ids for i in range(last)]
    names = ["query_id", "passage_id", "rank", "score"]
    write_table(root / "hits", "run", [pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))])


def mine_answered(root: Path, output: str, **settings: object) -> Artifact:
    folders = {"run": str(root / "hits"), "queries": str(root / "asked"), "qrels": str(root / "judged")}
    return mine_world(root, output, **folders, **{"negatives": 5, **settings})


@pytest.mark.parametrize("at_once", [2, 100])
def test_a_passage_that_holds_an_answer_in_text_or_title_is_no_negative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int):
    monkeypatch.setattr(mining_answers, "_AT_ONCE", at_once)
    write_answered(tmp_path, {"q1": ["KIWI"], "q2": None, "q3": ["fig", "kiwi c"], "q4": ["(broken", r"\bf.g \d+"]})
    by_tokens = mine_answered(tmp_path, "tokens", without_answers="token")
    found = {query: sorted(example["negatives"]) for query, example in examples_of(by_tokens).items()}
    assert found == {"q1": [2, 3, 4], "q2": [0, 1, 2, 3, 4], "q3": [1, 2], "q4": [0, 1, 2, 3, 4]}
    assert by_tokens.summary["removed"]["holds an answer"] == 5
    by_expressions = mine_answered(tmp_path, "expressions", without_answers="regex")
    found = {query: sorted(example["negatives"]) for query, example in examples_of(by_expressions).items()}
    assert found == {"q1": [3, 4], "q2": [0, 1, 2, 3, 4], "q3": [1, 2], "q4": [0, 1, 2, 3]}
    assert by_expressions.summary["answers"] == {"looked at": 15, "invalid": 1, "given up": 0}


def test_what_may_hold_an_expression_that_takes_too_long_is_no_negative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(answers, "_SEARCH_S", 0.0)
    write_answered(tmp_path, {"q1": ["(b", "(k|kk)+$"], "q2": None})
    mined = mine_answered(tmp_path, "slow", without_answers="regex", random=4)
    assert examples_of(mined)["q1"]["negatives"] == []
    assert len(examples_of(mined)["q2"]["negatives"]) == 5
    assert mined.summary["answers"] | {"looked at": 0} == {"looked at": 0, "invalid": 1, "given up": 1}
    assert "1 answers took too long as expressions: passages that may hold them are no negatives" in capsys.readouterr().err
    given_up = mine_answered(tmp_path, "random", without_answers="regex", random=4, depth=1)
    assert given_up.summary["answers"] | {"looked at": 0} == {"looked at": 0, "invalid": 1, "given up": 1}


def test_no_more_passages_are_looked_through_than_the_draw_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_answered(tmp_path, {"q1": ["kiwi"], "q2": None, "q3": ["kiwis"]})
    mined = mine_answered(tmp_path, "top", without_answers="token", pick="top", negatives=1)
    assert {query: example["negatives"] for query, example in examples_of(mined).items()} == {"q1": [2], "q2": [0], "q3": [0]}
    assert mined.summary["removed"]["holds an answer"] == 2
    assert mined.summary["answers"] == {"looked at": 4}
    assert "mine: looked for answers in 4 passages, until each query had its negatives" in capsys.readouterr().err


def test_random_passages_hold_no_answer(tmp_path: Path):
    write_answered(tmp_path, {"q1": ["kiwi"]})
    mined = mine_answered(tmp_path, "random", without_answers="token", random=4, depth=1)
    assert sorted(examples_of(mined)["q1"]["negatives"]) == [2, 3, 4]


def test_answers_are_asked_for_where_no_query_has_one(tmp_path: Path):
    write_answered(tmp_path, {"q1": None, "q2": [" "]})
    with pytest.raises(InputError, match="no query has an answer"):
        mine_answered(tmp_path, "none", without_answers="token")


def test_where_answers_leave_no_example_the_error_names_them(tmp_path: Path):
    write_answered(tmp_path, {"q1": ["kiwi", "fig", "kiwis", "wi"]})
    with pytest.raises(InputError, match=r"no example is left: .* hold.* an answer were removed; .*, or leave without_answers out"):
        mine_answered(tmp_path, "none", without_answers="token", shortage="drop", min_negatives=1)
