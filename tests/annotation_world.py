"""A small annotation and the answer files of people who judge it, for the tests of adjudication."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from raydense.construction.settings import AnnotateSettings
from raydense.storage import Artifact
from tests.mining_world import write_world

Judge = Callable[[str, str], int | None]


def annotate_settings(root: Path, texts, qrels, runs, **more) -> AnnotateSettings:
    """Settings for a small world whose runs are root/run0/run, and so on; a query without hits is only known."""
    everything = {query: [] for run in runs for query in run}
    for number, run in enumerate(runs):
        write_world(root / f"run{number}", texts, qrels, {**everything, **run})
    given = {name: str(root / "run0" / name) for name in ("corpus", "queries", "qrels")}
    names = [f"r{number}={root / f'run{number}' / 'run'}" for number in range(len(runs))]
    return AnnotateSettings(**{"run": names, "output": str(root / "annotation"), "review": 2, **given, **more})


def answers_of(annotation: Artifact, folder: Path, annotator: str, judge: Judge, part: str = "package-") -> list[Path]:
    """The file that each page of an annotation gives a person who judges by `judge(query_id, passage_id)`: 1, 0, or None for unsure."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for page in annotation.parts(".jsonl", part):
        head, *pairs = [json.loads(line) for line in page.read_text().splitlines()]
        lines: list[dict] = [
            {"package": head["package"], "fingerprint": head["fingerprint"], "annotator": annotator, "answers": len(pairs)}
        ]
        for pair in pairs:
            relevance = judge(pair["query_id"], pair["passage_id"])
            label = next(one["label"] for one in head["labels"] if one["relevance"] == relevance)
            ids = {"query_id": pair["query_id"], "passage_id": pair["passage_id"]}
            lines.append({**ids, "relevance": relevance, "label": label, "annotator": annotator, "seconds": 2.5})
        written.append(folder / f"{head['package']}-{annotator}.jsonl")
        written[-1].write_text("".join(json.dumps(line) + "\n" for line in lines))
    return written
