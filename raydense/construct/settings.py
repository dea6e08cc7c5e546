"""The settings of the stages that build a retrieval data set and judge it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Self

from pydantic import model_validator

from raydense.forecast import PROCESS_BYTES, QUERY_CHARACTERS, TORCH_BYTES, Forecast, Known, below, tokens, total
from raydense.inference.settings import Spread
from raydense.models.encoder_folder import is_reranker
from raydense.models.model_size import model_of
from raydense.settings import Folder, FolderOrNone, Folders, Settings, artifact, resource, setting
from raydense.storage import model_place, named_folders


class OverlapSettings(Settings, Spread):
    """Remove the training queries that ask the same as a dev or test query: by their texts, and by a model's similarity of the two."""

    queries: Folder = artifact("queries", "the texts of all queries")
    train: Folder = artifact("qrels", "the judgements of the training queries")
    against: Folders = artifact("qrels", "the judgements of a dev or test set, as NAME=folder; may be given several times", min_length=1)
    model: FolderOrNone = artifact(
        "model",
        "a retriever, for the cosine of two queries, or a re-ranker, for the probability of a pair; without it only queries of the same text",
        None,
    )
    encoder: FolderOrNone = artifact(
        "model", "with a re-ranker: the retriever that finds the candidates, in place of BM25 over the training queries", None
    )
    depth: int = setting(10, "candidates of each dev or test query: different texts of training queries", ge=1)
    threshold: float | None = setting(
        None,
        "with a model: a pair of a higher similarity asks the same; 0.5 suits a re-ranker, whose similarity is a probability;"
        " a cosine needs more, such as 0.9: read report.md",
        ge=0,
        le=1,
    )
    token_budget: int = resource(0, "tokens of one batch, padding included; 0: a value for the device", ge=0)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not self.model:
            self._refuse_given(["encoder", "depth", "threshold", "token_budget"], "a comparison of the texts alone, without model,")
        elif self.threshold is None:
            raise ValueError("a model needs threshold: 0.5 for a re-ranker's probability, more for a cosine, such as 0.9")
        names = self.splits
        if len(names) < len(self.against):
            raise ValueError("two sets of against have the same name: write NAME=folder, each with another name")
        if wrong := next((name for name in names if not re.fullmatch(r"[\w.-]+", name)), None):
            raise ValueError(f"{wrong!r} of against cannot be the name of a part: write NAME=folder")
        return self

    @property
    def splits(self) -> dict[str, str]:
        """The folders of the dev and test judgements, by name."""
        return dict(named_folders(self.against))

    @property
    def parts(self) -> dict[str, str]:
        """The parts of the output, each with the folder whose judgements it has some of."""
        halves = {f"qrels/{name}-{half}": folder for name, folder in self.splits.items() for half in ("overlap", "others")}
        return {"qrels/train": self.train, **halves}

    def forecast(self, known: Known) -> Forecast:
        """The time grows with the queries to encode, or with the pairs to score."""
        train, asked = known.of(self.train), total(map(known.of, self.splits.values()))
        if not train or not asked:
            return Forecast()
        makes = {below(self.output, part): replace(found, word="at most") for part, of in self.parts.items() if (found := known.of(of))}
        needs, both = f"{asked} queries against {train} training queries", train.rows + asked.rows
        if not self.model:
            return Forecast(needs, makes, "overlap", {"queries": float(both)}, PROCESS_BYTES)
        model, texts = model_of(known, self.model), known.of(self.queries)
        if not model:
            return Forecast(needs, makes)
        each, pairs = texts.each if texts and texts.each else QUERY_CHARACTERS, 2 * asked.rows * min(self.depth, train.rows)
        scores = bool(self.encoder) or is_reranker(model_place(self.model).local())
        amount = (pairs if scores else both) * (tokens(each, model.query_length) * model.flops if model.flops else each)
        kind, work = f"{'score' if scores else 'encode'} {model.scale}", {"flops" if model.flops else "characters": amount}
        return Forecast(needs, makes, kind, work, TORCH_BYTES + 2 * model.bytes, -1)
