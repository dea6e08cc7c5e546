"""Which kind of model a folder holds, without reading its weights."""

from __future__ import annotations

from raydense.errors import InputError
from raydense.models.encoder_config import input_module, read_encoder_config
from raydense.models.encoder_folder import encoder_folders, is_reranker, weights_folder
from raydense.storage import model_place


def multiplies(folder: str) -> bool:
    """Whether nearly all time of the retriever in `folder` goes into matrix products, as of every transformer; reads no weights."""
    return input_module(encoder_folders(model_place(folder).local())[1])[0].multiplies


def require_model(folder: str, scores: bool, **changes: int | str) -> None:
    """InputError unless `folder` holds a re-ranker (`scores`), or a retriever that `changes` can be applied to; reads no weights."""
    root = model_place(folder).local()
    for part in encoder_folders(root):
        inner = weights_folder(part) if scores else input_module(part)[1]
        if scores != is_reranker(inner):
            found, wanted = ("a re-ranker", "a retriever") if not scores else ("an encoder without a head that scores", "a re-ranker")
            raise InputError(f"holds {found}", folder, f"give {wanted}")
    if changes.keys() & {"query_prefix", "prompt_name"}:  # which may leave no token to a query
        from raydense.models.tokenizer import load_tokenizer  # only here: importing transformers takes seconds

        load_tokenizer(root, **changes)
    elif not scores:
        read_encoder_config(root, **changes)
