"""The settings that shape each output at their defaults, as shaping.json has them: outputs of earlier versions are valid as long as these stay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raydense.recipes.stage import VERBS
from raydense.settings import Settings
from raydense.training.registry import built_in

SHAPING = Path(__file__).with_name("shaping.json")
CHOSEN = {"train": "objective", "pretrain": "method"}


def all_settings() -> dict[str, type[Settings]]:
    """The settings of every verb, and of every training method."""
    found = {verb: of.settings for verb, of in VERBS.items()}
    for verb, key in CHOSEN.items():
        found |= {f"{verb} {name}": VERBS[verb].settings.chosen({key: name}, "") for name in built_in(verb)}
    return found


def shaping(of: type[Settings]) -> list[str]:
    fields = of.all_fields().items()
    return sorted(
        of.recorded.get(key, key)
        for key, field in fields
        if key != "output" and key not in of.newer and not isinstance(field.json_schema_extra, dict)
    )


@pytest.mark.parametrize("name", all_settings())
def test_a_new_setting_is_named_newer(name: str) -> None:
    """Without it all outputs that were made before would be refused as made from something else. A new verb or method is added to the file:

    `python tests/unit/test_settings_shaping.py`
    """
    recorded = json.loads(SHAPING.read_text())
    assert name in recorded, "a new verb or method: write shaping.json anew"
    known = recorded[name].split()
    groups = {key.partition(".")[0] for key in known}
    absent = {group for group, field in all_settings()[name].model_fields.items() if group not in groups and field.default is None}
    found = [key for key in shaping(all_settings()[name]) if "." not in key or key.partition(".")[0] not in absent]  # these have no keys
    assert found == known, "name a new setting in `newer`"


if __name__ == "__main__":
    SHAPING.write_text(json.dumps({name: " ".join(shaping(of)) for name, of in all_settings().items()}, indent=1) + "\n")
