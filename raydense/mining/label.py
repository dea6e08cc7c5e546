"""Pseudo-labels (RocketQA; PAIR, section 3.3): a re-ranker as the teacher separates positives from negatives among the candidates.

The candidates are scored by `rerank` in the work folder of the output; then each block of the scored run becomes one
committed file of examples, with its counts in the note.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydense.data.draws import draw
from raydense.data.lookup import hash_strings
from raydense.data.runs import BLOCK_ROWS, query_blocks
from raydense.data.store import Rows
from raydense.data.tables import commit_table
from raydense.errors import InputError
from raydense.inference.rerank import loss_of, probability, refuse_unscored, rerank, warn_of_loss
from raydense.inference.settings import RerankSettings
from raydense.mining.answers import HeldAnswers
from raydense.mining.blocks import Judged, depth_of, say_depth
from raydense.mining.counts import added, added_sources, listed, say_answers, say_shortage
from raydense.mining.label_report import write_report
from raydense.mining.lists import Listed, examples_table
from raydense.mining.negatives import Candidates, Flags, among, first_of_each, repeats, scores_of
from raydense.mining.settings import LabelSettings
from raydense.models.cross_encoder import refuse_untrained
from raydense.runtime.progress import say
from raydense.storage import WORK, Artifact, Draft, Place, check_made_with, made_or_begun_from, provenance_of, releases_outputs

BINS = 20
REPORT = "report.md"
_STREAM = 1  # the stream of random numbers, different from that of `mine`, which may draw from the same candidates


@releases_outputs
def label(settings: LabelSettings) -> Artifact:
    """Examples for training from the teacher's probability (the sigmoid of its score) of each candidate at ranks 1..depth.

    Above `s_pos` it is a pseudo-positive, below `s_neg` a confident negative; other candidates are left out. All positives of the
    qrels (relevance >= 1) stay, whatever the teacher's probability, and neither they nor a passage of the same text get
    another label. Other queries have only pseudo-positives; a query without any positive is dropped.
    Equal texts count once, and none is on both sides. Examples come in the order of the run; positives of the qrels by relevance
    falling, then pseudo-positives by probability falling; negatives in the order of the draw. Each has the teacher's score, a
    logit. `report.md` has the counts, a histogram of the probabilities and a sample to read. Judgements of passages that the corpus
    lacks are left out, and counted. Raises InputError on a folder without a trained re-ranker, on an unknown passage of the run or
    query id, if nothing is left, and on a shortage if `shortage` is "fail".
    """
    made_from = provenance_of(made_or_begun_from(settings.output), "label", settings)
    if settings.model is None:
        refuse_unscored(settings.run, "give the teacher as --model, or a run that `raydense rerank` made")
        loss = Artifact.open(settings.run).summary.get("loss")
    else:
        refuse_untrained(settings.model)
        loss = loss_of(settings.model)
    warn_of_loss("label", "the teacher", loss)
    draft = Draft.open(settings.output, "examples", made_from)
    if draft.done:
        return draft.done
    labeller = _Labeller(settings)
    labeller.judged.say_lacking("label")
    say_depth("label", settings.run, labeller.depth, settings.depth)
    scored = _scores(settings, draft)
    done = draft.committed()
    for number, block in enumerate(query_blocks(scored.parts(".parquet"), BLOCK_ROWS)):
        name = f"examples-{number:05d}.parquet"
        queries = labeller.judged.queries_of(block)
        if name not in done:
            table, counts = labeller.examples(block, *queries)
            commit_table(draft, name, table, counts=counts)
    parts = [file for file in draft.committed().values() if file.path != REPORT]
    try:
        summary = _sum_up(settings, labeller.judged, [file.note["counts"] for file in parts])
    except InputError as error:  # the settings that fix it make other files, of the same scores
        if settings.model is None:
            draft.discard()
            raise
        what, where, fix = error.args
        kept = f"the teacher's scores are kept: to try other settings, give run {scored.place} without model, and another output"
        raise InputError(what, where, f"{fix}; {kept}") from None
    summary |= {"teacher": scored.summary["model"], "corpus": labeller.judged.store.fingerprint, "depth": labeller.depth}
    files = [draft.read(file.path) for file in parts]
    draft.commit(REPORT, partial(write_report, settings=settings, summary=summary, parts=files, store=labeller.judged.store), 0)
    _report(settings, summary)
    return draft.finish(summary["kept"], **summary)


def _scores(settings: LabelSettings, draft: Draft) -> Artifact:
    """The candidates with the teacher's scores; InputError if an input is no longer the one that the stage began with."""
    begun = draft.made_from["inputs"]
    if settings.model is None:
        return Artifact.open(settings.run, "run", begun["run"])
    scored = rerank(_scoring(settings, draft.place / WORK / "scores"))
    for key in ("model", "run", "corpus", "queries"):
        check_made_with(scored, key, str(settings.value_of(key)), begun[key])
    return scored


def _scoring(settings: LabelSettings, output: Place) -> RerankSettings:
    """The settings of `rerank` for the scores of the teacher."""
    shared = RerankSettings.model_fields.keys() & LabelSettings.model_fields.keys() - {"output"}
    return RerankSettings(output=str(output), **{name: getattr(settings, name) for name in shared})


@dataclass(frozen=True)
class _Scored:
    """The candidates of a block, with the probability of each in float64 and whether it is a positive: `known` of the question under any id."""

    found: Candidates
    probability: NDArray[np.float64]
    gold: Flags
    gold_or_like: Flags
    known: Flags


class _Labeller:
    """Makes the examples of the scored run block by block, and counts what it finds and leaves out."""

    def __init__(self, settings: LabelSettings) -> None:
        self.settings = settings
        self.judged = Judged(settings.run, settings.corpus, settings.queries, settings.qrels)
        self.answers = HeldAnswers(settings.queries, self.judged.store, settings.without_answers) if settings.without_answers else None
        self.depth = settings.depth if settings.model else depth_of(Artifact.open(settings.run, "run"), settings.depth)

    def examples(self, block: pa.Table, ids: pa.Array, lengths: Rows, numbers: Rows) -> tuple[pa.Table, dict[str, Any]]:
        """The examples of one block, and its counts; the arguments are those of `Judged.queries_of`."""
        scored = self._scored(block, ids, numbers, lengths)
        pseudo, negatives, counts = self._thresholded(scored)
        chosen = negatives.at(self._drawn(negatives, ids, counts))
        row, query = self.judged.positives.lists(numbers)
        gold = Listed.of(query, row, scores_of(query, row, scored.found.at(scored.gold)), "gold")
        positives = gold.then(Listed.of(pseudo.query, pseudo.row, pseudo.score, "pseudo"))
        drawn = Listed.of(chosen.query, chosen.row, chosen.score, "denoised")
        some = positives.counts(len(ids)) > 0
        short = some & (drawn.counts(len(ids)) < self.settings.enough)
        kept = some & ~short if self.settings.shortage == "drop" else some
        counts["queries"] = _query_counts(self.judged.positives.counts_of(numbers) > 0, some, short, kept)
        counts["first_short"] = ids[int(np.argmax(short))].as_py() if short.any() else None
        counts["sources"] = {"positives": positives.sources(kept), "negatives": drawn.sources(kept)}
        counts["sizes"] = np.bincount(drawn.counts(len(ids))[kept], minlength=self.settings.negatives + 1).tolist()
        return examples_table(ids, positives, drawn, kept), counts

    def _drawn(self, negatives: Candidates, ids: pa.Array, counts: dict[str, Any]) -> Rows:
        """The positions of the confident negatives that are drawn; with `without_answers` of those that hold none, which are counted as far as looked at."""
        order = draw(self.settings.seed, hash_strings(ids)[negatives.query], negatives.row, _STREAM)
        if self.answers is None:
            return first_of_each(negatives.query, order, self.settings.negatives)
        chosen, held = self.answers.first_without_answers(ids, negatives.query, negatives.row, order, self.settings.negatives)
        counts["answers"] = self.answers.counts()
        counts["candidates"]["confident negatives"] -= held
        counts["candidates"]["negatives that hold an answer"] = held
        return chosen

    def _scored(self, block: pa.Table, ids: pa.Array, numbers: Rows, lengths: Rows) -> _Scored:
        rank = block["rank"].to_numpy()
        taken = rank <= self.depth
        query = np.repeat(np.arange(len(lengths)), lengths)[taken]
        row = self.judged.store.known_rows(block["passage_id"].filter(pa.array(taken)), self.settings.run)
        score = block["score"].to_numpy()[taken]
        gold = self.judged.positives.hold(numbers[query], row)
        text = self.judged.store.text_hash[row]
        like, known = self.judged.positives.hold_text(numbers[query], text), self.judged.like_positive(ids, query, text)
        return _Scored(Candidates(query, row, rank[taken], score.astype(np.float32)), probability(score), gold, gold | like, known)

    def _thresholded(self, scored: _Scored) -> tuple[Candidates, Candidates, dict[str, Any]]:
        """Pseudo-positives and confident negatives, each in the order of the run, and the counts."""
        found, probability, free = scored.found, scored.probability, ~scored.gold_or_like
        text = self.judged.store.text_hash[found.row]
        above, low = free & (probability > self.settings.s_pos), free & (probability < self.settings.s_neg)
        below = low & ~scored.known
        pseudo = above.copy()
        pseudo[above] = ~repeats(found.query[above], text[above])
        like_pseudo = below.copy()
        like_pseudo[below] = among(found.query[below], text[below], found.query[pseudo], text[pseudo])
        negative = below & ~like_pseudo
        once = negative.copy()
        once[negative] = ~repeats(found.query[negative], text[negative])
        bins = np.minimum((probability * BINS).astype(np.int64), BINS - 1)
        counts = {
            "candidates": {
                "gold positives": int(scored.gold.sum()),
                "text of a gold positive": int((scored.gold_or_like & ~scored.gold).sum() + (low & scored.known).sum()),
                "pseudo-positives": int(pseudo.sum()),
                "confident negatives": int(once.sum()),
                "between the thresholds": int((free & ~above & ~low).sum()),
                "text of a pseudo-positive": int(like_pseudo.sum()),
                "repeated text": int((above & ~pseudo).sum() + (negative & ~once).sum()),
            },
            "gold_below_s_neg": int((scored.gold & (probability < self.settings.s_neg)).sum()),
            "gold_bins": np.bincount(bins[scored.gold], minlength=BINS).tolist(),
            "other_bins": np.bincount(bins[~scored.gold], minlength=BINS).tolist(),
        }
        return found.at(pseudo), found.at(once), counts


def _query_counts(labelled: Flags, some: Flags, short: Flags, kept: Flags) -> dict[str, int]:
    counts = {
        "labelled": labelled,
        "unlabelled": ~labelled,
        "without": ~some,
        "short": short,
        "kept": kept,
        "kept_labelled": kept & labelled,
    }
    return {name: int(flags.sum()) for name, flags in counts.items()}


def _nothing_left(settings: LabelSettings, queries: dict[str, int], other_bins: NDArray[np.int64]) -> InputError:
    """The error that says why, of the queries of all blocks and the histogram of all candidates but the gold positives."""
    found, fixes = [], []
    if queries.get("without"):
        highest = (max(np.flatnonzero(other_bins), default=-1) + 1) / BINS
        least = "which none reaches" if highest > settings.s_pos else f"the highest probability of all at most {highest:.2f}"
        found.append(f"{queries['without']:,} queries have no positive (s_pos is {settings.s_pos:g}, {least})")
        fixes.append("qrels, a lower s_pos, or a more confident teacher")
    if queries.get("short"):
        found.append(f"{queries['short']:,} queries have fewer than {settings.enough} confident negatives")
        fixes.append("a greater depth, a higher s_neg, a lower min_negatives, or shortage keep")
        fixes += ["leave without_answers out"] if settings.without_answers else []
    what = f"no example is left: {'; '.join(found)}" if found else "no example is left: the run has no candidates"
    return InputError(what, settings.run, f"give {'; or '.join(fixes)}" if fixes else "give another run")


def _sum_up(settings: LabelSettings, judged: Judged, blocks: list[dict[str, Any]]) -> dict[str, Any]:
    """The summary from the notes of the files; InputError on a shortage that must fail, or if nothing is left."""
    queries = added(block["queries"] for block in blocks)
    candidates = added(block["candidates"] for block in blocks)
    unmet = int(judged.unmet.sum())
    if settings.shortage == "fail" and queries.get("short"):
        first = next(block["first_short"] for block in blocks if block["first_short"] is not None)
        what = f"{queries['short']:,} queries have fewer than {settings.enough} confident negatives, the first is {first!r}"
        raise InputError(what, settings.run, "give a greater depth, a lower min_negatives, or shortage keep or drop")
    if not queries.get("kept"):
        raise _nothing_left(settings, queries, np.sum([block["other_bins"] for block in blocks], axis=0))
    dropped = {
        "no positive": queries["without"],
        "not in the run": unmet,
        "too few negatives": queries["short"] if settings.shortage == "drop" else 0,
    }
    return {
        "queries": queries["labelled"] + queries["unlabelled"] + unmet,
        "labelled": queries["labelled"] + unmet,
        "unlabelled": queries["unlabelled"],
        "kept": queries["kept"],
        "kept_labelled": queries["kept_labelled"],
        "dropped": dropped,
        "short": queries["short"],
        "candidates": candidates,
        "gold_below_s_neg": sum(block["gold_below_s_neg"] for block in blocks),
        "sources": added_sources(blocks),
        **({"answers": added(block["answers"] for block in blocks)} if settings.without_answers else {}),
        "negatives": np.sum([block["sizes"] for block in blocks], axis=0).tolist(),
        "scores": {part: np.sum([block[f"{part}_bins"] for block in blocks], axis=0).tolist() for part in ("gold", "other")},
    }


def _report(settings: LabelSettings, summary: dict[str, Any]) -> None:
    say(
        f"label: {summary['kept']:,} of {summary['queries']:,} queries kept, {summary['kept_labelled']:,} of them labelled;"
        f" dropped: {listed(summary['dropped'])}"
    )
    say(f"label: {sum(summary['candidates'].values()):,} candidates scored: {listed(summary['candidates'])}")
    seen = summary["candidates"]["gold positives"]
    if summary["gold_below_s_neg"]:
        share = 100 * summary["gold_below_s_neg"] / seen
        say(f"label: the teacher scores {summary['gold_below_s_neg']:,} of {seen:,} gold positives below s_neg ({share:.0f}%); they stay")
    say_answers("label", summary)
    say_shortage("label", summary, settings.enough, "confident negatives")
