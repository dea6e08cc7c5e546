"""The head that predicts masked tokens from an encoder's states: that of BERT, tied to the encoder's input embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from raydense.models.sharded import full_shape, gathered
from raydense.models.weights import load_masked_lm


class MlmHead(nn.Module):
    """phi of query-as-context eq. 4, a state to logits over the vocabulary: LayerNorm(act(W h + b)) E^T + c (BERT, section 3.1).

    E is the encoder's table of input embeddings. It is an argument of each call and not a weight of the head, so that it is
    trained once.
    """

    def __init__(self, encoder: PreTrainedModel) -> None:
        super().__init__()
        config: Any = encoder.config
        vocabulary, width = full_shape(input_embeddings(encoder))
        self.dense = nn.Linear(config.hidden_size, width)
        self.activation = ACT2FN[getattr(config, "hidden_act", "gelu")]
        self.norm = nn.LayerNorm(width, eps=getattr(config, "layer_norm_eps", 1e-12))
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        draw_as_bert(self.dense, encoder)

    @classmethod
    def load(cls, inner: Path, encoder: PreTrainedModel) -> MlmHead:
        """The head in the folder of `encoder`; if it has none like BERT's, a new one drawn from torch's random state."""
        head, source = cls(encoder), load_masked_lm(inner)
        if source is not None:
            head._take(source)
        return head

    def forward(self, states: Tensor, embeddings: Tensor) -> Tensor:
        """Logits [m, vocabulary] of the states [m, d] of masked tokens; `embeddings` is E, [vocabulary, width]."""
        return linear(self.norm(self.activation(self.dense(states))), embeddings, self.bias)

    def _take(self, source: PreTrainedModel) -> None:
        """Copy the weights of another head, whose names depend on the model family, if it has exactly these parts."""
        output: Any = source.get_output_embeddings()
        others = [m for name, m in source.named_modules() if not name.startswith(f"{source.base_model_prefix}.") and m is not output]
        dense = [m for m in others if isinstance(m, nn.Linear)]
        norm = [m for m in others if isinstance(m, nn.LayerNorm)]
        if len(dense) == len(norm) == 1 and all(part.bias is not None for part in (dense[0], norm[0], output)):
            with gathered(dense[0], norm[0], output.bias):
                self.dense.load_state_dict(dense[0].state_dict())
                self.norm.load_state_dict(norm[0].state_dict())
                self.bias.data.copy_(output.bias.data)


def input_embeddings(encoder: PreTrainedModel) -> Tensor:
    """The encoder's table of token embeddings, [vocabulary, width]."""
    table: Any = encoder.get_input_embeddings()
    return table.weight


def draw_as_bert(new: nn.Module, encoder: PreTrainedModel) -> None:
    """Draw new weights from torch's random state as BERT does: matrices from a narrow normal, biases zero, LayerNorms as they are."""
    for name, parameter in new.named_parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=getattr(encoder.config, "initializer_range", 0.02))
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
