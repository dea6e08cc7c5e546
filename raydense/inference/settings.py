"""The settings of the stages that run a model over many texts, and of `split`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import BaseModel, model_validator

from raydense.forecast import PROCESS_BYTES, QUERY_CHARACTERS, TORCH_BYTES, Forecast, Holds, Known, fewest, tokens
from raydense.inference.endpoint_settings import EndpointSettings
from raydense.settings import BaseSettings, Folder, FolderOrNone, Pair, Settings, artifact, group, resource, setting


class Spread(BaseModel):
    """The size of an actor pool; part of the settings of stages that run on Ray Data."""

    concurrency: Pair = resource(
        (1, 0),
        "fewest and most model actors, as MIN,MAX; one number for exactly so many; MAX 0: as many as fit, on a cluster one per file, since it may grow",
    )
    gpus_per_actor: float = resource(
        -1.0, "GPUs of one actor, which uses one, or a fraction of one; -1: one if the cluster has GPUs, otherwise none", ge=-1, le=1
    )
    accelerator: str = resource(
        "", "the kind of GPU that each actor gets, where those of a cluster differ, by Ray's name: V100, T4, A100, H100 and others"
    )
    cpus_per_actor: float = resource(1.0, "logical CPUs of one actor; on a cluster it uses as many cores", gt=0)
    background: bool = resource(False, "on CPUs: run at the lowest priority")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        low, high = self.concurrency
        if low < 1 or (high and high < low):
            raise ValueError(f"concurrency {low},{high} must be MIN,MAX with 1 <= MIN <= MAX (or MAX 0)")
        if -1 < self.gpus_per_actor < 0:
            raise ValueError(f"gpus_per_actor is {self.gpus_per_actor:g}: give -1, or 0 to 1")
        if self.accelerator and not self.gpus_per_actor:
            raise ValueError("accelerator names a kind of GPU, and gpus_per_actor is 0: leave one of them out")
        return self


class SplitSettings(Settings):
    """Split documents into passages: whole sentences up to a number of tokens, or blocks of words."""

    corpus: Folder = artifact("corpus", "the documents to split, or passages that are too long")
    unit: Literal["tokens", "words"] = setting(
        "tokens", "tokens: whole sentences with at most `length` tokens together, longer sentences are cut; words: blocks of `length` words"
    )
    length: int = setting(0, "longest passage, in tokens or words; 0: 144 tokens (query-as-context) or 100 words (DPR)", ge=0, lt=2**31)
    model: FolderOrNone = artifact("model", "tokens: the folder whose tokenizer counts them, without special tokens", None)
    language: str = setting(
        "en", "tokens: the language, for the rules of sentences, such as en or zh", pattern=r"^[a-z]{2,3}(-[A-Za-z]+)*$"
    )
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

    def forecast(self, known: Known) -> Forecast:
        """A document gives as many passages as its units fill; the time grows with the characters."""
        documents = known.of(self.corpus)
        if not documents:
            return Forecast()
        units = documents.each / 6 if self.unit == "words" else tokens(documents.each, 2**31)
        each = max(1.0, units / self.length)
        rows = round(documents.rows * each)
        passages = Holds(
            rows, "about", documents.each / each, documents.rows * documents.each + 25.0 * rows, files=-(-rows // self.shard_rows)
        )
        needs, work = f"{documents} documents to split", {"characters": documents.rows * documents.each}
        return Forecast(needs, {self.output: passages}, f"split {self.unit}", work, PROCESS_BYTES)


QUERIES_A_FILE = 2_048
BATCH = (
    "tokens of one batch, padding included; 0: a value for the device. As the device does, it may change the last bits of what is computed"
)
PRECISION = "auto: on a GPU bf16 if it has it, otherwise fp16; on a CPU fp32"


QUERY_PROMPT = ("query_prefix", "prompt_name")


class QueryPrompt(BaseSettings):
    """What is put before each query; part of the settings of what encodes queries."""

    query_prefix: str | None = setting(None, "text put before each query, in place of the model folder's; '' for none")
    prompt_name: str | None = setting(
        None, "or the name of one of the prompts in the model folder, as the `prompt_name` of sentence-transformers"
    )

    @property
    def prompt(self) -> tuple[tuple[str, str], ...]:
        """Which of the two is given, and its value: what changes the encoder's configuration."""
        given = {"query_prefix": self.query_prefix, "prompt_name": self.prompt_name}
        return tuple((name, value) for name, value in given.items() if value is not None)

    @classmethod
    def takes(cls, values: dict[str, Any]) -> set[str]:
        """As for every stage, but no prompt: a recipe's default is meant for a training, whose model's folder then has it."""
        return super().takes(values) - set(QUERY_PROMPT)

    @model_validator(mode="after")
    def _one_prompt(self) -> Self:
        if len(self.prompt) > 1:
            raise ValueError("query_prefix and prompt_name both say what is put before a query: leave one out")
        if not getattr(self, "model", None):
            self._refuse_given(QUERY_PROMPT, "a search without model")
        return self


class EncodeSettings(Settings, QueryPrompt, Spread):
    """Turn every passage of a corpus, or every query, into a vector, on Ray Data, resumable file by file."""

    newer = ("precision", "passage_length", "query_length", "dimension", *QUERY_PROMPT)

    model: Folder = artifact("model", "the retriever's folder")
    corpus: FolderOrNone = artifact("corpus", "the passages to encode", None)
    queries: FolderOrNone = artifact("queries", "or the queries to encode, for `search --vectors`", None)
    passage_length: int | None = setting(None, "longest passage, in tokens; by default the model folder's", ge=1)
    query_length: int | None = setting(None, "longest query, in tokens; by default the model folder's", ge=1)
    dimension: int | None = setting(
        None, "keep only this many first numbers of each vector, for models trained for it (Matryoshka); by default all", ge=1
    )
    dtype: Literal["float16", "float32"] = setting("float16", "number format of the vectors")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = setting(
        "auto",
        "auto: queries fp32, as `search` encodes them; passages on a GPU bf16 if it has it, otherwise fp16; on a CPU that gains by it bf16"
        " (with AMX, or AMD's with AVX-512 BF16), otherwise fp32, and fp32 for a static encoder",
    )
    token_budget: int = resource(0, BATCH, ge=0)

    @classmethod
    def takes(cls, values: dict[str, Any]) -> set[str]:
        """As for every stage, without what is of passages if queries are given, else without what is of queries; these are never a recipe's default."""
        of_queries = {"queries", "query_length", *QUERY_PROMPT}
        return super().takes(values) - ({"corpus", "passage_length"} if "queries" in values else of_queries)

    @model_validator(mode="after")
    def _one_side(self) -> Self:
        if bool(self.corpus) == bool(self.queries):
            raise ValueError("give either corpus or queries")
        self._refuse_given(
            ["query_length", *QUERY_PROMPT] if self.corpus else ["passage_length"],
            "encode with corpus" if self.corpus else "encode with queries",
        )
        return self

    def changes(self) -> dict[str, Any]:
        """The values of the encoder's folder that these settings override."""
        given = {name: getattr(self, name) for name in ("passage_length", "query_length", "dimension")}
        return {name: value for name, value in given.items() if value is not None} | dict(self.prompt)

    def forecast(self, known: Known) -> Forecast:
        """The time of a transformer grows with its products, that of a static encoder with the characters to split into tokens."""
        from raydense.models.model_size import model_of

        texts, model = known.of(self.corpus or self.queries), model_of(known, self.model)
        if not texts:
            return Forecast()
        needs = f"{texts} {'passages' if self.corpus else 'queries'} to encode"
        if not model:
            return Forecast(needs, {self.output: Holds(texts.rows, texts.word)})
        length = (self.passage_length or model.passage_length) if self.corpus else (self.query_length or model.query_length)
        width = self.dimension or model.each
        vectors = Holds(texts.rows, texts.word, width, texts.rows * (width * (2 if self.dtype == "float16" else 4) + 28))
        tasks = texts.files if self.corpus else -(-texts.rows // QUERIES_A_FILE)
        flops = texts.rows * tokens(texts.each, length) * model.flops
        work = {"flops": flops} if flops else {"characters": texts.rows * texts.each}
        return Forecast(needs, {self.output: vectors}, f"encode {model.scale}", work, TORCH_BYTES + 2 * model.bytes, -1, tasks)


class SamplingSettings(BaseSettings):
    """Nucleus sampling (Holtzman et al. 2020)."""

    top_p: float = setting(0.95, "draw from the likeliest tokens that together have this probability", gt=0, le=1)
    top_k: int = setting(25, "and from at most this many tokens; 0: all", ge=0)
    temperature: float = setting(1.0, "above 1: less likely queries; below 1: more likely ones", gt=0)


QUERY_TOKENS = 64  # of a query, where neither the settings nor a generator's folder say
SPREAD = tuple(Spread.model_fields)
PROMPT = (
    "Write {queries} search queries that the passage below answers, as different people would type them. Write each query on a line of its own,"
    " and nothing else.\n\nPassage: {passage}"
)


class WriterSettings(Settings, Spread):
    """Settings of a stage whose texts a `model` of this machine writes on Ray Data, or an `endpoint`."""

    renamed: ClassVar[dict[str, str]] = {f"endpoint.{old}": f"endpoint.{new}" for old, new in EndpointSettings.renamed.items()}
    local: ClassVar[tuple[str, ...]]
    """What only a model of this machine uses."""
    asked: ClassVar[tuple[str, ...]] = ("endpoint",)
    """What only an endpoint uses."""
    if TYPE_CHECKING:  # each stage has its own words for them
        model: FolderOrNone
        endpoint: EndpointSettings | None

    @classmethod
    def takes(cls, values: dict[str, Any]) -> set[str]:
        """As for every stage; with an endpoint nothing of a model of this machine, and otherwise nothing of an endpoint."""
        found = super().takes(values)
        if "endpoint" in values:
            return found - {"model", *cls.local, *SPREAD}
        return {key for key in found if key.partition(".")[0] not in cls.asked} if "model" in values else found

    def _refuse_other_writer(self, verb: str) -> None:
        """ValueError unless either model or endpoint is given, and nothing that the other one uses."""
        if bool(self.model) == bool(self.endpoint):
            raise ValueError("give either model or endpoint")
        if self.endpoint:
            self._refuse_given([*self.local, *SPREAD], f"{verb} with endpoint")
        else:
            self._refuse_given([key for key in self.asked if key != "endpoint"], f"{verb} with model")

    def shaping(self) -> dict[str, Any]:
        """As for every stage, without what an endpoint does not use."""
        found = super().shaping()
        return {key: value for key, value in found.items() if key not in self.local} if self.endpoint else found


class GenerateSettings(WriterSettings):
    """Write queries for every passage of a corpus (doc2query), by nucleus sampling: on Ray Data, or by an endpoint; resumable file by file."""

    newer = ("prompt",)
    local = ("passage_prefix", "passage_length", "sampling.top_k", "precision", "token_budget")
    asked = ("endpoint", "prompt")
    renamed = WriterSettings.renamed | {
        "top_p": "sampling.top_p",
        "top_k": "sampling.top_k",
        "sampling_temperature": "sampling.temperature",
    }

    model: FolderOrNone = artifact(
        "model", "the generator's folder: any sequence-to-sequence model, such as a T5 trained for doc2query; or give endpoint", None
    )
    endpoint: EndpointSettings | None = group("a language model's endpoint, in place of model")
    corpus: Folder = artifact("corpus", "the passages")
    prompt: str | None = setting(
        None,
        "endpoint: the message, with {passage} and {queries} for their number; the reply has a query a line; by default one in English",
    )
    queries_each: int = setting(5, "queries of each passage", ge=1)
    sampling: SamplingSettings = group("how tokens are drawn", SamplingSettings)
    passage_prefix: str | None = setting(None, "text put before each passage; by default the model folder's, else none")
    passage_length: int | None = setting(None, "longest passage, in tokens; by default the model folder's, else 128", ge=8)
    query_length: int | None = setting(
        None,
        "longest query, in tokens; by default the model folder's, else 64; of an endpoint, a reply has at most so many for each query",
        ge=4,
    )
    duplicates: Literal["drop", "keep"] = setting("drop", "what to do with a query that the passage already has")
    seed: int = setting(42, "random seed of the draws; each passage has its own random numbers", ge=0, lt=2**63)
    precision: Literal["auto", "fp32"] = setting("auto", PRECISION)
    token_budget: int = setting(
        16_384, "tokens of one batch, of passages and queries to write; it affects the rounding of probabilities", ge=1
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        self._refuse_other_writer("generate")
        if self.endpoint and self.prompt is None:
            self.__dict__["prompt"] = PROMPT
        elif self.prompt is not None and "{passage}" not in self.prompt:
            raise ValueError("prompt must contain {passage}")
        return self

    def forecast(self, known: Known) -> Forecast:
        """A passage is read once, and each token of its queries is a forward pass; with an endpoint it is a request."""
        from raydense.models.model_size import model_of

        passages = known.of(self.corpus)
        if not passages:
            return Forecast()
        written = self.queries_each * QUERY_CHARACTERS
        generated = Holds(passages.rows, passages.word, written, passages.rows * (written / 2 + 8))
        needs, makes = f"{passages} passages x {self.queries_each} queries", {self.output: generated}
        if self.endpoint:
            asked = self.endpoint.foreseen(passages.rows, passages.each + len(str(self.prompt)), written)
            return Forecast(f"{needs}: {asked}", makes, memory=PROCESS_BYTES)
        model = model_of(known, str(self.model))
        if not model:
            return Forecast(needs, makes)
        each = (
            tokens(passages.each, self.passage_length or model.passage_length) + tokens(QUERY_CHARACTERS, QUERY_TOKENS) * self.queries_each
        )
        work = {"flops": passages.rows * each * model.flops}
        return Forecast(needs, makes, f"generate {model.scale}", work, TORCH_BYTES + 2 * model.bytes, -1, passages.files)


class RerankSettings(Settings, Spread):
    """Reorder the first passages of a run by a cross-encoder, on Ray Data."""

    newer = ("precision",)

    model: Folder = artifact("model", "the re-ranker's folder")
    run: Folder = artifact("run", "the run to reorder")
    corpus: Folder = artifact("corpus", "the passages")
    queries: Folder = artifact("queries", "the queries")
    depth: int = setting(100, "passages of each query to score; the others follow in the order of the run", ge=1)
    precision: Literal["auto", "fp32", "bf16", "fp16"] = setting(
        "auto", f"{PRECISION}, where it gains by it (AMX, or AMD's with AVX-512 BF16) bf16; the scores themselves are float32"
    )
    token_budget: int = resource(0, BATCH, ge=0)
    block: int = setting(256, "queries per committed file", ge=1)

    def forecast(self, known: Known) -> Forecast:
        """The time grows with the pairs to score."""
        queries = fewest(known.of(self.run), known.of(self.queries))
        if not queries:
            return Forecast()
        run = known.of(self.run)
        each = max(self.depth, run.each if run else 0)
        made = Holds(queries.rows, "at most", each, 9.0 * queries.rows * each)
        return pairs_forecast(self, self.model, made, known)


def pairs_forecast(settings: Any, teacher: str, made: Holds, known: Known) -> Forecast:
    """What it needs to score the first `depth` passages of each of `made` queries by a cross-encoder: of `rerank` and of `label`."""
    from raydense.models.model_size import model_of

    depth, output, blocks = settings.depth, settings.output, -(-made.rows // settings.block)
    needs, model, passages = f"{made} queries x {depth} pairs to score", model_of(known, teacher), known.of(settings.corpus)
    if not (model and passages):
        return Forecast(needs, {output: made})
    work = {"flops": made.rows * depth * tokens(passages.each + QUERY_CHARACTERS, model.passage_length) * model.flops}
    return Forecast(needs, {output: made}, f"score {model.scale}", work, TORCH_BYTES + 2 * model.bytes, -1, blocks)
