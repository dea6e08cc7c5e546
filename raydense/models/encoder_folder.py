"""The model folder on disk: what sentence-transformers and Hugging Face folders say of an encoder, and how ours is written.

A folder is read without loading its weights. Beside the files that sentence-transformers reads, ours holds `raydense.json`
for what those cannot say: separate lengths of queries and passages, and whether the two encoders are separate.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from raydense.errors import InputError
from raydense.storage import safe_name

OWN_FILE = "raydense.json"
QUERY_ENCODER, PASSAGE_ENCODER = "query_encoder", "passage_encoder"
_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "sentencepiece.bpe.model", "spiece.model", "spm.model")
# Position tables of these families begin after the padding index, so two of their rows are never used.
_OFFSET_POSITIONS = {"roberta", "xlm-roberta", "camembert", "xlm-roberta-xl", "roberta-prelayernorm", "longformer", "mpnet"}


@dataclass(frozen=True)
class EncoderConfig:
    """How texts become vectors.

    `pooling`: the state of the first token, or the mean over tokens. `normalize`: scale vectors to length 1. The prefixes are
    put before each text. Lengths are the most tokens kept, special tokens included. `shared`: one encoder for both sides.
    """

    pooling: Literal["cls", "mean"] = "mean"
    normalize: bool = False
    query_prefix: str = ""
    passage_prefix: str = ""
    query_length: int = 32
    passage_length: int = 128
    shared: bool = True


def read_encoder_config(folder: Path, **overrides: Any) -> EncoderConfig:
    """What the folder says of its encoder, with the overrides that are not None.

    Plain Hugging Face folders say nothing: mean pooling, no normalisation, 32 and 128 tokens. InputError where the folder is
    none that we can use, or a length is more than the model has positions for.
    """
    require_folder(folder)
    given = {name: value for name, value in overrides.items() if value is not None}
    limit = positions(_an_encoder_of(folder))
    if (folder / OWN_FILE).is_file() or encoder_folders(folder) != (folder, folder):
        config = _own_config(folder)
    elif (folder / "modules.json").is_file():
        config = _sentence_transformers_config(folder, limit)
    else:
        config = EncoderConfig(query_length=min(32, limit), passage_length=min(128, limit))
    if given.get("shared") and not config.shared:
        raise InputError("holds two separate encoders", folder, "set shared to false, or start from one of its sub-folders")
    config = replace(config, **given)
    for name in ("query_length", "passage_length"):
        if getattr(config, name) > limit:
            raise InputError(f"{name} {getattr(config, name)} is more than the {limit} positions of the model", folder, "make it smaller")
    return config


def encoder_folders(folder: Path) -> tuple[Path, Path]:
    """Where the weights of the query and the passage encoder lie; twice the same for a folder of one encoder."""
    if (folder / PASSAGE_ENCODER).is_dir() and not (folder / "config.json").is_file():
        return folder / QUERY_ENCODER, folder / PASSAGE_ENCODER
    return folder, folder


def weights_folder(folder: Path) -> Path:
    """The folder that holds the Hugging Face files of a single encoder: itself, or the one that modules.json names.

    InputError where it lacks a config, safetensors weights or a tokenizer.
    """
    require_folder(folder)
    inner = folder
    if (folder / "modules.json").is_file() and not (folder / "config.json").is_file():
        first = _modules(folder)[0]
        inner = folder / str(first.get("path", ""))
    if not (inner / "config.json").is_file():
        raise InputError("no config.json", inner, "give a model folder of Hugging Face or sentence-transformers")
    if not ((inner / "model.safetensors").is_file() or (inner / "model.safetensors.index.json").is_file()):
        if any(inner.glob("*.bin")):
            fix = "load it with transformers where you trust it, and save_pretrained it: that writes safetensors"
            raise InputError("its weights are a pickle, which can run code when read", inner, fix)
        raise InputError("no weights (model.safetensors)", inner, "give a whole model folder")
    if not has_tokenizer(inner):
        raise InputError("no tokenizer (tokenizer.json)", inner, "save the model's tokenizer beside it")
    return inner


def has_tokenizer(folder: Path) -> bool:
    """Whether the files of a tokenizer lie in the folder itself."""
    return any((folder / name).is_file() for name in _TOKENIZER_FILES)


def require_folder(folder: Path) -> None:
    """InputError unless `folder` is one."""
    if not folder.is_dir():
        raise InputError("no such model folder", folder, "nothing is downloaded: fetch the model first and give its folder")
    if (folder / "retriever").is_dir() and (folder / "reranker").is_dir() and not (folder / "config.json").is_file():
        raise InputError("holds two models", folder, "give the retriever/ or the reranker/ in it")


def first_line(error: Exception) -> str:
    """What another library's error says, short enough for an InputError."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"


def read_json(path: Path) -> Any:
    """The JSON value in a file; InputError where there is no such file or value."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("no such file", path, "the folder is not whole: fetch or make it again") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise InputError("not readable as JSON", path, "the folder is damaged: fetch or make it again") from None


def write_json(path: Path, value: object) -> None:
    """Write a JSON file, the same bytes for the same value."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_own_config(folder: Path, config: EncoderConfig) -> None:
    """Write raydense.json."""
    write_json(folder / OWN_FILE, asdict(config))


def write_sentence_transformers_config(folder: Path, config: EncoderConfig, dimension: int) -> None:
    """Write the files by which sentence-transformers, old or new, computes the same vectors.

    It knows one length for both sides: the longer one is written.
    """
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")] + ([("2_Normalize", "Normalize")] if config.normalize else [])
    write_json(
        folder / "modules.json",
        [{"idx": i, "name": str(i), "path": p, "type": f"sentence_transformers.models.{t}"} for i, (p, t) in enumerate(modules)],
    )
    write_json(
        folder / "1_Pooling" / "config.json",
        {
            "word_embedding_dimension": dimension,
            "pooling_mode_cls_token": config.pooling == "cls",
            "pooling_mode_mean_tokens": config.pooling == "mean",
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
        },
    )
    if config.normalize:
        write_json(folder / "2_Normalize" / "config.json", {})
    longest = max(config.query_length, config.passage_length)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": longest, "do_lower_case": False})
    write_json(
        folder / "config_sentence_transformers.json",
        {
            "model_type": "SentenceTransformer",
            "prompts": {"query": config.query_prefix, "document": config.passage_prefix},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine" if config.normalize else "dot",
        },
    )


def _own_config(folder: Path) -> EncoderConfig:
    known = {f.name for f in fields(EncoderConfig)}
    values = read_json(folder / OWN_FILE)
    if set(values) != known:
        if read_json(weights_folder(folder) / "config.json").get("is_encoder_decoder"):
            raise InputError("is a generator, not an encoder", folder, "give a retriever's folder, or any encoder")
        raise InputError("is not what this raydense writes for an encoder", folder / OWN_FILE, "give a retriever's folder")
    return EncoderConfig(**values)


def _sentence_transformers_config(folder: Path, limit: int) -> EncoderConfig:
    modules = _modules(folder)
    kinds = [str(m["type"]).rsplit(".", 1)[-1] for m in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        fix = "a Transformer, a Pooling and perhaps a Normalize are what can be read"
        raise InputError(f"is made of {', '.join(kinds)}", folder / "modules.json", fix)
    inner = folder / str(modules[0]["path"])
    text = _said(inner / "sentence_bert_config.json")
    if text.get("do_lower_case") and not _said(inner / "tokenizer_config.json").get("do_lower_case"):
        raise InputError("lower-cases outside its tokenizer", inner / "sentence_bert_config.json", "let the tokenizer do it: do_lower_case")
    length = min(text.get("max_seq_length") or limit, limit)
    query_prefix, passage_prefix = _prompts(folder)
    return EncoderConfig(
        pooling=_pooling(folder / str(modules[1]["path"]) / "config.json", bool(query_prefix or passage_prefix)),
        normalize=len(kinds) == 3,
        query_prefix=query_prefix,
        passage_prefix=passage_prefix,
        query_length=length,
        passage_length=length,
    )


def _modules(folder: Path) -> list[dict[str, Any]]:
    modules = read_json(folder / "modules.json")
    if not isinstance(modules, list) or not modules or not all(isinstance(m, dict) and {"type", "path"} <= m.keys() for m in modules):
        raise InputError("names no modules", folder / "modules.json", "the folder is damaged: fetch or make it again")
    if not all(m["path"] == "" or safe_name(m["path"]) for m in modules):
        raise InputError("names a folder outside its own", folder / "modules.json", "do not use it: no tool makes it so")
    return modules


def _pooling(path: Path, prompted: bool) -> Literal["cls", "mean"]:
    values = read_json(path)
    modes = values.get("pooling_mode") or [
        name.removeprefix("pooling_mode_").removesuffix("_token").removesuffix("_tokens")
        for name, on in values.items()
        if name.startswith("pooling_mode_") and on is True
    ]
    mode = modes if isinstance(modes, str) else "+".join(modes) or "mean"
    if mode not in ("cls", "mean"):
        raise InputError(f"pooling {mode}", path, "cls and mean are what can be read")
    if prompted and not values.get("include_prompt", True):
        raise InputError("leaves the prompt out of the pooling", path, "that cannot be read: use a model that pools over it")
    return "cls" if mode == "cls" else "mean"


def _prompts(folder: Path) -> tuple[str, str]:
    """The prompts that encode_query and encode_document of sentence-transformers put before a text."""
    said = _said(folder / "config_sentence_transformers.json")
    prompts = said.get("prompts") or {}
    default = prompts.get(said.get("default_prompt_name")) or ""
    passage = next((prompts[name] for name in ("document", "passage", "corpus") if name in prompts), default)
    return prompts.get("query", default) or "", passage or ""


def _said(path: Path) -> dict[str, Any]:
    """What a file that a folder may lack says."""
    return read_json(path) if path.is_file() else {}


def _an_encoder_of(folder: Path) -> Path:
    return weights_folder(encoder_folders(folder)[1])


def positions(inner: Path) -> int:
    """The most tokens that the model and its tokenizer allow; in a folder of ours the model alone, as the tokenizer is told our lengths."""
    config = read_json(inner / "config.json")
    positions = config.get("max_position_embeddings") or 0
    if config.get("model_type") in _OFFSET_POSITIONS:
        padding = config.get("pad_token_id")
        positions -= (1 if padding is None else int(padding)) + 1
    ours = (inner / OWN_FILE).is_file() or (inner.parent / OWN_FILE).is_file()
    said = 0 if ours else _said(inner / "tokenizer_config.json").get("model_max_length") or 0
    limits = [int(n) for n in (positions, said) if 0 < n < 1_000_000]
    return min(limits, default=512)
