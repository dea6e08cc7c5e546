"""Hybrid augmentation (RocketQAv2, section 3.3): lists of undenoised and denoised instances."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from raydense.data.draws import draw
from raydense.data.lookup import hash_strings
from raydense.data.store import Rows
from raydense.mining.labels import Labels
from raydense.mining.lists import Listed
from raydense.mining.miner import Miner
from raydense.mining.negatives import Candidates, Flags, among, repeats, scores_of
from raydense.mining.settings import MineSettings
from raydense.storage import Artifact

_DENOISED = 2  # the stream of random numbers, different from those of the undenoised negatives and of `label`


class HybridMiner(Miner):
    """Joins two parts into one example per query, and keeps the source of each passage.

    The undenoised part: the positives of the qrels, and negatives drawn from the ranks of the run. The denoised part: the
    pseudo-positives and `denoised` of the confident negatives of the labels, which are drawn first. Each part has its own
    number of negatives, and a shortage of one is not filled from the other. No text is repeated among the positives and negatives of
    a query, except that all positives of the qrels stay.

    A passage of the run that the labels call positive is left out of the undenoised negatives, and counted: the undenoised part
    contains unknown false negatives, but a known one would be of no use.
    Scores are the teacher's logits; the undenoised negatives, and positives that the teacher did not score, have none.
    """

    def __init__(self, settings: MineSettings, run: Artifact) -> None:
        super().__init__(settings, run)
        self.left_out = []
        assert settings.hybrid is not None
        assert settings.hybrid.denoised is not None
        self.labels, self.denoised = Labels(settings.hybrid.labels, self.store), settings.hybrid.denoised

    def lists(self, found: Candidates, ids: pa.Array, wanted: Rows, counts: dict[str, Any]) -> tuple[Listed, Listed, Flags]:
        """As `Miner.lists`; a query is short if either part has too few negatives, with `min_negatives` if both together have."""
        positives, negatives, labelled = self.labels.of(ids)
        denoised = self._denoised(positives, negatives, ids, counts)
        text = self.store.text_hash
        positive = among(found.query, text[found.row], positives.query, text[positives.row])
        taken = ~positive & among(found.query, text[found.row], denoised.query, text[denoised.row])
        found = found.at(~positive & ~taken)
        drawn = found.at(self.pick(found, ids, self.settings.negatives - self.denoised, counts))
        unscored = np.full(len(drawn), np.nan, dtype=np.float32)
        few_drawn = np.bincount(drawn.query, minlength=len(ids)) < self.settings.negatives - self.denoised
        few_denoised = np.bincount(denoised.query, minlength=len(ids)) < self.denoised
        counts["hybrid_removed"] = {"positive by the labels": int(positive.sum()), "in the denoised part": int(taken.sum())}
        counts["hybrid"] |= {
            "queries not in the labels": len(ids) - labelled,
            "queries short of undenoised negatives": int(few_drawn.sum()),
            "queries short of denoised negatives": int(few_denoised.sum()),
        }
        undenoised = Listed.of(drawn.query, drawn.row, unscored, self.source)
        together = undenoised.then(Listed.of(denoised.query, denoised.row, denoised.score, "denoised"))
        short = together.counts(len(ids)) < self.settings.enough if self.settings.min_negatives else few_drawn | few_denoised
        return self._positives(positives, wanted), together, short

    def _positives(self, labelled: Candidates, wanted: Rows) -> Listed:
        """The positives of the qrels, with their scores in the labels, and then those that only the labels have."""
        row, query = self.positives.lists(wanted)
        gold = Listed.of(query, row, scores_of(query, row, labelled), "gold")
        text = self.store.text_hash[labelled.row]
        fresh = labelled.at(~self.positives.hold_text(wanted[labelled.query], text) & ~repeats(labelled.query, text))
        return gold.then(Listed.of(fresh.query, fresh.row, fresh.score, "pseudo"))

    def _denoised(self, positives: Candidates, negatives: Candidates, ids: pa.Array, counts: dict[str, Any]) -> Candidates:
        """`denoised` of the labels' negatives of each query, without positives of the qrels or the labels, repeated texts and held answers."""
        text = self.store.text_hash
        known = self.judged.like_positive(ids, negatives.query, text[negatives.row])
        known |= among(negatives.query, text[negatives.row], positives.query, text[positives.row])
        free = negatives.at(~known & ~repeats(negatives.query, text[negatives.row]))
        drawn = draw(self.settings.seed, hash_strings(ids)[free.query], free.row, _DENOISED)
        chosen, held = self.first_without_answers(ids, free.query, free.row, drawn, self.denoised)
        counts["hybrid"] = {"negatives of the labels with an answer": held} if self.answers else {}
        return free.at(chosen)
