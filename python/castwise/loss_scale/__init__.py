"""Loss scaling for float16 and float8 training: scales as values, and one pass over gradients."""

from castwise._core import DynamicLossScale, FixedLossScale
from castwise.loss_scale.scaler import LossScaleEvent, LossScaler, get

__all__ = [
    "DynamicLossScale",
    "FixedLossScale",
    "LossScaleEvent",
    "LossScaler",
    "get",
]
