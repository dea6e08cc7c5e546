"""The nodes that have GPUs of one kind: Ray marks each node with the name of its kind."""

from __future__ import annotations

from typing import Any

from raydense.errors import InputError

_MARK = "accelerator_type:"  # of a resource of a node


def nodes_of(kind: str, nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The living `nodes`, as Ray lists them, with GPUs of this kind; all that live if `kind` is empty."""
    return [node for node in nodes if node["Alive"] and (not kind or _MARK + kind in node["Resources"])]


def no_such_kind(kind: str, nodes: list[dict[str, Any]]) -> InputError:
    """The error where no node has GPUs of this kind."""
    kinds = sorted({name.removeprefix(_MARK) for node in nodes_of("", nodes) for name in node["Resources"] if name.startswith(_MARK)})
    fix = f"give one of {', '.join(kinds)}" if kinds else "leave it out: no node names its kind"
    return InputError(f"no node has a GPU that Ray names {kind}", "accelerator", fix)
