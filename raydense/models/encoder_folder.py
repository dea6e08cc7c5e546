"""The files of a model folder: finds and checks them, and reads and writes its JSON. Weights are not read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from raydense.errors import InputError
from raydense.storage import safe_name

OWN_FILE, MODULES = "raydense.json", "modules.json"
PROMPTS = "config_sentence_transformers.json"  # and the similarity, of sentence-transformers
QUERY_ENCODER, PASSAGE_ENCODER = "query_encoder", "passage_encoder"
_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "sentencepiece.bpe.model", "spiece.model", "spm.model")
# Old versions of sentence-transformers name the file with a transformer's length by its family; it still takes the first of these.
_FAMILIES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
DAMAGED = "the folder is damaged: fetch or make it again"


def encoder_folders(folder: Path) -> tuple[Path, Path]:
    """The folders of the query and of the passage encoder; the same folder twice if there is one encoder."""
    if (folder / PASSAGE_ENCODER).is_dir() and not (folder / "config.json").is_file():
        return folder / QUERY_ENCODER, folder / PASSAGE_ENCODER
    return folder, folder


def weights_folder(folder: Path) -> Path:
    """The folder with the Hugging Face files of a single encoder: this one, or the one that modules.json names.

    InputError if it lacks a config, safetensors weights or a tokenizer.
    """
    require_folder(folder)
    inner = folder
    if (folder / MODULES).is_file() and not (folder / "config.json").is_file():
        first = module_entries(folder)[0]
        inner = folder / str(first.get("path", ""))
    if (inner / "adapter_config.json").is_file() and not (inner / "model.safetensors").is_file():
        raise InputError("holds an adapter without its base model", inner, "merge it into its base with peft, and save the whole model")
    if not (inner / "config.json").is_file():
        raise InputError("no config.json", inner, "give a model folder of Hugging Face or sentence-transformers")
    if not ((inner / "model.safetensors").is_file() or (inner / "model.safetensors.index.json").is_file()):
        if any(inner.glob("*.bin")):
            fix = "load it with transformers where you trust it, and save_pretrained it: that writes safetensors"
            raise InputError("its weights are a pickle, which can run code when read", inner, fix)
        raise InputError("no weights (model.safetensors)", inner, "give a whole model folder")
    if not has_tokenizer(inner):
        raise InputError("no tokenizer (tokenizer.json)", inner, "save the model's tokenizer next to it")
    return inner


def is_reranker(folder: Path) -> bool:
    """Whether the folder's config names a model with a head that scores; False where there is no such folder."""
    named = optional_json(folder / "config.json").get("architectures") or []
    return any(str(name).endswith("ForSequenceClassification") for name in named)


def has_tokenizer(folder: Path) -> bool:
    """Whether the folder itself contains the files of a tokenizer."""
    return any((folder / name).is_file() for name in _TOKENIZER_FILES)


def require_folder(folder: Path) -> None:
    """InputError unless `folder` is one."""
    if not folder.is_dir():
        raise InputError("no such model folder", folder, "give its folder, or hf://owner/name for a model of the Hugging Face Hub")
    if (folder / "retriever").is_dir() and (folder / "reranker").is_dir() and not (folder / "config.json").is_file():
        raise InputError("holds two models", folder, "give the retriever/ or the reranker/ in it")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; InputError if the file is missing, or has something else."""
    found = _json(path)
    if not isinstance(found, dict):
        raise InputError("holds no JSON object", path, DAMAGED)
    return found


def refuse_types(values: dict[str, Any], types: dict[str, type], where: object) -> None:
    """InputError unless each value that has one of these names is of its type."""
    for name, kind in types.items():
        if name in values and type(values[name]) is not kind:
            raise InputError(f"{name} is {values[name]!r}, and no {kind.__name__}", where, DAMAGED)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("no such file", path, "the folder is not whole: fetch or make it again") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise InputError("not readable as JSON", path, DAMAGED) from None


def write_json(path: Path, value: object) -> None:
    """Write a JSON file, the same bytes for the same value."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def module_entries(folder: Path) -> list[dict[str, Any]]:
    """The entries of modules.json; InputError if it has none, or names a folder outside its own."""
    modules = _json(folder / MODULES)
    if not isinstance(modules, list) or not modules or not all(isinstance(m, dict) and {"type", "path"} <= m.keys() for m in modules):
        raise InputError("names no modules", folder / MODULES, DAMAGED)
    for entry in modules:
        refuse_types(entry, {"type": str, "path": str}, folder / MODULES)
    if not all(m["path"] == "" or safe_name(m["path"]) for m in modules):
        raise InputError("names a folder outside its own", folder / MODULES, "do not use it: no tool writes that")
    return modules


def optional_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if the folder does not have the file."""
    return read_json(path) if path.is_file() else {}


def prompts_of(folder: Path) -> dict[str, Any]:
    """What a folder says of prompts, similarity and dimension, without what is null; a prompt that is null is empty."""
    file = folder / PROMPTS
    found = without_null(optional_json(file))
    refuse_types(found, {"prompts": dict, "truncate_dim": int, "default_prompt_name": str}, file)
    prompts = {name: "" if prompt is None else prompt for name, prompt in found.get("prompts", {}).items()}
    refuse_types(prompts, dict.fromkeys(prompts, str), file)
    return {**found, "prompts": prompts}


def lengths_of(file: Path) -> dict[str, Any]:
    """What the file of `sentence_config` says, without what is null; empty if there is none."""
    found = without_null(optional_json(file))
    refuse_types(found, dict.fromkeys(("max_seq_length", "query_length", "document_length"), int), file)
    return found


def without_null(values: dict[str, Any]) -> dict[str, Any]:
    """The values that are not null."""
    return {name: value for name, value in values.items() if value is not None}


def sentence_config(inner: Path) -> Path:
    """The file with the length of a transformer in a folder of sentence-transformers, whichever version wrote it; its name of today where there is none."""
    files = [inner / f"sentence_{family}_config.json" for family in _FAMILIES]
    return next((file for file in files if file.is_file()), files[0])
