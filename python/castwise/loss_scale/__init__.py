"""Loss scaling for float16 and float8 training: scales as values, and one pass over gradients."""

from castwise._core import DelayedScaling, DynamicLossScale, FixedLossScale
from castwise.loss_scale._agreement import agree, merge, pack
from castwise.loss_scale._scaler import LossScaleEvent, LossScaler, get
from castwise.loss_scale._unscaling import all_finite, select_tree, unscale

__all__ = [
    "DelayedScaling",
    "DynamicLossScale",
    "FixedLossScale",
    "LossScaleEvent",
    "LossScaler",
    "agree",
    "all_finite",
    "get",
    "merge",
    "pack",
    "select_tree",
    "unscale",
]


def __dir__() -> list[str]:
    return __all__
