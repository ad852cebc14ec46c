"""castwise's policies and loss scales under the names that other libraries give them.

`keras` is Keras 3, `tf_keras` TF 2 and its 2.4 experimental API, `jmp` DeepMind's jmp, `torch` the
gradient scaler of torch. The page `divergences.md` lists where castwise differs.
"""

import importlib
from typing import Any

__all__ = ["jmp", "keras", "tf_keras", "torch"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
