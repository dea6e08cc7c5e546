"""The settings of the stages that build a retrieval data set and judge it."""

from __future__ import annotations

from typing import Literal

from raydense.forecast import PROCESS_BYTES, Forecast, Known
from raydense.settings import Folder, Settings, artifact, resource, setting

LENGTHS = {"characters": 256, "words": 100}
BLOCK_BYTES = 16 << 20  # of the input, which one task reads, labels and keeps
TASK_BYTES = PROCESS_BYTES + 20 * BLOCK_BYTES


class ConstructSettings(Settings):
    """Build a retrieval data set from questions with documents and answers: paragraphs become passages, labelled by their spans (DuReader-retrieval).

    The input is a file or folder of JSON lines, a question each: {"question_id", "question", "answers": [...], "documents":
    [{"title", "paragraphs": [...]}]}, as DuReader 2.0 has them.
    """

    input: Folder = artifact("source", "a file of questions, or a folder of such files, as JSON lines; `search.dev.json` is of split dev")
    unit: Literal["auto", "characters", "words"] = setting(
        "auto", "what spans and lengths are counted in; auto: characters where most letters are Chinese, Japanese or Korean, else words"
    )
    length: int | None = setting(
        None, "paragraphs of a document are joined until they are longer than this; by default 256 characters, or 100 words", ge=0
    )
    f1: float = setting(0.5, "a paragraph is positive if the F1 of one of its spans and an answer is at least this", gt=0, le=1)
    titles: bool = setting(False, "keep the titles of documents, which a retriever may match in place of the text")
    fill_splits: bool = setting(
        False, "make all of qrels/train, dev and test: those that are missing are drawn from the questions of one that is there, 7 : 1 : 2"
    )
    shard_rows: int = setting(25_000, "passages a corpus file", ge=1)
    concurrency: int = resource(0, "tasks at once; 0: as many as there are CPUs", ge=0)

    def forecast(self, known: Known) -> Forecast:
        """What it makes depends on the documents; the time grows with them."""
        return Forecast("what it holds shows when it has run", memory=TASK_BYTES)
