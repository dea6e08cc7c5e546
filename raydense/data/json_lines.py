"""Writes files of JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def write_json_lines(path: Path, objects: Iterable[dict[str, Any]]) -> None:
    """One JSON object a line, UTF-8 as it is."""
    with open(path, "w", encoding="utf-8", newline="\n") as stream:
        stream.writelines(json.dumps(value, ensure_ascii=False) + "\n" for value in objects)
