"""Producers whose weights are only recognized, by names that no other tensor has.

Without them a cast would round scales and take codes for numbers where no configuration is.
"""

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
    scale_part,
)
from castwise.quantization.producers.producer import Producer

_ANY = ()  # format
_BYTES_AND_WORDS = (*OF_I8, *OF_U8, *OF_WORD)


def _producer(name: str, formats: tuple[str, ...], *parts: Part, payloads: str) -> Producer:
    """Describe a producer by the parts beside its payloads, whose names stand in one text."""
    layouts = (Layout("", payload, formats, parts) for payload in payloads.split())
    return Producer(name, tuple(layouts), is_decoded=False)


def _distinct(names: str, role: str, formats: tuple[str, ...] = _ANY) -> list[Part]:
    """Describe parts of names that no tensor of another meaning has."""
    return [Part(name, role, formats, distinct=True) for name in names.split()]


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

# As nunchaku's `SVDQW4A4Linear` and `AWQW4A16Linear` name them, and its first files.
NUNCHAKU = _producer(
    "nunchaku",
    _BYTES_AND_WORDS,
    scale_part("wscales", (*OF_REAL, *OF_FP8, *OF_U8), distinct=True),
    *_distinct("wzeros", ZERO, OF_REAL),
    *_distinct("wtscale wcscales smooth_factor smooth_factor_orig", OTHER, OF_REAL),
    *(
        Part(name, formats=OF_REAL)
        for name in ("proj_down", "proj_up", "lora_down", "lora_up", "smooth", "smooth_orig")
    ),
    payloads="qweight",
)

HQQ = _producer(
    "hqq", _BYTES_AND_WORDS, scale_part("scale"), Part("zero", ZERO, OF_REAL), payloads="W_q"
)

QUANTO = _producer(
    "quanto",
    (*OF_FP8, *OF_I8, *OF_U8),
    scale_part("._scale", distinct=True),
    *_distinct("._shift", ZERO),
    payloads="._data ._data._data",
)

EXL3 = _producer(
    "exl3",
    OF_I16,
    scale_part("svh", distinct=True),
    *_distinct("suh", SCALE, OF_REAL),
    Part("mcg"),
    Part("mul1"),
    payloads="trellis",
)

EXL2 = _producer(
    "exl2",
    OF_WORD,
    scale_part("q_scale", OF_WORD, distinct=True),
    scale_part("q_scale_max", distinct=True),
    *_distinct("q_groups q_invperm q_perm", OTHER),
    payloads="q_weight",
)

AQLM = _producer(
    "aqlm",
    (*OF_I8, *OF_I16),
    Part("codebooks", formats=OF_REAL, is_required=True, distinct=True),
    scale_part("scales"),
    payloads="codes",
)

# QuIP#, as its `QuantizedLinear` names them.
QUIP = _producer(
    "quip",
    (*OF_I16, *OF_COUNTS),
    scale_part("SU", distinct=True),
    *_distinct("SV Wscale", SCALE, OF_REAL),
    Part("codebook_id"),
    payloads="Qidxs",
)

UNREAD = (TRANSFORMER_ENGINE, NUNCHAKU, HQQ, QUANTO, EXL3, EXL2, AQLM, QUIP)
