"""How much the files of a data set hold, before it is imported: lines counted in small files, estimated by the first of a large one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from raydense.data.formats import call, defines
from raydense.data.formats.files import opened, plain
from raydense.data.splits import SHARES, FillBy, divided
from raydense.forecast import Holds

if TYPE_CHECKING:
    from raydense.data.settings import ImportSettings

_READ = 4 << 20  # bytes of a file that are looked at
_TRIPLES = ("triples", "qidpidtriples")  # files of MS MARCO
_PACKED = 3.0  # the bytes of a text by those of its gzip


def parts_held(settings: ImportSettings) -> tuple[dict[str, Holds], float]:
    """What an import will make, by part, and the bytes that it reads; nothing of a format without `files`, or of files not here."""
    if settings.by_name or not defines(settings.format, "files"):
        return {}, 0.0
    source = Path(settings.input)
    if not source.is_dir():
        return {}, 0.0
    files: dict[str, list[Path]] = call(settings.format, "files", source)
    sizes = {path: float(path.stat().st_size) * (1 if plain(path) == path else _PACKED) for found in files.values() for path in found}
    parts = {part: _held(settings, part, found, sizes) for part, found in files.items() if not _is_list(part, found)}
    parts |= _filled(parts, settings.fill_by) if settings.fill_splits else {}
    return parts | (_hidden(parts, settings.hidden.share) if settings.hidden else {}), sum(sizes.values())


def _is_list(part: str, files: list[Path]) -> bool:
    """Whether a part is made of files of several lines a query or text: how much it has is not known before they are read."""
    return part.startswith("run") or (not part.startswith("qrels") and any(path.name.startswith(_TRIPLES) for path in files))


def _filled(parts: dict[str, Holds], by: FillBy) -> dict[str, Holds]:
    """The judgements of the split that is divided, and of those drawn from it; by passages their groups come near the shares."""
    names = divided([part.removeprefix("qrels/") for part in parts if part.startswith("qrels/")])
    whole, all_shares = parts.get(f"qrels/{names[0]}" if names else "", Holds(0)), sum(SHARES[name] for name in names)
    shares = {f"qrels/{name}": SHARES[name] / all_shares for name in names}
    whole = replace(whole, word="about") if by == "passages" and len(names) > 1 else whole
    return {part: replace(whole, rows=round(share * whole.rows), bytes=share * whole.bytes) for part, share in shares.items()}


def _hidden(parts: dict[str, Holds], share: float) -> dict[str, Holds]:
    """The judgements of train that stay, and those that are hidden."""
    train = parts.get("qrels/train", Holds(0))
    shares = {"qrels/train": 1 - share, "qrels/hidden": share}
    return {part: replace(train, rows=round(of * train.rows), bytes=of * train.bytes) for part, of in shares.items()}


def _held(settings: ImportSettings, part: str, files: list[Path], sizes: dict[Path, float]) -> Holds:
    lines = [_lines(path, sizes[path]) for path in files]
    rows, total = sum(count for count, _ in lines), sum(sizes[path] for path in files)
    exact = all(whole for _, whole in lines)
    if part.startswith("qrels"):
        return Holds(rows, "at most", 1.0, 9.0 * rows)
    files_made = -(-rows // settings.shard_rows) if part == "corpus" else 1
    return Holds(rows, "" if exact and part == "queries" else "about", total / max(1, rows), total + 24.0 * rows, files=files_made)


def _lines(path: Path, size: float) -> tuple[int, bool]:
    """The lines of a file, and whether they were counted."""
    with opened(path) as stream:
        block = stream.read(_READ)
    lines = block.count(b"\n") + (not block.endswith(b"\n") and bool(block))
    return (lines, True) if len(block) < _READ else (round(lines * max(size, _READ) / len(block)), False)
