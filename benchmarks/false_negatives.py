"""False negatives planted in the sample: how many `annotate` puts before a judge who never errs, and what runs measure before and after.

    python benchmarks/false_negatives.py OUT [--held-out 400] [--depth 50] [--keep 5] [--rerankers 2]

The sample's training queries have each one judged answer, and others that nobody judged (`sample --unjudged 1`). 400 of them are held out as a dev set; a retriever and
re-rankers of several seeds are trained on the rest, and see false negatives there, too. The pool is BM25's and the retriever's first passages, as in the paper; a judge who knows
all answers judges the pages (DuReader-retrieval, section 2.3, figure 2). Run again, it continues.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

import raydense as rd
from raydense.data.tables import commit_table, read_table
from raydense.storage import Artifact, Draft

STEP = {"lr": 1e-3, "seed": 1}
RETRIEVER = {"pooling": "mean", "normalize": True, "temperature": 0.05, "batch_size": 64, "epochs": 4, "passage_length": 64, "negatives": 1}
RERANKER = {"loss": "pointwise", "batch_size": 32, "negatives": 3, "pair_length": 64}  # `annotate` reads scores as probabilities


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    for name, default in (("held-out", 400), ("depth", 50), ("keep", 5), ("rerankers", 2), ("passages", 10_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    out: Path = given.out
    data = rd.sample(rd.SampleSettings(passages=given.passages, notes=12, unjudged=1.0, output=out / "data")).path
    held, rest = halves(data / "qrels" / "train", given.held_out, out)
    texts = {"corpus": data / "corpus", "queries": data / "queries"}
    words = rd.index(rd.IndexSettings(kind="bm25", corpus=texts["corpus"], output=out / "words"))
    bm25 = rd.search(rd.SearchSettings(index=words, queries=texts["queries"], qrels=rest, k=100, output=out / "bm25"))
    retriever = train("retriever", "tiny", mined(bm25, rest, texts, out / "negatives", depth=100), texts, out / "retriever", **RETRIEVER)
    vectors = rd.encode(rd.EncodeSettings(model=retriever, corpus=texts["corpus"], output=out / "vectors"))
    dense = rd.index(rd.IndexSettings(kind="faiss", embeddings=vectors, output=out / "dense"))
    found = rd.search(rd.SearchSettings(index=dense, model=retriever, queries=texts["queries"], qrels=rest, k=100, output=out / "found"))
    easy = mined(found, rest, texts, out / "easy-negatives", skip=50, depth=100)
    hard = mined(found, rest, texts, out / "hard-negatives", depth=25)
    rerankers = []
    for seed in range(1, given.rerankers + 1):
        begun = train("reranker", retriever, easy, texts, out / f"easy-reranker-{seed}", **RERANKER, epochs=3, seed=seed)
        rerankers.append(train("reranker", begun, hard, texts, out / f"reranker-{seed}", **RERANKER, epochs=2, seed=seed))
    searched = {"queries": texts["queries"], "qrels": held, "k": given.depth}
    runs = {
        "BM25": rd.search(rd.SearchSettings(index=words, output=out / "held-bm25", **searched)),
        "DE": rd.search(rd.SearchSettings(index=dense, model=retriever, output=out / "held-dense", **searched)),
    }
    runs["CE on BM25"] = rd.rerank(
        rd.RerankSettings(model=rerankers[0], run=runs["BM25"], depth=given.depth, **texts, output=out / "held-reranked")
    )
    judge(given, out, runs, rerankers, held, texts, data)


def halves(qrels: Path, held_out: int, out: Path) -> tuple[Artifact, Artifact]:
    """The judgements of the first queries, and of the others."""
    table = read_table(qrels, "qrels")
    first = pc.is_in(table["query_id"], value_set=pc.unique(table["query_id"])[:held_out])
    return written(out / "held", table.filter(first)), written(out / "rest", table.filter(pc.invert(first)))


def written(folder: Path, table: pa.Table) -> Artifact:
    draft = Draft.open(folder, "qrels", {"of": "benchmarks/false_negatives.py", "rows": table.num_rows})
    if draft.done:
        return draft.done
    commit_table(draft, "qrels.parquet", table)
    return draft.finish(table.num_rows)


def mined(run: Artifact, qrels: Artifact, texts: dict, output: Path, **more: int) -> Artifact:
    return rd.mine(rd.MineSettings(run=run, qrels=qrels, negatives=8, **texts, **more, output=output))


def train(objective: str, model: str | Artifact, examples: Artifact, texts: dict, output: Path, **more) -> Artifact:
    given = {"objective": objective, "model": str(getattr(model, "path", model)), "examples": str(examples.path), "output": str(output)}
    return rd.train(rd.TrainSettings.read({**given, **{key: str(path) for key, path in texts.items()}, **STEP, **more}))


def judge(given: argparse.Namespace, out: Path, runs: dict, rerankers: list, held: Artifact, texts: dict, data: Path) -> None:
    of_held = set(read_table(held.path, "qrels")["query_id"].to_pylist())
    planted = {pair for pair in pairs_of(data / "qrels" / "unjudged") if pair[0] in of_held}
    known = pairs_of(held.path)
    pool = [f"{name}={runs[name].path}" for name in ("BM25", "DE")]
    models = [f"ce-{number}={one.path}" for number, one in enumerate(rerankers)]
    annotation = rd.annotate(
        rd.AnnotateSettings(run=pool, model=models, qrels=held, depth=given.depth, keep=given.keep, review=100, **texts, output=out / f"annotation-{given.keep}")
    )  # fmt: skip
    for part in ("package-", "review-"):
        answer(annotation, part, out / f"answers-{given.keep}", planted | known)
    pooled = {(row["query_id"], row["passage_id"]) for name in ("BM25", "DE") for row in read_table(runs[name].path, "run").to_pylist()}
    made = rd.adjudicate(
        rd.AdjudicateSettings(
            annotation=annotation, judgements=out / f"answers-{given.keep}" / "package-", reviews=out / f"answers-{given.keep}" / "review-", qrels=held,
            run=[f"{name}={run.path}" for name, run in runs.items()], output=out / f"adjudicated-{given.keep}",
        )
    )  # fmt: skip
    found = made.summary["false_negatives"]
    print(
        f"planted: {len(planted):,} of {len(of_held):,} queries; in the pool {len(planted & pooled):,}; asked and found {found:,} ({found / len(planted):.1%})"
    )
    print((made.path / "report.md").read_text())


def answer(annotation: Artifact, part: str, folder: Path, relevant: set[tuple[str, str]]) -> None:
    """The answers of somebody who knows all: a file for each page of a part."""
    (folder / part).mkdir(parents=True, exist_ok=True)
    for page in annotation.parts(".jsonl", part):
        head, *pairs = [json.loads(line) for line in page.read_text().splitlines()]
        name = part.rstrip("-")
        lines = [{"package": head["package"], "fingerprint": head["fingerprint"], "annotator": name, "answers": len(pairs)}]
        for pair in pairs:
            relevance = int((pair["query_id"], pair["passage_id"]) in relevant)
            ids = {key: pair[key] for key in ("query_id", "passage_id")}
            lines.append(
                {**ids, "relevance": relevance, "label": "relevant" if relevance else "not relevant", "annotator": name, "seconds": 1.0}
            )
        (folder / part / f"{head['package']}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def pairs_of(folder: Path) -> set[tuple[str, str]]:
    table = read_table(folder, "qrels")
    return set(zip(table["query_id"].to_pylist(), table["passage_id"].to_pylist(), strict=True))


if __name__ == "__main__":
    main()
