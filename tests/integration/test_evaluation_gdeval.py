"""Measures that ir-measures takes by gdeval, a Perl script."""

from __future__ import annotations

import shutil

import pyarrow as pa
import pytest

from raydense.evaluation.metrics import Judgements

pytestmark = pytest.mark.skipif(not shutil.which("perl"), reason="no perl here")


@pytest.mark.parametrize("name", ["ERR@20", "nDCG(dcg='exp-log2')@20"])
def test_ids_of_any_form_are_measured_by_gdeval(name: str):
    """It takes topics for numbers, from the last hyphen on, and splits lines at blanks."""
    labels, ranked = [3, 0, 1, 4], ["p1", "p3", "p0", "p9", "p2"]

    def values(queries: list[str], passages: list[str]) -> list[float]:
        ids = dict(zip(["p0", "p1", "p2", "p3", "p9"], passages, strict=True))
        rows = [(query, ids[f"p{at}"], (label + shift) % 5) for shift, query in enumerate(queries) for at, label in enumerate(labels)]
        qrels = pa.table(dict(zip(["query_id", "passage_id", "relevance"], map(list, zip(*rows, strict=True)), strict=True)))
        hits = [(query, ids[passage], -float(rank)) for query in queries[:-1] for rank, passage in enumerate(ranked)]
        run = pa.table(dict(zip(["query_id", "passage_id", "score"], map(list, zip(*hits, strict=True)), strict=True)))
        measured = Judgements(qrels, [name], "").measure(run, "")
        (found,) = measured.per_query.values()
        return found.tolist()

    expected = values(["1", "2", "3", "4", "5"], ["10", "11", "12", "13", "19"])
    assert len(set(expected)) == 5
    assert expected[-1] == 0
    assert values(["01", "1", "PLAIN-2", "test0", "a b"], ["a b", "a c", "a", "é", " "]) == expected
