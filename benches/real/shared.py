"""The modules of `benches` that this folder shares, taken without its folder staying on the path.

Its accelerate.py is not the package that transformers looks for.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

_FOLDER = str(Path(__file__).resolve().parents[1])

sys.path.append(_FOLDER)
command, files = (importlib.import_module(name) for name in ("command", "files"))
sys.path.remove(_FOLDER)
