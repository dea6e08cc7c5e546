"""The data card of a data set on the Hugging Face Hub: README.md, with YAML front matter that says which files are which split."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import yaml

from raydense.data.formats.outlet import Outlet, splits_of
from raydense.data.tables import read_table
from raydense.errors import InputError
from raydense.storage import Artifact

_SIZES = [(1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"), (10_000_000, "1M<n<10M")]
_MOST = "10M<n<100M"
_SHOWN = 300  # characters of a text in the example


def hub_split(name: str) -> str:
    """The name as the library `datasets` takes it for a split: letters, digits, `_` and `.`."""
    return re.sub(r"\.(?!\w)|(?<!\w)\.|[^\w.]", "_", name, flags=re.ASCII)


def front_matter(card: Path) -> dict[str, Any]:
    """The YAML at the top of a README.md; empty if there is none. InputError if it cannot be read."""
    if not card.is_file():
        return {}
    try:
        found = re.match(r"\ufeff?---\s*\n(.*?)\n---\s*(\n|$)", card.read_text("utf-8"), re.DOTALL)
        content = yaml.safe_load(found[1]) if found else {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"its front matter is not YAML ({error})", card, "correct it, or remove the file") from None
    return content if isinstance(content, dict) else {}


def write_card(outlet: Outlet, parts: dict[str, str]) -> None:
    """Write the README.md of what was exported: the files, how many rows each has, an example, and what the data set was made from."""
    rows = {name: Artifact.open(path).rows for name, path in parts.items()}
    largest = max(rows.get("corpus", 0), rows.get("queries", 0)) or max(rows.values())
    size = next((name for most, name in _SIZES if largest < most), _MOST)
    head = {
        "license": outlet.settings.license,
        "task_categories": ["text-retrieval"],
        "size_categories": [size],
        "configs": _configs(parts),
    }
    sections = [_title(outlet), _contents(outlet.path, parts, rows), _loading(parts), _example(outlet, parts), _origin(outlet, parts)]
    text = f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---\n\n" + "\n\n".join(s for s in sections if s) + "\n"
    (outlet.path / "README.md").write_text(text, encoding="utf-8", newline="\n")


def _configs(parts: dict[str, str]) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = [
        {"config_name": name, "data_files": [{"split": name, "path": f"{name}/*.parquet"}]}
        for name in ("corpus", "queries")
        if name in parts
    ]
    splits = [hub_split(split) for split, _ in splits_of(parts, "qrels")]
    if splits:
        files = [{"split": split, "path": f"qrels/{split}.parquet"} for split in splits]
        listed.append({"config_name": "qrels", "data_files": files})
    return listed


def _title(outlet: Outlet) -> str:
    name = Path(str(outlet.settings.output)).name
    return f"# {name}\n\nA data set for passage retrieval: passages, queries, and judgements of which passages answer which query."


def _contents(folder: Path, parts: dict[str, str], rows: dict[str, int]) -> str:
    """A table of the parts: rows, bytes, and for judgements the queries that they judge and how often each grade is given."""
    lines = ["| configuration | split | rows | bytes | holds |", "| --- | --- | --- | --- | --- |"]
    for name, holds in (("corpus", "passages: `_id`, `title`, `text`"), ("queries", "queries: `_id`, `text`")):
        if name in parts:
            size = sum(file.stat().st_size for file in (folder / name).iterdir())
            lines.append(f"| {name} | {name} | {rows[name]:,} | {size:,} | {holds} |")
    for split, path in splits_of(parts, "qrels"):
        table = read_table(path, "qrels")
        grades = sorted((entry["values"], entry["counts"]) for entry in pc.value_counts(table["relevance"]).to_pylist())
        given = ", ".join(f"{grade}: {count:,}" for grade, count in grades)
        size = (folder / "qrels" / f"{hub_split(split)}.parquet").stat().st_size
        asked = pc.count_distinct(table["query_id"]).as_py()
        lines.append(f"| qrels | {hub_split(split)} | {table.num_rows:,} | {size:,} | judgements of {asked:,} queries; by score {given} |")
    return "## What it holds\n\n" + "\n".join(lines)


def _loading(parts: dict[str, str]) -> str:
    splits = [hub_split(split) for split, _ in splits_of(parts, "qrels")]
    lines = [f'{name} = load_dataset(FOLDER, "{name}", split="{name}")' for name in ("corpus", "queries") if name in parts]
    lines += [f'{split.replace(".", "_")} = load_dataset(FOLDER, "qrels", split="{split}")' for split in splits[:1]]
    return "## Load it\n\n```python\nfrom datasets import load_dataset\n\n" + "\n".join(lines) + "\n```"


def _example(outlet: Outlet, parts: dict[str, str]) -> str:
    """The first judgement of an answer, with its texts."""
    if not {"corpus", "queries"} <= parts.keys():
        return ""
    for _, path in splits_of(parts, "qrels"):
        table = read_table(path, "qrels")
        for entry in table.filter(pc.greater(table["relevance"], 0)).slice(0, 1).to_pylist():
            query = outlet.queries.filter(pc.equal(outlet.queries["query_id"], entry["query_id"]))["text"]
            row = outlet.store.rows_of(pc.cast([entry["passage_id"]], "string"))
            if len(query) and row[0] >= 0:
                passage = outlet.store.take(row, ["title", "text"]).to_pylist()[0]
                shown = {"query": query[0].as_py(), "title": passage["title"], "text": passage["text"], "score": entry["relevance"]}
                cut = {key: _cut(value) for key, value in shown.items()}
                return f"## An example\n\n    {json.dumps(cut, ensure_ascii=False)}"
    return ""


def _cut(value: Any) -> Any:
    return f"{value[:_SHOWN]}..." if isinstance(value, str) and len(value) > _SHOWN else value


def _origin(outlet: Outlet, parts: dict[str, str]) -> str:
    """What each artifact was made from: the stage with its settings, inputs and counts; fingerprints of the inputs and its own; versions."""
    given = {f"qrels/{split}": folder for split, folder in outlet.settings.splits.items()}
    whole = {"dataset": outlet.settings.dataset, **given} if outlet.settings.dataset else parts
    lines = ["## Where it comes from", "", "raydense made it. A fingerprint names the content of an input, and what was made.", ""]
    versions: dict[str, str] = {}
    for name, path in whole.items():
        made = Artifact.open(str(path)).manifest
        versions |= made.get("versions", {})
        source = {key: made["made_from"].get(key) for key in ("stage", "settings", "inputs")}
        source |= {key: value for key, value in made["summary"].items() if key != "parts"}
        lines.append(f"- {name}, fingerprint `{made['fingerprint']}`: `{json.dumps(source, ensure_ascii=False).replace('`', chr(39))}`")
    lines.append(f"- versions: {', '.join(f'{package} {version}' for package, version in versions.items())}")
    return "\n".join(lines)
