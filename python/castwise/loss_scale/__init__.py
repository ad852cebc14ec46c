"""Loss scaling for float16 and float8 training: scales as values, and one pass over gradients."""

from castwise._core import DynamicLossScale, FixedLossScale
from castwise.loss_scale.scaler import LossScaleEvent, LossScaler, get
from castwise.loss_scale.unscaling import all_finite, select_tree, unscale

__all__ = [
    "DynamicLossScale",
    "FixedLossScale",
    "LossScaleEvent",
    "LossScaler",
    "all_finite",
    "get",
    "select_tree",
    "unscale",
]
