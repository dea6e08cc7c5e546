"""Pre-training by masked tokens only; the base of the other pre-training methods."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from raydense.errors import InputError
from raydense.storage import model_place
from raydense.training.method import Batch, Draws, Held, Method, Metrics, Outputs, method
from raydense.training.settings import PretrainSettings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from raydense.data.store import PassageStore
    from raydense.models.pretraining import PretrainModel
    from raydense.training.contexts import Contexts
    from raydense.training.examples import Examples
    from raydense.training.part import Part


@method("mlm")
class Mlm(Method):
    """L = L_mlm: -log p of the masked tokens (query-as-context eq. 4), a mean over all workers' tokens.

    A method whose settings have a `context` reads one with each passage. What else a method's model reads is in `masked`, see `prepare`.
    """

    adds = True
    models: ClassVar[Mapping[str, str]] = {"": "encoder"}
    model: PretrainModel
    texts: Contexts

    class Settings(PretrainSettings):
        """Pre-train an encoder by masked tokens."""

    @classmethod
    def couples(cls, settings: Any) -> bool:
        return False

    @classmethod
    def draws(cls, settings: Any) -> Draws:
        return Draws(random_positives=False)

    @classmethod
    def masked(cls, settings: Any) -> dict[str, float]:
        of_context = {"contexts": settings.context_mask} if hasattr(settings, "context_mask") else {}
        return {"passages": settings.mask, **of_context}

    @classmethod
    def texts_of(cls, settings: Any) -> dict[str, int]:
        return dict.fromkeys(cls.masked(settings), cls.queries_of(settings))

    @classmethod
    def held(cls, settings: Any) -> Held:
        return Held(scores=sum(cls.texts_of(settings).values()))

    @classmethod
    def read(cls, settings: Any, store: PassageStore, log: bool = False) -> tuple[Examples, Contexts]:
        """As `Method.read`: each passage is an example; if the method needs contexts, only those that have one."""
        from raydense.training.contexts import Contexts

        contexts = Contexts(store, getattr(settings, "context", None), getattr(settings, "generated", None))
        return contexts.examples(log), contexts

    @classmethod
    def kind(cls) -> type[PretrainModel]:
        """The class of its model."""
        from raydense.models.pretraining import PretrainModel

        return PretrainModel

    @classmethod
    def shape(cls, settings: Any) -> dict[str, Any]:
        """The arguments of that class."""
        return {}

    @classmethod
    def load(cls, settings: Any, folder: str) -> PretrainModel:
        return cls.kind().load(folder, passage_length=settings.passage_length, dropout=settings.dropout, **cls.shape(settings))

    @classmethod
    def check(cls, settings: Any, folder: str) -> None:
        from raydense.models.encoder_config import input_module
        from raydense.models.encoder_folder import encoder_folders
        from raydense.models.tokenizer import load_tokenizer

        load_tokenizer(folder, passage_length=settings.passage_length)
        kind, _ = input_module(encoder_folders(model_place(folder).local())[1])
        if kind.gives == "vectors":
            raise InputError(
                f"a {kind.__name__} has no layers to pre-train", folder, "give an encoder of masked language modelling, such as BERT"
            )

    @classmethod
    def lengths(cls, model: PretrainModel) -> dict[str, int]:
        """As `Method.lengths`, of every kind that `masked` may name."""
        return defaultdict(lambda: model.retriever.config.passage_length)

    def prepare(self, part: Part) -> Batch:
        """As `Method.prepare`: texts of each kind of `masked`, contexts as `contexts`, under any other name the passages, with masks of their own.

        Masks and contexts are drawn for the whole part, so they are the same for any number of workers. `masked_passages` and so on,
        float32 without dimension, are the masked tokens of each kind.
        """
        import numpy as np
        import pyarrow as pa
        import torch

        from raydense.data.lookup import hash_strings
        from raydense.models.masking import NOT_MASKED

        share = len(part) // self.workers
        mine = slice(self.rank * share, (self.rank + 1) * share)
        rng = np.random.default_rng(part.random_state)
        passages, shares = self.texts.passages(part.query[mine]), self.masked(self.settings)
        batch: Batch = {}
        for name, hidden in shares.items():
            texts = self.texts.draw(part.query[mine], rng.random((len(part), 2))[mine]) if name == "contexts" else passages
            batch[name] = self._masked_batch(texts, hidden, rng.random(self._shape(part)), mine)
            if name == "contexts" and self.couples(self.settings):
                batch["text_hash"] = torch.from_numpy(hash_strings(pa.array(passages + texts)).view(np.int64))
        return batch | {f"masked_{name}": (batch[name]["labels"] != NOT_MASKED).sum().float() for name in shares}

    def _shape(self, part: Part) -> tuple[int, int]:
        return len(part), self.settings.passage_length

    def _masked_batch(self, texts: list[str], share: float, draws: NDArray[np.float64], mine: slice) -> dict[str, Tensor]:
        import torch

        batch = self.model.retriever.tokenize_passages(texts).pad(self.model.tokenizer.pad_id)
        return self.model.mask(batch, share, torch.from_numpy(draws[mine]))

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        """As `Method.loss`: the mean over the masked tokens of all workers."""
        found = self.masked_loss(outputs, 1, batch)
        return found, {"mlm": found.detach()}

    def masked_loss(self, outputs: Outputs, column: int, batch: Batch, kinds: Iterable[str] = ()) -> Tensor:
        """The mean of -log p of the masked tokens, by the outputs' `column`, over those of `kinds` of texts, by default all, of all workers.

        Where a piece of a batch is given, its share of this mean.
        """
        import torch
        import torch.distributed as dist

        from raydense.models import losses

        count = torch.stack([batch[f"masked_{name}"] for name in kinds or self.masked(self.settings)]).sum()
        if self.workers > 1:
            dist.all_reduce(count)
        return losses.masked_tokens(torch.cat(outputs)[:, column], count / self.workers)  # as gradients are averaged over workers
