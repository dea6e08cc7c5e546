"""The code of a method outside raydense: what it trains depends on it, as on an input."""

from __future__ import annotations

import inspect
import sys
from contextlib import suppress
from typing import Any

from raydense.storage import digest_of


def code_of(method: type[Any]) -> str:
    """A digest of the source of a method's module, and of those of its bases, without raydense's own; "" where nothing is left.

    Nor is the code of a script or notebook that is run: most of it is other than the method.
    """
    names = dict.fromkeys(cls.__module__ for cls in method.__mro__ if hasattr(cls, "Settings"))
    sources = []
    for name in names:
        if name.partition(".")[0] not in ("raydense", "__main__"):
            with suppress(OSError, TypeError):  # a module without source
                sources.append(inspect.getsource(sys.modules[name]))
    return digest_of(sources) if sources else ""
