"""What mlx-lm 0.32.2 loads: `load_model` of its `utils.py`, and `sanitize` of its models."""

from collections.abc import Iterator, Mapping
from typing import Any

from castwise._numbers import WORD_BITS
from castwise.checkpoint._errors import LEAVE
from castwise.checkpoint._tensors import TensorInfo
from castwise.checkpoint.loading._view import QUANTIZATION_FILE, View, wrong_axis
from castwise.checkpoint.loading.modules import LoadingProblem, Module, code_of
from castwise.quantization.producers.stated import STATED_KEY

# Roles whose classes have `to_quantized`.
_QUANTIZED = {"linear", "head", "embedding", "experts", "router", "recurrent"}

# Types of models whose `sanitize` stacks the scales of experts, too; of others weights alone.
_STACKS_SCALES = frozenset(
    (
        *("afmoe", "bailing_hybrid", "bailing_moe", "bailing_moe_linear", "deepseek"),
        *("deepseek_v2", "deepseek_v3", "deepseek_v32", "dots1", "exaone_moe", "glm4_moe"),
        *("glm4_moe_lite", "hunyuan", "jamba", "kimi_k3", "kimi_vl", "laguna", "longcat_flash"),
        *("mimo_v2_flash", "minimax_m3_vl", "mistral4", "mixtral", "muse_spark", "olmoe"),
        *("phimoe", "phixtral", "qwen2_moe"),
    )
)

# Types whose `sanitize` parts `kv_b_proj`, and quantizes the parts anew along another axis.
_PARTS_KEYS_AND_VALUES = frozenset(
    (
        *("deepseek_v3", "deepseek_v32", "glm4_moe_lite", "kimi_k3", "kimi_linear"),
        *("longcat_flash", "mistral4"),
    )
)

# The formats of compressed-tensors that have a mode of MLX.
_FORMATS = ("nvfp4-pack-quantized", "mxfp4-pack-quantized", "pack-quantized")

# The key under which MLX states how a model is quantized.
_OWN_KEY = "quantization"

# The bits and groups of modes whose scales are bytes (`infer_quant_config`).
_BY_SIZE = {(4, 16), (4, 32), (8, 32)}


def mlx_problems(view: View) -> Iterator[LoadingProblem]:
    """Yield what keeps mlx-lm from loading a checkpoint, whose names must all be the model's."""
    section = view.section(_OWN_KEY, STATED_KEY)
    is_own = "group_size" in section and "quant_method" not in section
    is_gpt_oss = section.get("quant_method") == "mxfp4" and _type(view) == "gpt_oss"
    if not is_own and not is_gpt_oss:
        if any(module.is_quantized for module in view.modules):
            yield LoadingProblem(
                "",
                "mlx-lm does not load weights that are named as this configuration's method does",
                "quantize it as mlx",
            )
        elif (fault := _statement_fault(view)) is not None:
            yield LoadingProblem("", fault, "remove that statement, or quantize the model as mlx")
        return
    for module in view.modules:
        if is_gpt_oss:
            yield from view.blocks(module) if "_blocks" in module.tensors else ()
        else:
            yield from _module_problems(view, module, section)


def _statement_fault(view: View) -> str | None:
    """Return what `load_model` refuses of the statement of a model without quantized weights."""
    # `load_model` passes over methods that are not named here.
    if view.section(_OWN_KEY):
        return f"mlx-lm needs the group_size and the bits of {_OWN_KEY!r} in config.json"
    section = view.section(STATED_KEY) or view.files.get(QUANTIZATION_FILE)
    if not isinstance(section, Mapping) or not section:
        return None
    method, inner = section.get("quant_method"), section.get("quantization", section)
    fault = None
    match method:
        case None:
            fault = "mlx-lm needs the quant_method of a quantization that is stated"
        case "awq" | "gptq" | "bitnet":
            fault = f"mlx-lm needs quantized weights for {method!r}, and the file has none"
        case "compressed-tensors" if section.get("format") not in _FORMATS:
            fault = f"mlx-lm does not read the format {section.get('format')!r} of {method}"
        case "modelopt" if not isinstance(inner, Mapping) or inner.get("quant_algo") != "NVFP4":
            fault = f"mlx-lm reads the algorithm NVFP4 of {method}, and no other one"
    return fault


def _module_problems(
    view: View, module: Module, section: Mapping[str, Any]
) -> Iterator[LoadingProblem]:
    entry = section.get(module.name)
    scales = module.tensors.get(".scales")
    if scales is None:
        if isinstance(entry, Mapping) or entry is True:
            yield module.report(
                "the configuration names it, and the file has no scales of it", LEAVE
            )
        elif module.is_quantized:
            yield from view.plain_problems(module)
    elif module.role not in _QUANTIZED or entry is False:
        yield from view.plain_problems(module)
    elif module.is_expert and _type(view) not in _STACKS_SCALES:
        yield module.report(
            f"mlx-lm stacks the weights of experts of {_type(view)}, and not their scales", LEAVE
        )
    elif module.parameter.axes.endswith("in out"):
        yield wrong_axis(module)
    elif module.name.endswith("kv_b_proj") and _type(view) in _PARTS_KEYS_AND_VALUES:
        yield module.report(
            f"mlx-lm parts it for {_type(view)}, and quantizes the parts anew", LEAVE
        )
    elif (
        fault := _fault(module, {**section, **entry} if isinstance(entry, Mapping) else None)
    ) is not None:
        yield module.report(fault, "quantize it anew, or state how it is stored")


def _type(view: View) -> str:
    return view.architecture.model_type


def _fault(module: Module, settings: Mapping[str, Any] | None) -> str | None:
    payload, scales = module.tensors.get(""), module.tensors[".scales"]
    if payload is None or code_of(payload) != "U32":
        return "mlx-lm needs words of 32 bits as its weight"
    if scales.shape[:-1] != payload.shape[:-1] or not scales.shape[-1]:
        return f"its scales have the shape {scales.shape}, and its words {payload.shape}"
    is_affine = code_of(scales) != "U8"
    if is_affine != (".biases" in module.tensors):
        return f"its scales are {scales.label}, and it has {'no ' if is_affine else ''}biases"
    return None if settings is None else _unlike(payload, scales, settings, is_affine=is_affine)


def _unlike(
    payload: TensorInfo, scales: TensorInfo, settings: Mapping[str, Any], *, is_affine: bool
) -> str | None:
    """Say why a weight is not of the bits and groups that are stated; None if it is."""
    bits, group = settings.get("bits"), settings.get("group_size")
    if not isinstance(bits, int) or not isinstance(group, int):
        return "the configuration states no bits and group for it"
    if payload.shape[-1] * WORD_BITS != scales.shape[-1] * group * bits:
        return f"it is not of {bits} bits in groups of {group}, as the configuration states"
    if not is_affine and (bits, group) not in _BY_SIZE:
        return f"no mode of MLX has scales of bytes for {bits} bits in groups of {group}"
    return None
