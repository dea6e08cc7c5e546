"""Hard negatives of a block of queries, drawn from the ranks of a run as in DPR, RocketQA and ANCE."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raydense.data.draws import draw
from raydense.data.lookup import hash_strings
from raydense.data.runs import scored_depth
from raydense.data.store import Rows
from raydense.errors import InputError
from raydense.mining.answers import HeldAnswers
from raydense.mining.blocks import Judged, depth_of
from raydense.mining.lists import Listed, examples_table
from raydense.mining.negatives import Candidates, Flags, among, first_of_each, random_rows, repeats, scores_of, too_near
from raydense.mining.settings import MineSettings
from raydense.storage import Artifact

_SOURCES = {"bm25": "bm25", "faiss": "dense", "dense": "dense"}


class Miner:
    """Makes the examples of a run block by block, and counts what it leaves out."""

    def __init__(self, settings: MineSettings, run: Artifact) -> None:
        self.settings = settings
        self.judged = Judged(settings.run, settings.corpus, settings.queries, settings.qrels)
        self.positives, self.store = self.judged.positives, self.judged.store
        if not len(self.positives.rows):
            raise InputError("no query has a positive", settings.qrels, "give qrels with a relevance of at least 1")
        self.answers = HeldAnswers(settings.queries, self.store, settings.without_answers) if settings.without_answers else None
        self.scored, self.depth = scored_depth(run), depth_of(run, settings.depth)
        if settings.skip >= self.depth:
            what = f"skip {settings.skip} leaves nothing of its {self.depth} scores of the re-ranker"
            raise InputError(what, settings.run, "give a smaller skip, or re-rank it to a greater depth")
        self.source = _SOURCES.get(str(run.summary.get("kind")), "run")
        # columns without information: all positives are gold, and their scores are no teacher's
        self.left_out = ["positive_sources"] if settings.keep_scores else ["positive_scores", "positive_sources"]

    def examples(self, block: pa.Table, ids: pa.Array, lengths: Rows, numbers: Rows) -> tuple[pa.Table, dict[str, Any]]:
        """The examples of one block of the run, and its counts; the arguments are those of `Judged.queries_of`."""
        wanted = np.flatnonzero(self.positives.counts_of(numbers) > 0)
        place = np.full(len(ids), -1, dtype=np.int64)
        place[wanted] = np.arange(len(wanted))
        ids, wanted = ids.take(pa.array(wanted)), numbers[wanted]
        counts: dict[str, Any] = {"unjudged": int((numbers < 0).sum())}
        query = np.repeat(place, lengths)
        if self.scored is not None:
            query[block["rank"].to_numpy() > self.scored] = -1
        found = self.candidates(block, query, ids, wanted, counts)
        positives, negatives, short = self.lists(found, ids, wanted, counts)
        if self.answers:
            counts["answers"] = self.answers.counts()
        if self.settings.keep_scores:
            positives = positives.scored(self._scored_positives(block, query, wanted))
        kept = ~short if self.settings.shortage == "drop" else np.ones(len(wanted), dtype=bool)
        counts["first_short"] = ids[int(np.argmax(short))].as_py() if short.any() else None
        counts |= {"short": int(short.sum()), "kept": int(kept.sum())}
        sizes = negatives.counts(len(wanted))[kept]
        counts["histogram"] = np.bincount(sizes, minlength=self.settings.negatives + 1).tolist()
        counts["sources"] = {"positives": positives.sources(kept), "negatives": negatives.sources(kept)}
        return examples_table(ids, positives, negatives, kept).drop_columns(self.left_out), counts

    def candidates(self, block: pa.Table, query: Rows, ids: pa.Array, wanted: Rows, counts: dict[str, Any]) -> Candidates:
        """The candidates of each query, in the order of the run; counts what is left out, by cause."""
        rank = block["rank"].to_numpy()
        inside = (query >= 0) & (rank <= self.depth)
        taken = inside & (rank > self.settings.skip)
        counts |= {"candidates": int(inside.sum()), "skipped": int(inside.sum() - taken.sum())}
        found = self.taken(block, query, taken)
        text_hash = self.store.text_hash[found.row]
        positive = self.positives.hold(wanted[found.query], found.row)
        like_positive = self.judged.like_positive(ids, found.query, text_hash)
        free = ~positive & ~like_positive
        repeated = np.zeros(len(found), dtype=bool)
        repeated[free] = repeats(found.query[free], text_hash[free])
        counts |= {"positives": int(positive.sum()), "same_text": int((like_positive & ~positive).sum()), "repeated": int(repeated.sum())}
        found = found.at(free & ~repeated)
        return self._far_enough(found, block, query, wanted, counts) if self.settings.margins else found

    def _far_enough(self, found: Candidates, block: pa.Table, query: Rows, wanted: Rows, counts: dict[str, Any]) -> Candidates:
        """The candidates that the margins allow; a query's positive is the one with the lowest score, and -inf if the run lacks one."""
        row, owner = self.positives.lists(wanted)
        score = scores_of(owner, row, self._scored_positives(block, query, wanted))
        lowest = np.full(len(wanted), np.inf, dtype=np.float32)
        np.minimum.at(lowest, owner, np.where(np.isnan(score), -np.inf, score))
        near = too_near(self.settings.margins, found.score, lowest[found.query])
        counts["margins"] = {name: int(flags.sum()) for name, flags in near.items()}
        return found.at(~np.logical_or.reduce(list(near.values())))

    def _scored_positives(self, block: pa.Table, query: Rows, wanted: Rows) -> Candidates:
        """The hits of the whole run that are positives of any of the block's queries: few, so that few ids are looked up."""
        rows, _ = self.positives.lists(wanted)
        positive = pc.is_in(block["passage_id"], value_set=self.store.ids(np.unique(rows))).to_numpy()
        return self.taken(block, query, (query >= 0) & positive)

    def taken(self, block: pa.Table, query: Rows, chosen: Flags) -> Candidates:
        """The chosen rows of a block of the run, whose queries have these numbers."""
        row = self.store.known_rows(block["passage_id"].filter(pa.array(chosen)), self.settings.run)
        return Candidates(query[chosen], row, block["rank"].to_numpy()[chosen], block["score"].to_numpy()[chosen])

    def lists(self, found: Candidates, ids: pa.Array, wanted: Rows, counts: dict[str, Any]) -> tuple[Listed, Listed, Flags]:
        """Positives and negatives of each query, and whether it has too few negatives."""
        chosen = found.at(self.pick(found, ids, self.settings.negatives - self.settings.random, counts))
        negatives = Listed.of(chosen.query, chosen.row, chosen.score, self.source)
        if self.settings.random:
            negatives = negatives.then(self.random(chosen, ids))
        return self.gold(wanted), negatives, negatives.counts(len(wanted)) < self.settings.enough

    def random(self, chosen: Candidates, ids: pa.Array) -> Listed:
        """Random passages of the corpus for each query: no positive, and no text of a positive, of a chosen one, or twice, nor with an answer."""
        query, row = random_rows(self.settings.seed, hash_strings(ids), len(self.store), self.settings.random)
        text = self.store.text_hash[row]
        free = ~self.judged.like_positive(ids, query, text) & ~repeats(query, text)
        free &= ~among(query, text, chosen.query, self.store.text_hash[chosen.row])
        query, row = query[free], row[free]
        first, _ = self.first_without_answers(ids, query, row, np.arange(len(query)), self.settings.random)
        return Listed.of(query[first], row[first], np.full(len(first), np.nan, dtype=np.float32), "random")

    def gold(self, wanted: Rows) -> Listed:
        """All positives of the qrels."""
        row, query = self.positives.lists(wanted)
        return Listed.of(query, row, np.full(len(row), np.nan, dtype=np.float32), "gold")

    def pick(self, found: Candidates, ids: pa.Array, count: int, counts: dict[str, Any]) -> Rows:
        """The positions of `count` chosen candidates of each query, by query; counts those that hold an answer."""
        top = self.settings.pick == "top"
        key = found.rank if top else draw(self.settings.seed, hash_strings(ids)[found.query], found.row)
        chosen, held = self.first_without_answers(ids, found.query, found.row, key, count)
        counts |= {"answered": held} if self.answers else {}
        return chosen

    def first_without_answers(self, ids: pa.Array, query: Rows, row: Rows, key: NDArray[np.generic], count: int) -> tuple[Rows, int]:
        """As `negatives.first_of_each`, with `without_answers` of those that hold none; and how many that do were found."""
        if self.answers:
            return self.answers.first_without_answers(ids, query, row, key, count)
        return first_of_each(query, key, count), 0
