"""TF 2.4's loss scales: objects that change, around the preset "tf" of castwise's.

>>> scale = DynamicLossScale(4, increment_period=2)
>>> scale.update([np.ones(3, np.float32)]), scale.update([None])
((None, True), (None, True))
>>> scale
DynamicLossScale(current_loss_scale=8.0, num_good_steps=0, initial_loss_scale=4.0, increment_period=2, multiplier=2.0)
"""  # noqa: E501 - the example's output is one line

from castwise.loss_scale.tf_keras._loss_scales import (
    DynamicLossScale,
    FixedLossScale,
    LossScale,
    deserialize,
    get,
    serialize,
)

__all__ = ["DynamicLossScale", "FixedLossScale", "LossScale", "deserialize", "get", "serialize"]
