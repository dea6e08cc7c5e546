"""The most tokens that a model and its tokenizer allow, from the JSON of their folder."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from raydense.errors import InputError
from raydense.models.encoder_folder import DAMAGED, OWN_FILE, optional_json, read_json, refuse_types, without_null

_NO_LIMIT = 1_000_000  # tokens: tokenizers without a limit name a larger number
# Position tables of these families begin after the padding index, so two of their rows are never used.
_OFFSET_POSITIONS = {"roberta", "xlm-roberta", "camembert", "xlm-roberta-xl", "roberta-prelayernorm", "longformer", "mpnet"}
_OFFSET_POSITIONS |= {"xmod", "luke", "ibert", "data2vec-text", "esm", "lilt", "markuplm"}


class Limit(NamedTuple):
    """The most tokens that a model reads, and whether it is its tokenizer that allows no more."""

    tokens: int
    of_tokenizer: bool = False

    def refuse_more(self, name: str, length: int, folder: object) -> None:
        """InputError if a length, the setting `name`, is more."""
        if length > self.tokens:
            what, fix = "positions of the model", "make it smaller"
            if self.of_tokenizer:
                what, fix = "tokens of its tokenizer", f"{fix}, or raise model_max_length in tokenizer_config.json"
            raise InputError(f"{name} {length} is more than the {self.tokens} {what}", folder, fix)


def positions(inner: Path, named: int = 0) -> Limit:
    """The most tokens that the model and its tokenizer allow; 512 where neither limits them.

    In a folder of raydense only the model counts: the length in its tokenizer is the largest that it was trained with. So it does where the
    folder itself has `named` a length, which sentence-transformers then takes. A model without a limit of its own allows at least that.
    """
    config = without_null(read_json(inner / "config.json"))
    refuse_types(config, dict.fromkeys(("max_position_embeddings", "n_positions", "pad_token_id"), int), inner / "config.json")
    refuse_types(config, {"model_type": str}, inner / "config.json")
    relative = "relative_attention_num_buckets" in config  # T5, whose n_positions is no limit
    positions = config.get("max_position_embeddings") or (0 if relative else config.get("n_positions")) or 0
    if config.get("model_type") in _OFFSET_POSITIONS:
        positions -= config.get("pad_token_id", 1) + 1
    alone = named or (inner / OWN_FILE).is_file() or (inner.parent / OWN_FILE).is_file()
    longest = optional_json(inner / "tokenizer_config.json").get("model_max_length") or 0
    if not isinstance(longest, int | float):  # some tokenizers name 1e30
        raise InputError(f"model_max_length is {longest!r}, and no number", inner / "tokenizer_config.json", DAMAGED)
    of_model, of_tokenizer = (int(n) if 0 < n < _NO_LIMIT else 0 for n in (positions, longest))
    if alone:
        return Limit(of_model or max(512, of_tokenizer, named))
    return Limit(min(of_model or of_tokenizer, of_tokenizer or of_model) or 512, 0 < of_tokenizer < (of_model or _NO_LIMIT))
