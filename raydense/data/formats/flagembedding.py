"""FlagEmbedding: training JSON lines {query, pos[], neg[], pos_scores[], neg_scores[]}, with texts and no ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raydense.data.formats.files import json_files_of, plain
from raydense.data.formats.intake import Intake
from raydense.data.formats.lines import json_objects
from raydense.data.formats.outlet import Example, Outlet
from raydense.data.formats.records import ExampleRows, numbers, text, texts
from raydense.data.formats.texts import TextCorpus
from raydense.data.json_lines import write_json_lines


def read(source: Path, intake: Intake) -> None:
    """Import a file or a folder of files. Passages and queries get ids from their texts; equal texts count once."""
    files = json_files_of(source)
    intake.refuse_corpus(files[0])
    intake.expect(*((f"examples/{plain(path).stem}", path) for path in files))
    gathered = TextCorpus()
    examples = {path: _read_training(path, gathered) for path in files}
    gathered.write(intake)
    for path, rows in examples.items():
        intake.examples(plain(path).stem, rows.table(), rows.at)


def _read_training(path: Path, gathered: TextCorpus) -> ExampleRows:
    rows = ExampleRows()
    for at, entry in json_objects(path):
        query = gathered.add_query(text(entry, "query", at), at)
        positives = [gathered.add(t, at) for t in texts(entry, "pos", at)]
        negatives = [gathered.add(t, at) for t in texts(entry, "neg", at, [])]
        positive_scores = numbers(entry, "pos_scores", at, len(positives))
        negative_scores = numbers(entry, "neg_scores", at, len(negatives))
        rows.add(at, query, positives, negatives, positive_scores, negative_scores)
    return rows


def write(outlet: Outlet) -> None:
    """Write training examples; a passage is its title and its text."""
    outlet.choose("examples")
    write_json_lines(outlet.path, (_entry(example) for example in outlet.examples()))


def _entry(example: Example) -> dict[str, Any]:
    pos, neg = ([f"{p.title} {p.text}".strip() for p in side] for side in (example.positives, example.negatives))
    entry: dict[str, Any] = {"query": example.query, "pos": pos, "neg": neg}
    if example.positive_scores is not None:
        entry["pos_scores"] = example.positive_scores
    if example.negative_scores is not None:
        entry["neg_scores"] = example.negative_scores
    return entry
