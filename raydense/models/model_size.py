"""The size of a model, for plans, from its config and the header of its weights: no weight is read, and torch is not imported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raydense.errors import InputError
from raydense.forecast import Known, Model
from raydense.models.encoder_folder import MODULES, OWN_FILE, PROMPTS, encoder_folders, module_entries, optional_json, sentence_config
from raydense.storage import is_hub_name, model_place

# `tiny`: 2 layers, 128 wide, a vocabulary of up to 8,192 pieces; the generator has a decoder too, which is counted as its encoder
TINY = Model(0, "about", each=128.0, bytes=6e6, flops=2.0 * 2 * (4 * 128**2 + 2 * 128 * 512), passage_length=128)


def model_of(known: Known, folder: str | None) -> Model | None:
    """The model in a folder, or that a stage before will put there; None where neither is known, as of one on the Hub."""
    if not folder:
        return None
    if folder == "tiny":
        return TINY
    expected = known.of(folder)
    if isinstance(expected, Model):
        return expected
    return None if is_hub_name(folder) else _read(model_place(folder).located)


def check_dimensions(model: Model, check: Callable[[int], None]) -> None:
    """Call `check` with each dimension that a model's vectors may have, until one passes; else the InputError of the first."""
    faults: list[InputError] = []
    for times in (1, 2, 3):  # joined poolings have a multiple of the states' width
        try:
            return check(times * int(model.each))
        except InputError as error:
            faults.append(error)
    raise faults[0]


def _read(folder: str) -> Model | None:
    try:
        return _model(Path(folder)) if Path(folder).is_dir() else None
    except (InputError, KeyError, TypeError, ValueError, OSError):
        return None  # whatever is wrong, the stage that reads it reports it


def _model(folder: Path) -> Model:
    one = encoder_folders(folder)[1]
    modules = [one / str(entry["path"]) for entry in module_entries(one)] if (one / MODULES).is_file() else [one]
    inner, disk = modules[0], float(sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()))
    own, config = optional_json(folder / OWN_FILE), optional_json(inner / "config.json")
    lengths: dict[str, Any] = {key: int(own[key]) for key in ("query_length", "passage_length") if key in own}
    if "pair_length" in own:
        lengths["passage_length"] = int(own["pair_length"])
    if not config.get("model_type"):
        return Model(0, each=float(_static_width(inner / "model.safetensors")), bytes=disk, **lengths)
    dense = [optional_json(module / "config.json") for module in modules[1:]]
    width = next((int(each["out_features"]) for each in reversed(dense) if "out_features" in each), _hidden(config))
    if not own and (longest := optional_json(sentence_config(inner)).get("max_seq_length")):
        lengths = {"query_length": int(longest), "passage_length": int(longest)}
    each = own.get("dimension") or optional_json(folder / PROMPTS).get("truncate_dim") or width
    return Model(0, each=float(each), bytes=disk, flops=_flops(config), **lengths)


def _hidden(config: dict[str, Any]) -> int:
    return int(config.get("hidden_size") or config.get("d_model") or config["dim"])


def _flops(config: dict[str, Any]) -> float:
    """Two for each weight of the layers: the embeddings are looked up, and attention's products are few for short texts."""
    hidden = _hidden(config)
    layers = int(next(config[key] for key in ("num_hidden_layers", "num_layers", "n_layers", "n_layer") if key in config))
    inner = int(config.get("intermediate_size") or config.get("d_ff") or config.get("hidden_dim") or 4 * hidden)
    return 2.0 * layers * (4 * hidden**2 + 2 * hidden * inner)


def _static_width(weights: Path) -> int:
    """The width of a table of vectors, from the header of its safetensors file."""
    with open(weights, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return int(max(entry["shape"] for name, entry in header.items() if name != "__metadata__")[-1])
