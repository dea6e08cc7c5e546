"""The training queries that are most like each dev or test query: they become a corpus that is indexed and searched, in a work folder.

Both sides of a cosine are encoded as queries, at unit length: what stands in the index are queries, too. Each step is a stage, and
continues after a kill.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydense.construction.evaluation_queries import Questions
from raydense.construction.settings import OverlapSettings
from raydense.data.store import CorpusWriter, PassageStore
from raydense.data.tables import commit_table, write_arrow
from raydense.errors import InputError
from raydense.inference.encode import encode, vector_table
from raydense.inference.rerank import rerank
from raydense.inference.settings import EncodeSettings, RerankSettings, Spread
from raydense.models.encoder_folder import is_reranker
from raydense.models.model_kind import require_model
from raydense.retrieval.index import index
from raydense.retrieval.search import search
from raydense.retrieval.settings import IndexSettings, SearchSettings
from raydense.retrieval.vectors import Vectors
from raydense.storage import Artifact, Draft, Place, check_made_with, model_place

_SHARD_ROWS = 25_000
_FILE_ROWS = 65_536


def check_models(settings: OverlapSettings) -> bool:
    """Whether the model is a re-ranker; InputError if a model is not of the kind that it must be."""
    scores = is_reranker(model_place(str(settings.model)).local())
    require_model(str(settings.model), scores=scores)
    if settings.encoder:
        if not scores:
            raise InputError("is not used: model is a retriever, which finds the candidates itself", "encoder", "leave it out")
        require_model(settings.encoder, scores=False)
    return scores


class QuestionSearch:
    """Finds and scores candidates in the folder `work`; `made_from` is the provenance of the output that it belongs to."""

    def __init__(self, settings: OverlapSettings, made_from: dict[str, Any], work: Place) -> None:
        self.settings, self.made_from, self.work = settings, made_from, work
        self.spread: dict[str, Any] = {name: getattr(settings, name) for name in (*Spread.model_fields, "token_budget")}

    def candidates(self, trained: Questions, asked: Questions) -> Artifact:
        """A run: the `depth` first of `trained` (whose ids are its passage ids) for each of `asked`, scored by the model.

        The scores are cosines, or a re-ranker's logits.
        """
        corpus, queries = self._corpus(trained), self._queries("asked", asked)
        if not is_reranker(model_place(str(self.settings.model)).local()):
            return self._by_vectors("model", trained, asked, corpus, queries)
        by_vectors = self.settings.encoder is not None
        found = self._by_vectors("encoder", trained, asked, corpus, queries) if by_vectors else self._by_words(corpus, queries)
        scored = rerank(
            RerankSettings(
                model=str(self.settings.model),
                run=found,
                corpus=corpus,
                queries=queries,
                depth=self.settings.depth,
                output=self._at("scored"),
                **self.spread,
            )
        )
        self._check_model(scored, "model")
        return scored

    def _by_words(self, corpus: Artifact, queries: Artifact) -> Artifact:
        words = index(IndexSettings(kind="bm25", corpus=corpus, output=self._at("words")))
        return search(SearchSettings(index=words, queries=queries, k=self.settings.depth, output=self._at("found")))

    def _by_vectors(self, key: str, trained: Questions, asked: Questions, corpus: Artifact, queries: Artifact) -> Artifact:
        """The nearest by the retriever that the setting `key` names."""
        both = self._queries("both", Questions(pa.concat_arrays([trained.ids, asked.ids]), pa.concat_arrays([trained.texts, asked.texts])))
        model = str(self.settings.value_of(key))
        encoded = encode(EncodeSettings(model=model, queries=both, dtype="float32", output=self._at("encoded"), **self.spread))
        self._check_model(encoded, key)
        edge = len(trained)
        there = self._unit("trained-vectors", "passages", corpus, encoded, 0, edge)
        here = self._unit("asked-vectors", "queries", queries, encoded, edge, edge + len(asked))
        dense = index(IndexSettings(kind="faiss", embeddings=there, single_core=self.settings.background, output=self._at("dense")))
        return search(SearchSettings(index=dense, vectors=here, queries=queries, k=self.settings.depth, output=self._at("found")))

    def _unit(self, name: str, of: Literal["passages", "queries"], texts: Artifact, encoded: Artifact, start: int, stop: int) -> Artifact:
        """Rows start..stop-1 of the vectors at unit length, as those `of` the passages `texts`, for an index, or of the queries `texts`."""
        draft = self._draft(name, "embeddings")
        if draft.done:
            return draft.done
        vectors, at = Vectors(encoded, of="queries"), 0
        for number, block in enumerate(vectors.blocks(start, stop)):
            draft.commit(f"embeddings-{number:05d}.arrow", partial(write_arrow, table=vector_table(at, unit(block))), len(block))
            at += len(block)
        if of == "passages":
            draft.commit("passage_ids.arrow", PassageStore(texts).write_ids, stop - start)
        made_with = {"model": encoded.summary["model"], "corpus" if of == "passages" else "queries": texts.fingerprint}
        return draft.finish(stop - start, of=of, dimension=vectors.dimension, dtype="float32", **made_with)

    def _corpus(self, trained: Questions) -> Artifact:
        draft = self._draft("corpus", "corpus")
        if draft.done:
            return draft.done
        writer = CorpusWriter(draft, _SHARD_ROWS, where=lambda row: f"query {trained.ids[row].as_py()!r} of {self.settings.queries}")
        for at in range(0, len(trained), _FILE_ROWS):
            ids, texts = trained.ids.slice(at, _FILE_ROWS), trained.texts.slice(at, _FILE_ROWS)
            writer.add(pa.table({"passage_id": ids, "title": pa.repeat("", len(ids)), "text": texts}))
        return writer.finish()

    def _queries(self, name: str, questions: Questions) -> Artifact:
        draft = self._draft(name, "queries")
        if draft.done:
            return draft.done
        commit_table(draft, "queries.parquet", pa.table({"query_id": questions.ids, "text": questions.texts}))
        return draft.finish(len(questions))

    def _check_model(self, made: Artifact, key: str) -> None:
        """InputError if the model that made it is no longer the one that the stage began with. The texts are read once, at the beginning."""
        check_made_with(made, "model", str(self.settings.value_of(key)), self.made_from["inputs"][key])

    def _draft(self, name: str, kind: str) -> Draft:
        return Draft.open(self.work / name, kind, {**self.made_from, "part": name})

    def _at(self, name: str) -> str:
        return str(self.work / name)


def unit(vectors: NDArray[Any]) -> NDArray[np.float32]:
    """Vectors [n, d] divided by their lengths, float32 [n, d]; one of zeros stays as it is."""
    wide = vectors.astype(np.float64)
    length = np.linalg.norm(wide, axis=1, keepdims=True)
    return (wide / np.where(length > 0, length, 1.0)).astype(np.float32)
