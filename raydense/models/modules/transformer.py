"""A transformer, encoder or decoder: tokens to a state each. Its folder is one of Hugging Face."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from raydense.errors import InputError
from raydense.models.adapters import adapt
from raydense.models.encoder_folder import (
    lengths_of,
    optional_json,
    refuse_types,
    sentence_config,
    weights_folder,
    write_json,
)
from raydense.models.modules.module import STATES, Features, InputModule, Options
from raydense.models.positions import Limit, positions
from raydense.models.tokenizer_folder import read_tokenizer, save_tokenizer
from raydense.models.weights import has_pooler, load_encoder, save_weights

_CONFIG, _QUERY_LENGTH = "sentence_bert_config.json", "query_length"

# Arguments of transformers in _CONFIG that change no vector, or that `lengths` follows; the first are older names of the second.
_LOADING = ("cache_dir", "code_revision", "local_files_only", "revision", "token", "trust_remote_code")
_MODEL = ("add_pooling_layer", "attn_implementation", "device_map", "dtype", "low_cpu_mem_usage", "torch_dtype", "use_safetensors")
_FOLLOWED = {
    f"{key}.{name}"
    for keys, names in (
        (("model_args", "model_kwargs"), (*_LOADING, *_MODEL)),
        (("tokenizer_args", "processor_kwargs"), (*_LOADING, "model_max_length", "padding_side", "use_fast")),
        (("config_args", "config_kwargs"), (*_LOADING, "reference_compile", "use_cache")),
        (("processing_kwargs.common", "processing_kwargs.text"), ("max_length", "padding")),
    )
    for key in keys
    for name in names
}
_ARGUMENTS = ("model_args", "model_kwargs", "tokenizer_args", "processor_kwargs", "config_args", "config_kwargs", "processing_kwargs")


class Transformer(InputModule):
    """h_1 .. h_n, the last layer's states [n, length, d] of a model of transformers, without its pooler."""

    gives = "states"

    def __init__(self, model: PreTrainedModel, adapter: str | None = None) -> None:
        super().__init__()
        adapted = adapt(model, adapter) if adapter else None
        self.model = adapted.model if adapted else model
        self._merged = adapted.merged if adapted else None
        self.width = int(model.config.hidden_size)

    @classmethod
    def load(cls, folder: Path, width: int, options: Options) -> Transformer:
        return cls(load_encoder(folder, options.dropout), options.adapter)

    def save(self, folder: Path) -> None:
        """As `Module.save`; an adapter is merged into the weights, so that other libraries can load the folder."""
        save_weights(self._merged() if self._merged else self.model, folder)

    def forward(self, features: Features) -> Features:
        return {**features, STATES: self.model(**features).last_hidden_state}

    @classmethod
    def check(cls, folder: Path) -> None:
        inner = weights_folder(folder)
        family = optional_json(inner / "config.json").get("model_type")
        if family == "funnel":
            raise InputError("is a Funnel model, which has fewer states than tokens", inner, "use another model")
        if family == "dpr":  # also of a BERT that was saved from one
            fix = 'save_pretrained the `bert_model` in it, write "model_type": "bert" in that config.json, and give it pooling cls'
            raise InputError("is DPR's wrapper of a BERT", inner, fix)

    @classmethod
    def limit(cls, folder: Path) -> Limit:
        return positions(folder, min(length or 0 for length in cls.lengths(folder)))

    @classmethod
    def lengths(cls, folder: Path) -> tuple[int | None, int | None]:
        file = sentence_config(folder)
        found = lengths_of(file)
        if found.get("do_lower_case") and not optional_json(folder / "tokenizer_config.json").get("do_lower_case"):
            raise InputError("lower-cases outside its tokenizer", file, "let the tokenizer do it: do_lower_case")
        _refuse_arguments(found, file)
        _refuse_calls(found, file)
        calls = found.get("processing_kwargs") or {}
        both = next((calls[kind]["max_length"] for kind in ("common", "text") if "max_length" in calls.get(kind, {})), None)
        if both:  # sentence-transformers cuts at it before all others
            return both, both
        loads = found.get("processor_kwargs") or found.get("tokenizer_args") or {}
        both = loads.get("model_max_length") or found.get("max_seq_length")
        return found.get(_QUERY_LENGTH) or both, found.get("document_length") or both

    @classmethod
    def tokenizer(cls, folder: Path) -> PreTrainedTokenizerBase:
        return read_tokenizer(folder)

    def save_tokenizer(self, source: PreTrainedTokenizerBase, folder: Path, query_length: int, passage_length: int) -> None:
        save_tokenizer(source, folder, max(query_length, passage_length))
        # only if the lengths differ: sentence-transformers before 6 refuses the key
        queries = {_QUERY_LENGTH: query_length} if query_length != passage_length else {}
        # otherwise sentence-transformers makes a pooler, which no vector needs, and warns that its weights are missing
        without = {"model_args": {"add_pooling_layer": False}} if has_pooler(self.model.config) else {}
        write_json(folder / _CONFIG, {"max_seq_length": passage_length, **queries, "do_lower_case": False, **without})

    def notes(self, query_length: int, passage_length: int) -> list[str]:
        found = []
        if query_length != passage_length:
            found.append(
                f"`{_QUERY_LENGTH}` in `{_CONFIG}` needs sentence-transformers 6 or later. An older version refuses the key: delete it "
                f"there, and queries are cut at {passage_length} tokens instead of {query_length}."
            )
        if has_pooler(self.model.config):
            found.append(
                "With transformers alone: `AutoModel.from_pretrained(folder, add_pooling_layer=False)`. No vector uses a pooler, so "
                "there are no weights for one. Without the argument transformers reports `pooler.dense` as MISSING; states are the same."
            )
        return found

    @property
    def pretrained(self) -> Any:
        return self.model


def _refuse_arguments(found: dict[str, Any], file: Path) -> None:
    """InputError if sentence-transformers calls a model or its tokenizer with an argument that changes the vectors, and that is not followed."""
    refuse_types(found, dict.fromkeys(_ARGUMENTS, dict), file)
    refuse_types(found.get("processing_kwargs", {}), {"common": dict, "text": dict}, file)
    given = _flat({name: found[name] for name in (*_ARGUMENTS, "query_expansion") if found.get(name)})
    of_others = tuple(f"processing_kwargs.{kind}." for kind in ("image", "audio", "video"))  # which no passage is
    for name, value in given:
        refuse_types({name: value}, {name: int} if name.endswith("max_length") else {}, file)
        if name.startswith(of_others):
            continue
        whole = name.endswith(".truncation") and value in (True, "longest_first")
        if name not in _FOLLOWED and not whole:
            raise _not_followed(name, file, "use another model, or remove it where the vectors may be others")


def _refuse_calls(found: dict[str, Any], file: Path) -> None:
    """InputError if sentence-transformers makes something else of a text than its tokens, or takes something else of the model than states or logits."""
    refuse_types(found, {"modality_config": dict}, file)
    kinds = found.get("modality_config", {})
    refuse_types(kinds, {"text": dict}, file)
    text = kinds.get("text", {})
    for name, value, followed in (
        ("modality_config.message", kinds.get("message"), ()),  # texts become messages of a chat
        ("modality_config.text.method", text.get("method"), ("forward",)),
        ("modality_config.text.method_output_name", text.get("method_output_name"), ("last_hidden_state", "logits")),
        ("transformer_task", found.get("transformer_task"), ("feature-extraction", "sequence-classification")),
    ):
        if value is not None and value not in followed:
            raise _not_followed(name, file, "use another model")


def _not_followed(name: str, file: Path, fix: str) -> InputError:
    return InputError(f"sets {name}, which may change vectors, and which raydense does not follow", file, fix)


def _flat(values: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Each value that is no dictionary, with its keys joined by dots."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield before + key, value
