"""A run is measured in blocks of queries: each block size gives the same bytes, and the values that ir-measures gives of the whole run."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raydense.evaluation.runs as evaluated
from raydense.data.store import CorpusWriter
from raydense.data.tables import commit_table, read_table
from raydense.errors import InputError
from raydense.evaluation.evaluate import evaluate
from raydense.evaluation.settings import EvaluateSettings
from raydense.storage import Artifact, Draft

QUERIES, PASSAGES, DEPTH = 40, 60, 12
NAMES = ["nDCG@10", "RR@10", "RR", "AP", "R@5", "P@5", "Bpref", "Rprec", "NumRet", "NumRel", "NumQ", "Judged@5", "Success@5", "SetP"]
NAMES += ["SetR", "SetF", "infAP", "IPrec@0.1", "RBP", "Compat"]
MEASURES = [name for name in NAMES if ir_measures.DefaultPipeline.supports(ir_measures.parse_measure(name))]


def write(folder: Path, kind: str, made_from: dict[str, Any], *parts: pa.Table) -> Artifact:
    draft = Draft.open(folder, kind, made_from)
    for number, part in enumerate(parts):
        commit_table(draft, f"{kind}-{number:05d}.parquet", part)
    return draft.finish(sum(part.num_rows for part in parts))


def table(rows: list[tuple[Any, ...]], *names: str) -> pa.Table:
    return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with equal scores, unjudged queries and judged ones that it lacks, in two files that share a query; and it re-ranked."""
    root, rng = tmp_path_factory.mktemp("world"), np.random.default_rng(3)
    ids = [f"q{i}" for i in range(QUERIES)]
    writer = CorpusWriter(Draft.open(root / "corpus", "corpus", {}), 20)
    texts = [f"passage {i} of the sea" for i in range(PASSAGES)]
    writer.add(pa.table({"passage_id": [f"p{i}" for i in range(PASSAGES)], "title": [""] * PASSAGES, "text": texts}))
    writer.finish()
    answers = [[f"{i} of the sea"] if i % 3 else [] for i in range(QUERIES)]
    write(root / "queries", "queries", {}, pa.table({"query_id": ids, "text": ids, "answers": answers}))
    judged = [q for q in rng.permutation(ids) if q != "q7"]
    rows = [(q, f"p{p}", int(g)) for q in judged for p, g in zip(rng.permutation(PASSAGES)[:6], (0, 1, 0, 2, 1, 0), strict=True)]
    write(root / "qrels", "qrels", {}, table([rows[i] for i in rng.permutation(len(rows))], "query_id", "passage_id", "relevance"))
    asked = [q for q in rng.permutation(ids) if q not in ("q3", "q11")]
    found = {q: rng.permutation(PASSAGES)[: rng.integers(1, 25)] for q in asked}
    names = ("query_id", "passage_id", "rank", "score")
    rows = [(q, f"p{p}", rank, -float(rank // 3)) for q in asked for rank, p in enumerate(found[q], 1)]
    run = table(rows, *names)
    kept = write(root / "run", "run", {"stage": "search", "inputs": {}}, run.slice(0, 101), run.slice(101))
    rows = [(q, f"p{p}", rank, -float(rank // 2)) for q in asked for rank, p in enumerate(rng.permutation(found[q][:DEPTH]), 1)]
    made_from = {"stage": "rerank", "settings": {"depth": DEPTH}, "inputs": {"run": kept.fingerprint}}
    write(root / "again", "run", made_from, table(rows, *names))
    return root


def evaluated_in(world: Path, output: Path, **given: Any) -> Artifact:
    folders = {name: str(world / name) for name in ("qrels", "queries", "corpus")}
    runs = [str(world / "run"), str(world / "again")]
    return evaluate(EvaluateSettings.read({**folders, "run": runs, "output": str(output), "metrics": MEASURES, **given}))


def test_each_block_size_gives_the_same_bytes(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = []
    for rows in (1, 30, 10_000):
        monkeypatch.setattr(evaluated, "BLOCK_ROWS", rows)
        report = evaluated_in(world, tmp_path / f"{rows}", answers={"k": "1 3"})
        digests.append([hashlib.sha256(report.file(file.path).read_bytes()).hexdigest() for file in report.files])
    assert digests[0] == digests[1] == digests[2]
    assert {row["depth"] for row in report.summary["result"]["depths"]["again"]["depths"]} == {1, 2, 5, 10, DEPTH}


def test_values_are_those_of_the_whole_run(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluated, "BLOCK_ROWS", 30)
    report = evaluated_in(world, tmp_path / "report")
    qrels: dict[str, dict[str, int]] = {}
    for row in read_table(world / "qrels", "qrels").to_pylist():
        qrels.setdefault(row["query_id"], {})[row["passage_id"]] = row["relevance"]
    values = pq.read_table(report.file("per_query.parquet")).to_pylist()
    for run in ("run", "again"):
        rows = read_table(world / run, "run").to_pylist()
        rows = sorted(rows, key=lambda row: (row["score"], row["passage_id"]), reverse=True)
        hits: dict[str, dict[str, float]] = {}
        for row in rows:
            if row["query_id"] in qrels:
                mine = hits.setdefault(row["query_id"], {})
                mine[row["passage_id"]] = -1.0 - len(mine)
        measures = [ir_measures.parse_measure(name) for name in MEASURES]
        expected = {(v.query_id, str(v.measure)): v.value for v in ir_measures.evaluator(measures, qrels).iter_calc(hits)}
        for query in qrels.keys() - hits.keys():  # as trec_eval -c, where ir-measures has 0
            expected |= {(query, "NumQ"): 1.0, (query, "NumRel"): sum(grade >= 1 for grade in qrels[query].values())}
        found = {(row["query_id"], str(m)): row[str(m)] for row in values if row["run"] == run for m in measures}
        assert found.keys() == expected.keys()
        assert np.array_equal([found[key] for key in expected], list(expected.values()), equal_nan=True)


@pytest.mark.parametrize("rows", [1, 10_000])
@pytest.mark.parametrize("qrels", [True, False])
def test_a_query_in_two_places_is_refused(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, qrels: bool) -> None:
    monkeypatch.setattr(evaluated, "BLOCK_ROWS", rows)
    hits = [(q, f"p{i}", 1, 1.0) for i, q in enumerate(["q1", "q2", "q1"])]
    write(tmp_path / "run", "run", {}, table(hits, "query_id", "passage_id", "rank", "score"))
    folders = {name: str(world / name) for name in ("queries", "corpus")}
    given: dict[str, Any] = {"qrels": str(world / "qrels")} if qrels else {"answers": {"k": "1"}}
    with pytest.raises(InputError, match="the rows of query 'q1' are not adjacent; sort the run by query and rank"):
        evaluate(EvaluateSettings.read({**folders, "run": [str(tmp_path / "run")], "output": str(tmp_path / "report"), **given}))
