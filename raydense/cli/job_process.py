"""The process of a submitted job: its Python, the variables that it and the workers get, and what it reserves of the node that it runs on."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from raydense.errors import InputError
from raydense.runtime.network import network_env
from raydense.runtime.verbosity import VARIABLE

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD)S?(_|$)", re.IGNORECASE)  # not TOKENIZERS_PARALLELISM
_ELSEWHERE = "set it in the nodes' own environment, as by a secret of Kubernetes (docs/guides/clusters.md)"


@dataclass(frozen=True)
class JobProcess:
    """How a job is started. `reserved` are Ray's `entrypoint_*`: with any of them the job runs on a node that has them, without on the head."""

    python: str = "python"
    env: dict[str, str] = field(default_factory=dict)
    reserved: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def read(python: str, env: Iterable[str], entrypoint_resources: str | None, **reserved: float | None) -> JobProcess:
        """From the flags. InputError where a variable is not set, is a secret or no variable, or resources are no amounts."""
        amounts = {**reserved, "entrypoint_resources": _amounts(entrypoint_resources)}
        return JobProcess(python, dict(map(_variable, env)), {key: value for key, value in amounts.items() if value})

    def environment(self) -> dict[str, str]:
        """The job's variables: the verbosity and those of the network by themselves, and those that were given."""
        verbosity = {key: value for key, value in os.environ.items() if key == VARIABLE}
        return {**verbosity, **network_env(), **self.env}


def _variable(word: str) -> tuple[str, str]:
    """Name and value of `NAME=VALUE`, or of `NAME` as it is set here."""
    name, given, value = word.partition("=")
    where = f"--env {name}"
    if not _NAME.fullmatch(name):
        raise InputError("is no name of a variable", where, "give --env NAME or --env NAME=VALUE")
    if _SECRET.search(name):
        raise InputError("Ray's dashboard shows the variables of a job, so keys and passwords are not sent", where, _ELSEWHERE)
    if not given and name not in os.environ:
        raise InputError("is not set here", where, f"set it, or give --env {name}=VALUE")
    value = value if given else os.environ[name]
    if re.search(r"://[^/]*@", value):
        raise InputError("contains credentials, which Ray's dashboard would show", where, _ELSEWHERE)
    return name, value


def _amounts(text: str | None) -> dict[str, float] | None:
    """Amounts of resources by name, of a JSON object."""
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    right = isinstance(found, dict) and all(type(amount) in (int, float) and 0 <= amount < math.inf for amount in found.values())
    if not right:
        raise InputError("is no JSON object of amounts", f"--entrypoint-resources {text}", """give it as '{"big": 1}'""")
    return found
