"""Reads and writes the tokenizer files of a model folder."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from raydense.errors import InputError, short


def read_tokenizer(inner: Path) -> PreTrainedTokenizerBase:
    """The fast tokenizer of a folder; InputError if there is none, or it has no padding token."""
    try:
        source = AutoTokenizer.from_pretrained(str(inner), local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise InputError(f"its tokenizer cannot be read ({short(error)})", inner, "save a fast tokenizer there") from error
    if not source.is_fast:
        raise InputError("its tokenizer is not a fast one", inner, "save a tokenizer.json there")
    if source.pad_token_id is None:
        fix = "set pad_token of the tokenizer (to its eos_token, for example), and save_pretrained it there"
        raise InputError("its tokenizer has no padding token", inner, fix)
    source.backend_tokenizer.no_truncation()
    source.backend_tokenizer.no_padding()
    return source


def save_tokenizer(source: PreTrainedTokenizerBase, folder: Path, length: int) -> None:
    """Write the tokenizer so that other libraries also truncate to `length` tokens."""
    kept, source.model_max_length = source.model_max_length, length
    try:
        source.save_pretrained(str(folder))
    finally:
        source.model_max_length = kept
