"""MLX of Apple: words of codes with a bias for each group, and blocks of microscaling formats."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from castwise.quantization.producers.layouts import (
    GLOBAL,
    OF_F32,
    OF_REAL,
    OF_U8,
    OF_U32,
    Layout,
    Part,
    Storage,
    scale_part,
)
from castwise.quantization.producers.producer import (
    Configuration,
    EncodedModules,
    Producer,
    Statements,
    Writing,
    Written,
)
from castwise.quantization.producers.schemes import schemes
from castwise.quantization.producers.stated import (
    STATED_KEY,
    Describe,
    Stated,
    group_block,
    integer_scheme,
    unknown_key,
)
from castwise.quantization.producers.stored_weight import StoredWeight, WeightForm

_NAME = "mlx"

_KEYS = frozenset(("bits", "group_size", "mode", "global_scale", "quantize_input"))

# The modes of mlx.core.quantize: the scheme, and the group that is the only one a mode has.
_MODES = {"mxfp4": ("mxfp4", 32), "mxfp8": ("mxfp8_e4m3", 32), "nvfp4": ("nvfp4", 16)}

# What `to_quantized` takes where the entry of a layer says nothing; its mode is then affine.
_GROUP, _BITS = 64, 4

_WRITTEN = (
    *(
        Written(
            f"int{bits}_group",
            "affine",
            block=(1, _GROUP),
            symmetric=False,
            stacks=True,
            only_named=True,
        )
        for bits in (4, 8, 2, 3, 5, 6)
    ),
    *(Written(scheme, mode, stacks=True, only_named=True) for mode, (scheme, _) in _MODES.items()),
)


def _read(section: Mapping[str, Any]) -> Describe:
    entries = {key: value for key, value in section.items() if isinstance(value, dict)}
    common = {key: value for key, value in section.items() if not isinstance(value, dict | bool)}
    common |= {key: section[key] for key in _KEYS if isinstance(section.get(key), bool)}
    by_tail: dict[str, list[str]] = {}
    for key in entries:
        by_tail.setdefault(key.rpartition(".")[2], []).append(key)

    def describe(module: str, payload: str | None) -> Stated:
        entry = entries.get(module)
        if section.get(module) is False:
            return Stated(problem="states that it is not quantized")
        values = common if entry is None else entry
        if (unknown := unknown_key(values, _KEYS)) is not None:
            return Stated(problem=unknown)
        elsewhere = None
        if module not in section:
            near = by_tail.get(module.rpartition(".")[2], ())
            elsewhere = next((key for key in near if _is_same_module(key, module)), None)
        mode, size = values.get("mode", "affine"), values.get("group_size")
        if mode == "affine":
            bits = values.get("bits")
            if entry is not None:
                bits, size = bits or _BITS, size or _GROUP
            return integer_scheme(bits, size)._replace(elsewhere=elsewhere)
        scheme, usual = _MODES.get(str(mode), (None, 0))
        needs = (GLOBAL,) if entry is not None and entry.get("global_scale") is True else ()
        block = group_block(size or usual)
        problem = None if scheme else f"states the mode {mode!r}, which castwise does not know"
        return Stated(scheme, block, needs, problem, elsewhere)

    return describe


def _is_same_module(name: str, other: str) -> bool:
    """Return True for names that differ by what stands before them alone."""
    return name.endswith(f".{other}") or other.endswith(f".{name}")


_OWN_KEY, _GROUP_KEY = "quantization", "group_size"


def _rule(case: StoredWeight) -> WeightForm:
    """Describe MLX' words: a stream of codes, with a scale and perhaps a bias for each group."""
    is_affine = case.part("biases") is not None
    bits_of = {row.name: row.bits for row in schemes()}
    bits = case.bits() if is_affine else bits_of.get(case.scheme)
    if bits is None:
        raise case.unknown()
    case.whole(bits, case.length(-1))
    return WeightForm(f"int{bits}_group" if is_affine else case.scheme, case.block())


def _write(modules: EncodedModules) -> Statements:
    distinct = modules.distinct
    section, *further = (
        {"group_size": encoding.block[1], "bits": encoding.bits, "mode": encoding.written.code}
        for encoding in distinct
    )
    for encoding, values in zip(distinct[1:], further, strict=True):
        section |= {
            module: values for module, other in modules.encodings.items() if other == encoding
        }
    return Statements({_OWN_KEY: section, STATED_KEY: section}, {}, None)


MLX = Producer(
    _NAME,
    (
        Layout(
            "int_{}",
            "",
            OF_U32,
            (scale_part("scales"), Part("biases", formats=OF_REAL, is_required=True, use="bias")),
            parameters=("weight",),
            storage=Storage(np.uint32, is_unsigned=True, narrow=True),
        ),
        Layout(
            "",
            "",
            OF_U32,
            (scale_part("scales", OF_U8, distinct=True),),
            families=("mxfp", "nvfp4"),
            parameters=("weight",),
            storage=Storage(np.uint32),
        ),
        Layout(
            "nvfp4",
            "",
            OF_U32,
            (
                scale_part("scales", OF_U8, distinct=True),
                Part("global_scale", GLOBAL, OF_F32, is_required=True),
            ),
            block=(1, 16),
            parameters=("weight",),
            # It stores the largest magnitude, which is 448 * 6 of its unit.
            storage=Storage(np.uint32, global_unit=2688.0, read_only=True),
        ),
    ),
    scales="weight",
    rule=_rule,
    configuration=Configuration({_NAME: _read}, own_section=(_OWN_KEY, _GROUP_KEY)),
    writing=Writing(rows=_WRITTEN, write=_write, states_several=True, embeddings="loaded"),
)
