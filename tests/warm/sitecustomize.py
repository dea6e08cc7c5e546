"""Python runs this at the start of every process that a test starts: a Ray that the process starts has its workers forked, too (forked_worker.py)."""

import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

_NAMES = "ray._private.ray_constants"


class _Patched(MetaPathFinder):
    """Finds Ray's module of constants, and changes one after the import: the file that a worker is started by."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != _NAMES or not (spec := PathFinder.find_spec(name, path)) or not spec.loader:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            module.SETUP_WORKER_FILENAME = str(Path(__file__).with_name("forked_worker.py"))

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if "RAYDENSE_TEST_WARM_WORKERS" in os.environ:
    sys.meta_path.insert(0, _Patched())
