"""Quantize built layers as a policy says."""

from __future__ import annotations

from collections.abc import Sequence

from castwise.adapters.keras._plan import LayerPlan, can_be_quantized, policy_in_force
from castwise.environment.frameworks import require

NO_SUPPORT = "no quantize support"
ALREADY_QUANTIZED = "already quantized"
"""Why a layer was not quantized, in the words of Keras 3.16's `QuantizationReport`."""


def quantize_layers(
    plans: Sequence[LayerPlan],
) -> tuple[tuple[tuple[str, str, str], ...], tuple[tuple[str, str], ...]]:
    """Quantize layers; return those that were, and those that were not with the reason.

    As in Keras' report, models are in neither: they are what their layers are.
    """
    quantized, skipped = [], []
    model = require("keras").Model
    for plan in plans:
        if isinstance(plan.layer, model):
            continue
        if plan.is_quantized:
            skipped.append((plan.path, ALREADY_QUANTIZED))
        elif plan.quantize is not None and not _quantize(plan):
            skipped.append((plan.path, NO_SUPPORT))
        elif plan.quantize is not None:
            name = policy_in_force(plan.layer).name
            quantized.append((plan.path, plan.layer.quantization_mode, name))
    return tuple(quantized), tuple(skipped)


def _quantize(plan: LayerPlan) -> bool:
    """Quantize a layer; return False if its class does not support that.

    Keras sets the policy of the layer: since 3.15 an ``int4`` without a block size is "int4/128".
    """
    layer, policy = plan.layer, plan.quantize
    if not can_be_quantized(layer):
        return False
    try:
        if policy.quantization_mode == "float8":
            layer.dtype_policy = policy  # as Keras: the setter quantizes, with the policy's history
        elif hasattr(policy, "block_size"):
            config = require("keras").quantizers.Int4QuantizationConfig
            layer.quantize(config=config(block_size=policy.block_size))
        else:
            layer.quantize(policy.quantization_mode)
    except NotImplementedError:  # a subclass of a class that can be quantized
        layer._dtype_policy = plan.policy
        return False
    return True
