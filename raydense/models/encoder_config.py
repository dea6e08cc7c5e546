"""The configuration of an encoder, read from its folder: a folder of raydense, sentence-transformers or Hugging Face.

Next to the files of sentence-transformers, raydense writes `raydense.json`, which also records whether the two encoders are separate.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from raydense.errors import InputError
from raydense.models.encoder_folder import (
    OWN_FILE,
    PROMPTS,
    encoder_folders,
    optional_json,
    prompts_of,
    read_json,
    refuse_types,
    weights_folder,
    write_json,
)
from raydense.models.modules import Part, parts_of
from raydense.models.modules.module import InputModule
from raydense.models.modules.pooling import check_mode, pooling_mode

# Fields that were added later: a folder has them only if they are not the default.
_NEWER = ("dimension",)


@dataclass(frozen=True)
class EncoderConfig:
    """How texts become vectors.

    `pooling`: a mode of `modules.pooling`, such as cls, mean or lasttoken. `normalize`: scale vectors to length 1. The prefixes are
    put before each text. Lengths are the most tokens kept, special tokens included. `shared`: one encoder for queries and passages.
    `dimension`: keep only the first numbers of each vector (Matryoshka, Kusupati et al. 2022), scaled to length 1 again if
    the model normalizes; 0 keeps all. `prompts`: other prompts for queries, by name, which stay in the folders made from this one.
    """

    pooling: str = "mean"
    normalize: bool = False
    query_prefix: str = ""
    passage_prefix: str = ""
    query_length: int = 32
    passage_length: int = 128
    shared: bool = True
    dimension: int = 0
    prompts: dict[str, str] = field(default_factory=dict)


def input_module(folder: Path) -> tuple[type[InputModule], Path]:
    """The first module of one encoder's folder, and its own folder; InputError if weights or tokenizer are missing."""
    first = parts_of(folder)[0]
    assert issubclass(first.kind, InputModule), "parts_of checks it"
    first.kind.check(first.folder)
    return first.kind, first.folder


def read_encoder_config(folder: Path, **overrides: Any) -> EncoderConfig:
    """The configuration in a folder, with the overrides that are not None: fields, or `prompt_name`, the prompt that is to be `query_prefix`.

    A plain Hugging Face folder has none: mean pooling, no normalisation, 32 and 128 tokens. InputError if the folder cannot be
    used, has no prompt of this name, or a length exceeds the model's positions.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    prompts = prompts_of(folder)["prompts"]
    if (name := given.pop("prompt_name", None)) is not None:
        given["query_prefix"] = _prompt_named(name, prompts, folder)
    kind, inner = input_module(encoder_folders(folder)[1])
    limit = kind.limit(inner)
    if (folder / OWN_FILE).is_file() or encoder_folders(folder) != (folder, folder):
        config = _own_config(folder)
    elif (folder / "modules.json").is_file():
        config = _sentence_transformers_config(folder, parts_of(folder), limit.tokens, given)
    else:
        config = EncoderConfig(query_length=min(32, limit.tokens), passage_length=min(128, limit.tokens))
    if given.get("shared") and not config.shared:
        raise InputError("holds two separate encoders", folder, "set shared to false, or start from one of its sub-folders")
    if kind.gives == "vectors" and given.get("pooling", "mean") != "mean":
        raise InputError(f"its {kind.__name__} gives vectors, the mean of its tokens'", folder, "leave pooling out")
    check_mode(given.get("pooling", config.pooling), "pooling")
    config = replace(config, **given, prompts={name: prompt for name, prompt in prompts.items() if name not in ("query", "document")})
    for name in ("query_length", "passage_length"):
        limit.refuse_more(name, getattr(config, name), folder)
    return config


def similarity_of(folder: Path) -> str:
    """How sentence-transformers compares the vectors of a folder of its own, such as cosine; empty where that is not said, or the folder is raydense's."""
    if (folder / OWN_FILE).is_file() or encoder_folders(folder) != (folder, folder):
        return ""
    return str(prompts_of(folder).get("similarity_fn_name") or "")


def write_own_config(folder: Path, config: EncoderConfig) -> None:
    """Write raydense.json."""
    defaults, values = asdict(EncoderConfig()), asdict(config)
    del values["prompts"]  # `write_prompts` writes them
    write_json(folder / OWN_FILE, {k: v for k, v in values.items() if k not in _NEWER or v != defaults[k]})


def write_prompts(folder: Path, config: EncoderConfig) -> None:
    """Write the prompts and the similarity of sentence-transformers, and how it cuts vectors that are not scaled after it."""
    write_json(
        folder / PROMPTS,
        {
            "model_type": "SentenceTransformer",
            "prompts": {"query": config.query_prefix, "document": config.passage_prefix, **config.prompts},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine" if config.normalize else "dot",
        }
        | ({"truncate_dim": config.dimension} if config.dimension and not config.normalize else {}),
    )


def _own_config(folder: Path) -> EncoderConfig:
    known = {f.name for f in fields(EncoderConfig)} - {"prompts"}
    values = read_json(folder / OWN_FILE)
    if not known - set(_NEWER) <= set(values) <= known:
        if optional_json(weights_folder(folder) / "config.json").get("is_encoder_decoder"):
            raise InputError("is a generator, not an encoder", folder, "give a retriever's folder, or any encoder")
        raise InputError("is not what this raydense writes for an encoder", folder / OWN_FILE, "give a retriever's folder")
    refuse_types(values, get_type_hints(EncoderConfig), folder / OWN_FILE)
    return EncoderConfig(**values)


def _sentence_transformers_config(folder: Path, parts: list[Part], limit: int, given: dict[str, Any]) -> EncoderConfig:
    kind, inner = input_module(folder)
    query_length, passage_length = (min(length or limit, limit) for length in kind.lengths(inner))
    found = prompts_of(folder)
    query_prefix, passage_prefix = _prompts(found)
    prompted = given.get("query_prefix", query_prefix) or given.get("passage_prefix", passage_prefix)
    pooled = next((part.folder for part in parts if part.kind.takes == "states"), None)
    return EncoderConfig(
        pooling=pooling_mode(pooled, bool(prompted)) if pooled else "mean",
        normalize=parts[-1].kind.__name__ == "Normalize",
        query_prefix=query_prefix,
        passage_prefix=passage_prefix,
        query_length=query_length,
        passage_length=passage_length,
        dimension=found.get("truncate_dim", 0),
    )


def _prompts(found: dict[str, Any]) -> tuple[str, str]:
    """The prompts that encode_query and encode_document of sentence-transformers put before a text."""
    prompts = found["prompts"]
    default = prompts.get(found.get("default_prompt_name"), "")
    passage = next((prompts[name] for name in ("document", "passage", "corpus") if name in prompts), default)
    return prompts.get("query", default), passage


def _prompt_named(name: str, prompts: dict[str, str], folder: Path) -> str:
    """The prompt of this name; InputError, with the names, if there is none."""
    if name not in prompts:
        fix = f"there are {', '.join(prompts)}" if prompts else f"{PROMPTS} names none: give query_prefix, the text itself"
        raise InputError(f"has no prompt {name!r}", folder, fix)
    return prompts[name]
