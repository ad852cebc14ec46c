"""`tf.keras.mixed_precision.experimental` of TF 2.4: policies that carry a loss scale.

>>> policy = Policy("mixed_float16")
>>> policy.loss_scale
DynamicLossScale(current_loss_scale=32768.0, num_good_steps=0, initial_loss_scale=32768.0, increment_period=2000, multiplier=2.0)
"""  # noqa: E501 - the example's output is one line

from __future__ import annotations

import logging
from typing import Any

from castwise._core import mixed_compute_dtype
from castwise.autocast import get_layer_policy
from castwise.compat.tf_keras.mixed_precision.loss_scale import (
    DynamicLossScale,
    FixedLossScale,
    LossScale,
)
from castwise.compat.tf_keras.mixed_precision.loss_scale import get as get_loss_scale
from castwise.compat.tf_keras.mixed_precision.loss_scale import serialize as serialize_loss_scale
from castwise.dtype_policies._keras_objects import checked_arguments
from castwise.dtype_policies._tf_policy import Policy as PlainPolicy
from castwise.dtype_policies._tf_policy import global_policy, set_global_policy
from castwise.text.wording import rename_arguments

__all__ = [
    "DynamicLossScale",
    "FixedLossScale",
    "LossScale",
    "Policy",
    "get_layer_policy",
    "global_policy",
    "set_policy",
]

_LOGGER = logging.getLogger(__name__)

AUTOMATIC = "auto"  # the argument for the loss scale that the policy's name implies

set_policy = set_global_policy


def __dir__() -> list[str]:
    return __all__


class PolicyV1(PlainPolicy):
    """A policy with a loss scale for training.

    Parameters
    ----------
    name : str
        As for `castwise.compat.tf_keras.mixed_precision.Policy`.
    loss_scale : "auto", "dynamic", int, float, dict, LossScale or None
        "auto" is a `DynamicLossScale` for "mixed_float16", else None. A number of 1 or more is a
        `FixedLossScale`, a dict the config of one.

    Raises
    ------
    ValueError
        There is no such policy or loss scale.
    TypeError
        `name` is not a str.

    Examples
    --------
    >>> Policy("float16", loss_scale=8)
    <PolicyV1 "float16", loss_scale=FixedLossScale(8.0)>
    >>> Policy("float32").get_config()
    {'name': 'float32'}

    """

    config_class = "PolicyV1"

    def __init__(self, name: str, loss_scale: Any = AUTOMATIC) -> None:
        super().__init__(name)
        self._automatic = isinstance(loss_scale, str) and loss_scale == AUTOMATIC
        if self._automatic:
            compute_dtype_of_name = mixed_compute_dtype(name, "tf")
            loss_scale = "dynamic" if compute_dtype_of_name == "float16" else None
        with rename_arguments(identifier="loss_scale"):
            self._loss_scale = get_loss_scale(loss_scale)
        # Only float16 needs one: other dtypes have float32's range, or are open.
        if self._loss_scale is not None and self.compute_dtype not in (None, "float16"):
            _LOGGER.warning(
                "policy %r computes in %s, for which a loss scale does nothing",
                name,
                self.compute_dtype,
            )

    @property
    def loss_scale(self) -> LossScale | None:
        """The loss scale, or None."""
        return self._loss_scale

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of this policy, without the loss scale if that is automatic."""
        config = super().get_config()
        if not self._automatic:
            config["loss_scale"] = serialize_loss_scale(self._loss_scale)
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> PolicyV1:
        """Make the policy of a config, with its loss scale."""
        if not isinstance(config, dict):
            raise TypeError(f"config={config!r} must be a dict with 'name'")
        arguments = dict(config)
        if isinstance(arguments.get("loss_scale"), dict):
            arguments["loss_scale"] = get_loss_scale(arguments["loss_scale"], custom_objects)
        return cls(**checked_arguments(cls, arguments))

    def __repr__(self) -> str:
        return f'<PolicyV1 "{self.name}", loss_scale={self._loss_scale!r}>'

    def __eq__(self, other: object) -> bool:
        equal = super().__eq__(other)
        if equal is not True or not isinstance(other, PolicyV1):
            return equal
        return self.get_config() == other.get_config()

    def __hash__(self) -> int:
        return super().__hash__()


Policy = PolicyV1
