"""What configurations and metadata state of quantised weights.

Files are untrusted: a value of another type than its producer writes counts as if it were not
there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from castwise._core import PolicyMap
from castwise.quantization.producers import _layer_keys as keys
from castwise.quantization.producers._gptq import module_values, named_method, tensors_of
from castwise.quantization.producers._layer_keys import unknown_key
from castwise.quantization.producers._layouts import FLOAT8, GLOBAL, ZERO
from castwise.quantization.producers._recipes import RECIPES

CONFIGS = ("hf_quant_config.json", "config.json", "quantize_config.json", "quant_config.json")
"""Files beside the tensors that may state how they are quantised, the most detailed first."""

MODEL = "model.keras"
"""The name among these of what `castwise.quantization.weights._keras.stated_layers` returns."""

MAX_DEPTH = 8
"""How deep the parts of a model may be nested."""

SECTIONS = ("quantization_config", "compression_config")
"""The keys under which a model, or a part of one, states how it is quantised."""

_FLAGS = re.compile(r"\(\?([aimsux]+)\)")
"""The flags of a regular expression for the whole of it."""

_SPARSE = ("sparse-", "marlin-")
_GPTQ_FILE, _AWQ_FILE = CONFIGS[2:]


class Stated(NamedTuple):
    """What is stated of one weight, None if it is not.

    `needs` are the roles, or the last part of the names, of tensors that must be beside it;
    `problem` follows the name of the file and says why it is not decoded; `elsewhere` is the module
    of another prefix of which something is stated; `details` is what else must be stated alike.
    """

    scheme: str | None = None
    block: tuple[int, ...] | None = None
    needs: tuple[str, ...] = ()
    problem: str | None = None
    elsewhere: str | None = None
    details: tuple[tuple[str, Any], ...] = ()


Describe = Callable[[str, str | None], Stated]
"""From the module and the format of its payload to what is stated."""


@dataclass(frozen=True, slots=True)
class Statement:
    """That a model is quantised, and how.

    Attributes
    ----------
    origin
        The file, or the key of the metadata.
    method
        The name of the method there.
    recipes
        Names of the recipes that it may mean; none if castwise does not know the method.
    describe
        What it says of one weight.
    section
        The text as parsed.

    """

    origin: str
    method: str
    recipes: tuple[str, ...]
    describe: Describe
    section: Mapping[str, Any]


def statements(configs: Mapping[str, Any], metadata: Mapping[str, str]) -> list[Statement]:
    """List what is stated in parsed configurations, by name of the file, and in metadata."""
    listed = [
        _statement(name, method, section)
        for name in CONFIGS
        for method, section in _sections(name, configs.get(name), 0)
    ]
    if layers := configs.get(MODEL):
        listed.append(Statement("config.json", "keras", ("keras",), _nothing(layers), layers))
    if "tensor_names" in metadata:  # which tell more than the configuration beside them
        listed.insert(
            0, Statement("metadata", "torchao", ("torchao",), _torchao(metadata), metadata)
        )
    return [*listed, *_in_metadata(metadata)]


def _statement(origin: str, method: str, section: Mapping[str, Any]) -> Statement:
    return Statement(
        origin,
        named_method(method, section),
        recipes_of(method, section),
        _dialect(tensors_of(method, section))(section),
        section,
    )


def undecodable(statement: Statement) -> str | None:
    """Say what stands in the way of decoding any weight of a method, beside its scheme."""
    if statement.section.get("rotation_config"):
        return "its weights are rotated (rotation_config), which castwise cannot undo"
    section = statement.section.get("quantization_config", statement.section)
    if _dialect(statement.method) is not _compressed or not isinstance(section, dict):
        return None
    sparsity = section.get("sparsity_config")
    forms = [
        section.get("format"),
        *([sparsity.get("format")] if isinstance(sparsity, dict) else []),
    ]
    for form in forms:
        if isinstance(form, str) and form.startswith(_SPARSE):
            return f"castwise cannot decode the format {form!r}; compressed-tensors reads it"
    if section.get("transform_config"):
        return "its weights are transformed (transform_config), which castwise cannot undo"
    return None


def recipes_of(method: str, section: Mapping[str, Any]) -> tuple[str, ...]:
    """Name the recipes that a method may mean, given the section that states it."""
    tensors = tensors_of(method, section)
    return tuple(recipe.name for recipe in RECIPES if tensors in recipe.methods)


def _sections(name: str, config: Any, depth: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Find each section that states a method, also those of a model's parts."""
    if not isinstance(config, dict) or depth > MAX_DEPTH:
        return
    if name == "hf_quant_config.json":
        section = config.get("quantization")
        if isinstance(section, dict):
            yield "modelopt", section
        return
    if name in (_GPTQ_FILE, _AWQ_FILE):
        method = config.get("quant_method", "gptq" if name == _GPTQ_FILE else "awq")
        yield str(method), config
        return
    mlx = config.get("quantization")
    if isinstance(mlx, dict) and is_mlx(mlx):
        yield "mlx", mlx
        return
    for key, value in config.items():
        if not isinstance(value, dict):
            continue
        if key not in SECTIONS:
            yield from _sections(name, value, depth + 1)
        elif method := method_of(key, value):
            yield method, value


def is_mlx(section: Mapping[str, Any]) -> bool:
    """Return True for a section of the form that MLX gives it, under either of its keys."""
    return "quant_method" not in section and "group_size" in section


def method_of(key: str, section: Mapping[str, Any]) -> str | None:
    """Return what a section names as its method; None if it quantises nothing."""
    method = section.get("quant_method")
    if isinstance(method, str):
        return method
    if key == "compression_config" or "config_groups" in section:
        return "compressed-tensors"
    if section.get("load_in_4bit") or section.get("load_in_8bit"):
        return "bitsandbytes"
    return "unnamed" if section else None


def _in_metadata(metadata: Mapping[str, str]) -> Iterator[Statement]:
    comfy = parsed(metadata.get("_quantization_metadata"))
    layers = comfy.get("layers")
    if isinstance(layers, dict):
        yield Statement("metadata", "comfy", ("comfy",), _comfy(layers), layers)
    config = {"quantization_config": parsed(metadata.get("quantization_config"))}
    for method, section in _sections("metadata", config, 0):
        yield _statement("metadata", method, section)


def parsed(text: str | None) -> dict[str, Any]:
    """Parse JSON of an object; of anything else nothing is left."""
    try:
        value = json.loads(text or "null")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _positive(value: Any) -> int | None:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and value > 0 else None


def _pair(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list) or len(value) != 2 or not all(map(_positive, value)):  # noqa: PLR2004
        return None
    return tuple(value)


def _group(value: Any) -> tuple[int, ...] | None:
    size = _positive(value)
    return None if size is None else (1, size)


def _integers(bits: Any, group_size: Any, kind: str = "int") -> Stated:
    """Describe integers of some bits that share a scale in groups; in whole rows for -1."""
    block = _group(group_size)
    number = _positive(bits)
    if number is None or (block is None and group_size != -1):
        return Stated(None, block)
    return Stated(f"{kind}{number}_{'channel' if block is None else 'group'}", block)


def _nothing(section: Mapping[str, Any]) -> Describe:
    del section
    return lambda module, payload: Stated()


def _constant(scheme: str, block: tuple[int, ...] | None = None) -> Callable[..., Describe]:
    return lambda section: lambda module, payload: Stated(scheme, block)


def _fp8(section: Mapping[str, Any]) -> Describe:
    of_module = module_values(section)
    element = str(section.get("fmt"))

    def describe(module: str, payload: str | None) -> Stated:
        values, problem = of_module(module)
        block = _pair(values.get("weight_block_size")) or _pair(values.get("group_size"))
        if problem is not None:
            return Stated(problem=problem)
        other = element.startswith("e") and element not in (payload or "")
        if payload in FLOAT8 and other:
            return Stated(element)  # which no layout holds
        # Of other payloads, such as 4-bit experts, it says nothing.
        if payload not in FLOAT8 or block is None:
            return Stated()
        return Stated("fp8_block", block)

    return describe


def _words(section: Mapping[str, Any]) -> Describe:
    of_module = module_values(section)

    def describe(module: str, payload: str | None) -> Stated:
        values, problem = of_module(module)
        bits = values.get("bits", values.get("w_bit"))
        stated = _integers(bits, values.get("group_size", values.get("q_group_size")))
        needs = (ZERO,) if values.get("zero_point") is True else ()
        return stated._replace(needs=needs, problem=problem, details=_details(values))

    return describe


_UNSTATED: Mapping[str, Mapping[str, Any]] = {
    "gptq": {"checkpoint_format": "gptq", "is_marlin_format": False},
    "awq": {"version": "gemm"},
}
"""What holds of integers in words where a section does not say it."""


def _details(values: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return what two statements of the same words must agree on, beside bits and groups."""
    unstated = _UNSTATED["awq" if values.get("quant_method") == "awq" else "gptq"]
    stated = {key: values.get(key, value) for key, value in unstated.items()}
    stated |= {key: values.get(key) for key in ("sym", "desc_act", "zero_point")}
    return tuple((key, value) for key, value in stated.items() if value is not None)


_MLX_MODES = {
    "mxfp4": ("mxfp4", 32),
    "mxfp8": ("mxfp8_e4m3", 32),
    "nvfp4": ("nvfp4", 16),
}
_MLX_GROUP, _MLX_BITS = 64, 4
"""What `to_quantized` takes where the entry of a layer says nothing; its mode is then affine."""


def _mlx(section: Mapping[str, Any]) -> Describe:
    entries = {key: value for key, value in section.items() if isinstance(value, dict)}
    common = {key: value for key, value in section.items() if not isinstance(value, dict | bool)}
    common |= {key: section[key] for key in keys.MLX if isinstance(section.get(key), bool)}
    by_tail: dict[str, list[str]] = {}
    for key in entries:
        by_tail.setdefault(key.rpartition(".")[2], []).append(key)

    def describe(module: str, payload: str | None) -> Stated:
        entry = entries.get(module)
        if section.get(module) is False:
            return Stated(problem="states that it is not quantised")
        values = common if entry is None else entry
        if (unknown := unknown_key(values, keys.MLX)) is not None:
            return Stated(problem=unknown)
        elsewhere = None
        if module not in section:
            near = by_tail.get(module.rpartition(".")[2], ())
            elsewhere = next((key for key in near if _is_same_module(key, module)), None)
        mode, size = values.get("mode", "affine"), values.get("group_size")
        if mode == "affine":
            bits = values.get("bits")
            if entry is not None:
                bits, size = bits or _MLX_BITS, size or _MLX_GROUP
            return _integers(bits, size)._replace(elsewhere=elsewhere)
        scheme, usual = _MLX_MODES.get(str(mode), (None, 0))
        needs = (GLOBAL,) if entry is not None and entry.get("global_scale") is True else ()
        block = _group(size or usual)
        problem = None if scheme else f"states the mode {mode!r}, which castwise does not know"
        return Stated(scheme, block, needs, problem, elsewhere)

    return describe


def _is_same_module(name: str, other: str) -> bool:
    """Return True for names that differ by what stands before them alone."""
    return name.endswith(f".{other}") or other.endswith(f".{name}")


# ModelOpt's algorithms; a group size is read from the section.
_MODELOPT = {
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


def modelopt_values(section: Mapping[str, Any], module: str) -> Mapping[str, Any]:
    """Return what ModelOpt states of a module: of itself before what is stated of all."""
    layers = section.get("quantized_layers")
    entry = layers.get(module) if isinstance(layers, dict) else None
    return {**section, **entry} if isinstance(entry, dict) else section


def _modelopt(section: Mapping[str, Any]) -> Describe:
    def describe(module: str, payload: str | None) -> Stated:
        values = modelopt_values(section, module)
        algorithm = values.get("quant_algo")
        scheme = _MODELOPT.get(algorithm.upper()) if isinstance(algorithm, str) else None
        needs = ("weight_scale_2",) if algorithm == "W4A8_AWQ" else ()
        entry = None if values is section else section["quantized_layers"][module]
        problem = None if entry is None else unknown_key(entry, keys.MODELOPT)
        block = _group(values.get("group_size"))
        if scheme == "fp8_block":  # which it states nowhere: a user may
            block = _pair(values.get("weight_block_size"))
        return Stated(scheme, block, needs, problem)

    return describe


def _compressed(section: Mapping[str, Any]) -> Describe:
    inner = section.get("quantization_config")  # as in the older `compression_config`
    values = inner if isinstance(inner, dict) else section
    groups = values.get("config_groups")
    schemes: dict[str, Stated] = {}
    classes: set[Stated] = set()
    patterns = PolicyMap("fullmatch", "first", linear=True)
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(weights, dict):
            continue
        stated = _arguments(weights)
        targets = group.get("targets")
        for target in targets if isinstance(targets, list) else ():
            if not isinstance(target, str):
                continue
            if target.startswith("re:"):
                _insert(patterns, target.removeprefix("re:"), stated)
            else:
                schemes[target] = stated
                classes.add(stated)

    def describe(module: str, payload: str | None) -> Stated:
        if module in schemes:
            return schemes[module]
        match = patterns.find(module)
        if match is not None:
            matched: Stated = match[1]
            return matched
        # A target that names no module here names a class, which tensors do not tell.
        return next(iter(classes)) if len(classes) == 1 else Stated()

    return describe


def _insert(patterns: PolicyMap, pattern: str, value: Stated) -> None:
    try:
        PolicyMap("fullmatch", linear=True).insert(pattern, value)
        # It need not match to the end; its flags, which stand at the beginning, end with its group.
        stated = _FLAGS.match(pattern)
        flags = "" if stated is None else stated[1]
        rest = pattern if stated is None else pattern[stated.end() :]
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


def _arguments(weights: Mapping[str, Any]) -> Stated:
    """Describe what compressed-tensors calls the arguments of weights."""
    bits, strategy = _positive(weights.get("num_bits")), weights.get("strategy")
    block = _group(weights.get("group_size"))
    if strategy == "block":
        block = _pair(weights.get("block_structure"))
    kind = {"int": "int", "float": "fp"}.get(str(weights.get("type")))
    needs = (ZERO,) if weights.get("symmetric") is False else ()
    if weights.get("actorder") == "group":
        needs = (*needs, "g_idx")
    problem = unknown_key(weights, keys.COMPRESSED)
    if problem is not None or bits is None or kind is None or not isinstance(strategy, str):
        return Stated(None, block, problem=problem)
    if kind == "fp" and strategy in ("group", "tensor_group"):
        is_scaled_twice = strategy == "tensor_group"
        named = {4: "nvfp4"} if is_scaled_twice else {4: "mxfp4", 6: "mxfp6_e2m3", 8: "mxfp8_e4m3"}
        is_byte = weights.get("scale_dtype") in ("torch.uint8", "uint8")
        if bits in named and (bits < 8 or is_byte):  # noqa: PLR2004
            return Stated(named[bits], block)
    return Stated(f"{kind}{bits}_{strategy}", block, needs)


_QUARK = {
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
_QUARK_STRATEGIES = {"per_tensor": "tensor", "per_channel": "channel", "per_group": "group"}


def _quark(section: Mapping[str, Any]) -> Describe:
    layers = section.get("layer_quant_config")
    patterns: dict[str, Any] = layers if isinstance(layers, dict) else {}

    def describe(module: str, payload: str | None) -> Stated:
        # Patterns of layers have wildcards; with any, the global row need not hold.
        chosen = patterns.get(module, None if patterns else section.get("global_quant_config"))
        weight = chosen.get("weight") if isinstance(chosen, dict) else None
        if not isinstance(weight, dict):
            return Stated()
        if (unknown := unknown_key(weight, keys.QUARK)) is not None:
            return Stated(problem=unknown)
        element = _QUARK.get(str(weight.get("dtype")))
        strategy = _QUARK_STRATEGIES.get(str(weight.get("qscheme")))
        block = _group(weight.get("group_size")) if strategy == "group" else None
        if element is not None and element.startswith("mx"):
            return Stated(element, block)
        return Stated(f"{element}_{strategy}" if element and strategy else None, block)

    return describe


COMFY = {
    "fp8": "fp8_tensor",  # as ModelOpt writes it for ComfyUI
    "float8_e4m3fn": "fp8_tensor",
    "float8_e5m2": "fp8_tensor",
    "nvfp4": "nvfp4",
    "mxfp8": "mxfp8_e4m3",
    "int8_tensorwise": "int8_tensor",
    "awq_w4a16": "int4_group",
}
"""The schemes that ComfyUI names as formats of layers."""


def _comfy(layers: Mapping[str, Any]) -> Describe:
    def describe(module: str, payload: str | None) -> Stated:
        entry = layers.get(module)
        if not isinstance(entry, dict):
            return Stated()
        name, problem = entry.get("format"), unknown_key(entry, keys.COMFY)
        if entry.get("convrot"):
            problem = "states convrot of it, so that its codes are rotated; ComfyUI reads it"
        return Stated(COMFY.get(name) if isinstance(name, str) else None, problem=problem)

    return describe


_TORCHAO = {
    "Float8Tensor": "fp8",
    "Int8Tensor": "int8",
    "IntxUnpackedToInt8Tensor": "int8",
    "Int4Tensor": "int4",
    "NVFP4Tensor": "nvfp4",
}
TORCHAO_MX = {
    "float4_e2m1fn_x2": "mxfp4",
    "fp6_e2m3": "mxfp6_e2m3",
    "fp6_e3m2": "mxfp6_e3m2",
    "float8_e4m3fn": "mxfp8_e4m3",
    "float8_e5m2": "mxfp8_e5m2",
}
"""The schemes of torchao's `MXTensor`, by what it calls its elements."""


def described_in(metadata: Mapping[str, str]) -> list[str]:
    """Name the tensors that metadata of torchao describe, each under its own name."""
    try:
        names = json.loads(metadata.get("tensor_names", "[]"))
    except (ValueError, RecursionError):
        return []
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def torchao_dtype(value: Any) -> Any:
    """Return the name of a dtype as torchao states it: torch's in an object, others by name."""
    return value.get("_data") if isinstance(value, dict) else value


def _torchao(metadata: Mapping[str, str]) -> Describe:
    def describe(module: str, payload: str | None) -> Stated:
        entry = parsed(metadata.get(f"{module}.weight"))
        data = entry.get("_data")
        data = data if isinstance(data, dict) else {}
        block = data.get("block_size")
        if entry.get("_type") == "MXTensor":
            return Stated(TORCHAO_MX.get(str(torchao_dtype(data.get("elem_dtype")))), _group(block))
        element = _TORCHAO.get(str(entry.get("_type")))
        if element == "nvfp4":
            return Stated(element, (1, 16))
        return Stated(f"{element}_" + "{}" if element else None, _pair(block))

    return describe


_DIALECTS: Mapping[str, Callable[[Mapping[str, Any]], Describe]] = {
    "compressed-tensors": _compressed,
    "sparseml": _compressed,
    "modelopt": _modelopt,
    "fp8": _fp8,
    "mxfp8": _constant("mxfp8_e4m3", (1, 32)),
    "mxfp4": _constant("mxfp4", (1, 32)),
    "fbgemm_fp8": _constant("fp8_channel"),
    "awq": _words,
    "gptq": _words,
    "quark": _quark,
    "mlx": _mlx,
}


def _dialect(method: str) -> Callable[[Mapping[str, Any]], Describe]:
    return _DIALECTS.get(method, _nothing)
