"""What the model card of a trained model says of its training: method, inputs, metrics by step, settings.

All of it follows from inputs and settings, so that the same training writes the same bytes: no path, no time, no machine, no version.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from raydense.storage import Place, is_hub_name, model_place, read_manifest
from raydense.training.history import lines_of
from raydense.training.loop_settings import LoopSettings
from raydense.training.method import method_of

_SHOWN = 20  # measurements


def training_section(settings: LoopSettings, made_from: dict[str, Any], result: dict[str, Any], steps: int, history: Path) -> str:
    """The section in Markdown. `result` is what worker 0 reported, `history` the file of all steps."""
    doc = (method_of(settings).__doc__ or "").strip().partition("\n")[0]
    name = getattr(settings, settings.chosen_by)
    parts = [
        "## How it was trained",
        f"By `raydense {settings.verb}`, method `{name}`: {doc}",
        _chosen(result, steps),
        _inputs(settings, made_from),
        _metrics(history, result["by"]),
        f"Settings:\n\n```yaml\n{yaml.safe_dump(_given(made_from['settings']), sort_keys=True, allow_unicode=True)}```",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def shown_inputs(settings: LoopSettings) -> dict[str, str]:
    """The names of the inputs by key: the last part of a path, as neither card nor manifest shows where a user's files lie."""
    given = {key: (settings.value_of(key), kind) for key, kind in settings.inputs().items()}
    return {key: _shown(value, kind) for key, (value, kind) in given.items() if isinstance(value, str)}


def _shown(path: str, kind: str) -> str:
    named = kind == "model" and (path == "tiny" or is_hub_name(path))
    return path if named else Place.of(path).name


def _chosen(result: dict[str, Any], steps: int) -> str:
    if result["best"] is None:
        return f"It made {steps:,} steps; nothing was measured meanwhile."
    measured = f"It made {steps:,} steps. {result['by']} of the dev queries was {result['best']:.4f}"
    if not result["best_step"]:
        return f"{measured} before the first, and never higher: the weights are those that it began with."
    before = "" if result["start"] is None else f", and {result['start']:.4f} before the first"
    return f"{measured} after step {result['best_step']:,}, whose weights these are{before}."


def _inputs(settings: LoopSettings, made_from: dict[str, Any]) -> str:
    lines = ["| trained from | which is | fingerprint |", "|---|---|---|"]
    for key, fingerprint in made_from["inputs"].items():
        if fingerprint == "tiny":
            lines.append(f"| {key} | a small one, with random weights | |")
        else:
            what = made_from.get("commits", {}).get(key) or _made(settings.value_of(key), settings.inputs()[key])
            lines.append(f"| {key} | {what} | `{fingerprint}` |")
    return "\n".join(lines)


def _made(path: str, kind: str) -> str:
    """What an input is, by its manifest."""
    manifest = read_manifest(model_place(path) if kind == "model" else Place.of(path))
    if manifest is None:
        return "a folder of another tool"
    rows = f"{manifest['rows']:,} rows, " if manifest["rows"] else ""
    return f"{rows}made by `{manifest['made_from'].get('stage', 'raydense')}`"


def _metrics(history: Path, by: str) -> str:
    """The measurements by step; where there are many, some of them, evenly from the first to the last: no more are held."""
    total = sum(by in line for line in lines_of(history))
    if not total:
        return ""
    wanted = set(range(total)) if total <= _SHOWN else {round(i * (total - 1) / (_SHOWN - 1)) for i in range(_SHOWN)}
    spread = [line for number, line in enumerate(line for line in lines_of(history) if by in line) if number in wanted]
    names = [name for name in spread[-1] if "@" in name]
    lines = [f"| step | {' | '.join(names)} |", f"|---{'|---' * len(names)}|"]
    lines += [f"| {line['step']:,} | {' | '.join(f'{line[name]:.4f}' for name in names)} |" for line in spread]
    return "On the dev queries:\n\n" + "\n".join(lines)


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    """Without what was left to the model's folder."""
    return {key: value for key, value in settings.items() if value is not None}
