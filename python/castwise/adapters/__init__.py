"""castwise inside Keras, PyTorch, JAX and TF 2. Each adapter is imported when it is first used."""

import importlib
from typing import Any

__all__ = ["check", "jax", "keras", "protocol", "registry", "tf_keras", "torch"]


def __getattr__(name: str) -> Any:
    if name == "check":
        return importlib.import_module(f"{__name__}._check").check
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
