"""Builds a BM25 index in shards whose scores equal those of one index over everything, bit for bit, in bounded memory.

Pass 1 counts words, a part of a shard in each task (`bm25_counts`); the vocabulary, the document frequencies and the mean length are
then those of the whole corpus (`bm25_vocabulary`); pass 2 writes the scores of a shard in each task (`bm25_scores`).
"""

from __future__ import annotations

import shutil
from functools import partial

from raydense.errors import InputError
from raydense.inference.arrivals import arriving
from raydense.retrieval.bm25_counts import PART_BYTES, Inputs, Part, count, parts_of, sampled_pairs, words_of
from raydense.retrieval.bm25_scores import PAIRS, Weighting, score, shard_file
from raydense.retrieval.bm25_shard import PARTS
from raydense.retrieval.bm25_vocabulary import VOCABULARY, merge_vocabularies
from raydense.retrieval.settings import IndexSettings
from raydense.retrieval.word_rules import RULES
from raydense.retrieval.words import Words
from raydense.runtime.progress import Progress, say, size
from raydense.runtime.session import joins_cluster
from raydense.runtime.tasks import run_tasks, shard_ranges
from raydense.storage import Artifact, Draft
from raydense.storage.place import together

_PROCESS = 320 * 2**20  # bytes of a worker process before it reads anything
_KEPT, _INDEX = 10.5, 8  # bytes on disk of a pair of a word and a passage: in the work folder, and in the index


def build_bm25(draft: Draft, settings: IndexSettings) -> Artifact:
    """Commit `vocabulary.arrow`, three arrays per shard and `passage_ids.arrow`; finish the draft.

    With `generated`, a passage also has the words of the queries generated for it (doc2query, Nogueira and Lin 2019). Raises InputError
    on an unknown stemmer or list of stop words, more shards than passages, queries of another corpus, too little disk or memory, or words of
    other rules that an earlier version of raydense left there.
    """
    _refuse_other_rules(draft)
    words = Words(settings.bm25.stemmer, settings.bm25.stopwords)
    words.vocabulary()
    inputs = Inputs(str(settings.corpus), settings.generated, draft.made_from["inputs"])
    store, generated = inputs.open()
    if settings.shards > len(store):
        raise InputError(f"{settings.shards} shards of {len(store)} passages", "shards", f"give at most {len(store)}")
    ranges = shard_ranges(len(store), settings.shards)
    parts = parts_of(store, generated, ranges)
    pairs = sampled_pairs(store, generated, words)
    check_disk(draft, pairs)
    lacking = draft.lacks(name for part in parts for name in (part.words, part.counts))
    uncounted = [part for part in parts if not lacking.isdisjoint((part.words, part.counts))]
    with Progress("index: words", len(store), "passages", len(store) - sum(part.rows for part in uncounted)) as progress:
        calls = [(draft, inputs, words, part) for part in uncounted]
        text = PART_BYTES if generated else sum(file.bytes for file in store.artifact.files)
        reported = run_tasks("index", count, calls, settings.concurrency, counting_bytes(text))
        for rows in arriving(draft, [part.counts for part in uncounted], reported):
            progress.add(rows)
    merge_vocabularies(draft, parts, len(store))
    _score_shards(draft, settings, parts, ranges, pairs)
    draft.commit("passage_ids.arrow", store.write_ids, len(store))
    summary = {"kind": "bm25", "shards": ranges, "corpus": store.fingerprint, "model": None, "dimension": None}
    summary["expand"] = generated.origin if generated else None
    return draft.finish(len(store), **summary, factory=None, rules=words.rules, stemmer=words.stemmer, stopwords=words.stopwords)


def _refuse_other_rules(draft: Draft) -> None:
    there = draft.committed().get(VOCABULARY)
    if there is not None and there.note.get("rules", 1) != RULES:
        what = "was begun by another version of raydense, which splits texts into other words"
        raise InputError(what, draft.place, "delete this folder and build it again")


def _score_shards(draft: Draft, settings: IndexSettings, parts: list[Part], ranges: list[tuple[int, int]], pairs: int) -> None:
    rows, there = ranges[-1][1], draft.committed()
    missing = [(i, *shard) for i, shard in enumerate(ranges) if shard_file(i, PARTS[-1]) not in there]
    mean = sum(together(partial(words_of, draft), parts)) / rows if missing else 0.0
    weighting = Weighting(mean, settings.bm25.k1, settings.bm25.b)
    calls = [(draft, [part for part in parts if start <= part.start < stop], i, weighting) for i, start, stop in missing]
    memory = _scoring_memory(pairs, max((stop - start for _, start, stop in missing), default=0), there[VOCABULARY].rows)
    with Progress("index: scores", rows, "passages", rows - sum(stop - start for _, start, stop in missing)) as progress:
        for scored in run_tasks("index", score, calls, settings.concurrency, memory):
            progress.add(scored)


def counting_bytes(text: int) -> int:
    """What a task of pass 1 takes, by the bytes of all text."""
    return _PROCESS + 20 * min(text, PART_BYTES)


def _scoring_memory(pairs: int, rows: int, words: int) -> int:
    """What a task of pass 2 takes: by the pairs of a range of words, and a few numbers of each passage of its shard and of each word."""
    return _PROCESS + 72 * min(pairs, PAIRS) + 4 * rows + 40 * words


def check_disk(draft: Draft, pairs: int) -> None:
    """InputError if an index of about `pairs` pairs of a word and a passage, and what is kept until it is finished, do not fit on the disk."""
    if draft.place.durable and joins_cluster():
        return  # other machines count and score, and none keeps all of it
    temporary, index = int(_KEPT * pairs), _INDEX * pairs
    there = sum(file.stat().st_size for file in draft.folder.rglob("*") if file.is_file())
    free = shutil.disk_usage(draft.folder).free
    needed = f"about {size(index)} of index and {size(temporary)} of temporary files"
    if temporary + index > 2**30:
        say(f"index: {needed} in {draft.folder}")
    if temporary + index > free + there:
        raise InputError(f"needs {needed}, and {size(free)} are free", draft.folder, "free some, or give --output on a larger disk")
