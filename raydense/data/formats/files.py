"""Finds and opens the files of a data set. NAME.gz is read in place of NAME, as a stream."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from raydense.errors import InputError

_GZIP = b"\x1f\x8b"
# by the first bytes of a file: the packer, what unpacks it, and how it ends the name
_PACKERS = {
    _GZIP: ("gzip", "gunzip", "gz"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unzstd", "zst"),
    b"BZh": ("bzip2", "bunzip2", "bz2"),
    b"\xfd7zXZ\x00": ("xz", "unxz", "xz"),
    b"PK\x03\x04": ("zip", "unzip", "zip"),
}


def plain(path: Path) -> Path:
    """The path without the .gz of a compressed file. An archive of several files (.tar.gz) keeps its name."""
    return path.with_suffix("") if path.suffix == ".gz" and path.suffixes[-2:-1] != [".tar"] else path


def files_of(source: Path, pattern: str = "*") -> list[Path]:
    """The files in a folder whose names match, sorted, or the file `source` itself.

    Hidden files are left out, and NAME.gz if NAME exists, too.
    """
    if not source.is_dir():
        return [source]
    return _once(p for p in source.iterdir() if plain(p).match(pattern))


def corpus_file(source: Path, pattern: str, usual: str) -> Path:
    """The one file of a folder whose name matches, or the file `source` itself; InputError where several do, or none, not even the `usual` one."""
    found = files_of(source, pattern)
    if not found:
        raise InputError("no such file", source / usual, "check the folder")
    if len(found) > 1:
        raise InputError(f"holds {len(found)} corpus files", source, "join them in one")
    return found[0]


def json_files_of(source: Path) -> list[Path]:
    """As `files_of`, those of a folder that are JSON by their names; InputError if there are none."""
    files = [path for path in files_of(source) if plain(path).suffix in (".json", ".jsonl") or not source.is_dir()]
    if not files:
        raise InputError("holds no *.jsonl", source, "check the folder")
    return files


def files_below(source: Path) -> list[Path]:
    """As `files_of`, for the files in the folder and in its folders at any depth."""
    return _once(source.rglob("*")) if source.is_dir() else [source]


def _once(paths: Iterable[Path]) -> list[Path]:
    files = (p for p in paths if p.is_file() and not p.name.startswith("."))
    return sorted((p for p in files if plain(p) == p or not plain(p).is_file()), key=plain)


def either(path: Path) -> Path:
    """`path`, or `path`.gz if only that exists."""
    packed = path.with_name(f"{path.name}.gz")
    return packed if packed.is_file() and not path.is_file() else path


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, decompressed; InputError if it is missing, or, while it is read, if the compression is broken."""
    if not path.is_file():
        if os.path.lexists(path):
            raise InputError("is no file", path, "give a file")
        for packer, tool, ending in _PACKERS.values():
            if (there := path.with_name(f"{path.name}.{ending}")).is_file():
                raise InputError(f"packed with {packer}", there, f"{tool} {there}")
        raise InputError("no such file", path, "check the path")
    try:
        with open(path, "rb") if plain(path) == path else gzip.open(path) as stream:
            yield stream  # type: ignore[misc]
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise InputError(f"not a complete gzip file ({error})", path, "get it again") from None


def not_text(path: Path, line: int, byte: int) -> InputError:
    """The InputError for a file that is not UTF-8 at `byte` of `line`: it is compressed, or has another encoding."""
    with open(path, "rb") as stream:
        start = stream.read(6)
    for magic, (packer, tool, _) in _PACKERS.items():
        if plain(path) == path and start.startswith(magic):
            archive = path.suffix == ".tgz" or ".tar" in path.suffixes
            fix = f"name it {path.name}.gz, and it is decompressed while it is read" if magic == _GZIP else f"{tool} {path}"
            return InputError(f"packed with {packer}", path, f"tar -xf {path}, and move it elsewhere" if archive else fix)
    return InputError(f"not UTF-8 (byte 0x{byte:02x})", f"{path}:{line}", "convert the file to UTF-8")
