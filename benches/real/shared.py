"""The modules of `benches` that folders in it share, taken without that folder staying on the path.

Its accelerate.py is not the package that transformers looks for.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

_FOLDER = str(Path(__file__).resolve().parents[1])


def bench_module(name: str) -> Any:
    """Import a module of `benches`, and those that it imports."""
    sys.path.append(_FOLDER)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(_FOLDER)


command, files = (bench_module(name) for name in ("command", "files"))
