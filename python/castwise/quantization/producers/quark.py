"""Quark of AMD."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

from castwise.quantization.producers.layouts import FP8_SCALE, INT8, MXFP4, MXFP8, OF_WORD, Layout
from castwise.quantization.producers.producer import Configuration, Producer
from castwise.quantization.producers.stated import (
    Describe,
    Stated,
    group_block,
    object_at,
    objects_at,
    unknown_key,
)
from castwise.quantization.producers.stored_weight import (
    StoredWeight,
    Undecodable,
    WeightForm,
    usual,
)

# The fields of Quark's `QTensorConfig`.
_KEYS = frozenset(
    (
        "dtype",
        "qscheme",
        "ch_axis",
        "group_size",
        "block_size",
        "symmetric",
        "round_method",
        "scale_type",
        "scale_format",
        "scale_calculation_mode",
        "mx_element_dtype",
        "zero_point_type",
        "is_dynamic",
        "is_scale_quant",
        "observer_cls",
        "qat_spec",
        "enable_buffer_reuse",
        "max_input_numel",
    )
)

_ELEMENTS = {
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "int8": "int8",
    "int4": "int4",
    "uint4": "uint4",
    "uint8": "uint8",
    "fp4": "mxfp4",
    "fp6_e2m3": "mxfp6_e2m3",
    "fp6_e3m2": "mxfp6_e3m2",
}

_STRATEGIES = {"per_tensor": "tensor", "per_channel": "channel", "per_group": "group"}


def _read(section: Mapping[str, Any]) -> Describe:
    patterns = object_at(section, "layer_quant_config")

    def describe(module: str, payload: str | None) -> Stated:
        # Patterns of layers have wildcards; with any, the global row need not hold.
        row, key = (patterns, module) if patterns else (section, "global_quant_config")
        weight = object_at(row, key).get("weight")
        if isinstance(weight, list):
            return Stated(problem="states several steps of its weight; Quark reads it")
        if not isinstance(weight, dict):
            return Stated()
        if (unknown := unknown_key(weight, _KEYS)) is not None:
            return Stated(problem=unknown)
        element = _ELEMENTS.get(str(weight.get("dtype")))
        strategy = _STRATEGIES.get(str(weight.get("qscheme")))
        block = group_block(weight.get("group_size")) if strategy == "group" else None
        if element is not None and element.startswith("mx"):
            return Stated(element, block)
        return Stated(f"{element}_{strategy}" if element and strategy else None, block)

    return describe


def _undecodable(section: Mapping[str, Any]) -> str | None:
    """Say that a layer needs what is computed beside its weight: rotated inputs, or factors."""
    configs = [section.get(key) for key in ("algo_config", "pre_quant_opt_config")]
    lists = [value if isinstance(value, list) else [value] for value in configs]
    for step in chain.from_iterable(lists):
        if not isinstance(step, dict):
            continue
        name = step.get("name")
        is_online = name == "rotation" and (step.get("r4") or step.get("online_r1_rotation"))
        if is_online or name in ("quarot", "svdquant"):
            return f"its layers compute more than their weights ({name}); Quark reads it"
    return None


def _quantizes_inputs(section: Mapping[str, Any]) -> bool:
    entries = [object_at(section, "global_quant_config")]
    entries += objects_at(section, "layer_quant_config")
    return any(object_at(entry, "input_tensors").get("is_dynamic") is True for entry in entries)


def _rule(case: StoredWeight) -> WeightForm:
    """Refuse codes of 6 bits: Quark 0.9 packs their upper two bits apart, and later ones do not."""
    if case.scheme.startswith("mxfp6_"):
        raise Undecodable(
            f"castwise cannot decode {case.scheme} of Quark, whose releases pack it in several "
            "orders; the release that wrote it reads it"
        )
    return usual(case)


QUARK = Producer(
    "quark",
    (
        FP8_SCALE,
        INT8,
        MXFP4,
        replace(MXFP4, scheme="", families=("mxfp6",), columns=(24, 1), storage=None),
        MXFP8,
        Layout("int_{}", "", OF_WORD, INT8.parts),
    ),
    rule=_rule,
    configuration=Configuration(
        {"quark": _read}, undecodable=_undecodable, quantizes_inputs=_quantizes_inputs
    ),
)
