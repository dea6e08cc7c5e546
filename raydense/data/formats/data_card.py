"""The data card of a data set on the Hugging Face Hub: README.md, with YAML front matter that says which files are which split, what columns
they have, and the language and licence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml

from raydense.data.formats.outlet import Outlet, splits_of
from raydense.data.tables import read_table
from raydense.errors import InputError
from raydense.runtime.progress import say
from raydense.settings import flat
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


@dataclass(frozen=True)
class _Split:
    """A split of a configuration as it was written: its files (a pattern), their rows, bytes and bytes before compression, and their columns."""

    config: str
    name: str
    pattern: str
    rows: int
    bytes: int
    plain_bytes: int
    columns: pa.Schema

    @classmethod
    def of(cls, folder: Path, config: str, name: str, pattern: str) -> _Split:
        files = sorted(folder.glob(pattern))
        heads = [pq.read_metadata(file) for file in files]
        plain = sum(head.row_group(group).total_byte_size for head in heads for group in range(head.num_row_groups))
        size = sum(file.stat().st_size for file in files)
        return cls(config, name, pattern, sum(head.num_rows for head in heads), size, plain, pq.read_schema(files[0]))

    @property
    def features(self) -> list[dict[str, str]]:
        """The columns, as `dataset_info` of a card has them."""
        return [
            {"name": column.name, "sequence": str(column.type.value_type)}
            if pa.types.is_list(column.type)
            else {"name": column.name, "dtype": str(column.type)}
            for column in self.columns
        ]


def write_card(outlet: Outlet, parts: dict[str, str]) -> None:
    """Write the README.md of what was exported: the files, how many rows each has, an example, and what the data set was made from."""
    splits, settings = _written(outlet.path, parts), outlet.settings
    rows = {split.config: split.rows for split in splits}
    largest = max(rows.get("corpus", 0), rows.get("queries", 0)) or max(split.rows for split in splits)
    head = {
        **({"language": settings.language} if settings.language else {}),
        "license": settings.license,
        "task_categories": ["text-retrieval"],
        "size_categories": [next((name for most, name in _SIZES if largest < most), _MOST)],
        "configs": [_config(splits, config) for config in rows],
        "dataset_info": [_info(splits, config) for config in rows],
    }
    sections = [_title(outlet), _contents(splits, parts), _loading(parts), _example(outlet, parts), _origin(outlet, parts)]
    text = f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---\n\n" + "\n\n".join(s for s in sections if s) + "\n"
    (outlet.path / "README.md").write_text(text, encoding="utf-8", newline="\n")
    said = {"--language": bool(settings.language), "--license": settings.license != "unknown"}
    if not all(said.values()):
        unsaid = " and ".join(flag for flag, known in said.items() if not known)
        say(f"export: the data card lacks what raydense cannot know: give {unsaid}, or add it to README.md")


def _written(folder: Path, parts: dict[str, str]) -> list[_Split]:
    found = [_Split.of(folder, name, name, f"{name}/*.parquet") for name in ("corpus", "queries") if name in parts]
    names = [hub_split(split) for split, _ in splits_of(parts, "qrels")]
    return found + [_Split.of(folder, "qrels", name, f"qrels/{name}.parquet") for name in names]


def _config(splits: list[_Split], config: str) -> dict[str, Any]:
    files = [{"split": split.name, "path": split.pattern} for split in splits if split.config == config]
    return {"config_name": config, "data_files": files}


def _info(splits: list[_Split], config: str) -> dict[str, Any]:
    """The columns and sizes of a configuration, which `datasets` checks when it loads it."""
    own = [split for split in splits if split.config == config]
    return {
        "config_name": config,
        "features": own[0].features,
        "splits": [{"name": split.name, "num_bytes": split.plain_bytes, "num_examples": split.rows} for split in own],
        "download_size": sum(split.bytes for split in own),
        "dataset_size": sum(split.plain_bytes for split in own),
    }


def _title(outlet: Outlet) -> str:
    name = Path(str(outlet.settings.output)).name
    return f"# {name}\n\nA data set for passage retrieval: passages, queries, and judgements of which passages answer which query."


def _contents(splits: list[_Split], parts: dict[str, str]) -> str:
    """A table of the parts: rows, bytes, columns, and for judgements the queries that they judge and how often each grade is given."""
    lines = ["| configuration | split | rows | bytes | holds |", "| --- | --- | --- | --- | --- |"]
    judged = {hub_split(split): path for split, path in splits_of(parts, "qrels")}
    for split in splits:
        holds = {"corpus": "passages", "queries": "queries"}.get(split.config) or _judgements(judged[split.name])
        columns = ", ".join(f"`{name}`" for name in split.columns.names)
        lines.append(f"| {split.config} | {split.name} | {split.rows:,} | {split.bytes:,} | {holds}: {columns} |")
    return "## What it holds\n\n" + "\n".join(lines)


def _judgements(path: str) -> str:
    table = read_table(path, "qrels")
    grades = sorted((entry["values"], entry["counts"]) for entry in pc.value_counts(table["relevance"]).to_pylist())
    given = ", ".join(f"{count:,} of score {grade}" for grade, count in grades)
    return f"judgements of {pc.count_distinct(table['query_id']).as_py():,} queries, {given}"


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
    sections = ["## Where it comes from\n\nA fingerprint names the content of an input, and of what raydense made."]
    versions: dict[str, str] = {}
    for name, path in whole.items():
        made = Artifact.open(str(path)).manifest
        versions |= made.get("versions", {})
        sections.append(f"### {name}\n\n| | |\n| --- | --- |\n" + "\n".join(_made(made)))
    sections.append("Versions: " + ", ".join(f"{package} {version}" for package, version in versions.items()) + ".")
    return "\n\n".join(sections)


def _made(manifest: dict[str, Any]) -> Iterator[str]:
    """The rows of a table: what made an artifact, from what, and its counts; tables within the summary are left out."""
    source = manifest["made_from"]
    for title, values in (
        ("", {"stage": source.get("stage"), "fingerprint": manifest["fingerprint"]}),
        ("setting ", source.get("settings", {})),
        ("fingerprint of ", source.get("inputs", {})),
        ("", {key: value for key, value in manifest["summary"].items() if not _is_table(value)}),
    ):
        for key, value in flat(values).items():
            shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            yield f"| {title}{_cell(key)} | `{_cell(_cut(shown)) or ' '}` |"


def _is_table(value: Any) -> bool:
    """Whether a value holds others in more than one dimension, as the parts of a data set or the packages of an annotation do."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(isinstance(each, dict | list) for each in inner)


def _cell(text: str) -> str:
    """A text for a cell of a table of Markdown, where it may be code."""
    return " ".join(text.replace("`", "'").replace("|", "\\|").split())
