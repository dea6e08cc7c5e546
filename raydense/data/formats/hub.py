"""Hub: a trained model as a folder to upload to the Hugging Face Hub: weights, tokenizer, configuration, and the card with its metadata.

raydense, sentence-transformers and transformers load it as they load the artifact. Manifest, history and logs stay behind.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from raydense.data.formats.data_card import front_matter
from raydense.data.formats.outlet import Outlet
from raydense.errors import InputError
from raydense.storage import Artifact, fingerprint_of

_CARD = "README.md"
_KEPT = {".safetensors", ".json", ".txt", ".model"}  # what a model of the Hub is loaded from


def write(outlet: Outlet) -> None:
    """Write the folder of a model; InputError if its files were changed since raydense made it, or the report has several runs."""
    if "model" not in outlet.given or set(outlet.given) - {"model", "report"}:
        raise InputError(
            f"format hub does not write {' with '.join(outlet.given) or 'nothing'}", "export", "give model, and perhaps report"
        )
    model = Artifact.open(str(outlet.settings.model), "model")
    fingerprint_of(model)
    report = Artifact.open(outlet.settings.report, "report") if outlet.settings.report else None
    measured = _measured(report) if report else {}
    outlet.path.mkdir()
    for file in model.files:
        path = PurePosixPath(file.path)
        if path.suffix in _KEPT or (path.name == _CARD and path.parent.name):  # the card of a part
            target = outlet.path / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(model.file(file.path), target)
    name = Path(str(outlet.settings.output)).name
    card = model.file(_CARD) if any(file.path == _CARD for file in model.files) else None
    head = (front_matter(card) if card else {}) | _metadata(outlet, model) | _model_index(name, report, measured)
    body = _body(card) if card else f"# {name}\n"
    text = "\n\n".join([body.strip(), *_tables(model, report, measured)])
    content = f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---\n\n{text}\n"
    (outlet.path / _CARD).write_text(content, encoding="utf-8", newline="\n")


def _measured(report: Artifact) -> dict[str, float]:
    """The metrics of a report of one run."""
    result = report.summary["result"]
    if "metrics" not in result:
        what = f"has the runs {', '.join(result['runs'])}"
        raise InputError(what, report.place, "evaluate the run of this model alone, and give that report")
    found: dict[str, float] = result["metrics"]
    return found


def _metadata(outlet: Outlet, model: Artifact) -> dict[str, Any]:
    """Licence, the model on the Hub that the training started from, and the data sets of the Hub that were named."""
    start = model.manifest["made_from"].get("commits", {}).get("model", "")
    found: dict[str, Any] = {"license": outlet.settings.license}
    if outlet.settings.language:
        found["language"] = outlet.settings.language
    if base := re.fullmatch(r"hf://([^@]+)@.+", start):
        found["base_model"] = base[1]
    if outlet.settings.trained_on:
        found["datasets"] = outlet.settings.trained_on
    return found


def _model_index(name: str, report: Artifact | None, measured: dict[str, float]) -> dict[str, Any]:
    """The metrics as the Hub shows them; the data set is named by the report's title."""
    if report is None:
        return {}
    title = report.manifest["made_from"]["settings"]["title"]
    metrics = [{"type": metric.lower().replace("@", "_at_"), "value": value, "name": metric} for metric, value in measured.items()]
    result = {
        "task": {"type": "information-retrieval", "name": "Information Retrieval"},
        "dataset": {"type": re.sub(r"[^\w.-]+", "-", title.lower()).strip("-") or "unknown", "name": title},
        "metrics": metrics,
    }
    return {"model-index": [{"name": name, "results": [result]}]}


def _body(card: Path) -> str:
    return re.sub(r"\A---\n.*?\n---\n", "", card.read_text("utf-8"), flags=re.DOTALL)


def _tables(model: Artifact, report: Artifact | None, measured: dict[str, float]) -> list[str]:
    """What the card of the artifact lacks: the inputs by their names, what the report measured, and the fingerprint."""
    parts = []
    if named := model.summary.get("inputs"):
        parts.append("## Its inputs by name\n\n| input | given as |\n|---|---|\n" + "\n".join(f"| {k} | `{v}` |" for k, v in named.items()))
    if report is not None:
        title, rows = report.manifest["made_from"]["settings"]["title"], "\n".join(f"| {k} | {v:.4f} |" for k, v in measured.items())
        parts.append(f"## Measured\n\n{title}, {report.rows:,} queries:\n\n| metric | value |\n|---|---|\n{rows}")
    versions = ", ".join(f"{package} {version}" for package, version in model.manifest.get("versions", {}).items())
    return [*parts, f"Exported from the model with the fingerprint `{model.fingerprint}`, made by {versions}."]
