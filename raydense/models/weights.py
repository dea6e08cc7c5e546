"""Reads and writes weights: only safetensors, in float32; never code or pickle of a model folder."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTextEncoding,
    PretrainedConfig,
    PreTrainedModel,
)

from raydense.errors import InputError, short
from raydense.models.encoder_folder import is_reranker
from raydense.models.float32_linear import keep_in_float32, keep_score_in_float32
from raydense.models.sharded import shares_out, together
from raydense.models.tokenizer_folder import read_tokenizer
from raydense.runtime.verbosity import is_verbose

_HALVES = ("t5", "mt5", "umt5")  # families of encoder and decoder whose encoder is a model of its own in transformers
_reads = ContextVar("reads", default=True)


@contextmanager
def without_reading() -> Iterator[None]:
    """In the block, loaders make the model that a folder's config describes without reading weights, to estimate its memory."""
    token = _reads.set(False)
    try:
        yield
    finally:
        _reads.reset(token)


def reads_weights() -> bool:
    """Whether weights are read: not `without_reading`."""
    return _reads.get()


def load_encoder(inner: Path, dropout: float | None) -> PreTrainedModel:
    """The encoder in a folder, without its pooler, which no vector needs, and of a T5 without its decoder; InputError where weights are missing."""
    config = _config(inner, dropout)
    half = config.model_type in _HALVES
    decodes = config.is_encoder_decoder or type(config) in transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING
    if not half and (decodes or not hasattr(config, "hidden_size")):  # without: of texts and images, as CLIP
        raise InputError(f"a {config.model_type} is no encoder", inner, "give an encoder such as BERT")
    bare = {"add_pooling_layer": False} if has_pooler(config) else {}
    if not bare and hasattr(config, "use_cache"):
        config.use_cache = False  # a decoder's cache for the next token
    model, missing = _load(AutoModelForTextEncoding if half else AutoModel, inner, config, **bare)
    _refuse_missing(missing, inner)
    if half:
        keep_in_float32(model)
    return model


def load_scorer(inner: Path, dropout: float | None) -> PreTrainedModel:
    """A model with one score a pair: a cross-encoder as it is, an encoder with a new head drawn from torch's random state.

    Its score is computed in float32 whatever autocast says, and so are, where the others are in fp16, layers whose values leave its range. InputError where weights are missing, or the head gives several labels.
    """
    config = _config(inner, dropout)
    trained = is_reranker(inner)
    if trained and config.num_labels != 1:
        raise InputError(f"its head gives {config.num_labels} labels", inner, "give a cross-encoder of one score")
    config.num_labels = 1
    if config.pad_token_id is None:  # a decoder takes the score of the last token that is no padding
        config.pad_token_id = read_tokenizer(inner).pad_token_id
    model, missing = _load(AutoModelForSequenceClassification, inner, config)
    _refuse_missing(missing if trained else [n for n in missing if _is_encoder_weight(model, n)], inner)
    keep_in_float32(model)
    keep_score_in_float32(model)
    return model


def load_masked_lm(inner: Path) -> PreTrainedModel | None:
    """An encoder with its head for masked tokens; None if its folder has no such head."""
    config = _config(inner, None)
    if type(config) not in transformers.MODEL_FOR_MASKED_LM_MAPPING:
        return None
    model, missing = _load(AutoModelForMaskedLM, inner, config)
    return model if all(_is_encoder_weight(model, name) for name in missing) else None


def load_writer(inner: Path, dropout: float | None) -> PreTrainedModel:
    """A sequence-to-sequence model with its head; InputError if the folder holds no such model, or weights are missing.

    Layers whose values leave fp16's range (T5's) are computed in float32 where the others are in fp16.
    """
    model, missing = _load(AutoModelForSeq2SeqLM, inner, _config(inner, dropout))
    _refuse_missing(missing, inner)
    keep_in_float32(model)
    return model


def _refuse_missing(names: list[str], inner: Path) -> None:
    if names:
        more = f" and {len(names) - 1} more" if names[1:] else ""
        raise InputError(f"weights are missing for {names[0]}{more}", inner, "give a whole model folder")


def save_weights(model: PreTrainedModel, folder: Path) -> None:
    """Write config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # transformers imports DeepSpeed here, which else prints that it found no GPU
    with _quiet():
        model.save_pretrained(str(folder))


def _config(inner: Path, dropout: float | None) -> PretrainedConfig:
    try:
        config = AutoConfig.from_pretrained(str(inner), local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise InputError(f"its config cannot be used ({short(error)})", inner, "give a model of a family that transformers has") from error
    if dropout is not None:
        found = list(_dropouts(config))
        if dropout and not found:
            raise InputError(f"models of the family {config.model_type} have no dropout", inner, "leave dropout out")
        for part, name in found:
            _set_dropout(part, name, dropout, inner)
    return config


def _set_dropout(config: PretrainedConfig, name: str, dropout: float, inner: Path) -> None:
    if getattr(config, name) == dropout:
        return
    try:
        setattr(config, name, dropout)
    except Exception as error:  # MPT's attention takes whole numbers alone
        raise InputError(f"its {name} takes no {dropout:g} ({short(error)})", inner, "leave dropout out") from error


def _dropouts(config: PretrainedConfig) -> Iterator[tuple[PretrainedConfig, str]]:
    """The dropouts of a config and of the configs in it, as those of encoder and decoder."""
    for name, value in vars(config).items():
        if isinstance(value, PretrainedConfig):
            yield from _dropouts(value)
        elif _is_dropout(name, value):
            yield config, name


def _is_dropout(name: str, value: object) -> bool:
    """Whether a config's value is a share of values to drop, or None, where it is that of another one: `classifier_dropout`, GPT-2's `attn_pdrop`."""
    return ("dropout" in name or name.endswith("pdrop")) and not isinstance(value, bool | str | list | dict)


def has_pooler(config: PretrainedConfig) -> bool:
    """Whether transformers gives models of this family a pooler unless `add_pooling_layer` is False."""
    family: Any = transformers.MODEL_MAPPING.get(type(config), None)
    return bool(family) and "add_pooling_layer" in inspect.signature(family).parameters


def _load(auto: Any, inner: Path, config: PretrainedConfig, **kwargs: Any) -> tuple[PreTrainedModel, list[str]]:
    with together() if shares_out() else nullcontext():
        return _made_or_read(auto, inner, config, **kwargs)


def _made_or_read(auto: Any, inner: Path, config: PretrainedConfig, **kwargs: Any) -> tuple[PreTrainedModel, list[str]]:
    try:
        if not _reads.get():
            return auto.from_config(config, dtype=torch.float32, **kwargs), []
        with _quiet():
            model, found = auto.from_pretrained(
                str(inner),
                config=config,
                dtype=torch.float32,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
                **kwargs,
            )
    except Exception as error:
        raise InputError(f"its weights cannot be loaded ({short(error)})", inner, "fetch or make it again") from error
    return model, sorted(found["missing_keys"])


def _is_encoder_weight(model: PreTrainedModel, name: str) -> bool:
    return name.startswith(f"{model.base_model_prefix}.") and ".pooler." not in name


@contextmanager
def _quiet() -> Iterator[None]:
    """Unless verbose, suppress what transformers prints about unused weights: what matters is checked, and raised as an InputError."""
    if is_verbose():
        yield
        return
    logger = logging.getLogger("transformers")
    level, bars = logger.level, transformers.utils.logging.is_progress_bar_enabled()
    logger.setLevel(logging.ERROR)
    transformers.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        logger.setLevel(level)
        if bars:
            transformers.utils.logging.enable_progress_bar()
