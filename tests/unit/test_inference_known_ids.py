"""The ids that a run names, looked up block after block before any is scored."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from raydense.data.runs import RunReader
from raydense.data.tables import commit_table
from raydense.errors import InputError
from raydense.inference.known_ids import refuse_unknown_ids
from raydense.inference.settings import RerankSettings
from raydense.storage import Artifact, Draft
from tests.inference_world import make_corpus, make_queries, write_table

DEPTH = 2


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ids")
    make_corpus(root / "corpus", 20, shard_rows=7)
    make_queries(root / "queries", 4)
    return root


def hits(**changes: str) -> pa.Table:
    """Four queries of three hits each; `changes` are of ids, and those that they become."""
    queries, passages = [f"q{n // 3}" for n in range(12)], [f"p{n % 5}" for n in range(12)]
    passages[7], passages[8] = "p11", "p12"  # ranks 2 and 3 of q2
    named = [[changes.get(one, one) for one in ids] for ids in (queries, passages)]
    return pa.table({"query_id": named[0], "passage_id": named[1], "rank": [1, 2, 3] * 4, "score": [1.0] * 12})


def check(world: Path, run: Path, first: int = 0) -> None:
    """Look up the ids of the blocks from `first` on."""
    inputs = {name: str(world / name) for name in ("corpus", "queries")}
    settings = RerankSettings.read({"model": "m", "output": "o", "run": str(run), "depth": DEPTH, **inputs})
    prints = {name: Artifact.open(getattr(settings, name)).fingerprint for name in ("run", "corpus", "queries")}
    refuse_unknown_ids(settings, RunReader(str(run)).blocks(1, DEPTH)[first:], prints)


@pytest.mark.parametrize("cut", [12, 7, 1])
def test_an_unknown_id_is_refused_in_the_blocks_to_come(world: Path, tmp_path: Path, cut: int) -> None:
    for number, (before, name) in enumerate([("q2", "query 'x'"), ("p11", "passage 'x'")]):
        run = tmp_path / f"run-{number}"
        table = hits(**{before: "x"})
        write_table(run, "run", table.slice(0, cut), table.slice(cut))
        for first in (0, 2):
            with pytest.raises(InputError, match=f"run-{number}: names {name}, which the"):
                check(world, run, first)
        check(world, run, first=3)


def test_all_known_or_below_the_depth_is_accepted(world: Path, tmp_path: Path) -> None:
    write_table(tmp_path / "run", "run", hits(p12="x"))
    check(world, tmp_path / "run")


def test_passages_of_a_run_that_names_its_corpus_are_not_looked_up(world: Path, tmp_path: Path) -> None:
    """They are the corpus's own: the stage that made it took them from there."""
    for number, table in enumerate([hits(p11="x"), hits(q2="x")]):
        draft = Draft.open(tmp_path / f"run-{number}", "run", {})
        commit_table(draft, "run.parquet", table)
        draft.finish(12, corpus=Artifact.open(world / "corpus").fingerprint)
    check(world, tmp_path / "run-0")
    with pytest.raises(InputError, match="names query 'x'"):
        check(world, tmp_path / "run-1")
