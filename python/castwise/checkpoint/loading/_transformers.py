"""What transformers loads, after its release 5.24 and compressed-tensors 0.20.

`quantizers/quantizer_{compressed_tensors,finegrained_fp8,mxfp4}.py` there, `integrations/` of the
same names and `core_model_loading.py`; `quantization/lifecycle/apply.py` and `utils/match.py` here.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import Any

from castwise.checkpoint._errors import LEAVE
from castwise.checkpoint.loading._compressed_tensors import Arguments, groups_of
from castwise.checkpoint.loading._view import IGNORE, NAME_IN_IGNORE, View
from castwise.checkpoint.loading.modules import (
    DECODED,
    MATRIX,
    WEIGHT,
    LoadingProblem,
    Module,
    code_of,
    is_decoded_alone,
)
from castwise.models.architecture import Parameter, expand_name
from castwise.quantization.producers.stated import SECTIONS
from castwise.text.wording import argument

# Whose experts compressed-tensors needs one by one (`MODULES_TO_PATCH_FOR_QUANTIZATION`).
_SEQUENTIAL = ("llama4", "llama4_text")

# Whose code gives a buffer another dtype as it runs, which `offload/module.py` does not take.
_WITH_OWN_BUFFER = ("ctrl",)

_E4M3 = "F8_E4M3"
_BY_ROWS = "quantize all that it so converts, as fp8_channel of compressed-tensors"
_ONE_BY_ONE = "store the weights of each expert in a tensor of its own, or leave them as they are"
_ELSEWHERE = "store the weights of each expert in a tensor of its own, or load it elsewhere"


def transformers_problems(view: View) -> Iterator[LoadingProblem]:
    section = view.section(*SECTIONS)
    method = section.get("quant_method")
    if isinstance(method, str) and method in _BY_METHOD:
        yield from _BY_METHOD[method](view, section)
    elif method in (None, *_NOT_READ) and any(module.is_quantized for module in view.modules):
        statement = "states no quantization" if method is None else f"states the method {method!r}"
        yield LoadingProblem(
            "",
            f"config.json {statement} that transformers reads, so that it takes codes for weights",
            "quantize it as compressed-tensors or deepseek",
        )


def _class_of(module: Module) -> str | None:
    """Return the class that targets may name; None for what compressed-tensors never quantizes."""
    if module.is_linear or module.may_be_linear or module.is_expert:
        return "Linear"
    return "Embedding" if module.role == "embedding" else None


def _matches(name: str, class_name: str, texts: Iterable[str]) -> list[str]:
    """Return the targets that match a module: by name, by expression, by class."""
    in_order = sorted(texts, key=lambda text: ("re:" in text, text))
    matches = [
        text
        for text in in_order
        if (re.match(text[3:], name) if text.startswith("re:") else text == name)
    ]
    return matches or [text for text in in_order if text == class_name]


def _compressed_tensors(view: View, section: Mapping[str, Any]) -> Iterator[LoadingProblem]:
    groups = groups_of(section)
    by_target = {target: arguments for targets, arguments in groups for target in targets}
    ignore = [text for text in section.get("ignore") or () if isinstance(text, str)]
    has_stacks = any(
        row.axes.startswith("experts") for row in view.architecture.parameters.values()
    )
    decoded: set[Arguments] = set()
    yield from _conversion_problems(view, _expert_arguments(groups))
    for module in view.modules:
        if module.is_expert and (has_stacks or module.is_stack):
            yield from _expert_problems(view, module, groups)
            continue
        class_name = _class_of(module)
        names = view.names_of(module)
        targets = [] if class_name is None else _matches(names[0], class_name, by_target)
        if class_name is None or any(_matches(name, class_name, ignore) for name in names):
            targets = []
        arguments = by_target[targets[0]] if targets else None
        if arguments is None:
            yield from view.plain_problems(module)
        elif module.may_be_linear and not module.is_quantized:
            continue
        elif class_name == "Embedding":
            yield module.report("transformers does not load a quantized embedding", LEAVE)
        else:
            yield from view.arguments_problems(module, arguments)
            if module.is_quantized:
                decoded.add(arguments)
                yield from _input_problems(module, arguments)
    for names in view.tied_layers():
        if all(
            _matches(name, "Linear", by_target) and not _matches(name, "Linear", ignore)
            for name in names
        ):
            yield LoadingProblem(
                names[0],
                "transformers builds it quantized, and the file has no weight of it: it shares "
                "that of the embedding",
                NAME_IN_IGNORE,
            )
    yield from _dtype_problems(view, {arguments.scheme for arguments in decoded})
    yield from _decoding_problems(view, decoded, _dense_arguments(groups))


def _input_problems(module: Module, arguments: Arguments) -> Iterator[LoadingProblem]:
    """Yield a module whose inputs `compute_dynamic_scales_and_zp` cannot split in groups."""
    if not arguments.splits_inputs(module):
        yield module.report(
            f"transformers quantizes its inputs in groups of {arguments.input_group}, and its "
            "columns are no multiple of that, so that the first call fails",
            "choose another value of " + argument("inputs") + ", or " + LEAVE,
        )


def _dense_arguments(groups: Sequence[tuple[list[str], Arguments | None]]) -> Arguments | None:
    """Return by what `dequantize=True` decodes all layers but experts (`get_dense_scheme`)."""
    for targets, arguments in groups:
        if not any(target.startswith("re:") and "experts" in target for target in targets):
            return arguments
    return groups[0][1] if groups else None


def _decoding_problems(
    view: View, decoded: Collection[Arguments], dense: Arguments | None
) -> Iterator[LoadingProblem]:
    """Yield why transformers must decode a model when it loads it, and not when it calls it."""
    # transformers then decodes the weights of `decoded` by `dense` alone.
    architecture = view.architecture
    schemes = {arguments.scheme for arguments in decoded}
    is_packed = any(module.is_quantized and "" not in module.tensors for module in view.modules)
    reason, otherwise = None, ""
    if architecture.needs_weights and is_packed:
        otherwise = ", or choose a scheme of 8-bit floats"
        reason = (
            f"transformers initializes the layers of {architecture.name} as it loads them, and "
            "packed ones have no weight"
        )
    elif architecture.widens_scales and any(not is_decoded_alone(name, "") for name in schemes):
        reason = (
            f"transformers holds scales of {architecture.name} in float32, and decodes layers to "
            "that, which the model does not multiply by"
        )
    elif schemes and architecture.model_type in _WITH_OWN_BUFFER:
        reason = (
            f"compressed-tensors holds the positions of {architecture.name} in float32, which the "
            "model does not add"
        )
    elif any(row.strategy in {"group", "channel"} and not row.symmetric for row in decoded):
        # Of compressed-tensors 0.20.1, whose own files it does not load either.
        reason = (
            "transformers takes a zero point for each row, and compressed-tensors stores those of "
            "several rows in a word"
        )
        otherwise = ", or no zero points"
    if reason is None:
        return
    if any(dense is None or row.of_weights != dense.of_weights for row in decoded):
        yield LoadingProblem(
            "",
            reason
            + "; with dequantize=True transformers decodes all layers but experts by one group of "
            "the configuration, and these have several",
            "choose one scheme for them" + otherwise,
        )
    else:
        remedy = "load it with quantization_config=CompressedTensorsConfig(dequantize=True)"
        yield LoadingProblem("", reason, remedy + otherwise, option=DECODED)


def _conversion_problems(view: View, arguments: Arguments | None) -> Iterator[LoadingProblem]:
    """Yield the weights that transformers converts while it loads, and not what quantizes them."""
    # `update_weight_conversions` copies a converter for scales if its first target has some: each
    # tensor of a module then needs the rows of the weight. Else the converter collects them, and
    # what decodes experts runs first; it makes one weight of several, but not several of one.
    # Without `arguments`, of experts, there are no scales: fp8 is decoded as a CPU loads it.
    with_scales = {
        _end(name)
        for module in view.modules
        if module.is_quantized and arguments is not None
        for name in view.names_of(module)
    }
    for module in view.modules:
        kind = module.parameter.conversion
        sizes = {info.shape[:1] for suffix, info in module.tensors.items() if suffix[:1] != "."}
        if module.is_expert or not kind or not module.weight.endswith(WEIGHT):
            continue
        if module.is_quantized:
            fits = len(sizes) == 1 if arguments is not None else kind in {"joined", "turned"}
            if kind == "renamed" or not fits:
                yield module.report(
                    "transformers parts, joins, turns or renames its weight while it loads, and "
                    "not its scales",
                    LEAVE if kind == "renamed" or arguments is None else _BY_ROWS,
                )
        elif (
            arguments is not None
            and not arguments.is_float8
            and kind in {"joined", "turned"}
            and not _has_scales(view, module.parameter, with_scales)
        ):
            yield module.report(
                f"transformers decodes it from {arguments.scheme} before it joins or turns it, and "
                "it is not quantized",
                "choose fp8_tensor or fp8_channel",
            )
    for row in view.architecture.parameters.values():
        is_split = row.conversion == "split" and row.name.endswith(WEIGHT)
        if is_split and row.role == "linear" and not _has_scales(view, row, with_scales):
            yield LoadingProblem(
                row.name.removesuffix(WEIGHT),
                "transformers makes several weights of it while it loads, which fails for a "
                "quantized model that has none of it",
                "choose another consumer",
            )


def _has_scales(view: View, row: Parameter, with_scales: Collection[str]) -> bool:
    """Return True if the model has scales of a layer of the names that a row is converted to."""
    names = expand_name(view.architecture.modules.get(row.name.removesuffix(WEIGHT), ""))
    return any(_end(name) in with_scales for name in names)


def _end(name: str) -> str:
    """Return the end of a module's name by which converters find it: `mlp.gate_proj`."""
    return ".".join(name.split(".")[-2:])


def _dtype_problems(view: View, schemes: set[str]) -> Iterator[LoadingProblem]:
    """Yield what needs another dtype: these are decoded to bfloat16, whatever the model is."""
    dtype = view.dtype()
    names = sorted(name for name in schemes if is_decoded_alone(name, dtype))
    if names:
        yield LoadingProblem(
            "",
            f"transformers decodes {', '.join(names)} to bfloat16, and the model is {dtype}",
            "load it with dtype=torch.bfloat16, or cast the model to bfloat16 first",
            option="dtype=bfloat16",
        )


def _expert_arguments(groups: Sequence[tuple[list[str], Arguments | None]]) -> Arguments | None:
    """Return how experts are stored: `ignore` does not count (`get_experts_scheme`)."""
    for targets, arguments in groups:
        if any(target.startswith("re:") and "experts" in target for target in targets):
            return arguments
    for targets, arguments in groups:
        if any(not target.startswith("re:") for target in targets):
            return arguments
    return groups[0][1] if groups else None


def _expert_problems(
    view: View, module: Module, groups: Sequence[tuple[list[str], Arguments | None]]
) -> Iterator[LoadingProblem]:
    """Yield what keeps transformers from joining experts to one tensor."""
    is_sequential = view.architecture.model_type in _SEQUENTIAL
    if module.is_stack:
        if module.is_quantized or is_sequential:
            yield module.report(
                "transformers decodes no experts in one tensor, and would drop their scales"
                if module.is_quantized
                else "transformers builds experts one by one, and would drop them in one tensor",
                _ONE_BY_ONE if module.is_quantized else _ELSEWHERE,
            )
        return
    arguments = _expert_arguments(groups)
    if arguments is None:
        yield from view.plain_problems(module)
        return
    is_float8 = arguments.is_float8
    if is_sequential:
        yield from view.arguments_problems(module, arguments)
    elif module.plain is not None and not module.is_quantized:
        if not is_float8:
            yield module.report(
                f"transformers decodes all experts from {arguments.scheme}, and it is "
                f"{module.plain.label}",
                "quantize all experts, or choose fp8_tensor or fp8_channel",
            )
    elif is_float8 and (arguments.strategy not in {"tensor", "channel"} or arguments.group):
        yield module.report(
            f"transformers decodes no experts from {arguments.scheme}",
            "choose another scheme for the experts, or " + LEAVE,
        )
    elif arguments.strategy == "tensor_group" or not arguments.symmetric:
        yield module.report(
            f"transformers decodes no experts from {arguments.scheme}"
            + ("" if arguments.symmetric else " with zero points"),
            "choose another scheme for the experts",
        )
    else:
        yield from view.arguments_problems(module, arguments)


def _skips(name: str, texts: Sequence[str]) -> bool:
    """Return True for a module that a list leaves out (`should_convert_module`)."""
    return any(
        re.match(rf"(?:{text})(?:(?<=\.)|(?=\.|$))", name) or name.endswith(text) for text in texts
    )


def _float8(view: View, section: Mapping[str, Any]) -> Iterator[LoadingProblem]:
    """Yield what keeps `FP8Linear`, or its decoding on a CPU, from what the file has."""
    exceptions = section.get("modules_to_not_convert")
    texts = list(exceptions) if exceptions is not None else view.heads()
    float32_names = [row.name for row in view.architecture.parameters.values() if row.float32]
    block = section.get("weight_block_size")
    yield from _conversion_problems(view, None)
    yield from _renamed_scales(view)
    for module in view.modules:
        # Experts are one module, which takes the name of their layer.
        module_name = module.layer if module.is_expert or module.is_stack else module.name
        is_left = _skips(module.name, texts) or _skips(module_name, texts)
        if module.is_stack:
            if module.is_quantized:
                yield module.report(
                    "transformers decodes no experts in one tensor on a CPU: it takes their codes "
                    "for weights",
                    _ONE_BY_ONE,
                )
            elif module.layer.endswith("experts") and not _skips(module.layer, texts):
                yield _lacking(module, "weight_scale_inv")
        elif not (module.is_linear or module.is_expert or module.may_be_linear) or is_left:
            yield from view.plain_problems(module)
        elif not module.is_quantized:
            if not module.may_be_linear and (module.role != "head" or exceptions is not None):
                yield _lacking(module, "weight_scale_inv")
        elif module.parameter.name in float32_names:
            yield module.report("transformers keeps it in float32", LEAVE)
        else:
            yield from _float8_problems(module, block)


def _renamed_scales(view: View) -> Iterator[LoadingProblem]:
    """Yield what is called a scale and is none of codes (`update_weight_conversions`)."""
    if view.architecture.model_type.startswith("inkling2"):
        return
    names = view.architecture.modules
    module_names = {*names, *names.values()}
    for module in view.modules:
        if module.weight.endswith(".scale") and module.parameter.name in module_names:
            yield module.report(
                "transformers renames it to 'weight_scale_inv', and would drop it",
                "use compressed-tensors as the recipe",
            )


def _lacking(module: Module, part: str) -> LoadingProblem:
    return module.report(
        f"transformers builds it quantized, and the file has no {part!r} of it",
        f"{IGNORE}, or quantize it",
    )


def _float8_problems(module: Module, block: object) -> Iterator[LoadingProblem]:
    payload, scale = module.tensors.get(""), module.tensors.get("_scale_inv")
    if payload is None or scale is None:
        part = "weight" if payload is None else "weight_scale_inv"
        yield _lacking(module, part)
        return
    dropped_parts = {name for name in module.tensors if name.startswith("_")} - {"_scale_inv"}
    if dropped_parts:
        yield module.report(
            f"transformers drops 'weight{min(dropped_parts)}'", "remove it, or quantize anew"
        )
    if code_of(payload) not in {_E4M3, "I8"}:
        yield module.report(
            f"its codes are {payload.label}, and transformers reads {_E4M3}", "quantize it anew"
        )
        return
    rows, columns = payload.shape[-2:] if len(payload.shape) > 1 else (1, *payload.shape)
    if not (isinstance(block, list) and len(block) == MATRIX):
        if scale.shape not in {(), (1,), (1, 1)}:
            yield module.report(f"its scales have the shape {scale.shape}", "quantize anew")
        return
    high, wide = (int(size) for size in block)
    grid = ceil(rows / high), ceil(columns / wide)
    if scale.shape != grid:
        yield module.report(
            f"its scales have the shape {scale.shape}, and blocks of {high}x{wide} need {grid}",
            "quantize it anew with that block, or state the block that it has",
        )
    elif (rows > high and rows % high) or (columns > wide and columns % wide):
        yield module.report(
            f"transformers decodes a matrix of {rows}x{columns} right only on a GPU: without one "
            f"it cuts it in {grid[0]}x{grid[1]} equal blocks",
            "load it on a GPU, or " + LEAVE,
            option="a GPU",
        )


def _mxfp4(view: View, section: Mapping[str, Any]) -> Iterator[LoadingProblem]:
    """Yield what keeps `Mxfp4GptOssExperts` from what the file has."""
    texts = list(section.get("modules_to_not_convert") or ())
    left_out = {m.layer for m in view.modules if m.is_stack and _skips(m.layer, texts)}
    return view.mxfp4_problems(left_out)


_BY_METHOD = {
    "compressed-tensors": _compressed_tensors,
    "fp8": _float8,
    "mxfp8": _float8,
    "mxfp4": _mxfp4,
}
_NOT_READ = ("modelopt",)
METHODS = frozenset((*_BY_METHOD, *_NOT_READ))
"""The methods of quantization that have rules."""
