"""Quantize built layers as a policy says."""

from __future__ import annotations

from castwise._frameworks import require
from castwise.adapters.keras._plan import LayerPlan, can_be_quantized


def quantized(plan: LayerPlan) -> bool:
    """Quantize a layer; return False if it has weights that its class cannot quantize.

    Keras sets the policy of the layer: since 3.15 an ``int4`` without a block size is "int4/128".
    """
    layer, policy = plan.layer, plan.quantize
    if not can_be_quantized(layer):
        return bool(layer._layers) or not layer.weights
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
