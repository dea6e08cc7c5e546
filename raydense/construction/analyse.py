"""Error analysis (Qiu et al. 2022, section 3.6): the first hits of queries that a run fails, each sorted into a kind of error by rules.

Only the hits are read by blocks, and the corpus where it is counted; what is looked at are `sample` queries with `k` passages each.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from raydense.construction.analysis_page import write_page
from raydense.construction.error_kinds import OTHERS, PAPER, RULES, Pair, PassageTerms, QueryTerms, kind_of
from raydense.construction.failures import Failures, failures
from raydense.construction.misspelt import candidates, corrections
from raydense.construction.package import Label, Page, write_packages
from raydense.construction.settings import AnalyseSettings
from raydense.construction.terms import Frequencies, Splitter, counting, from_index
from raydense.data.runs import BLOCK_ROWS, query_blocks, scored_depth
from raydense.data.tables import query_positions, read_table
from raydense.errors import InputError
from raydense.inference.rerank import probability, refuse_unscored, warn_of_loss
from raydense.mining.blocks import Judged
from raydense.mining.negatives import Candidates, scores_of
from raydense.runtime.progress import say
from raydense.storage import Artifact, Draft, provenance, releases_outputs

LABELS = tuple(Label(str(key), kind) for key, kind in enumerate((*RULES, OTHERS), 1))
_QUESTION = "What is wrong with the passage?"
_PER_PAGE = 1_000  # pairs
_FEW = 30  # queries
_AHEAD = 2_000  # words, of which each has some 500 that it may have been: a set of a million takes 200 MB
_MANY, _PER_MINUTE = 1_000_000, 2_000_000  # passages, and how many of 60 words are counted in a minute


@dataclass(frozen=True)
class Sorted:
    """A pair that was looked at, as the page shows it, and what the rules say of it."""

    query_id: str
    passage_id: str
    rank: int
    score: float
    pair: Pair
    kind: str
    evidence: str


@releases_outputs
def analyse(settings: AnalyseSettings) -> Artifact:
    """Sort the errors of a run; returns a report artifact with a row for each pair looked at.

    Of the judged queries without a positive among their first `k` hits up to `sample` are drawn, by seed and id, and each of these hits gets the kind of the
    first of the `RULES` that fires, or `others`, with the evidence. analysis.parquet has `query_id`, `passage_id`, `rank`, `score`, `kind` and
    `evidence`; pairs.parquet has the texts, for people to judge: `query_id`, `passage_id`, `query`, `passage`, `title`, `score`, `kind` and
    `evidence`; package-*.html is a page on which a person names the kinds of those that no rule names; metrics.json, also `summary["result"]`, the share of each kind with that of the paper's Table 9; report.html has examples.

    The words are BM25's with the stemmer of `index`, else the English one, which leaves Chinese as it is. Raises InputError on an unknown passage or query, on a run that
    fails no query, a teacher that is no run of `rerank` or scores none of the pairs, and on an index that is not BM25's of this corpus.
    """
    draft = Draft.open(settings.output, "report", provenance("analyse", settings))
    if draft.done:
        return draft.done
    if settings.teacher:
        refuse_unscored(settings.teacher, "give as --teacher a run that `raydense rerank` made")
        warn_of_loss("analyse", "the teacher", Artifact.open(settings.teacher).summary.get("loss"))
    judged = Judged(settings.run, settings.corpus, settings.queries, settings.qrels)
    judged.say_lacking("analyse")
    splitter, frequencies = _words(settings, judged)
    failed = failures(settings, judged, Artifact.open(settings.run, "run"))
    pairs = _sorted(settings, judged, failed, splitter, frequencies)
    result = _result(settings, failed, pairs)
    draft.commit("analysis.parquet", lambda path: pq.write_table(_table(pairs), path), len(pairs))
    draft.commit("pairs.parquet", lambda path: pq.write_table(_texts(judged, failed, pairs), path), len(pairs))
    write_packages(draft, [_left(judged, failed, pairs)], _PER_PAGE, Page(_QUESTION, LABELS))
    metrics = json.dumps(result, indent=1, ensure_ascii=False) + "\n"
    draft.commit("metrics.json", lambda path: path.write_text(metrics, encoding="utf-8"), 0)
    positives = [_positive(judged, int(number)) for number in failed.numbers]
    draft.commit("report.html", lambda path: write_page(path, settings, result, pairs, failed.ids.to_pylist(), positives, splitter), 0)
    _say(settings, result)
    return draft.finish(len(pairs), result=result)


def _words(settings: AnalyseSettings, judged: Judged) -> tuple[Splitter, Frequencies]:
    """How texts are split, and how many passages have a word: from the index, or counted in the corpus."""
    if settings.index is None:
        if len(judged.store) >= _MANY:
            minutes = math.ceil(len(judged.store) / _PER_MINUTE)
            say(f"analyse: counts words in {len(judged.store):,} passages, about {minutes} min; a BM25 index as --index has the counts")
        splitter = Splitter()
        return splitter, Frequencies(len(judged.store), counting(judged.store, splitter.words))
    words, counter = from_index(Artifact.open(settings.index, "index"), judged.store)
    return Splitter(words), Frequencies(len(judged.store), counter)


def _sorted(settings: AnalyseSettings, judged: Judged, failed: Failures, splitter: Splitter, frequencies: Frequencies) -> list[Sorted]:
    """The pairs in the order of the run, each with its kind."""
    queries = read_table(settings.queries, "queries", ["query_id", "text"])
    texts = queries["text"].take(pa.array(query_positions(failed.ids, queries, settings.run))).to_pylist()
    asked = _asked(texts, splitter, frequencies, settings.index is None)
    hits, store = failed.hits, judged.store
    like = judged.positives.hold_text(failed.numbers[hits.query], store.text_hash[hits.row])
    teacher = _probability(settings, judged, failed)
    found = []
    columns = (failed.ids.take(pa.array(hits.query)).to_pylist(), store.ids(hits.row).to_pylist(), store.passages(hits.row))
    for at, (query_id, passage_id, text) in enumerate(zip(*columns, strict=True)):
        scored = None if np.isnan(teacher[at]) else float(teacher[at])
        pair = Pair(asked[hits.query[at]], PassageTerms(text, splitter.terms(text), bool(like[at]), scored), settings.s_pos)
        found.append(Sorted(query_id, passage_id, int(hits.rank[at]), float(hits.score[at]), pair, *kind_of(pair)))
    return found


def _asked(texts: list[str], splitter: Splitter, frequencies: Frequencies, counts: bool) -> list[QueryTerms]:
    """The queries as the rules see them; `counts`: `frequencies` reads the corpus each time that it is asked for new words."""
    terms = [splitter.terms(text) for text in texts]
    queries = list(zip(texts, terms, strict=True))
    asked = {term.word for of_query in terms for term in of_query}
    frequencies.ask(asked | candidates(queries) if counts and len(asked) <= _AHEAD else asked)
    found = []
    for text, of_query, corrected in zip(texts, terms, corrections(queries, frequencies), strict=True):
        words = {term.word for term in of_query}
        rare = frozenset(word for word in words if frequencies.is_rare(word))
        found.append(QueryTerms(text, of_query, {word: frequencies.idf(word) for word in words}, rare, corrected))
    return found


def _probability(settings: AnalyseSettings, judged: Judged, failed: Failures) -> NDArray[np.float64]:
    """The teacher's probability (the sigmoid of its score) of each hit, float64 [n]; NaN where it has none. InputError if it has none of all."""
    if settings.teacher is None:
        return np.full(len(failed.hits), np.nan)
    scored = []
    run = Artifact.open(settings.teacher, "run")
    judged.store.refuse_rows_of_another(run)
    for block in query_blocks(run.parts(".parquet"), BLOCK_ROWS):
        block = block.filter(pc.less_equal(block["rank"], scored_depth(run)))
        place = pc.index_in(block["query_id"], value_set=failed.ids)
        mine = block.filter(pc.is_valid(place))
        row = judged.store.known_rows(mine["passage_id"], settings.teacher)
        query = place.filter(pc.is_valid(place)).to_numpy().astype(np.int64)
        scored.append(Candidates(query, row, mine["rank"].to_numpy(), mine["score"].to_numpy()))
    every = [np.concatenate([getattr(block, name) for block in scored]) for name in ("query", "row", "rank", "score")] if scored else []
    score = scores_of(failed.hits.query, failed.hits.row, Candidates(*every)) if every else np.full(len(failed.hits), np.nan)
    if np.isnan(score).all():
        raise InputError(
            "scores none of the pairs looked at", settings.teacher, f"re-rank {settings.run}, at least its first {settings.k} hits"
        )
    return probability(score)


def _result(settings: AnalyseSettings, failed: Failures, pairs: list[Sorted]) -> dict[str, Any]:
    """The object of metrics.json."""
    counts = Counter(one.kind for one in pairs)
    return {
        "k": settings.k,
        "queries": failed.judged,
        "failed": failed.failed,
        "without_hits": failed.without_hits,
        "looked_at": len(failed.ids),
        "pairs": len(pairs),
        "kinds": {kind: {"pairs": counts[kind], "share": counts[kind] / len(pairs), "paper": PAPER[kind]} for kind in (*RULES, OTHERS)},
    }


def _table(pairs: list[Sorted]) -> pa.Table:
    return pa.table(
        {
            "query_id": pa.array([one.query_id for one in pairs], pa.string()),
            "passage_id": pa.array([one.passage_id for one in pairs], pa.string()),
            "rank": pa.array([one.rank for one in pairs], pa.int32()),
            "score": pa.array([one.score for one in pairs], pa.float32()),
            "kind": pa.array([one.kind for one in pairs], pa.string()),
            "evidence": pa.array([one.evidence for one in pairs], pa.string()),
        }
    )


def _texts(judged: Judged, failed: Failures, pairs: list[Sorted]) -> pa.Table:
    """The pairs with their texts, in a plain form."""
    texts, table = judged.store.take(failed.hits.row, ["title", "text"]), _table(pairs)
    columns = {"query": pa.array([one.pair.query.text for one in pairs], pa.string()), "passage": texts["text"], "title": texts["title"]}
    return pa.table(
        {
            **{name: table[name] for name in ("query_id", "passage_id")},
            **columns,
            **{name: table[name] for name in ("score", "kind", "evidence")},
        }
    )


def _left(judged: Judged, failed: Failures, pairs: list[Sorted]) -> pa.Table:
    """The pairs that no rule names, in the form of a package."""
    table = _texts(judged, failed, pairs)
    return table.filter(pc.equal(table["kind"], OTHERS)).rename_columns({"passage": "text"})


def _positive(judged: Judged, number: int) -> tuple[str, str]:
    """The id and the text of the best positive of a judged query."""
    row = judged.positives.lists(np.array([number]))[0][:1]
    return judged.store.ids(row)[0].as_py(), judged.store.passages(row)[0]


def _say(settings: AnalyseSettings, result: dict[str, Any]) -> None:
    say(
        f"analyse: {result['failed']:,} of {result['queries']:,} queries have no positive among the first {settings.k} hits;"
        f" {result['looked_at']:,} of them drawn, {result['pairs']:,} pairs"
    )
    for kind, found in result["kinds"].items():
        say(f"analyse: {kind}: {found['pairs']:,} ({100 * found['share']:.1f}%)")
    if result["looked_at"] < settings.sample:
        few = ", too few for their shares to be those of other queries" if result["looked_at"] < _FEW else ""
        say(f"analyse: {result['looked_at']:,} queries in place of {settings.sample:,}{few}: no more fail and have hits")
    left = result["kinds"][OTHERS]["pairs"]
    page = f"package-*.html asks a person for the kind of these {left:,}" if left else "no page asks a person, since a rule names each pair"
    say(f"analyse: {OTHERS}: {page}")
