"""compressed-tensors: layouts, groups of its configurations, and what it writes."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from castwise._core import PolicyMap
from castwise.quantization.producers.layouts import (
    ACTIVATION,
    BYTES_LOW,
    E4M3,
    FP8_SCALE,
    GLOBAL,
    I8,
    INPUTS,
    INT8,
    MXFP8,
    OF_COUNTS,
    OF_E4M3,
    OF_E8M0,
    OF_F32,
    OF_I8,
    OF_U8,
    OF_WORD,
    U8,
    ZERO,
    Layout,
    Part,
    Storage,
    scale_part,
)
from castwise.quantization.producers.producer import (
    INTEGERS,
    MXFP4_TO_NVFP4,
    Configuration,
    EncodedModules,
    Encoding,
    Producer,
    Statements,
    Transcoding,
    Writing,
    Written,
    in_section,
    same_schemes,
)
from castwise.quantization.producers.stated import (
    STATED_KEY,
    Describe,
    Stated,
    group_block,
    object_at,
    objects_at,
    pair_of_sizes,
    positive_integer,
    sides_of,
    unknown_key,
)

_NAME = "compressed-tensors"
_CACHE_KEY = "kv_cache_scheme"

# The flags of a regular expression for the whole of it.
_FLAGS = r"\(\?([aimsux]+)\)"

# How the formats begin that leave zeros out: `sparse-24-bitmask`, `marlin-24`.
_SPARSE = ("sparse-", "marlin-")

# The fields of `QuantizationArgs`.
_KEYS = frozenset(
    (
        "num_bits",
        "type",
        "symmetric",
        "group_size",
        "strategy",
        "block_structure",
        "dynamic",
        "actorder",
        "scale_dtype",
        "zp_dtype",
        "observer",
        "observer_kwargs",
    )
)

_WRITTEN = (
    *(Written(f"fp8_{unit}", "naive-quantized") for unit in ("tensor", "channel", "block")),
    Written("nvfp4", "nvfp4-pack-quantized", shares=True),
    Written("mxfp4", "mxfp4-pack-quantized"),
    Written("mxfp6_e2m3", "mxfp6-pack-quantized"),
    Written("mxfp8_e4m3", "mxfp8-quantized"),
    *(Written(scheme, "pack-quantized", as_groups=True) for scheme in INTEGERS),
)

# Of inputs that engines quantize as they run, with a scale for each token.
_TOKEN = {"strategy": "token", "group_size": None, "scale_dtype": None, "zp_dtype": None}
# What the arguments of inputs have that those of weights have not, by scheme.
#
# After the presets FP8_DYNAMIC, FP8_BLOCK, MXFP4, MXFP6A8, MXFP8, W8A8 and W4AFP8 of 0.20
# (`quantization/quant_scheme.py`). NVFP4 needs a global scale of the inputs, and so needs data.
_DYNAMIC_INPUTS: Mapping[str, Mapping[str, Any]] = {
    "fp8_channel": _TOKEN,
    "fp8_block": {**_TOKEN, "strategy": "group", "group_size": 128},
    "mxfp4": {},
    "mxfp6_e2m3": {"num_bits": 8},
    "mxfp8_e4m3": {},
    "int8_channel": _TOKEN,
    "int4_group": {**_TOKEN, "num_bits": 8, "type": "float"},
}

# After the preset MXFP4XFP8 of 0.20: groups that are not those of the weights.
_FLOAT8_INPUTS = {**_TOKEN, "strategy": "group", "group_size": 128, "num_bits": 8}

_WRITTEN_DYNAMIC = (
    Written("fp8_channel", "float-quantized"),
    Written("fp8_block", "float-quantized", only_default=True),
    Written("mxfp4", "mxfp4-pack-quantized"),
    Written("mxfp6_e2m3", "mxfp6-pack-quantized"),
    Written("mxfp8_e4m3", "mxfp8-quantized"),
    Written("int8_channel", "int-quantized"),
    # vLLM's kernel of W4AFP8 loads words of packed codes (`compressed_tensors_w4a8_fp8.py`).
    Written("int4_group", "pack-quantized", as_groups=True, only_default=True),
)

_PACKED_WORDS = Layout(
    "int_{}",
    "_packed",
    OF_WORD,
    (
        scale_part("_scale"),
        Part("_shape", formats=OF_COUNTS, is_required=True, use="shape"),
        Part("_zero_point", ZERO, OF_WORD),
        Part("_g_idx", formats=OF_WORD, use="group index"),
        *INPUTS,
    ),
    storage=Storage(np.int32, ("dense", "padded"), excess=True, zeros="rows", has_groups=True),
)

# Of one zero point for all, which is not packed.
_WORDS_OF_TENSOR = replace(
    _PACKED_WORDS,
    parts=tuple(
        replace(part, formats=OF_I8, is_required=True) if part.role == ZERO else part
        for part in _PACKED_WORDS.parts
    ),
    storage=Storage(np.int32, ("dense", "padded"), excess=True, has_groups=True, read_only=True),
)


def _read(section: Mapping[str, Any]) -> Describe:
    inner = section.get(STATED_KEY)  # as in the older `compression_config`
    values = inner if isinstance(inner, dict) else section
    schemes: dict[str, Stated] = {}
    classes: set[Stated] = set()
    patterns = PolicyMap("fullmatch", "first", linear=True)
    for group in objects_at(values, "config_groups"):
        weights, targets = group.get("weights"), group.get("targets")
        if not isinstance(weights, dict):
            continue
        statement = _stated_arguments(weights)
        for target in targets if isinstance(targets, list) else ():
            if not isinstance(target, str):
                continue
            if target.startswith("re:"):
                _insert(patterns, target.removeprefix("re:"), statement)
            else:
                schemes[target] = statement
                classes.add(statement)

    def describe(module: str, payload: str | None) -> Stated:
        if module in schemes:
            return schemes[module]
        match = patterns.find(module)
        if match is not None:
            statement: Stated = match[1]
            return statement
        # A target that names no module here names a class, which tensors do not tell.
        return next(iter(classes)) if len(classes) == 1 else Stated()

    return describe


def _quantizes_inputs(section: Mapping[str, Any]) -> bool:
    groups = objects_at(section, "config_groups")
    inputs = (object_at(group, "input_activations") for group in groups)
    # "local": but for a global scale, which is stored.
    return any(arguments.get("dynamic") in (True, "local") for arguments in inputs)


def _insert(patterns: PolicyMap, pattern: str, value: Stated) -> None:
    try:
        PolicyMap("fullmatch", linear=True).insert(pattern, value)
        # It need not match to the end; its flags, which stand at the beginning, end with its group.
        flag_match = re.match(_FLAGS, pattern)
        flags = "" if flag_match is None else flag_match[1]
        rest = pattern if flag_match is None else pattern[flag_match.end() :]
        end = "\n" if "x" in flags else ""  # of a comment
        patterns.insert(f"(?{flags}:{rest}{end})[\\s\\S]*", value)
    except KeyError:  # the first group that has it counts
        return
    except ValueError as error:
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError):  # no pattern at all, which means nothing
            return
        raise ValueError(f"the target 're:{pattern}' of the configuration: {error}") from error


def _stated_arguments(weights: Mapping[str, Any]) -> Stated:
    bits, strategy = positive_integer(weights.get("num_bits")), weights.get("strategy")
    block = group_block(weights.get("group_size"))
    if strategy == "block":
        block = pair_of_sizes(sides_of(weights.get("block_structure")))
    kind = {"int": "int", "float": "fp"}.get(str(weights.get("type")))
    needs = (ZERO,) if weights.get("symmetric") is False else ()
    if weights.get("actorder") == "group":
        needs = (*needs, "g_idx")
    problem = unknown_key(weights, _KEYS)
    if problem is not None or bits is None or kind is None or not isinstance(strategy, str):
        return Stated(None, block, problem=problem)
    if kind == "fp" and strategy in ("group", "tensor_group"):
        is_scaled_twice = strategy == "tensor_group"
        names = {4: "nvfp4"} if is_scaled_twice else {4: "mxfp4", 6: "mxfp6_e2m3", 8: "mxfp8_e4m3"}
        is_byte = weights.get("scale_dtype") in ("torch.uint8", "uint8")
        if bits in names and (bits < 8 or is_byte):  # noqa: PLR2004
            return Stated(names[bits], block)
    return Stated(f"{kind}{bits}_{strategy}", block, needs)


def _undecodable(section: Mapping[str, Any]) -> str | None:
    """Say why weights of some forms, or of some transforms, are not decoded."""
    for form in (section.get("format"), object_at(section, "sparsity_config").get("format")):
        if isinstance(form, str) and form.startswith(_SPARSE):
            return f"castwise cannot decode the format {form!r}; compressed-tensors reads it"
    if section.get("moe_sparsity_config"):
        return "it states which experts are left (moe_sparsity_config); compressed-tensors reads it"
    if section.get("transform_config"):
        return "its weights are transformed (transform_config), which castwise cannot undo"
    return None


def _write(modules: EncodedModules) -> Statements:
    # The class Linear, which the first group targets, has no embeddings.
    kinds = Counter(
        (module in modules.embeddings, encoding) for module, encoding in modules.encodings.items()
    )
    groups = {}
    for number, kind in enumerate(sorted(kinds, key=lambda kind: (kind[0], -kinds[kind]))):
        is_embedding, encoding = kind
        targets = ["Linear"]
        if number or is_embedding:
            targets = [
                f"re:{re.escape(module)}$"
                for module, other in modules.encodings.items()
                if (module in modules.embeddings, other) == kind
            ]
        groups[f"group_{number}"] = {
            "targets": targets,
            "weights": _arguments_of_weights(encoding),
            # Inputs of an embedding are numbers of tokens.
            "input_activations": None
            if is_embedding
            else _arguments_of_inputs(encoding, is_scaled=modules.inputs),
            "output_activations": None,
            "format": encoding.written.code,
        }
    forms = {encoding.written.code for encoding in modules.distinct}
    return in_section(
        {
            "quant_method": _NAME,
            "format": forms.pop() if len(forms) == 1 else "mixed-precision",
            "quantization_status": "compressed",
            "config_groups": groups,
            "ignore": _ignore_list(modules.plain),
            _CACHE_KEY: None,
            "global_compression_ratio": None,
        }
    )


def _ignore_list(modules: Iterable[str]) -> list[str]:
    """Return what `ignore` has: vLLM and SGLang look for the names of single experts there."""
    names = list(modules)
    layers = [name for name in names if name.endswith(".experts")]
    return names + [f"re:{re.escape(layer)}\\..*" for layer in layers]


def _arguments_of_inputs(encoding: Encoding, *, is_scaled: bool) -> dict[str, Any] | None:
    """Return how inputs are quantized, with or without stored scales; None if they are not."""
    # Where scales are, it is as of weights; of NVFP4 only the scale of the scales is stored.
    row, arguments = encoding.written, _arguments_of_weights(encoding)
    if is_scaled or row.inputs == "constant":
        return {**arguments, "dynamic": "local" if row.row.global_scale else False}
    if row.inputs == "none":
        return None
    further = _FLOAT8_INPUTS if row.inputs == "float8" else _DYNAMIC_INPUTS[row.scheme]
    return {**arguments, "block_structure": None, "dynamic": True, **further}


def _arguments_of_weights(encoding: Encoding) -> dict[str, Any]:
    scheme, (_, columns) = encoding.written.scheme, encoding.block
    strategy = scheme.rpartition("_")[2]
    bytes_of_scale = {"nvfp4": E4M3}.get(scheme, U8 if scheme.startswith("mx") else None)
    if bytes_of_scale is not None:
        strategy = "tensor_group" if encoding.written.row.global_scale else "group"
    dtype = f"torch.{bytes_of_scale}" if bytes_of_scale else None
    zero_dtype = {"zp_dtype": dtype if encoding.symmetric else f"torch.{I8}"}
    if not encoding.written.symmetric:  # presets do not state that it is int8
        zero_dtype = {}
    return {
        "num_bits": encoding.bits,
        "type": "int" if scheme.startswith("int") else "float",
        "symmetric": encoding.symmetric,
        "strategy": strategy,
        "group_size": columns if strategy.endswith("group") else None,
        "block_structure": list(encoding.block) if strategy == "block" else None,
        "dynamic": False,
        "actorder": "group" if encoding.has_index else None,
        "scale_dtype": dtype,
        **zero_dtype,
    }


_FORMS = (
    *same_schemes("nvfp4", "mxfp8_e4m3", "fp8_tensor", "fp8_channel", "mxfp4"),
    MXFP4_TO_NVFP4,
)

COMPRESSED_TENSORS = Producer(
    _NAME,
    (
        FP8_SCALE,
        INT8,
        MXFP8,
        _PACKED_WORDS,
        _WORDS_OF_TENSOR,
        Layout(
            "nvfp4",
            "_packed",
            OF_U8,
            (
                scale_part("_scale", OF_E4M3),
                Part("_global_scale", GLOBAL, OF_F32, is_required=True),
                Part("input_global_scale", ACTIVATION),
                Part("output_global_scale", ACTIVATION),
            ),
            block=(1, 16),
            storage=Storage(np.uint8, global_use="divide"),
        ),
        *(
            Layout(
                scheme,
                "_packed",
                OF_U8,
                (scale_part("_scale", OF_E8M0), *INPUTS),
                block=(1, 32),
                columns=columns,
                storage=BYTES_LOW,
            )
            for scheme, columns in (("mxfp4", (16, 1)), ("mxfp6_e2m3", (24, 1)))
        ),
        Layout("marlin-24", "_packed", OF_WORD, (scale_part("scale_packed"), Part("meta"))),
    ),
    scales="weight",
    scalar=(1,),
    configuration=Configuration(
        {_NAME: _read, "sparseml": _read},
        undecodable=_undecodable,
        quantizes_inputs=_quantizes_inputs,
        unnamed_method=lambda key, section: (
            _NAME if key == "compression_config" or "config_groups" in section else None
        ),
        kept_keys={_NAME: "ignore"},
        cache_key=_CACHE_KEY,
    ),
    writing=Writing(
        rows=_WRITTEN,
        with_inputs=(
            *(row._replace(inputs="dynamic") for row in _WRITTEN_DYNAMIC),
            Written("mxfp4", "mxfp4-pack-quantized", inputs="float8"),
            Written("nvfp4", "nvfp4-pack-quantized", shares=True, inputs="constant"),
        ),
        # Words hold the zero points of as many rows as codes fit.
        with_zeros=tuple(
            Written(scheme, "pack-quantized", as_groups=True, symmetric=False, step=rows)
            for scheme, rows in (("int4_group", 8), ("int8_group", 4))
        ),
        write=_write,
        states_several=True,
        is_loaded=True,
        embeddings="named",
    ),
    transcoding=Transcoding(
        forms_from=_FORMS, forms_to=(*_FORMS, *same_schemes(*INTEGERS)), stacks="also"
    ),
)
