"""Producers whose weights are only recognised, by names that no other tensor has.

Without them a cast would round scales and take codes for numbers where no configuration is.
"""

from __future__ import annotations

from castwise.quantization.producers.layouts import (
    OF_COUNTS,
    OF_FP8,
    OF_I8,
    OF_I16,
    OF_REAL,
    OF_U8,
    OF_WORD,
    OTHER,
    SCALE,
    ZERO,
    Layout,
    Part,
)
from castwise.quantization.producers.producer import Producer

_BYTES_AND_WORDS = (*OF_I8, *OF_U8, *OF_WORD)

TRANSFORMER_ENGINE = Producer(
    "transformer-engine",
    (
        Layout(
            "fp8_tensor",
            "",
            (*OF_FP8, *OF_U8),
            (Part("/_extra_state", is_required=True),),
            parameters=("weight",),
        ),
    ),
    is_decoded=False,
)

NUNCHAKU = Producer(
    "nunchaku",
    (
        Layout(
            "",
            "qweight",
            _BYTES_AND_WORDS,
            (
                Part(
                    "wscales", SCALE, (*OF_REAL, *OF_FP8, *OF_U8), is_required=True, distinct=True
                ),
                Part("wzeros", ZERO, OF_REAL, distinct=True),
                *(
                    Part(name, OTHER, OF_REAL, distinct=True)
                    for name in ("wtscale", "wcscales", "smooth_factor", "smooth_factor_orig")
                ),
                *(
                    Part(name, OTHER, OF_REAL)
                    for low_rank in ("proj", "lora")
                    for name in (f"{low_rank}_down", f"{low_rank}_up")
                ),
                *(Part(name, OTHER, OF_REAL) for name in ("smooth", "smooth_orig")),
            ),
        ),
    ),
    is_decoded=False,
)
"""As nunchaku's `SVDQW4A4Linear` and `AWQW4A16Linear` name them, and its first files."""

HQQ = Producer(
    "hqq",
    (
        Layout(
            "",
            "W_q",
            _BYTES_AND_WORDS,
            (Part("scale", SCALE, OF_REAL, is_required=True), Part("zero", ZERO, OF_REAL)),
        ),
    ),
    is_decoded=False,
)

QUANTO = Producer(
    "quanto",
    tuple(
        Layout(
            "",
            payload,
            (*OF_FP8, *OF_I8, *OF_U8),
            (
                Part("._scale", SCALE, OF_REAL, is_required=True, distinct=True),
                Part("._shift", ZERO, distinct=True),
            ),
        )
        for payload in ("._data", "._data._data")
    ),
    is_decoded=False,
)

EXL3 = Producer(
    "exl3",
    (
        Layout(
            "",
            "trellis",
            OF_I16,
            (
                Part("svh", SCALE, OF_REAL, is_required=True, distinct=True),
                Part("suh", SCALE, OF_REAL, distinct=True),
                Part("mcg"),
                Part("mul1"),
            ),
        ),
    ),
    is_decoded=False,
)

EXL2 = Producer(
    "exl2",
    (
        Layout(
            "",
            "q_weight",
            OF_WORD,
            (
                Part("q_scale", SCALE, OF_WORD, is_required=True, distinct=True),
                Part("q_scale_max", SCALE, OF_REAL, is_required=True, distinct=True),
                *(Part(name, distinct=True) for name in ("q_groups", "q_invperm", "q_perm")),
            ),
        ),
    ),
    is_decoded=False,
)

AQLM = Producer(
    "aqlm",
    (
        Layout(
            "",
            "codes",
            (*OF_I8, *OF_I16),
            (
                Part("codebooks", OTHER, OF_REAL, is_required=True, distinct=True),
                Part("scales", SCALE, OF_REAL, is_required=True),
            ),
        ),
    ),
    is_decoded=False,
)

QUIP = Producer(
    "quip",
    (
        Layout(
            "",
            "Qidxs",
            (*OF_I16, *OF_COUNTS),
            (
                Part("SU", SCALE, OF_REAL, is_required=True, distinct=True),
                *(Part(name, SCALE, OF_REAL, distinct=True) for name in ("SV", "Wscale")),
                Part("codebook_id"),
            ),
        ),
    ),
    is_decoded=False,
)
"""QuIP#, as its `QuantizedLinear` names them."""

UNREAD = (TRANSFORMER_ENGINE, NUNCHAKU, HQQ, QUANTO, EXL3, EXL2, AQLM, QUIP)
