"""How much a process prints: only results and errors (quiet), progress too (normal), or also the logs of Ray and other libraries (verbose).

RAYDENSE_VERBOSITY holds the choice, so that processes started by this one share it.
"""

from __future__ import annotations

import logging
import os

VARIABLE = "RAYDENSE_VERBOSITY"
QUIET, VERBOSE = "quiet", "verbose"


def is_quiet() -> bool:
    """Whether progress is left out."""
    return os.environ.get(VARIABLE) == QUIET


def is_verbose() -> bool:
    """Whether the logs of Ray and other libraries are shown."""
    return os.environ.get(VARIABLE) == VERBOSE


def limit_logs(name: str, level: str = "WARNING") -> None:
    """Unless verbose, leave out what the logger `name` of a library logs below `level`."""
    if not is_verbose():
        logging.getLogger(name).setLevel(level)
