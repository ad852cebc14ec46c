"""Producers whose weights are only recognized: the names and shapes of their own releases."""

from __future__ import annotations

from ._headers import Layouts, Model

# As diffusers' SVDQW4A4Linear and AWQW4A16Linear have them, of 128 inputs and outputs.
_SVDQUANT = {
    "a.qweight": ("I8", (128, 64)),
    "a.wscales": ("BF16", (2, 128)),
    "a.smooth_factor": ("BF16", (128,)),
    "a.proj_down": ("BF16", (128, 16)),
    "a.proj_up": ("BF16", (128, 16)),
    "a.bias": ("BF16", (128,)),
}
# As nunchaku's first files have them.
_FIRST = {
    name.replace("proj_", "lora_").replace("smooth_factor", "smooth"): described
    for name, described in _SVDQUANT.items()
} | {"a.smooth_orig": ("BF16", (128,))}
_NVFP4 = {
    **_SVDQUANT,
    "a.wscales": ("F8_E4M3", (8, 128)),
    "a.wcscales": ("BF16", (128,)),
    "a.wtscale": ("BF16", (1,)),
}
_AWQ = {
    "a.qweight": ("I32", (32, 64)),
    "a.wscales": ("BF16", (2, 128)),
    "a.wzeros": ("BF16", (2, 128)),
    "a.bias": ("BF16", (128,)),
}
_HQQ = {"a.W_q": ("U8", (64, 64)), "a.scale": ("F16", (64, 1)), "a.zero": ("F16", (64, 1))}
_QUANTO = {"a.weight._data": ("I8", (64, 64)), "a.weight._scale": ("BF16", (64, 1))}
_QUANTO_4 = {
    "a.weight._data._data": ("U8", (32, 64)),
    "a.weight._scale": ("BF16", (64, 1)),
    "a.weight._shift": ("BF16", (64, 1)),
}
_EXL3 = {
    "a.trellis": ("I16", (8, 8, 64)),
    "a.suh": ("F16", (128,)),
    "a.svh": ("F16", (128,)),
}

_EXL2 = {
    "a.q_weight": ("I32", (64, 128)),
    "a.q_scale": ("I32", (4, 16)),
    "a.q_scale_max": ("F16", (4,)),
    "a.q_groups": ("I16", (8,)),
    "a.q_invperm": ("I16", (128,)),
}
_AQLM = {
    "a.codes": ("I16", (128, 16, 1)),
    "a.codebooks": ("F16", (1, 65536, 1, 8)),
    "a.scales": ("F16", (128, 1, 1, 1)),
}
_QUIP = {
    "a.Qidxs": ("I16", (128, 16)),
    "a.SU": ("F16", (128,)),
    "a.SV": ("F16", (128,)),
    "a.Wscale": ("F32", ()),
    "a.codebook_id": ("I64", ()),
}

LAYOUTS: Layouts = {
    "transformer-engine": (
        Model({"a.weight": ("F8_E4M3", (8, 8)), "a._extra_state": ("U8", (100,))}, {}, {}),
        "fp8_tensor",
        None,
        "transformer-engine",
    ),
    "nunchaku, int4": (Model(_SVDQUANT, {}, {}), None, None, "nunchaku"),
    "nunchaku, first files": (Model(_FIRST, {}, {}), None, None, "nunchaku"),
    "nunchaku, nvfp4": (Model(_NVFP4, {}, {}), None, None, "nunchaku"),
    "nunchaku, awq": (Model(_AWQ, {}, {}), None, None, "nunchaku"),
    "hqq": (Model(_HQQ, {}, {}), None, None, "hqq"),
    "quanto": (Model(_QUANTO, {}, {}), None, None, "quanto"),
    "quanto, 4 bits": (Model(_QUANTO_4, {}, {}), None, None, "quanto"),
    "exl3": (Model(_EXL3, {}, {}), None, None, "exl3"),
    "exl2": (Model(_EXL2, {}, {}), None, None, "exl2"),
    "aqlm": (Model(_AQLM, {}, {}), None, None, "aqlm"),
    "quip": (Model(_QUIP, {}, {}), None, None, "quip"),
}
