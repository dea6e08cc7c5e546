"""Small corpora with judgements and a run, for the tests of mining."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from raydense.data.store import CorpusWriter
from raydense.data.tables import commit_table, read_table
from raydense.storage import Artifact, Draft

Run = dict[str, list[tuple[str, float]]]


def write_table(folder: Path, kind: str, parts: list[pa.Table], /, stage: str = "test", depth: int = 100, **summary: object) -> None:
    """An artifact of a stage; `depth` is that of `rerank`."""
    draft = Draft.open(folder, kind, {"stage": stage, "settings": {"depth": depth}})
    for number, part in enumerate(parts):
        commit_table(draft, f"{kind}-{number:05d}.parquet", part)
    draft.finish(sum(p.num_rows for p in parts), **summary)


def write_world(
    root: Path,
    texts: list[str],
    qrels: list[tuple[str, str, int]],
    run: Run,
    cuts: int = 1,
    asked: dict[str, str] | None = None,
    **summary: object,
) -> None:
    """Passages p0, p1, ... of these texts, the queries of qrels and run, whose text is `asked` or the id, and the run in `cuts` files of equal rows."""
    draft = Draft.open(root / "corpus", "corpus", {"test": "corpus"})
    writer = CorpusWriter(draft, 3)
    writer.add(pa.table({"passage_id": [f"p{i}" for i in range(len(texts))], "title": [""] * len(texts), "text": texts}))
    writer.finish()
    ids = list(dict.fromkeys([q for q, _, _ in qrels] + list(run)))
    write_table(root / "queries", "queries", [pa.table({"query_id": ids, "text": [(asked or {}).get(q, q) for q in ids]})])
    names = ["query_id", "passage_id", "relevance"]
    write_table(root / "qrels", "qrels", [pa.table(dict(zip(names, map(list, zip(*qrels, strict=True)), strict=True)))])
    rows = [(q, p, rank, score) for q, hits in run.items() for rank, (p, score) in enumerate(hits, 1)]
    columns = list(map(list, zip(*rows, strict=True))) or [[], [], [], []]
    table = pa.table(dict(zip(["query_id", "passage_id", "rank", "score"], columns, strict=True)))
    edges = np.linspace(0, len(rows), cuts + 1).astype(int)
    write_table(root / "run", "run", [table.slice(a, b - a) for a, b in pairwise(edges)], **summary)


def write_trained(folder: Path | str, loss: str | None, **settings: str) -> Path | str:
    """The folder of a re-ranker that `train` made with a loss, for what looks at it and reads no weights."""
    draft = Draft.open(folder, "model", {"stage": "train", "settings": {"loss": loss, **settings}})
    files = {"config.json": '{"architectures": ["BertForSequenceClassification"]}', "model.safetensors": "", "tokenizer.json": "{}"}
    for name, text in files.items():
        draft.commit(name, lambda path, text=text: path.write_text(text), 0)
    draft.finish(0)
    return folder


def examples_of(artifact: Artifact) -> dict[str, dict]:
    return {row["query_id"]: row for row in read_table(artifact.path, "examples").to_pylist()}


@st.composite
def worlds(pick):
    texts = pick(st.lists(st.sampled_from([f"text {i}" for i in range(12)]), min_size=4, max_size=25))
    passages = st.sampled_from([f"p{i}" for i in range(len(texts))])
    queries = [f"q{i}" for i in range(pick(st.integers(1, 6)))]
    pairs = pick(st.lists(st.tuples(st.sampled_from(queries), passages), min_size=1, max_size=15, unique=True))
    qrels = [(q, p, pick(st.integers(-1, 3))) for q, p in pairs]
    run = {}
    for query in pick(st.permutations([*queries, "unjudged"])):
        hits = pick(st.lists(passages, max_size=len(texts), unique=True))
        if hits:
            run[query] = [(p, float(5 - rank)) for rank, p in enumerate(hits)]
    return texts, qrels, run
