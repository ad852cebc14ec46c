"""The tensors of quantised attention and its caches, which belong to no payload."""

from __future__ import annotations

import re

_OF_CACHES = re.compile(
    r"""(?:.*[./])?(?:
    (?:k|v|kv)_(?:cache_)?(?:scale|zero_point|global_scale)
    | kv_cache_scaling_factor
    | [kv]_proj[./](?:output_(?:scale|zero_point)|[kv]_bias)
    | (?:k|v|kv)_fake_quantizer[./]qscale_act
    | [kv]_bmm_quantizer[./]_(?:amax|bias_value)
    )""",
    re.VERBOSE | re.DOTALL,
)
"""As vLLM reads them of compressed-tensors, Quark, AutoFP8, ModelOpt and Mistral; of ModelOpt also
what it adds to the values, and its names before export."""

_OF_ATTENTION = re.compile(
    r"""(?:.*[./])?(?:
    q_(?:scale|zero_point|global_scale)
    | prob(?:_output)?_scale
    | q_proj[./]output_(?:scale|zero_point)
    | q_fake_quantizer[./]qscale_act
    | q_bmm_quantizer[./]_(?:amax|bias_value)
    )""",
    re.VERBOSE | re.DOTALL,
)


def scale_of_attention(name: str) -> str | None:
    """Say whose scale a tensor is, by its name in a quantised model; None if it is another."""
    if _OF_CACHES.fullmatch(name):
        return "scales of caches"
    return "scales of attention" if _OF_ATTENTION.fullmatch(name) else None
