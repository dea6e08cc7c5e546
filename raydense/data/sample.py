"""The sample data set: an invented world of any size, made from a seed, with questions that word matching alone does not answer.

An entity (a town, a company, a ship) has a two-word name. Other entities share one of the words, and its twin has both in the other
order. An entity has an article of six passages with one fact each, and notes (one by default) that state one of these facts again
in other words.
Everything is a pure function of the seed and the entity's number, so no part needs another part in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raydense.data.dataset import DatasetDraft
from raydense.data.draws import mixed
from raydense.data.sample_world import ASIDES, ENDS, KINDS, ONSETS, RHYMES, WORDS, WRAPS
from raydense.data.settings import SampleSettings
from raydense.data.store import CorpusWriter
from raydense.errors import InputError
from raydense.runtime.progress import Progress
from raydense.storage import Artifact, provenance, releases_outputs

FACTS = 6
_NEXT_NOTE = 2**40  # between what the draws of an entity's notes are numbered by
_BLOCK = 2_000
_ASKS = len(KINDS[0].relations[0].asks) * len(WRAPS)
_PAIRS_PER_ENTITY = 4
Ints = NDArray[np.int64]


@releases_outputs
def sample(settings: SampleSettings) -> Artifact:
    """Make the sample: a data set of `corpus`, `queries` (all splits, with answers), `qrels/train`, `qrels/dev` and `qrels/test`.

    With `unjudged`, `qrels/unjudged` has the positives of training queries that `qrels/train` does not know.

    Two queries of different splits never ask for the same fact. InputError where there are too few facts for the queries.
    """
    dataset = DatasetDraft(settings.output, provenance("sample", settings))
    if dataset.done:
        return dataset.done
    world = World(settings.passages, settings.seed, settings.notes)
    splits = _split_facts(world, settings)
    _write_corpus(world, dataset, settings.shard_rows)
    asked = {split: world.questions(split, facts, turns) for split, (facts, turns) in splits.items()}
    dataset.table("queries", "queries", pa.concat_tables([queries for queries, _ in asked.values()]))
    judged = {split: qrels for split, (_, qrels) in asked.items()}
    if settings.unjudged:
        judged |= _leave_out(judged["train"], settings)
    for split, qrels in judged.items():
        dataset.table(f"qrels/{split}", "qrels", qrels)
    return dataset.finish()


def _leave_out(train: pa.Table, settings: SampleSettings) -> dict[str, pa.Table]:
    """The judgements `train` without a share of those of notes, and these as `unjudged`; a query keeps the passage of the article."""
    notes = pc.starts_with(train["passage_id"], "note-").to_numpy()
    gone = notes & (np.random.default_rng([settings.seed, 2]).random(len(notes)) < settings.unjudged)
    return {"train": train.filter(pa.array(~gone)), "unjudged": train.filter(pa.array(gone))}


def _write_corpus(world: World, dataset: DatasetDraft, shard_rows: int) -> None:
    draft = dataset.part("corpus", "corpus")
    if draft.done:
        dataset.keep("corpus", draft.done)
        return
    writer = CorpusWriter(draft, shard_rows)
    with Progress("sample", world.entities * world.passages_each, "passages") as progress:
        for table in world.passages():
            writer.add(table)
            progress.add(table.num_rows)
    dataset.keep("corpus", writer.finish())


def _split_facts(world: World, settings: SampleSettings) -> dict[str, tuple[Ints, Ints]]:
    """For each split, the facts that its queries ask for, and which wording each query uses."""
    facts = world.entities * FACTS
    test, dev = min(settings.test_queries, facts // 8), min(settings.dev_queries, facts // 12)
    train = min(settings.train_queries, facts - test - dev)
    chosen = np.random.default_rng([settings.seed, 1]).choice(facts, test + dev + train, replace=False)
    parts = dict(zip(("test", "dev", "train"), np.split(chosen, [test, test + dev]), strict=True))
    splits = {}
    for split in ("train", "dev", "test"):
        wanted = getattr(settings, f"{split}_queries")
        if wanted > len(parts[split]) * _ASKS:
            most = len(parts[split]) * _ASKS
            raise InputError(
                f"{settings.passages} passages have facts for {most} {split} queries only, not {wanted}",
                f"{split}_queries",
                "ask for fewer, or for more passages",
            )
        turn, which = np.divmod(np.arange(wanted), len(parts[split]))
        splits[split] = (parts[split][which], turn)
    return splits


class World:
    """The entities and facts of one seed. Fact number f is fact f % 6 of entity f // 6."""

    def __init__(self, passages: int, seed: int, notes: int = 1) -> None:
        self.seed, self.notes = seed, notes
        self.passages_each = FACTS + notes
        self.entities = -(-passages // self.passages_each)
        self.words = max(8, int(np.ceil(np.sqrt(self.entities * _PAIRS_PER_ENTITY))))
        self._pairs = self.words * (self.words - 1) // 2

    def draw(self, stream: int, numbers: Ints, below: int) -> Ints:
        """A random number in 0..below-1 for each of `numbers`, the same whenever it is asked for (SplitMix64)."""
        state = mixed(np.uint64(self.seed % 2**64) ^ mixed(np.array([stream + 1], dtype=np.uint64)))
        return (mixed(state ^ mixed(numbers.astype(np.uint64))) >> np.uint64(11)).astype(np.int64) % below

    @cached_property
    def _pools(self) -> dict[str, list[str]]:
        """The values that facts of each kind can have."""
        people = [f"{a} {b}" for a, b in zip(self._invent(10, 600), self._invent(11, 600), strict=True)]
        places = self._invent(12, 300)
        return {
            **{name: list(words) for name, words in WORDS.items()},
            "person": people,
            "place": places,
            "river": [f"{word} river" for word in self._invent(13, 200)],
            "house": [f"the house of {word}" for word in self._invent(14, 200)],
            "harbour": self._invent(15, 200),
            "year": [str(year) for year in range(1500, 1950)],
            "number": [str(number) for number in range(60, 960)],
        }

    @cached_property
    def _name_words(self) -> list[str]:
        return self._invent(1, self.words)

    def _invent(self, stream: int, count: int) -> list[str]:
        """`count` distinct words of two or three syllables."""
        shapes = len(ONSETS) * len(RHYMES) * len(ONSETS) * len(RHYMES) * len(ENDS)
        found: dict[str, None] = {}
        start = 0
        while len(found) < count:
            for code in self.draw(stream, np.arange(start, start + count), shapes).tolist():
                code, end = divmod(code, len(ENDS))
                code, rhyme = divmod(code, len(RHYMES))
                code, onset = divmod(code, len(ONSETS))
                middle = ONSETS[code % len(ONSETS)] + RHYMES[code // len(ONSETS)] if rhyme % 3 == 0 else ""
                found[(ONSETS[onset] + RHYMES[rhyme] + middle + ENDS[end]).capitalize()] = None
            start += count
        return list(found)[:count]

    @cached_property
    def _stride(self) -> tuple[int, int]:
        """Step and start of a walk over all pairs of name words that visits every pair once."""
        step = 1 + int(self.draw(3, np.array([0]), self._pairs - 1)[0])
        while np.gcd(step, self._pairs) != 1:
            step += 1
        return step, int(self.draw(4, np.array([0]), self._pairs)[0])

    def names(self, entities: Ints) -> list[str]:
        """The names of entities: two words; entities 2i and 2i + 1 are twins, with the same two in the other order."""
        step, start = self._stride
        pair = (entities // 2 * step + start) % self._pairs
        second = ((1 + np.sqrt(1 + 8 * pair)) / 2).astype(np.int64)  # pairs are numbered (0,1) (0,2) (1,2) (0,3) ...
        first = pair - second * (second - 1) // 2
        turned = entities % 2 == 1
        words = self._name_words
        ends = zip(np.where(turned, second, first).tolist(), np.where(turned, first, second).tolist(), strict=True)
        return [f"{words[a]} {words[b]}" for a, b in ends]

    def values(self, facts: Ints) -> list[str]:
        """The value of each fact, which is the answer to its questions."""
        kinds = self.kind_of(facts // FACTS).tolist()
        draws = self.draw(6, facts, 2**40).tolist()
        pools = [[self._pools[r.pool] for r in kind.relations] for kind in KINDS]
        return [(pool := pools[k][f % FACTS])[d % len(pool)] for k, f, d in zip(kinds, facts.tolist(), draws, strict=True)]

    def noted(self, entities: Ints, note: Ints | int) -> Ints:
        """Which fact (0..5) of each entity its note number `note` repeats."""
        return self.draw(7, entities + note * _NEXT_NOTE, FACTS)

    def passages(self) -> Iterator[pa.Table]:
        """All passages in order, some thousand at a time."""
        for start in range(0, self.entities, _BLOCK):
            yield self._passages(np.arange(start, min(start + _BLOCK, self.entities)))

    def _passages(self, entities: Ints) -> pa.Table:
        slot = np.tile(np.arange(self.passages_each), len(entities))
        number = np.repeat(entities, self.passages_each)
        note = slot - FACTS  # below 0 in the article
        fact = number * FACTS + np.where(note < 0, slot, self.noted(number, np.maximum(note, 0)))
        passage = number * self.passages_each + slot
        title = np.repeat(np.array(self.names(entities), dtype=object), self.passages_each)
        doc_id = [f"article-{e}" if n < 0 else f"note-{e}" for e, n in zip(number.tolist(), note.tolist(), strict=True)]
        columns = {
            "passage_id": [f"{doc}-{s}" for doc, s in zip(doc_id, np.where(note < 0, slot, note).tolist(), strict=True)],
            "title": title.tolist(),
            "text": self._texts(passage, fact, note, title.tolist()),
            "doc_id": doc_id,
        }
        return pa.table(columns, schema=pa.schema([(name, pa.string()) for name in columns]))

    def kind_of(self, entities: Ints) -> Ints:
        """Which of KINDS each entity is."""
        return self.draw(5, entities, len(KINDS))

    def _texts(self, passage: Ints, fact: Ints, note: Ints, names: list[str]) -> list[str]:
        """A sentence that states the fact, with an aside before or after it."""
        ways = len(KINDS[0].relations[0].statements)
        # a note never states a fact in the words of the article
        other = 1 + self.draw(9, fact + np.maximum(note, 0) * _NEXT_NOTE, ways - 1)
        way = (self.draw(8, fact, ways) + np.where(note < 0, 0, other)) % ways
        kinds, relations = self.kind_of(fact // FACTS).tolist(), (fact % FACTS).tolist()
        shapes = self.draw(22, passage, 4).tolist()
        rows = zip(kinds, relations, way.tolist(), self.values(fact), names, self._asides(passage, fact), shapes, strict=True)
        return [_text(*row) for row in rows]

    def _asides(self, passage: Ints, fact: Ints) -> list[str]:
        """For each passage a sentence that answers no question; some name another entity, or the topic of another passage."""
        which = self.draw(20, passage, len(ASIDES))
        other = self.draw(21, passage, self.entities)
        about = np.where(np.array(["{o}" in aside for aside in ASIDES])[which], other, fact // FACTS)
        relation = (fact + 1 + self.draw(23, passage, FACTS - 1)) % FACTS
        rows = zip(which.tolist(), self.names(other), self.kind_of(about).tolist(), relation.tolist(), strict=True)
        return [ASIDES[a].format(o=name, t=KINDS[kind].relations[r].topic) for a, name, kind, r in rows]

    def questions(self, split: str, facts: Ints, turns: Ints) -> tuple[pa.Table, pa.Table]:
        """The queries and the qrels of one split. Query i asks for `facts[i]` in its wording number `turns[i]`."""
        entities = facts // FACTS
        kinds = self.kind_of(entities).tolist()
        way = (self.draw(30, facts, _ASKS) + turns) % _ASKS
        ids = [f"{split}-{i}" for i in range(len(facts))]
        texts = [
            _question(kind, f % FACTS, w, name)
            for kind, f, w, name in zip(kinds, facts.tolist(), way.tolist(), self.names(entities), strict=True)
        ]
        answers = [[value] for value in self.values(facts)]
        queries = pa.table({"query_id": ids, "text": texts, "answers": pa.array(answers, pa.list_(pa.string()))})
        judged: list[tuple[str, str]] = []
        noted = self.noted(entities[:, None], np.arange(self.notes)).tolist()
        for query, e, f, repeated in zip(ids, entities.tolist(), (facts % FACTS).tolist(), noted, strict=True):
            judged.append((query, f"article-{e}-{f}"))
            judged.extend((query, f"note-{e}-{n}") for n in range(self.notes) if repeated[n] == f)
        columns = {
            "query_id": [q for q, _ in judged],
            "passage_id": [p for _, p in judged],
            "relevance": pa.array([1] * len(judged), pa.int32()),
        }
        return queries, pa.table(columns)


def _text(kind: int, relation: int, way: int, value: str, name: str, aside: str, shape: int) -> str:
    subject = name if shape else f"the {KINDS[kind].noun}"
    sentence = KINDS[kind].relations[relation].statements[way].format(n=subject, v=value)
    sentence = f"{sentence[0].upper()}{sentence[1:]}."
    return f"{aside} {sentence}" if shape % 2 else f"{sentence} {aside}"


def _question(kind: int, relation: int, way: int, name: str) -> str:
    asks = KINDS[kind].relations[relation].asks
    wrap, ask = divmod(way, len(asks))
    return WRAPS[wrap].format(q=asks[ask].format(n=name))
