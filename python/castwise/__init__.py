"""Numeric precision for every array of a model: exact casts, and a report of what they lose."""

import importlib
from typing import TYPE_CHECKING, Any

from castwise._core import (
    CastReport,
    FormatInfo,
    __version__,
    cast,
    caster,
    cpu_level,
    cpu_levels,
    explain_cast,
    finfo,
    formats,
    get_num_threads,
    set_kept_memory,
    set_num_threads,
)
from castwise.arrays import adapter_registry
from castwise.arrays.casting import cast_tree
from castwise.dtype_policies import DTypePolicy, DTypePolicyMap
from castwise.environment.acceleration import accelerate, restore
from castwise.environment.defaults import follow_environment

if TYPE_CHECKING:
    from castwise import (
        adapters,
        autocast,
        checkpoint,
        compat,
        config,
        dtype_policies,
        loss_scale,
        quantization,
        surveys,
    )
    from castwise.arrays.comparison import Comparison, compare
    from castwise.surveys import Survey, survey

# Imported at their first use: not every program needs them.
_ON_DEMAND = {
    **dict.fromkeys(("Comparison", "compare"), "castwise.arrays.comparison"),
    **dict.fromkeys(("Survey", "survey"), "castwise.surveys"),
}
# Functions that people look for here, and the submodules that have them.
_ELSEWHERE = {
    **dict.fromkeys(("dequantize", "quantize"), "quantization"),
    **dict.fromkeys(("advise", "cast_file", "diff", "inspect", "load", "save"), "checkpoint"),
    **dict.fromkeys(("dequantize_file", "quantize_file", "survey_file", "verify"), "checkpoint"),
}

__all__ = [
    "CastReport",
    "Comparison",
    "DTypePolicy",
    "DTypePolicyMap",
    "FormatInfo",
    "Survey",
    "__version__",
    "accelerate",
    "adapters",
    "autocast",
    "cast",
    "cast_tree",
    "caster",
    "checkpoint",
    "compare",
    "compat",
    "config",
    "cpu_level",
    "cpu_levels",
    "dtype_policies",
    "explain_cast",
    "finfo",
    "formats",
    "get_num_threads",
    "loss_scale",
    "quantization",
    "restore",
    "set_kept_memory",
    "set_num_threads",
    "survey",
    "surveys",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401  (of any module)
    if name in _ON_DEMAND:
        value = getattr(importlib.import_module(_ON_DEMAND[name]), name)
        globals()[name] = value  # found without asking from now on
        return value
    if name in __all__:  # a package
        return importlib.import_module(f"castwise.{name}")
    hint = f"; use castwise.{_ELSEWHERE[name]}.{name}" if name in _ELSEWHERE else ""
    raise AttributeError(f"module 'castwise' has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return __all__


adapter_registry.BUILT_IN.update(
    dask="castwise.adapters._dask",
    h5py="castwise.adapters._stored",
    jax="castwise.adapters.jax._casting",
    jaxlib="castwise.adapters.jax._casting",
    tensorflow="castwise.adapters._tensorflow",
    torch="castwise.adapters.torch._casting",
    zarr="castwise.adapters._stored",
)
follow_environment()
