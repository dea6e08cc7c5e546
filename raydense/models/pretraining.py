"""What pre-training adds to an encoder and removes at the end: a head for masked tokens, Condenser's head, CoT-MAE's decoder.

A model returns for each text the terms of its losses, which can be summed over texts; see `PretrainModel.forward`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from raydense.errors import InputError
from raydense.models.dual_encoder import DualEncoder
from raydense.models.encoder_folder import encoder_folders, weights_folder
from raydense.models.losses import exact
from raydense.models.masking import NOT_MASKED, mask_tokens, masked_places
from raydense.models.mlm_head import MlmHead, draw_as_bert, input_embeddings
from raydense.models.sharded import full_shape
from raydense.models.tokens import Batch
from raydense.storage import model_place

# The dropout of a layer's output, by the families' names for it
_DROPOUTS = ("hidden_dropout_prob", "dropout", "mlp_dropout", "hidden_dropout", "dropout_rate", "resid_pdrop")


class PretrainModel(nn.Module):
    """`mlm`: an encoder that predicts masked tokens from its last layer's states; the base of the other methods' models.

    `retriever` is what remains after pre-training, and only it is saved; `tokenizer` is that of its passages and queries.
    """

    pooling: ClassVar[str | None] = None

    def __init__(self, retriever: DualEncoder, mlm_head: MlmHead) -> None:
        super().__init__()
        self.retriever, self.mlm_head = retriever, mlm_head
        self.tokenizer = retriever.tokenizer
        retriever.passage_encoder.parts[1:].requires_grad_(False)  # as a Dense layer: no loss here is of the encoder's output

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        passage_length: int | None = None,
        dropout: float | None = None,
        **shape: Any,
    ) -> Self:
        """The model to pre-train from an encoder's folder; new weights are drawn from torch's random state.

        Lengths and dropout as for `DualEncoder.load`; `shape` are further arguments of the method's class. Methods that train the
        [CLS] save a folder with pooling cls, `mlm` keeps its pooling. InputError if the folder cannot be used: it holds two
        encoders, its tokenizer has no mask token, or the method does not support the encoder.
        """
        root = model_place(folder).local()
        retriever = DualEncoder.load(root, shared=True, pooling=cls.pooling, passage_length=passage_length, dropout=dropout)
        if retriever.tokenizer.passage_source.mask_token_id is None:
            raise InputError("its tokenizer has no mask token", root, "give an encoder of masked language modelling, such as BERT")
        head = MlmHead.load(weights_folder(encoder_folders(root)[1]), retriever.encoder)
        return cls(retriever, head, **shape).eval()

    def save(self, folder: str | Path) -> None:
        """Write the encoder's folder, which `train` starts from; heads are dropped."""
        self.retriever.save(folder)

    def mask(self, batch: Batch, share: float, draws: Tensor) -> Batch:
        """A padded batch on the CPU with tokens masked for training, and their `labels`; as `mask_tokens`."""
        source: Any = self.tokenizer.passage_source
        ids, labels = mask_tokens(
            batch["input_ids"], batch["attention_mask"], source.all_special_ids, len(source), source.mask_token_id, share, draws
        )
        return {**batch, "input_ids": ids, "labels": labels}

    def forward(self, **texts: Batch) -> tuple[Tensor, ...]:
        """For each kind of texts given (`passages`, `contexts`) a tensor [n, columns], float32 or wider, with a row for each text.

        A batch is int64 [n, length] each: masked `input_ids`, `attention_mask`, `labels` (`NOT_MASKED` where nothing is predicted).
        `masked` int64 [m] may name the places of the masked tokens (`masked_places`): a GPU that has to find them waits for the result.
        Columns: the number of masked tokens; the sum of log phi(h_i^L)[x_i] over them (query-as-context eq. 4). Both can be
        summed over texts, and a row depends only on its text.
        """
        return tuple(self.terms(b, self.states(b)[-1]) for b in texts.values())

    def states(self, batch: Batch) -> tuple[Tensor, ...]:
        """h^0 (the embeddings) to h^L, each [n, length, d]."""
        found = self.retriever.encoder(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], output_hidden_states=True)
        return found.hidden_states

    def terms(self, batch: Batch, *states: Tensor, vectors: Tensor | None = None) -> Tensor:
        """A row of `forward` for each text: its masked tokens, the sum of their log-likelihood by each of `states`, and its `vectors` [n, d].

        `states` [n, length, d] are of the last layer of what predicts the tokens, of the encoder's width: its head for masked tokens does it.
        """
        return _row(batch["labels"], *(self._log_likelihood(one, batch) for one in states), vectors=vectors)

    def _log_likelihood(self, states: Tensor, batch: Batch) -> Tensor:
        """The sum over the masked tokens of each text, [n]; logits are made for masked tokens only, the vocabulary being wide."""
        labels = batch["labels"]
        masked = batch["masked"] if "masked" in batch else masked_places(labels)
        logits = self.mlm_head(states.flatten(0, 1)[masked], input_embeddings(self.retriever.encoder))
        each = -cross_entropy(exact(logits), labels.flatten()[masked], reduction="none")
        return each.new_zeros(labels.numel()).scatter(0, masked, each).view(labels.shape).sum(dim=1)


class Condenser(PretrainModel):
    """`condenser` and `cocondenser`: `layers` more layers over [h_0^L ; h_1^M .. h_n^M] predict the same masked tokens (eq. 6).

    Information of the late layers reaches this head only through the [CLS]. `skip_from` is M, the layer whose token states the head
    reads (from 0, the embeddings, to L - 1): half of the L layers unless given. InputError if there is no such layer.
    """

    pooling = "cls"

    def __init__(self, retriever: DualEncoder, mlm_head: MlmHead, layers: int = 2, skip_from: int | None = None) -> None:
        super().__init__(retriever, mlm_head)
        depth = int(retriever.encoder.config.num_hidden_layers)
        self.skip_from = depth // 2 if skip_from is None else skip_from
        if not 0 <= self.skip_from < depth:
            raise InputError(f"skip_from {self.skip_from} is none of the layers below the last of {depth}", "skip_from", "make it smaller")
        self.head = new_layers(retriever.encoder, layers)

    def forward(self, **texts: Batch) -> tuple[Tensor, ...]:
        """As `PretrainModel.forward`, with more columns: that sum by the head's states (eq. 6); then the d of h_0^L, the late [CLS].

        coCondenser takes `passages` and `contexts`, and compares the [CLS] of all of them (eq. 5); Condenser leaves them.
        """
        return tuple(self._outputs(batch) for batch in texts.values())

    def _outputs(self, batch: Batch) -> Tensor:
        states = self.states(batch)
        late, early = states[-1], states[self.skip_from]
        again = run_layers(self.head, late[:, 0], early, batch["attention_mask"])
        return self.terms(batch, late, again, vectors=late[:, 0])


class CotMae(PretrainModel):
    """`cotmae`: a decoder of `layers` layers predicts the masked tokens of y from [h_x ; embeddings of masked y] (eq. 8-10).

    h_x is the late [CLS] of x: nothing else of x reaches the decoder. InputError if the family's embeddings are not as wide as its
    states, or have no positions: the decoder has no other source of them.
    """

    pooling = "cls"

    def __init__(self, retriever: DualEncoder, mlm_head: MlmHead, layers: int = 2) -> None:
        super().__init__(retriever, mlm_head)
        encoder: Any = retriever.encoder
        positions = getattr(getattr(encoder, "embeddings", None), "position_embeddings", None)
        if positions is None or full_shape(input_embeddings(encoder))[1] != encoder.config.hidden_size:
            raise InputError(f"cotmae cannot use the embeddings of {encoder.config.model_type}", "model", "give an encoder such as BERT")
        self.decoder = new_layers(encoder, layers)

    def forward(self, *, passages: Batch, contexts: Batch) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """The columns of `PretrainModel.forward` of x, the passages, by the encoder; and of y, the contexts, by the decoder.

        Text i of the contexts is the y of text i of the passages, so a row of the second depends on both: a piece must hold both.
        """
        encoder: Any = self.retriever.encoder
        states = self.states(passages)[-1]
        embedded = encoder.embeddings(input_ids=contexts["input_ids"])
        decoded = run_layers(self.decoder, states[:, 0], embedded, contexts["attention_mask"])
        return self.terms(passages, states), self.terms(contexts, decoded)


def new_layers(encoder: PreTrainedModel, count: int) -> nn.TransformerEncoder:
    """New transformer layers with the encoder's dimensions: PyTorch's version of BERT's layer, for every model family."""
    config: Any = encoder.config
    layer = nn.TransformerEncoderLayer(
        d_model=config.hidden_size,
        nhead=config.num_attention_heads,
        dim_feedforward=_value(config, "intermediate_size", "hidden_dim", otherwise=4 * config.hidden_size),
        dropout=_value(config, *_DROPOUTS, otherwise=0.0),
        activation=ACT2FN[getattr(config, "hidden_act", "gelu")],
        layer_norm_eps=getattr(config, "layer_norm_eps", 1e-12),
        batch_first=True,
    )
    layer.dropout = nn.Identity()  # type: ignore[assignment]  # BERT has none between the two matrices
    layers = nn.TransformerEncoder(layer, count, enable_nested_tensor=False)
    draw_as_bert(layers, encoder)
    return layers


def run_layers(layers: nn.TransformerEncoder, first: Tensor, states: Tensor, attention_mask: Tensor) -> Tensor:
    """The last states [n, length, d] of layers over `states` with `first` [n, d] in the place of each text's first."""
    return layers(torch.cat([first.unsqueeze(1), states[:, 1:]], dim=1), src_key_padding_mask=attention_mask == 0)


def _row(labels: Tensor, *sums: Tensor, vectors: Tensor | None = None) -> Tensor:
    columns = torch.stack([(labels != NOT_MASKED).sum(dim=1).to(sums[0].dtype), *sums], dim=1)
    return columns if vectors is None else torch.cat([columns, exact(vectors)], dim=1)


def _value(config: Any, *names: str, otherwise: float) -> Any:
    """The value of a config under the first of these names that it has."""
    return next((getattr(config, name) for name in names if hasattr(config, name)), otherwise)
