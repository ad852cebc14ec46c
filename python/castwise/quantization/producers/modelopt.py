"""ModelOpt of NVIDIA: layouts, algorithms as its configurations name them, and what it writes."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from castwise._core import __version__
from castwise.quantization.producers.layouts import (
    EXPERTS,
    FLOAT8,
    FP8_SCALE,
    INPUTS,
    INT8,
    MXFP4,
    MXFP8,
    NVFP4,
    OF_F32,
    OF_U8,
    PRE,
    SECOND,
    U8,
    ZERO,
    Layout,
    Part,
    Storage,
    scale_part,
)
from castwise.quantization.producers.producer import (
    MXFP4_TO_NVFP4,
    Configuration,
    EncodedModules,
    Producer,
    Section,
    Statements,
    Transcoding,
    Writing,
    Written,
    in_section,
    same_schemes,
)
from castwise.quantization.producers.stated import (
    Describe,
    Stated,
    group_block,
    object_at,
    objects_at,
    pair_of_sizes,
    unknown_key,
)
from castwise.quantization.producers.stored_weight import (
    FLOAT_BITS,
    StoredWeight,
    Undecodable,
    WeightForm,
    usual,
)

_NAME, _FILE = "modelopt", "hf_quant_config.json"
_CACHE_KEY = "kv_cache_quant_algo"

_KEYS = frozenset(
    (
        "quant_algo",
        "group_size",
        "has_zero_point",
        "pre_quant_scale",
        "awq_block_size",
        "weight_block_size",
        _CACHE_KEY,
        "exclude_modules",
    )
)

# The schemes of its algorithms; a group size is read from the section.
_SCHEMES = {
    "FP8": "fp8_tensor",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8_channel",
    "FP8_PB_WO": "fp8_block",
    "FP8_PB_REAL": "fp8_block",
    "NVFP4": "nvfp4",
    "W4A16_NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4",
    "NVFP4_SVD": "nvfp4",
    "W4A8_NVFP4_FP8": "nvfp4",
    "W4A16_AWQ": "int4_group",
    "W4A8_AWQ": "int4_group",
    "W8A16": "int8_channel",
    "W8A8_SQ_PER_CHANNEL": "int8_channel",
    "MXFP8": "mxfp8_e4m3",
    "W4A8_MXFP4_FP8": "mxfp4",
}

# Inputs are those of the presets of its 0.47 (`modelopt_recipes/configs/ptq/presets/model/`).
_WRITTEN = (
    Written("fp8_tensor", "FP8", inputs=""),
    Written("fp8_channel", "FP8_PER_CHANNEL_PER_TOKEN", inputs="dynamic"),
    Written("fp8_block", "fp8_pb_wo", square=True),
    # Without the scales of inputs: the weights alone are NVFP4.
    Written("nvfp4", "W4A16_NVFP4", shares=True),
    Written("mxfp8_e4m3", "MXFP8", inputs="dynamic"),
    # Its preset scales inputs by a number that it does not export without data.
    Written("mxfp4", "W4A8_MXFP4_FP8", inputs=""),
    Written("int8_channel", "W8A16"),
    # Two rows are in a byte.
    Written("int4_group", "W4A16_AWQ", tile=(2, 1), step=2),
)

_WRITTEN_WITH_INPUTS = (
    Written("nvfp4", "NVFP4", shares=True, inputs="constant"),
    Written("fp8_tensor", "FP8", inputs="constant"),
)

_DYNAMIC = frozenset(row.code for row in _WRITTEN if row.inputs == "dynamic")

# What it calls an algorithm when inputs have scales, too.
_WITH_INPUTS = {"W4A16_NVFP4": "NVFP4"}

# What it always states beside an algorithm; readers take factors of inputs that are there.
_ALSO = {"W4A16_AWQ": {"has_zero_point": False, "pre_quant_scale": True}}

_EXPERTS = {
    "_scale": "_weight_scale",
    SECOND.name: f"_weight{SECOND.name}",
    "input_scale": "_input_scale",
}


def _experts(
    layout: Layout, orientation: Literal["", "parts"] = "", columns: tuple[int, int] | None = None
) -> Layout:
    """Describe experts that are exported in one tensor, those of Llama 4 and gpt-oss."""
    # Names of parts follow that of the parameter, which has no "weight" of its own.
    storage = (layout.storage or Storage())._replace(orientation=orientation, read_only=True)
    parts = (
        replace(part, name=_EXPERTS[part.name]) for part in layout.parts if part.name in _EXPERTS
    )
    return replace(layout, parts=tuple(parts), parameters=EXPERTS, columns=columns, storage=storage)


def _values(section: Mapping[str, Any], module: str) -> Mapping[str, Any]:
    """Return what is stated of a module: of itself before what is stated of all."""
    return {**section, **object_at(object_at(section, "quantized_layers"), module)}


def _read(section: Mapping[str, Any]) -> Describe:
    def describe(module: str, payload: str | None) -> Stated:
        values = _values(section, module)
        algorithm = values.get("quant_algo")
        scheme = _SCHEMES.get(algorithm.upper()) if isinstance(algorithm, str) else None
        needs = ("weight_scale_2",) if algorithm == "W4A8_AWQ" else ()
        problem = unknown_key(object_at(object_at(section, "quantized_layers"), module), _KEYS)
        block = group_block(values.get("group_size"))
        if scheme == "fp8_block":  # which it states nowhere: a user may
            block = pair_of_sizes(values.get("weight_block_size"))
        return Stated(scheme, block, needs, problem)

    return describe


def _quantizes_inputs(section: Mapping[str, Any]) -> bool:
    entries = [section, *objects_at(section, "quantized_layers")]
    return any(str(entry.get("quant_algo")).upper() in _DYNAMIC for entry in entries)


def _file_section(config: Mapping[str, Any]) -> Section | None:
    section = config.get("quantization")
    return (_NAME, section) if isinstance(section, dict) else None


def _rule(case: StoredWeight) -> WeightForm:
    """Refuse what ModelOpt stores and states of FP8 and of integers that would be a guess."""
    payload, is_float = case.payload, case.format in FLOAT8
    factor, second = f"{payload}_pre_quant_scale", f"{case.weight.scale}_2"
    if factor in case.tensors and (is_float or case.scheme in FLOAT_BITS):
        raise Undecodable(
            f"castwise does not multiply experts in one tensor by a factor of inputs, as "
            f"{factor!r} is"
        )
    if (
        case.scheme == "fp8_block"
        and case.weight.block is None
        and math.prod(case.shape(case.scale())) > 1
    ):
        raise Undecodable(
            f"ModelOpt states no block for {case.scheme}; if it is that of its preset, add "
            '"weight_block_size": [128, 128] to the quantization_config (in hf_quant_config.json, '
            "to its quantization)"
        )
    if is_float and case.scheme == "fp8_channel" and case.scale() == f"{payload}_weight_scale":
        raise Undecodable(
            f"{case.scale()!r} has the shape {case.shape(case.scale())}, and nothing tells "
            f"whether its scales are those of the rows or of the columns of {payload!r}"
        )
    statement = _values(case.section, payload.rpartition(".")[0])
    is_packed = case.format == U8 and case.scheme.startswith("int4_")
    if is_packed and second in case.tensors and statement.get("quant_algo") == "W4A16_AWQ":
        raise Undecodable(f"W4A16_AWQ is stated, and {second!r} is a scale of W4A8_AWQ")
    return usual(case)


def _write(modules: EncodedModules) -> Statements:
    (encoding,) = modules.distinct
    group: dict[str, Any] = {"group_size": encoding.block[1]} if min(encoding.block) else {}
    if min(encoding.block) > 1:  # which it does not state itself, so that nobody can read its files
        group = {"weight_block_size": list(encoding.block)}
    producer = {"name": _NAME, "version": f"castwise {__version__}"}
    has_inputs = modules.inputs or encoding.written.inputs == "constant"
    code = (
        _WITH_INPUTS.get(encoding.written.code, encoding.written.code)
        if has_inputs
        else encoding.written.code
    )
    algorithm = {"quant_algo": code, _CACHE_KEY: None, **group, **_ALSO.get(code, {})}
    kind = "int" if encoding.written.scheme.startswith("int") else "float"
    weights = {"dynamic": False, "num_bits": encoding.bits, "type": kind, **group}
    arguments = {"weights": weights, **({"input_activations": weights} if has_inputs else {})}
    file = {
        "producer": producer,
        "quantization": {**algorithm, "exclude_modules": list(modules.plain)},
    }
    return in_section(
        {
            "quant_method": _NAME,
            **algorithm,
            "config_groups": {"group_0": {"targets": ["Linear"], **arguments}},
            "ignore": list(modules.plain),
            "producer": producer,
        },
        **{_FILE: json.dumps(file, indent=2) + "\n"},
    )


_FORMS = same_schemes("nvfp4", "mxfp8_e4m3", "fp8_tensor", "fp8_channel")
_LOADING_WARNING = (
    "the quantized model is not for transformers, which does not read the statements of "
    "ModelOpt, and takes codes for weights: load it with an engine that reads them, such as "
    "vLLM or TensorRT-LLM, or use another recipe"
)

MODELOPT = Producer(
    _NAME,
    (
        FP8_SCALE,
        replace(INT8, parts=tuple(part for part in INT8.parts if part.role != ZERO)),
        MXFP8,
        NVFP4,
        MXFP4,
        Layout(
            "int4_{}",
            "",
            OF_U8,
            (
                scale_part("_scale"),
                PRE,
                Part("_scale_2", formats=OF_F32, use="float8 scale"),
                *INPUTS,
            ),
            storage=Storage(np.uint8, orientation="pairs"),
        ),
        Layout(
            "nvfp4",
            "",
            OF_U8,
            (
                *NVFP4.parts,
                Part("svdquant_lora_a", is_required=True),
                Part("svdquant_lora_b", is_required=True),
            ),
            block=(1, 16),
        ),
        _experts(FP8_SCALE),
        _experts(MXFP8),
        _experts(MXFP4),
        # Along the inputs, which come before the outputs; last of all in Megatron's order.
        _experts(NVFP4, "parts", (1, 1)),
        _experts(NVFP4, columns=(8, 1)),
    ),
    channels=1,
    blocks=4,
    rule=_rule,
    configuration=Configuration(
        {_NAME: _read},
        cache_key=_CACHE_KEY,
        config_file=_FILE,
        file_section=_file_section,
        quantizes_inputs=_quantizes_inputs,
    ),
    writing=Writing(
        rows=_WRITTEN,
        with_inputs=_WRITTEN_WITH_INPUTS,
        write=_write,
        loading_warning=_LOADING_WARNING,
    ),
    transcoding=Transcoding(forms_from=_FORMS, forms_to=(*_FORMS, MXFP4_TO_NVFP4)),
)
