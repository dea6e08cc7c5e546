"""One encoder: a sequence of modules from tokens to vectors, as in sentence-transformers."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers import PreTrainedTokenizerBase

from raydense.errors import InputError
from raydense.models.encoder_config import EncoderConfig, input_module, write_own_config, write_prompts
from raydense.models.encoder_folder import MODULES, write_json
from raydense.models.model_card import retriever_card
from raydense.models.modules import parts_of
from raydense.models.modules.dense import Dense
from raydense.models.modules.module import VECTORS, InputModule, Module, Options
from raydense.models.modules.normalize import Normalize
from raydense.models.modules.pooling import Pooling

# The folder of a Dense that only cuts vectors. sentence-transformers does not scale to length 1 again what its `truncate_dim` has cut.
_CUT = "cut"


class Encoder(nn.Module):
    """Tokens to vectors float32 [n, dimension]; `config` has the pooling, and whether vectors are normalized and truncated."""

    def __init__(self, parts: list[Module], config: EncoderConfig) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.config = config
        self.dimension = config.dimension or parts[-1].width

    @classmethod
    def load(cls, folder: Path, config: EncoderConfig, options: Options) -> Encoder:
        """The modules of a folder, with the pooling and normalisation of `config`; InputError where one cannot be read."""
        kind, inner = input_module(folder)
        parts: list[Module] = [kind.load(inner, 0, options)]
        if kind.gives == "states":
            parts.append(Pooling(config.pooling, parts[0].width))
        found = [part for part in parts_of(folder)[1:] if part.kind is not Pooling and not (config.dimension and part.folder.name == _CUT)]
        if found and found[-1].kind is Normalize:
            Normalize.load(found.pop().folder, parts[-1].width, options)  # for what it refuses: `config` says whether there is one
        for part in found:
            parts.append(part.kind.load(part.folder, parts[-1].width, options))
        if config.normalize:
            parts.append(Normalize(parts[-1].width))
        if config.dimension > parts[-1].width:
            raise InputError(f"dimension {config.dimension} is more than the {parts[-1].width} of the model", folder, "make it smaller")
        return cls(parts, config)

    @property
    def input(self) -> InputModule:
        """The first module, which takes tokens."""
        return cast(InputModule, self.parts[0])

    @property
    def saved(self) -> dict[str, Module]:
        """The modules to save, by their folders in that of the encoder, where the first one lies: what cuts vectors stands before Normalize."""
        found = {f"{i}_{type(part).__name__}" if i else "": cast(Module, part) for i, part in enumerate(self.parts)}
        if not self.config.normalize or self.dimension == self.parts[-1].width:
            return found
        last = found.popitem()
        return {**found, _CUT: Dense.first(cast(int, self.parts[-1].width), self.dimension), last[0]: last[1]}

    @property
    def kinds(self) -> dict[str, str]:
        """The class that each saved module has in sentence-transformers, by its folder."""
        return {path: f"sentence_transformers.models.{type(part).__name__}" for path, part in self.saved.items()}

    def save(self, folder: Path, source: PreTrainedTokenizerBase) -> None:
        """Write the modules, the tokenizer and a README; sentence-transformers computes the same vectors from the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for path, part in self.saved.items():
            (folder / path).mkdir(exist_ok=True)
            part.save(folder / path)
        self.input.save_tokenizer(source, folder, self.config.query_length, self.config.passage_length)
        write_json(
            folder / MODULES, [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(self.kinds.items())]
        )
        write_prompts(folder, self.config)
        retriever_card(folder, self.config, self.dimension, self.input.notes(self.config.query_length, self.config.passage_length))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Vectors float32 [n, dimension] of a padded batch."""
        features = dict(batch)
        for part in self.parts:
            features = part(features)
        vectors = features[VECTORS].float()
        if vectors.shape[1] == self.dimension:
            return vectors
        cut = vectors[:, : self.dimension]
        return normalize(cut, dim=-1) if self.config.normalize else cut


def write_router(folder: Path, query: tuple[str, Encoder], passage: tuple[str, Encoder]) -> None:
    """Write what makes the folder of two encoders, each with the name of its own folder, one model of sentence-transformers (its `Router`)."""
    kinds = {name: {f"{name}/{path}".rstrip("/"): kind for path, kind in encoder.kinds.items()} for name, encoder in (query, passage)}
    structure = {route: list(kinds[name]) for route, (name, _) in (("query", query), ("document", passage))}
    parameters = {"default_route": "document", "allow_empty_key": True, "route_mappings": {}}
    types = {path: kind for of in kinds.values() for path, kind in of.items()}
    write_json(folder / "router_config.json", {"types": types, "structure": structure, "parameters": parameters})
    write_json(folder / MODULES, [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Router"}])
    write_prompts(folder, passage[1].config)


def save_alone(encoder: Encoder, source: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write an encoder that reads both queries and passages as a folder that `DualEncoder.load` reads."""
    encoder.save(folder, source)
    write_own_config(folder, encoder.config)
