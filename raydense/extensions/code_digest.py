"""The code of users, as of a training method: what comes out depends on it, as on an input."""

from __future__ import annotations

import inspect
import sys
from contextlib import suppress
from typing import Any

from raydense.storage import digest_of

_OTHERS = {"raydense", "__main__", "torch", "pydantic", *sys.stdlib_module_names}


def code_of(method: Any) -> str:
    """A digest of the source of the module of a class or function, and of those of its bases, without raydense's own; "" where nothing is left.

    Nor is the code of a script or notebook that is run: most of it is other than the method.
    """
    sources = []
    for name in dict.fromkeys(cls.__module__ for cls in getattr(method, "__mro__", [method])):
        if name.partition(".")[0] not in _OTHERS:
            with suppress(OSError, TypeError, KeyError):  # a module without source
                sources.append(inspect.getsource(sys.modules[name]))
    return digest_of(sources) if sources else ""
