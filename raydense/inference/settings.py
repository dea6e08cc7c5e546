"""The settings of the stages that run a model over many texts, and of `split`."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, model_validator

from raydense.settings import BaseSettings, Folder, FolderOrNone, Pair, Settings, artifact, group, resource, setting


class Spread(BaseModel):
    """How an actor pool is spread; part of the stages that run on Ray Data."""

    concurrency: Pair = resource(
        (1, 0), "fewest and most model actors, as MIN,MAX; MAX 0 means as many as there is room for, on a cluster one a file: it may grow"
    )
    gpus_per_actor: float = resource(-1.0, "GPUs of one actor; -1 takes one where the cluster has GPUs, else none")
    cpus_per_actor: float = resource(1.0, "logical CPUs of one actor; on a cluster it uses as many cores", gt=0)
    background: bool = resource(False, "on CPUs: let all other work of the machine go first")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        low, high = self.concurrency
        if low < 1 or (high and high < low):
            raise ValueError(f"concurrency {low},{high} must be MIN,MAX with 1 <= MIN <= MAX (or MAX 0)")
        return self


class SplitSettings(Settings):
    """Split documents into passages: whole sentences up to a number of tokens, or blocks of words."""

    corpus: Folder = artifact("corpus", "the documents, or passages that are too long")
    unit: Literal["tokens", "words"] = setting(
        "tokens", "whole sentences of at most so many tokens, a longer sentence cut; or blocks of so many words, as blanks separate them"
    )
    length: int = setting(0, "most tokens or words of a passage; 0 means 144 tokens (query-as-context) or 100 words (DPR)", ge=0, lt=2**31)
    model: FolderOrNone = artifact("model", "tokens: the folder whose tokenizer counts them, special tokens left out", None)
    language: str = setting("en", "tokens: whose sentences these are, as en or zh", pattern=r"^[a-z]{2,3}(-[A-Za-z]+)*$")
    shard_rows: int = setting(25_000, "passages a corpus file: also what one commit of `encode` holds", ge=1)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.unit == "words":
            self._refuse_given(["model", "language"], "unit words")
        elif not self.model:
            raise ValueError("unit tokens needs model, the folder whose tokenizer counts them")
        if not self.length:
            self.__dict__["length"] = 144 if self.unit == "tokens" else 100
        return self


_PRECISION = "auto: half precision on a GPU, bf16 where it has it, else fp16"


class EncodeSettings(Settings, Spread):
    """Turn every passage of a corpus, or every query, into a vector, on Ray Data, resumable file by file."""

    newer = ("precision", "passage_length", "query_length", "dimension")

    model: Folder = artifact("model", "the retriever's folder")
    corpus: FolderOrNone = artifact("corpus", "the passages to encode", None)
    queries: FolderOrNone = artifact("queries", "or the queries to encode, for `search --vectors`", None)
    passage_length: int | None = setting(None, "most tokens of a passage; by default as the model folder says", ge=1)
    query_length: int | None = setting(None, "most tokens of a query; by default as the model folder says", ge=1)
    dimension: int | None = setting(
        None, "keep so many first numbers of each vector, for models trained for it (Matryoshka); by default all", ge=1
    )
    dtype: Literal["float16", "float32"] = setting("float16", "of the vectors")
    precision: Literal["auto", "fp32", "bf16"] = setting("auto", f"{_PRECISION}; bf16 is quick on CPUs with AMX too")
    token_budget: int = resource(0, "tokens of one batch, padding included; 0 means what suits the device", ge=0)

    @classmethod
    def takes(cls, values: dict[str, Any]) -> set[str]:
        """As of every stage, without the corpus where queries are given; these are asked for by name alone."""
        return super().takes(values) - ({"corpus"} if "queries" in values else {"queries"})

    @model_validator(mode="after")
    def _one_side(self) -> Self:
        if bool(self.corpus) == bool(self.queries):
            raise ValueError("give either corpus or queries")
        self._refuse_given(
            ["query_length"] if self.corpus else ["passage_length"], "encode with corpus" if self.corpus else "encode with queries"
        )
        return self

    def changes(self) -> dict[str, Any]:
        """What these settings change of the encoder in the folder."""
        given = {name: getattr(self, name) for name in ("passage_length", "query_length", "dimension")}
        return {name: value for name, value in given.items() if value is not None}


class SamplingSettings(BaseSettings):
    """Nucleus sampling (Holtzman et al. 2020)."""

    top_p: float = setting(0.95, "draw from the likeliest tokens that together have this probability", gt=0, le=1)
    top_k: int = setting(25, "and from at most so many; 0 for all", ge=0)
    temperature: float = setting(1.0, "above 1 more surprising queries, below 1 more likely ones", gt=0)


class GenerateSettings(Settings, Spread):
    """Write queries for every passage of a corpus (doc2query), by nucleus sampling on Ray Data, resumable file by file."""

    renamed: ClassVar[dict[str, str]] = {
        "top_p": "sampling.top_p",
        "top_k": "sampling.top_k",
        "sampling_temperature": "sampling.temperature",
    }

    model: Folder = artifact("model", "the generator's folder: any sequence-to-sequence model, as T5 trained for doc2query")
    corpus: Folder = artifact("corpus", "the passages")
    queries_each: int = setting(5, "queries of each passage", ge=1)
    sampling: SamplingSettings = group("how tokens are drawn", SamplingSettings)
    passage_prefix: str | None = setting(None, "text put before each passage; by default as the model folder says, else none")
    passage_length: int | None = setting(None, "most tokens of a passage; by default as the model folder says, else 128", ge=8)
    query_length: int | None = setting(None, "most tokens of a query; by default as the model folder says, else 64", ge=4)
    duplicates: Literal["drop", "keep"] = setting("drop", "what to do with a query that a passage has already")
    seed: int = setting(42, "of the draws; each passage has random numbers of its own", ge=0, lt=2**63)
    precision: Literal["auto", "fp32"] = setting("auto", _PRECISION)
    token_budget: int = setting(
        16_384, "tokens of one batch, read and to be written, of all queries; it shapes what rounding does to a probability", ge=1
    )


class RerankSettings(Settings, Spread):
    """Reorder the first passages of a run by a cross-encoder, on Ray Data."""

    newer = ("precision",)

    model: Folder = artifact("model", "the re-ranker's folder")
    run: Folder = artifact("run", "the run to reorder")
    corpus: Folder = artifact("corpus", "the passages")
    queries: Folder = artifact("queries", "the queries")
    depth: int = setting(100, "passages of each query to score; the rest is left out", ge=1)
    precision: Literal["auto", "fp32"] = setting("auto", _PRECISION)
    token_budget: int = resource(0, "tokens of one batch, padding included; 0 means what suits the device", ge=0)
    block: int = setting(256, "queries of one commit: each makes a file", ge=1)
