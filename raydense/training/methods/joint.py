"""RocketQAv2: retriever and re-ranker trained together by dynamic listwise distillation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import model_validator

from raydense.settings import Folder, artifact, group, setting
from raydense.training.dual_encoder import DualEncoderMethod, changes, completed, temperature_of
from raydense.training.method import Batch, Held, Method, Metrics, Outputs, method
from raydense.training.methods.reranker import Reranker, of_list, supervised
from raydense.training.settings import (
    JointDevSettings,
    MeasuredSettings,
    NegativesSettings,
    PairSettings,
    RefreshedSettings,
    TrainSettings,
    VectorSettings,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from raydense.data.store import PassageStore
    from raydense.models.joint import JointModel
    from raydense.training.dev_sets import DevSet
    from raydense.training.part import Part


@method("joint")
class Joint(Method):
    """L = L_KL + L_sup (RocketQAv2 eq. 6): the retriever learns from the re-ranker's distribution over each list, and a dynamic
    teacher learns from the retriever's and from the labels.

    A list is a positive and its hard negatives, with `in_batch` also the other queries' positives. A static teacher is frozen,
    and the loss is only L_KL.
    """

    artifact = "joint"
    models: ClassVar[Mapping[str, str]] = {"retriever": "retriever", "reranker": "re-ranker"}
    model: JointModel

    class Settings(TrainSettings, NegativesSettings, MeasuredSettings, VectorSettings, PairSettings, RefreshedSettings):
        """Train a retriever and a re-ranker together, each learning from the other."""

        reranker: Folder = artifact("model", "the re-ranker's folder to start from, a trained one for a static teacher")
        dev: JointDevSettings | None = group("measure both models during training, and keep the best checkpoint by one of them")
        in_batch: bool = setting(False, "also use other queries' positives in each list")
        teacher: Literal["dynamic", "static"] = setting(
            "dynamic", "dynamic: the re-ranker is trained too; static: it is frozen and only teaches"
        )
        direction: Literal["de_ce", "ce_de"] = setting("de_ce", "KL(retriever || re-ranker), or the other way round")

        @classmethod
        def takes(cls, values: dict[str, Any]) -> set[str]:
            """As for every stage; without what a re-ranker that is trained takes where the teacher is static."""
            return super().takes(values) - ({"loss", "dropout"} if values.get("teacher") == "static" else set())

        @model_validator(mode="after")
        def _fits_joint(self) -> Self:
            if not self.in_batch and self.negatives == 0:
                raise ValueError("a joint without in_batch needs negatives of at least 1")
            self._refuse_no_negatives(self.batch_size // self.accumulation, "batch_size / accumulation")
            if self.teacher == "static":
                self._refuse_given(["loss", "dropout"] if self.dropout else ["loss"], "a static teacher")
                if self.dev and self.dev.by == "reranker":
                    raise ValueError("dev.by reranker measures the same at each step with a static teacher: leave it out")
            return self

    @classmethod
    def couples(cls, settings: Any) -> bool:
        return bool(settings.in_batch)

    @classmethod
    def texts_of(cls, settings: Any) -> dict[str, int]:
        queries, part = cls.queries_of(settings), settings.batch_size // settings.accumulation
        lists = queries * (1 + settings.negatives)
        others, more = (queries * (part - 1), part - queries) if settings.in_batch else (0, 0)
        return {"queries": queries, "passages": lists + more, "pairs": lists + others}

    @classmethod
    def held(cls, settings: Any) -> Held:
        """As `Method.held`: each entry of a list holds the vector of its passage."""
        texts = cls.texts_of(settings)
        return Held(vectors=sum(texts.values()), scores=texts["pairs"])

    @classmethod
    def without_gradient(cls, settings: Any) -> set[str]:
        return {"pairs"} if settings.teacher == "static" else set()

    @classmethod
    def starts_from(cls, settings: Any) -> list[str]:
        return [settings.model, settings.reranker]

    @classmethod
    def dev_sets(cls, settings: Any, store: PassageStore) -> dict[str, DevSet]:
        """As `Method.dev_sets`: the retriever's, and, if there is a run to re-rank, that of a re-ranker which learns; first the one that decides."""
        from raydense.training.dev_sets import METRIC, OF_RERANKER, MakeDevSet, read_dev_sets, reranker_set, retriever_set

        made: dict[str, MakeDevSet] = {METRIC: retriever_set}
        if settings.dev and settings.dev.run and settings.teacher == "dynamic":
            made[OF_RERANKER] = reranker_set
        decides = OF_RERANKER if settings.dev and settings.dev.by == "reranker" else METRIC
        return read_dev_sets(settings, store, {decides: made[decides]} | made)

    @classmethod
    def load(cls, settings: Any, folder: str) -> JointModel:
        from raydense.models.dual_encoder import DualEncoder
        from raydense.models.joint import JointModel

        retriever = DualEncoder.load(folder, adapter=settings.adapter, **changes(settings))
        return JointModel(retriever, Reranker.load(settings, settings.reranker), frozen=settings.teacher == "static")

    @classmethod
    def check(cls, settings: Any, folder: str) -> None:
        from raydense.models.cross_encoder import refuse_untrained

        DualEncoderMethod.check(settings, folder)
        Reranker.check(settings, settings.reranker)
        if settings.teacher == "static":
            refuse_untrained(settings.reranker)

    @classmethod
    def completed(cls, settings: Any) -> Any:
        return completed(settings)

    @classmethod
    def lengths(cls, model: JointModel) -> dict[str, int]:
        return DualEncoderMethod.lengths(model.retriever) | Reranker.lengths(model.reranker)

    @classmethod
    def parts(cls, model: JointModel) -> Mapping[str, Any]:
        return {"retriever": model.retriever, "reranker": model.reranker}

    def prepare(self, part: Part) -> Batch:
        """As `Method.prepare`; with `in_batch` a passage in several lists is encoded once, and `place` int64 [n, m] is the passage at
        each entry of a list. Without, the passages are those of each list, in the order of the queries.

        `relevant` bool [n, m] marks the known positives.
        """
        import numpy as np
        import torch

        from raydense.training.known import known_of_lists

        mine = part.slice_of(self.rank, self.workers)
        rows = np.concatenate([mine.lists, self._others(part)], axis=1)
        relevant = known_of_lists(mine, rows, self.texts.store.text_hash)
        passages, place = np.unique(rows, return_inverse=True)
        texts, queries = self.texts.passages(passages), self.texts.queries(mine.query)
        of_lists = np.array(texts, object)[place.ravel()].tolist()
        pairs = self.model.reranker.tokenize_pairs(np.repeat(np.array(queries, object), rows.shape[1]).tolist(), of_lists)
        retriever, pad_id = self.model.retriever, self.model.retriever.tokenizer.pad_id
        return {
            "queries": retriever.tokenize_queries(queries).pad(pad_id),
            "passages": retriever.tokenize_passages(texts if self.settings.in_batch else of_lists).pad(pad_id),
            "pairs": pairs.pad(self.model.reranker.tokenizer.pad_id),
            "relevant": torch.from_numpy(relevant),
            **({"place": torch.from_numpy(place.reshape(rows.shape))} if self.settings.in_batch else {}),
        }

    def _others(self, part: Part) -> NDArray[np.int64]:
        """The positives of the part's other queries on all workers: int64 [n, queries - 1], or [n, 0] without in-batch negatives."""
        import numpy as np

        share, all_of = len(part) // self.workers, part.positives[:, 0]
        mine = np.arange(self.rank * share, (self.rank + 1) * share)
        if not self.settings.in_batch:
            return np.zeros((share, 0), np.int64)
        others = np.arange(len(part))[None, :] != mine[:, None]
        return np.broadcast_to(all_of, others.shape)[others].reshape(share, len(part) - 1)

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        """As `Method.loss`; `distillation` is L_KL, `supervised` is L_sup; each model's `accuracy` is the share of lists whose positive is first."""
        import torch

        from raydense.models import losses
        from raydense.training.accuracy import accuracy

        queries, passages, scores = (losses.exact(output) for output in outputs)
        relevant: Tensor = batch["relevant"]
        temperature = temperature_of(self.settings, self.model.retriever.config.normalize)
        lists = passages[batch["place"]] if self.settings.in_batch else passages.view(*relevant.shape, -1)
        retriever = torch.einsum("nd,nmd->nm", queries, lists) / temperature
        reranker = scores.view(relevant.shape)
        distilled = losses.listwise_distillation(retriever, reranker, of_list(relevant), self.settings.direction)
        first = torch.zeros(len(relevant), dtype=torch.int64, device=relevant.device)
        metrics = {
            "distillation": distilled.detach(),
            "accuracy": accuracy(retriever, first, relevant),
            "reranker_accuracy": accuracy(reranker, first, relevant),
        }
        if self.settings.teacher == "static":
            return distilled, metrics
        labelled = supervised(reranker, relevant, self.settings.loss == "pointwise")
        return distilled + labelled, metrics | {"supervised": labelled.detach()}
