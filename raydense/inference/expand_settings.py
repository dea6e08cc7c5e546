"""The settings of `expand`."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from raydense.forecast import PROCESS_BYTES, TORCH_BYTES, Forecast, Holds, Known, fewest, part_of, tokens
from raydense.inference.endpoint_settings import EndpointSettings
from raydense.inference.settings import PRECISION, WriterSettings
from raydense.settings import BaseSettings, Folder, FolderOrNone, Words, artifact, group, setting

PROMPTS = {
    "answer": "Answer the question in a few words. If you are not sure, give your best guess. Write the answer alone.\n\nQuestion: {query}",
    "title": "Write the title of the document, such as an article of an encyclopedia, that most likely answers the question. Write the title"
    " alone.\n\nQuestion: {query}",
    "sentence": "Write the one sentence of a document that most likely answers the question. Write the sentence alone.\n\nQuestion: {query}",
}
_CHARACTERS = {"answer": 15.0, "title": 20.0, "sentence": 120.0}  # of a context


class PromptSettings(BaseSettings):
    """What the model is asked for each kind of context."""

    answer: str | None = setting(None, "with {query}; by default one in English for an endpoint, and the query alone for a model's folder")
    title: str | None = setting(None, "as prompts.answer")
    sentence: str | None = setting(None, "as prompts.answer")


class ExpandSettings(WriterSettings):
    """Add generated contexts to queries (GAR): an answer, a title and a sentence, each for a search of its own, whose runs `fuse` joins."""

    local = ("precision", "token_budget")

    queries: Folder = artifact("queries", "the queries")
    qrels: FolderOrNone = artifact("qrels", "expand only the queries judged here", None)
    model: FolderOrNone = artifact(
        "model", "a generator's folder that reads a query and writes a context; one that was trained for a single kind: give `kinds`", None
    )
    endpoint: EndpointSettings | None = group("a language model's endpoint, in place of model")
    kinds: Words = setting([*PROMPTS], "the kinds of contexts, of answer, title and sentence", min_length=1)
    prompts: PromptSettings = group("what the model is asked", PromptSettings)
    length: int = setting(64, "longest context, in tokens", ge=2)
    temperature: float = setting(0.0, "0: the likeliest token each time; above: draw the tokens, less likely ones the higher it is", ge=0)
    seed: int = setting(42, "random seed of the draws; each query has its own random numbers", ge=0, lt=2**63)
    precision: Literal["auto", "fp32"] = setting("auto", PRECISION)
    token_budget: int = setting(
        16_384, "tokens of one batch, of queries and contexts to write; it affects the rounding of probabilities", ge=1
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        self._refuse_other_writer("expand")
        if unknown := [kind for kind in self.kinds if kind not in PROMPTS]:
            raise ValueError(f"kinds are answer, title and sentence, not {unknown[0]}")
        if len(set(self.kinds)) < len(self.kinds):
            raise ValueError("kinds names one twice")
        self._refuse_given([f"prompts.{kind}" for kind in PROMPTS if kind not in self.kinds], f"expand with kinds {' '.join(self.kinds)}")
        prompts = {kind: getattr(self.prompts, kind) or (PROMPTS[kind] if self.endpoint else "{query}") for kind in self.kinds}
        if without := [kind for kind, prompt in prompts.items() if "{query}" not in prompt]:
            raise ValueError(f"prompts.{without[0]} must contain {{query}}")
        if same := [kind for kind in prompts if list(prompts.values()).count(prompts[kind]) > 1]:
            raise ValueError(f"{', '.join(same[:-1])} and {same[-1]} ask the same: give kinds, or a prompt for each")
        self.__dict__["prompts"] = self.prompts.model_copy(update=prompts)
        return self

    def forecast(self, known: Known) -> Forecast:
        """Each query is read once for each kind, and each token of its context is a forward pass; with an endpoint it is a request."""
        from raydense.models.model_size import model_of

        queries = fewest(known.of(self.queries), known.of(self.qrels)) if self.qrels else known.of(self.queries)
        if not queries:
            return Forecast()
        makes = {}
        for kind in self.kinds:
            each = queries.each + _CHARACTERS[kind]
            makes[part_of(self.output, "queries", kind)] = Holds(queries.rows, queries.word, each, queries.rows * each)
        asked, written = len(self.kinds) * queries.rows, sum(_CHARACTERS[kind] for kind in self.kinds) / len(self.kinds)
        needs = f"{queries} queries x {len(self.kinds)} contexts"
        if self.endpoint:
            read = queries.each + sum(len(getattr(self.prompts, kind)) for kind in self.kinds) / len(self.kinds)
            return Forecast(f"{needs}: {self.endpoint.foreseen(asked, read, written)}", makes, memory=PROCESS_BYTES)
        model = model_of(known, str(self.model))
        if not model:
            return Forecast(needs, makes)
        each = tokens(queries.each, model.passage_length) + tokens(written, self.length)
        work = {"flops": asked * each * model.flops}
        return Forecast(needs, makes, f"generate {model.scale}", work, TORCH_BYTES + 2 * model.bytes, -1, len(self.kinds))
