"""What vLLM 0.33.0 and SGLang 0.5.23 load: their rules of targets, of exceptions, and of joining.

`quantization/compressed_tensors/`, `fp8.py`, `mxfp4.py`, `modelopt.py` (SGLang:
`modelopt_quant.py`) and `utils/quant_utils.py` (SGLang: `utils.py`) of either.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from functools import cache
from typing import Any, NamedTuple

from castwise._numbers import BYTE_BITS
from castwise.checkpoint._errors import LEAVE
from castwise.checkpoint.loading._compressed_tensors import Arguments, groups_of
from castwise.checkpoint.loading._view import IGNORE, QUANTIZATION_FILE, View, wrong_axis
from castwise.checkpoint.loading.modules import MATRIX, LoadingProblem, Module, code_of, is_wide
from castwise.models.engines import EngineRules
from castwise.quantization.producers.consumers import find_consumer
from castwise.quantization.producers.stated import SECTIONS
from castwise.text.wording import argument, parenthesis

_LINEAR, _HEAD, _EMBEDDING = (
    "MergedColumnParallelLinear",
    "ParallelLMHead",
    "VocabParallelEmbedding",
)
"""Classes of engines; a target is looked for in the name of the class, whatever its case."""

# The names of the weights of an expert by which engines look up how all of a layer are stored.
_PROJECTIONS = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))

_ALONE = "store the weights of each expert in a tensor of its own, or leave them as they are"

_CT, _MXFP4 = "compressed-tensors", "mxfp4"
# The strategies of bytes whose inputs may be quantized, too (`_is_fp8_w8a8`, `_is_*_w8a8`).
_OF_BYTES = ("tensor", "channel", "block")

_E4M3, _U8, _F32 = "F8_E4M3", "U8", "F32"

# ModelOpt's algorithms: the scheme, the dtypes of codes and of scales, and the parts.
_ALGORITHMS: Mapping[str, tuple[str, str, str, frozenset[str]]] = {
    "FP8": ("fp8_tensor", _E4M3, _F32, frozenset(("_scale",))),
    "FP8_PER_CHANNEL_PER_TOKEN": ("fp8_channel", _E4M3, _F32, frozenset(("_scale",))),
    "FP8_PB_WO": ("fp8_block", _E4M3, _F32, frozenset(("_scale",))),
    "NVFP4": ("nvfp4", _U8, _E4M3, frozenset(("_scale", "_scale_2"))),
    "W4A16_NVFP4": ("nvfp4", _U8, _E4M3, frozenset(("_scale", "_scale_2"))),
    "MXFP8": ("mxfp8_e4m3", _E4M3, _U8, frozenset(("_scale",))),
}


class _Engine(NamedTuple):
    """What tells the engines apart."""

    # A plain target or exception of a head also matches the end of a name.
    suffixes: bool
    # Embeddings of packed integers without zero points are loaded.
    integer_embeddings: bool
    # Groups in an order of their own are refused.
    refuses_order: bool
    # The bits of the zero points of linear layers, and those of experts, that it loads.
    zero_bits: tuple[int, ...]
    expert_zero_bits: tuple[int, ...]


_ENGINES = {
    # Machete has kernels of zero points of 8 bits (`machete_utils.py`), Marlin of 4 bits alone.
    "vllm": _Engine(
        suffixes=False,
        integer_embeddings=True,
        refuses_order=True,
        zero_bits=(4, 8),
        expert_zero_bits=(4, 8),
    ),
    # SGLang has Marlin alone (`marlin_utils.py`, `query_marlin_supported_quant_types`), and
    # `compressed_tensors_wNa16_moe.py` asserts that experts have none.
    "sglang": _Engine(
        suffixes=True,
        integer_embeddings=False,
        refuses_order=False,
        zero_bits=(4,),
        expert_zero_bits=(),
    ),
}


_ONE_SCHEME = "give them one scheme, or leave all of them " + parenthesis("ignore")


def engine_problems(view: View) -> Iterator[LoadingProblem]:
    section = view.section(*SECTIONS)
    method = section.get("quant_method")
    if method is None and QUANTIZATION_FILE in view.files:
        method = "modelopt"
    if method == _MXFP4:
        yield from view.mxfp4_problems(())
    elif isinstance(method, str) and method in _BY_METHOD:
        yield from _BY_METHOD[method](view, section).problems()
    elif method is None and any(module.is_quantized for module in view.modules):
        yield LoadingProblem(
            "",
            f"config.json states no quantization that {view.consumer} reads",
            "quantize it with a recipe that it loads (castwise quantize --for)",
        )


class _Method:
    """How an engine stores modules, by a configuration of some method."""

    def __init__(self, view: View) -> None:
        self.view, self.consumer = view, view.consumer
        self.engine = _ENGINES[view.consumer]
        self._loads = find_consumer(view.consumer).loads

    def fault(self) -> str | None:
        """Say why no module can be loaded."""
        return None

    def excepts(self, name: str) -> bool:
        """Return True for a module that is left without quantization."""
        raise NotImplementedError

    def storage(self, names: Sequence[str], class_name: str) -> object | None:
        """Return how the weights that are joined to one are stored; None if they are plain."""
        raise NotImplementedError

    def misfit(self, module: Module, storage: Any) -> Iterator[LoadingProblem]:  # noqa: ANN401
        """Yield what a module lacks that is stored so."""
        raise NotImplementedError

    def holds(self, scheme: str, *, is_expert: bool, recipe: str) -> bool:
        """Return True if the engine has a method for a scheme, of weights alone."""
        return any(
            row.recipe == recipe and row.holds(scheme, is_expert=is_expert) for row in self._loads
        )

    def problems(self) -> Iterator[LoadingProblem]:
        """Yield what differs, module by module and for those that an engine joins together."""
        if (fault := self.fault()) is not None:
            yield LoadingProblem("", fault, "choose another scheme or recipe")
            return
        rules = self.view.rules or EngineRules()

        @cache  # by normalized names, of which a model has few
        def is_joined(pattern: str) -> bool:
            return len(rules.partners(pattern)) > 1

        @cache
        def is_plain(pattern: str, is_quantized: bool) -> bool:
            """Return True for what is never quantized, or where the table cannot tell, as it is."""
            return rules.builds_plain(pattern) or (rules.keeps(pattern) and not is_quantized)

        groups: dict[str, list[Module]] = {}
        for module in self.view.modules:
            if module.is_expert or module.name in groups or not is_joined(module.pattern):
                continue
            names = rules.partners(module.name)
            group = [self.view.by_name[name] for name in names if name in self.view.by_name]
            if len(group) > 1:
                groups |= {member.name: group for member in group}
                yield from self._group_problems(group)
        layers: dict[str, list[Module]] = {}
        for module in self.view.modules:
            if module.is_expert:
                layers.setdefault(module.layer, []).append(module)
            elif is_plain(module.pattern, module.is_quantized) or not (
                module.may_be_linear or module.is_linear or module.role in {"head", "embedding"}
            ):
                yield from self.view.plain_problems(module)
            else:
                yield from self._module_problems(module, groups.get(module.name))
        for layer, modules in layers.items():
            yield from self._expert_problems(layer, modules)

    def _module_problems(
        self, module: Module, group: Sequence[Module] | None
    ) -> Iterator[LoadingProblem]:
        class_name = {"head": _HEAD, "embedding": _EMBEDDING}.get(module.role, _LINEAR)
        names = [member.name for member in group or (module,)]
        storage = None if self.excepts(module.name) else self.storage(names, class_name)
        if module.may_be_linear and not module.is_quantized:
            return  # engines build most without quantization, whatever the configuration says
        # vLLM's `compressed_tensors_embedding.py` reads no zero points.
        is_packed = (
            isinstance(storage, Arguments)
            and storage.form == "pack-quantized"
            and storage.symmetric
        )
        has_method = class_name != _EMBEDDING or (self.engine.integer_embeddings and is_packed)
        if storage is None or not has_method:
            yield from self.view.plain_problems(module)
        else:
            yield from self.misfit(module, storage)

    def _group_problems(self, group: Sequence[Module]) -> Iterator[LoadingProblem]:
        """Yield what differs of weights that an engine joins to one."""
        names = [module.name for module in group]
        names_text = ", ".join(name.rpartition(".")[2] for name in names)
        joins = f"{self.consumer} joins {names_text} to one weight, and"
        exceptions = {self.excepts(name) for name in names}
        schemes = {repr(self.storage([name], _LINEAR)) for name in names}
        formats = {_storage(module) for module in group}
        if len(exceptions) > 1 or len(formats) > 1 or (exceptions == {False} and len(schemes) > 1):
            yield LoadingProblem(names[0], f"{joins} they are stored differently", _ONE_SCHEME)
        elif self.view.read is not None:
            for suffix in ("_global_scale", "_scale_2"):
                tensors = [module.tensors[suffix] for module in group if suffix in module.tensors]
                if len({self.view.read(info.name) for info in tensors}) > 1:
                    yield LoadingProblem(
                        names[0],
                        f"{joins} their global scales differ",
                        "quantize the unquantized model anew",
                    )

    def _expert_problems(self, layer: str, modules: Sequence[Module]) -> Iterator[LoadingProblem]:
        """Yield what differs of the experts of a layer, which are one module of an engine."""
        stem = layer if layer.rpartition(".")[2] == "experts" else f"{layer}.experts"
        names = [name for name in (module.name for module in modules) if ".experts." in name]
        zeroth = [name for name in names if ".experts.0." in name]
        choices = [[f"{stem}.0.{end}" for end in projections] for projections in _PROJECTIONS]
        if zeroth and not any(module.is_stack for module in modules):
            choices = [zeroth]
        exceptions = [{self.excepts(name) for name in choice} for choice in choices]
        is_left = {True} in exceptions
        alike = f"{self.consumer} stores all experts of a layer alike, and the configuration"
        if not is_left and any(len(states) > 1 for states in exceptions):
            yield LoadingProblem(layer, f"{alike} excepts some", _ONE_SCHEME)
            return
        schemes = {repr(self.storage([name], "RoutedExperts")) for name in choices[0]}
        storage = None if is_left else self.storage(choices[0][:1], _LINEAR)
        if storage is None:
            for module in modules:
                yield from self.view.plain_problems(module)
        elif len(schemes) > 1:
            yield LoadingProblem(layer, f"{alike} gives them several schemes", _ONE_SCHEME)
        else:
            for module in modules:
                if module.is_stack:
                    yield module.report(
                        f"{self.consumer} builds quantized experts one by one, and the file has "
                        "them in one tensor"
                        + ("" if module.is_quantized else f" as {module.tensors[''].label}"),
                        _ALONE if module.is_quantized else f"{IGNORE} ('re:.*experts.*')",
                    )
                else:
                    yield from self.misfit(module, storage)


class _CompressedTensors(_Method):
    def __init__(self, view: View, section: Mapping[str, Any]) -> None:
        super().__init__(view)
        self._targets = {
            target: arguments for targets, arguments in groups_of(section) for target in targets
        }
        self._ignore = [text for text in section.get("ignore") or () if isinstance(text, str)]

    def excepts(self, name: str) -> bool:
        return any(self._names(name, text) for text in self._ignore)

    def _names(self, name: str, text: str) -> bool:
        if text.startswith("re:"):
            return re.match(text[3:], name) is not None
        return text == name or (self.engine.suffixes and name.endswith(f".{text}"))

    def storage(self, names: Sequence[str], class_name: str) -> Arguments | None:
        targets = [next((t for t in self._targets if self._names(name, t)), None) for name in names]
        target = targets[0] if all(targets) else None
        if target is None:
            target = next((t for t in self._targets if t.lower() in class_name.lower()), None)
        return None if target is None else self._targets[target]

    def misfit(self, module: Module, arguments: Any) -> Iterator[LoadingProblem]:  # noqa: ANN401
        row = next(row for row in self._loads if row.recipe == _CT)
        has_method = row.holds(arguments.scheme, is_expert=module.is_expert)
        if arguments.inputs:
            # Integers of fewer bits have a kernel for inputs of some kinds alone.
            is_byte = arguments.bits == BYTE_BITS and arguments.strategy in _OF_BYTES
            is_float = has_method and arguments.kind == "float"
            has_method = is_byte or is_float or arguments.scheme in row.dynamic
        stored = arguments.scheme
        if arguments.has_float8_inputs:
            has_method, stored = stored in row.float8, f"{stored} with float8 inputs"
        kind, zero_bits = "linear layers", self.engine.zero_bits
        if module.is_expert:
            kind, zero_bits = "experts", self.engine.expert_zero_bits
        if arguments.has_order and self.engine.refuses_order:
            yield module.report(
                f"{self.consumer} loads no groups in an order of their own (actorder)",
                "quantize it anew",
            )
        elif not has_method:
            yield module.report(
                f"{self.consumer} has no method for {kind} of {stored}",
                "choose another scheme, or " + LEAVE,
            )
        elif not arguments.symmetric and arguments.bits not in zero_bits:
            yield module.report(
                f"{self.consumer} has no method for {kind} of {stored} with zero points",
                "quantize it without zero points, or " + LEAVE,
            )
        elif arguments.scheme in row.only_dynamic and not arguments.dynamic:
            yield module.report(
                f"{self.consumer} loads {arguments.scheme} of {_CT} only with inputs that are "
                "quantized while it runs, and the statement has no such inputs",
                "quantize it with " + argument("inputs", "dynamic"),
            )
        else:
            yield from self.view.arguments_problems(module, arguments)


class _Float8(_Method):
    def __init__(self, view: View, section: Mapping[str, Any]) -> None:
        super().__init__(view)
        texts = section.get("ignored_layers") or section.get("modules_to_not_convert") or ()
        self._ignore_texts = [text for text in texts if isinstance(text, str)]
        block = section.get("weight_block_size")
        self._block = tuple(block) if isinstance(block, list) else None

    def excepts(self, name: str) -> bool:
        if ".experts." in name:
            layer = name.partition(".experts.")[0] + ".experts"
            return any(layer in text for text in self._ignore_texts if "experts" in text)
        if self.engine.suffixes:
            return any(
                name == text or name.endswith(f".{text}") or name.startswith(f"{text}.")
                for text in self._ignore_texts
            )
        return name in self._ignore_texts

    def storage(self, names: Sequence[str], class_name: str) -> str | None:
        del names
        return None if class_name in {_HEAD, _EMBEDDING} else "fp8_block"

    def misfit(self, module: Module, scheme: Any) -> Iterator[LoadingProblem]:  # noqa: ANN401
        part = "_scale" if self._block is None else "_scale_inv"
        yield from _misfit(self.view, module, str(scheme), _E4M3, frozenset((part,)))
        payload, scale = module.tensors.get(""), module.tensors.get("_scale_inv")
        if payload is None or scale is None or self._block is None or len(payload.shape) < MATRIX:
            return
        grid = tuple(-(-n // b) for n, b in zip(payload.shape[-2:], self._block, strict=True))
        if scale.shape[-2:] != grid:
            yield module.report(
                f"its scales have the shape {scale.shape}, and the stated block needs {grid}",
                "quantize it anew with that block, or state the block that it has",
            )


class _ModelOpt(_Method):
    def __init__(self, view: View, section: Mapping[str, Any]) -> None:
        super().__init__(view)
        file = view.files.get(QUANTIZATION_FILE)
        inner = file.get("quantization") if isinstance(file, Mapping) else None
        values = section or (inner if isinstance(inner, Mapping) else {})
        inner_values = values.get("quantization")
        values = inner_values if isinstance(inner_values, Mapping) else values
        patterns = values.get("exclude_modules") or values.get("ignore") or ()
        self._ignore_patterns = [text for text in patterns if isinstance(text, str)]
        self._algorithm = str(values.get("quant_algo", "")).upper()

    def fault(self) -> str | None:
        if self._algorithm in _ALGORITHMS or self._algorithm == "MIXED_PRECISION":
            return None
        return f"{self.consumer} does not know ModelOpt's algorithm {self._algorithm!r}"

    def excepts(self, name: str) -> bool:
        layer = name.partition(".experts.")[0] + ".experts" if ".experts." in name else name
        if self.engine.suffixes:  # all experts of a layer are one module
            parts = (layer, *layer.split("."))
            return any(fnmatch(part, text) for text in self._ignore_patterns for part in parts)
        return any(
            text in name or fnmatch(name, text) or (layer != name and layer in text)
            for text in self._ignore_patterns
        ) or any(text in name for row in self._loads for text in row.plain)

    def storage(self, names: Sequence[str], class_name: str) -> str | None:
        del names
        return None if class_name == _EMBEDDING else self._algorithm

    def misfit(self, module: Module, algorithm: Any) -> Iterator[LoadingProblem]:  # noqa: ANN401
        if algorithm not in _ALGORITHMS:
            return
        scheme, codes, scales, parts = _ALGORITHMS[algorithm]
        if (
            not self.holds(scheme, is_expert=module.is_expert, recipe="modelopt")
            and ".input_scale" not in module.tensors
        ):
            kind = "experts" if module.is_expert else "linear layers"
            yield module.report(
                f"{self.consumer} has no method for {kind} of {scheme} as ModelOpt stores it",
                "choose another scheme or recipe, or " + LEAVE,
            )
            return
        yield from _misfit(self.view, module, scheme, codes, parts)
        scale = module.tensors.get("_scale")
        if (
            module.is_quantized
            and scale is not None
            and code_of(scale) != scales
            and not (scales == _F32 and is_wide(scale))
        ):
            yield module.report(f"its scales are {scale.label}, and {scheme} needs {scales}", LEAVE)


def _misfit(
    view: View, module: Module, scheme: str, codes: str, parts: frozenset[str]
) -> Iterator[LoadingProblem]:
    """Yield what a module lacks of codes under its own name and of parts beside them."""
    payload = module.tensors.get("")
    suffixes = {suffix for suffix in module.tensors if suffix.startswith("_")}
    if not module.is_quantized:
        yield module.report(
            f"{view.consumer} builds it as {scheme}, and the file has it as "
            f"{module.tensors[''].label}",
            f"{IGNORE}, or quantize it",
        )
    elif payload is None or code_of(payload) != codes or suffixes != parts:
        label = "none" if payload is None else payload.label
        yield module.report(
            f"{view.consumer} builds it as {scheme}: it needs {codes} and "
            f"{', '.join(sorted(parts))}, and the file has {label} and "
            f"{', '.join(sorted(suffixes)) or 'no scale'}",
            "quantize it anew, or state how it is stored",
        )
    elif module.parameter.axes.endswith("in out"):
        yield wrong_axis(module)


def _storage(module: Module) -> tuple[Any, ...]:
    if not module.is_quantized:
        return ("plain",)
    parts = sorted((name, info.format) for name, info in module.tensors.items() if name[:1] != ".")
    return tuple(parts)


_BY_METHOD: Mapping[str, Callable[[View, Mapping[str, Any]], _Method]] = {
    _CT: _CompressedTensors,
    "fp8": _Float8,
    "modelopt": _ModelOpt,
}
METHODS = frozenset((*_BY_METHOD, _MXFP4))
"""The methods of quantization that have rules."""
