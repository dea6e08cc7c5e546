"""A recipe at small size: the same stages in another folder, on slices of its inputs, with fewer passages, queries and steps."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raydense.data.formats import call, defines
from raydense.data.formats.files import opened, plain
from raydense.data.settings import ImportSettings, SampleSettings
from raydense.data.slices import slice_corpus, slice_qrels, slice_queries
from raydense.forecast import Holds, Known, lists_of
from raydense.mining.settings import LabelSettings, MineSettings
from raydense.recipes.inputs import below
from raydense.recipes.stage import Stage
from raydense.retrieval.settings import IndexSettings, SearchSettings
from raydense.settings import Settings
from raydense.storage import Place, digest_of, read_manifest
from raydense.training.loop_settings import LoopSettings
from raydense.training.settings import MeasuredSettings, refresh_of

_LEAST_PASSAGES, _LEAST_QUERIES = 300, 64
_A_LIST = 40  # passages that FAISS wants for each list that it trains
_DEV_PASSAGES = 200
_STEPS_OF_A_REFRESH = 4


class NoSlice(Exception):
    """A stage cannot be run at small size; says why."""


@dataclass
class Small:
    """A recipe's stages in `folder`, with the shares `passages` and `queries` of what they read in full, and `steps` of trainings by name.

    `full` knows the sizes of the whole recipe. A corpus lies in at least `files` files if the full one does: all CPUs have something to do.
    """

    folder: Place
    stages: tuple[Stage, ...]
    full: Known
    passages: float
    queries: float
    files: int
    steps: dict[str, int] = field(default_factory=dict)

    def settings(self, stage: Stage) -> Settings:
        """The settings of a stage at small size; makes the slices that it reads. NoSlice where it reads what cannot be cut."""
        if getattr(stage.settings, "endpoint", None):
            raise NoSlice("it asks an endpoint, whose time is its own")
        here = stage.settings.with_inputs(lambda key, kind, path: self._read(path, kind, stage))
        return self._fewer(stage, here.replaced({"output": str(self.folder / stage.name)}))

    def _read(self, path: str, kind: str, stage: Stage) -> str:
        """What a stage reads in place of `path`: what an earlier stage made here, a model as it is, or a slice."""
        for other in self.stages[: self.stages.index(stage)]:
            part = below(path, str(other.settings.output))
            if part is not None:
                return self._made(other, part, kind, path)
        if kind == "model" or path == "tiny":
            return path
        return self._source(path, stage) if kind == "source" else self._slice(path, path, kind, stage)

    def _made(self, producer: Stage, part: str, kind: str, path: str) -> str:
        """What an earlier stage made: here, or, if it is an import or a model and done, in full."""
        done = read_manifest(str(producer.settings.output)) is not None
        if done and kind == "model":
            return path
        here = str(self.folder / producer.name / part) if part else str(self.folder / producer.name)
        if isinstance(producer.settings, ImportSettings):
            return self._slice(path, path if done else here, kind, producer)
        return here

    def _slice(self, path: str, source: str, kind: str, stage: Stage) -> str:
        """A slice of what lies at `source`, which stands for `path`."""
        plain_path = re.sub(r"[^A-Za-z0-9]+", "-", path)[-100:]
        made = self.folder / "slices" / f"{plain_path}-{digest_of(path)[:8]}"  # two paths may differ in other characters alone
        holds = self.full.of(path)
        if holds is None or kind.split(" ")[0] not in ("corpus", "queries", "qrels"):
            raise NoSlice(f"reads {path}, which no stage of the recipe makes")
        if (found := read_manifest(source)) is None:
            raise NoSlice(f"reads {path}, which is not there")
        if found["kind"] == "corpus":
            slice_corpus(source, self.rows(holds), max(1, min(holds.files, self.files)), made)
        elif found["kind"] == "queries":
            slice_queries(source, self.query_count(holds), made)
        elif found["kind"] == "qrels":
            queries, corpus = self._texts(path, stage)
            slice_qrels(source, queries, corpus, self.query_count(holds), made)
        else:
            raise NoSlice(f"reads {path}, which no stage of the recipe makes")
        return str(made)

    def _texts(self, qrels: str, stage: Stage) -> tuple[str, str]:
        """The slices of the queries and the corpus that judgements are of: of their own data set, or those of a stage."""
        whole = re.sub(r"/?qrels(/[^/]*)?/?$", "", qrels)
        found = []
        for kind in ("queries", "corpus"):
            path = f"{whole}/{kind}"
            named_by = (one.settings.value_of(kind) for one in (stage, *self.stages) if kind in one.settings.inputs())
            beside = self.full.of(path) is not None
            path = path if beside else next((str(value) for value in named_by if value), "")
            if not path:
                raise NoSlice(f"reads {qrels}, and no {kind} are named")
            found.append(self._read(path, kind, self.stages[-1]))
        return found[0], found[1]

    def _source(self, path: str, stage: Stage) -> str:
        """The first lines of the corpus of a data set; queries and judgements are whole, since a line of the one names one of the other.

        Without runs and examples, which name passages of the rest.
        """
        settings: Any = stage.settings
        if settings.by_name or not defines(settings.format, "files") or not Path(path).is_dir():
            raise NoSlice(f"reads {path}, of which no first part can be taken")
        if self.folder.everywhere:
            raise NoSlice(f"reads {path}, whose first part would have to lie in a bucket")
        made = Path(str(self.folder)) / "sources" / stage.name
        for part, files in call(settings.format, "files", Path(path)).items():
            for file in files if not part.startswith(("run", "examples")) else ():
                there = made / plain(file).relative_to(path)
                there.parent.mkdir(parents=True, exist_ok=True)
                _first_lines(file, there, self.passages if part == "corpus" else 1.0)
        return str(made)

    def rows(self, corpus: Holds) -> int:
        """The passages of a slice of a corpus."""
        return min(corpus.rows, max(_LEAST_PASSAGES, round(self.passages * corpus.rows)))

    def query_count(self, queries: Holds) -> int:
        """The queries of a slice."""
        return min(queries.rows, max(_LEAST_QUERIES, round(self.queries * queries.rows)))

    def _fewer(self, stage: Stage, settings: Settings) -> Settings:
        """The settings with less to do; those that follow from what the stage reads, from its slices.

        Without margins: the judgements of a slice are drawn at random, and a margin to such a positive would leave no negatives.
        """
        match settings:
            case SampleSettings():
                corpus = Holds(settings.passages, files=-(-settings.passages // settings.shard_rows))
                asked = {
                    f"{split}_queries": self.query_count(Holds(getattr(settings, f"{split}_queries"))) for split in ("train", "dev", "test")
                }
                passages = max(self.rows(corpus), sum(asked.values()) // 4, 100)
                files = max(1, min(corpus.files, self.files))
                return settings.replaced({"passages": passages, "shard_rows": -(-passages // files), **asked})
            case ImportSettings():
                return settings.replaced({"strict": False})
            case IndexSettings(kind="faiss") if lists := lists_of(settings.factory):
                fewer = max(1, min(lists, _rows(str(settings.embeddings)) // _A_LIST))
                return settings.replaced({"factory": settings.factory.replace(f"IVF{lists}", f"IVF{fewer}", 1)})
            case SearchSettings() if settings.pool:
                raise NoSlice("asks a running pool")
            case MineSettings():
                return settings.replaced({"shortage": "keep", **dict.fromkeys(settings.margins)})
            case LabelSettings():
                return settings.replaced({"shortage": "keep", "s_pos": 0.5, "s_neg": 0.5})
            case LoopSettings():
                return settings.replaced(self._training(stage, settings))
        return settings

    def _training(self, stage: Stage, settings: LoopSettings) -> dict[str, Any]:
        """A few steps, of as many examples as there are."""
        examples = [settings.value_of(key) for key in ("examples", "more_examples") if key in settings.inputs()]
        there = sum(_rows(str(folder)) for folder in examples if folder) if examples else _rows(settings.corpus)
        unit = settings.workers * settings.accumulation
        changes: dict[str, Any] = {"max_steps": self.steps.get(stage.name, 2), "track": "none"}
        if there < settings.batch_size:
            changes["batch_size"] = max(1, there // unit) * unit
        if isinstance(settings, MeasuredSettings) and settings.dev:
            changes["dev.passages"] = min(settings.dev.passages, _DEV_PASSAGES)
        if refresh := refresh_of(settings):  # async learns from the first boundary's negatives after the second
            changes["max_steps"] = max(_STEPS_OF_A_REFRESH, changes["max_steps"])
            changes |= {"refresh.unit": "steps", "refresh.every": (changes["max_steps"] - 1) // 2}
            changes |= {f"refresh.{name}": None for name in refresh.margins}
        return changes


def _rows(folder: str) -> int:
    manifest = read_manifest(folder)
    if manifest is None:
        raise NoSlice(f"reads {folder}, which was not made")
    return int(manifest["rows"])


def _first_lines(file: Path, there: Path, share: float) -> None:
    """Copy that share of the bytes of a file, in whole lines, and at least `_LEAST_PASSAGES` lines; all with a share of 1."""
    size = file.stat().st_size * (1 if plain(file) == file else 3)
    with opened(file) as source, open(there, "wb") as target:
        written = 0
        for number, line in enumerate(source):
            if share < 1 and number > _LEAST_PASSAGES and written >= share * size:
                break
            written += target.write(line)
