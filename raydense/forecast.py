"""What a stage will need, foreseen from the sizes of its inputs: rows and bytes of its output, memory, and the work that takes its time.

Each settings class has a method `forecast`: it reads the sizes of its inputs from `Known`, and gives a `Forecast`, whose `makes` are
the sizes that later stages read. Nothing here measures time: the seconds of a unit of work are rates, which are measured and stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from raydense.storage import Place, read_manifest

PASSAGE_CHARACTERS, QUERY_CHARACTERS = 350.0, 40.0  # of texts that are not there yet: those of MS MARCO
_TOKEN_CHARACTERS = 4.2  # of English in a vocabulary of 30,000 pieces
_SPECIAL_TOKENS = 2
PROCESS_BYTES, TORCH_BYTES = 300 * 2**20, 700 * 2**20  # a worker of Ray with NumPy and Arrow, and with torch and transformers


@dataclass(frozen=True)
class Holds:
    """What a folder holds: passages of a corpus, its embeddings or its index; queries of all else.

    `word` is "about" or "at most" where `rows` is not exact. `each` is what a row has: characters of a text, numbers of a vector, hits
    or negatives of a query. `bytes` are those on disk.
    """

    rows: int
    word: str = ""
    each: float = 0.0
    bytes: float = 0.0
    probed: float = 1.0
    """Of an index: the share of its vectors that a query is compared with."""
    lists: int = 0
    files: int = 0
    """Of a corpus its parts, of an index its shards."""
    drawn: int = 0
    """Of examples of several sources: how many of them an epoch has, by the sources' weights."""

    def __str__(self) -> str:
        return f"{self.word} {self.rows:,}".lstrip()


@dataclass(frozen=True)
class Model(Holds):
    """A model's folder: `each` numbers of a vector, `flops` of a token in a forward pass (0 of a static encoder), and its lengths."""

    flops: float = 0.0
    query_length: int = 32
    passage_length: int = 128

    @property
    def scale(self) -> str:
        """Which rates it has: those of small models are of what is around them."""
        return "transformer" if self.flops > 5e6 else "tiny" if self.flops else "static"


@dataclass(frozen=True)
class Forecast:
    """What one stage will need, and make.

    `needs` says it in words. `kind` names the law of its time: seconds = start + the sum of each amount of `work` times the seconds of
    its unit, which are stored for each kind. `memory` is that of its largest process, in bytes. `gpus` is how many it takes
    where the cluster has some; -1: all. `tasks` is in how many parts the work is done, if a cluster may have more CPUs than that; 0: it uses all. A forecast without a kind is of a stage whose inputs are not known.
    """

    needs: str = ""
    makes: dict[str, Holds] = field(default_factory=dict)
    kind: str = ""
    work: dict[str, float] = field(default_factory=dict)
    memory: float = 0.0
    gpus: int = 0
    tasks: int = 0

    @property
    def bytes(self) -> float:
        """The bytes on disk of all that it makes."""
        return sum(made.bytes for made in self.makes.values())


class Known:
    """What folders hold: what stands in their manifests, otherwise what the stages before will make."""

    def __init__(self) -> None:
        self._expected: dict[str, Holds] = {}

    def of(self, folder: str | None) -> Holds | None:
        """What a folder holds, or will; None where that is not known."""
        if not folder:
            return None
        manifest = read_manifest(folder)
        if manifest is None or manifest["kind"] in ("model", "joint"):
            return self._expected.get(_key(folder))
        return _held(manifest)

    def expect(self, makes: dict[str, Holds]) -> None:
        """Note what a stage will make, by folder."""
        self._expected |= {_key(folder): holds for folder, holds in makes.items()}


def _key(folder: str) -> str:
    return Place.of(folder).located


def _held(manifest: dict[str, Any]) -> Holds:
    """A query has one row of qrels or of a run, or more."""
    rows, kind, summary = int(manifest["rows"]), manifest["kind"], manifest["summary"]
    files = {file["path"]: file for file in manifest["files"]}
    disk = float(sum(file["bytes"] for file in files.values()))
    if kind in ("qrels", "run"):
        queries = int(summary.get("queries", rows))
        return Holds(queries, "at most", each=rows / max(1, queries), bytes=disk)
    if kind == "examples":
        return Holds(rows, bytes=disk, drawn=int(summary.get("drawn", 0)))
    if kind == "corpus":
        parts = [file["bytes"] for path, file in files.items() if path.startswith("corpus-")]
        return Holds(rows, each=sum(parts) / max(1, rows), bytes=disk, files=len(parts))
    if kind == "embeddings":
        return Holds(rows, each=float(summary["dimension"]), bytes=disk)
    if kind == "index":
        rows = int(summary.get("rows", rows))
        factory = str(summary.get("factory") or "")
        share = probed_share(factory, int(summary.get("nprobe") or 0))
        shards = len(summary.get("shards") or ())
        return Holds(rows, each=float(summary.get("dimension") or 0), bytes=disk, probed=share, lists=lists_of(factory), files=shards)
    texts = sum(file["bytes"] for path, file in files.items() if path.startswith(kind)) if kind in ("queries", "generated") else 0
    return Holds(rows, each=texts / max(1, rows), bytes=disk)


def lists_of(factory: str) -> int:
    """The inverted lists of a FAISS index; 0 if it has none."""
    words = [part[3:].partition("_")[0] for part in factory.split(",") if part.startswith("IVF")]
    return int(words[0]) if words and words[0].isdigit() else 0


def probed_share(factory: str, nprobe: int = 0) -> float:
    """The share of the vectors that a query is compared with: of inverted lists those that it probes, by default 5 of 100."""
    if lists := lists_of(factory):
        return min(1.0, nprobe / lists) if nprobe else 0.05
    return 0.01 if "HNSW" in factory else 1.0


def fewest(*held: Holds | None) -> Holds | None:
    """At most the smallest of those that are known, with what each row of the first has."""
    known = [one for one in held if one]
    if not known:
        return None
    return Holds(min(one.rows for one in known), "at most", each=known[0].each)


def tokens(characters: float, length: int) -> float:
    """The tokens of a text of so many characters, of which a model reads at most `length`."""
    return min(float(length), characters / _TOKEN_CHARACTERS + _SPECIAL_TOKENS)


def part_of(folder: str, *parts: str) -> str:
    """The path of a part of a data set or of a folder of models."""
    return str(Place.of(folder) / "/".join(parts))


def total(held: Iterable[Holds | None]) -> Holds | None:
    """All of them together, where all are known."""
    found = list(held)
    known = [one for one in found if one]
    if not known or len(known) < len(found):
        return None
    rows = sum(one.rows for one in known)
    return Holds(rows, next((one.word for one in known if one.word), ""), each=known[0].each)
