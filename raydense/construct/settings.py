"""The settings of the stages that build a retrieval data set and judge it."""

from __future__ import annotations

from raydense.forecast import PROCESS_BYTES, Forecast, Holds, Known, fewest
from raydense.settings import Folder, FolderOrNone, Settings, artifact, setting


class AnalyseSettings(Settings):
    """Sort a retriever's errors into kinds by rules: the first hits of queries that have no positive among them."""

    run: Folder = artifact("run", "the run whose errors are looked at")
    corpus: Folder = artifact("corpus", "the passages")
    queries: Folder = artifact("queries", "the queries")
    qrels: Folder = artifact("qrels", "the judgements: of the judged queries those without a positive among the first hits are looked at")
    index: FolderOrNone = artifact(
        "index", "a bm25 index of this corpus, which has the number of passages of each word; without it the corpus is counted", None
    )
    teacher: FolderOrNone = artifact("run", "a run of `rerank`: what it scores high is a possible false negative", None)
    s_pos: float = setting(0.9, "a teacher's probability above it makes a possible false negative", ge=0, le=1)
    k: int = setting(5, "how many of the first hits are looked at", ge=1)
    sample: int = setting(100, "how many of the queries are looked at, drawn at random", ge=1)
    seed: int = setting(42, "random seed of the draw", ge=0, lt=2**63)

    def forecast(self, known: Known) -> Forecast:
        """The time grows with the hits to read, and with the passages to count where no index is given."""
        run, corpus = known.of(self.run), known.of(self.corpus)
        queries = fewest(run, known.of(self.queries), known.of(self.qrels))
        if not queries or not run or not corpus:
            return Forecast()
        pairs = min(self.sample, queries.rows) * self.k
        work = {"hits": float(run.rows * run.each), "passages": 0.0 if self.index else float(corpus.rows)}
        made = Holds(pairs, "at most", bytes=1_000.0 * pairs)
        return Forecast(f"{pairs:,} pairs at most", {self.output: made}, "analyse", work, 2 * PROCESS_BYTES)
