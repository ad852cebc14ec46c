"""What vLLM 0.33.0 and SGLang 0.5.23 load: their rules of targets, of exceptions, and of joining.

`quantization/compressed_tensors/`, `fp8.py`, `modelopt.py` (SGLang: `modelopt_quant.py`), `mxfp4.py`
and `utils/quant_utils.py` (SGLang: `utils.py`) of either.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from castwise.checkpoint.loading._arguments import Arguments, groups_of
from castwise.checkpoint.loading._modules import Module, instances
from castwise.checkpoint.loading._problem import Problem
from castwise.checkpoint.loading._view import IGNORE, LEAVE, View, wrong_axis

try:
    from castwise.models import normalize_name
except ImportError:  # until the table is merged
    normalize_name = str
from castwise.quantization.producers import find_consumer

_LINEAR, _HEAD, _EMBEDDING = (
    "MergedColumnParallelLinear",
    "ParallelLMHead",
    "VocabParallelEmbedding",
)
"""Classes of engines; a target is looked for in the name of the class, whatever its case."""

_PROJECTIONS = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))
"""The names of the weights of an expert by which engines look up how all of a layer are stored."""

_BY_NAME_ALONE = ("vision_tower", "vision_model", "vit_large_projector")
"""What ModelOpt's configuration never quantises in vLLM."""

_ALONE = "store the weights of each expert in a tensor of its own, or leave them as they are"
_NEEDS_ALIKE = "give them one scheme, or leave all of them (--ignore)"

_ALGORITHMS: Mapping[str, tuple[str, str, str, frozenset[str]]] = {
    "FP8": ("fp8_tensor", "float8_e4m3fn", "float32", frozenset(("_scale",))),
    "FP8_PER_CHANNEL_PER_TOKEN": (
        "fp8_channel",
        "float8_e4m3fn",
        "float32",
        frozenset(("_scale",)),
    ),
    "FP8_PB_WO": ("fp8_block", "float8_e4m3fn", "float32", frozenset(("_scale",))),
    "NVFP4": ("nvfp4", "uint8", "float8_e4m3fn", frozenset(("_scale", "_scale_2"))),
    "W4A16_NVFP4": ("nvfp4", "uint8", "float8_e4m3fn", frozenset(("_scale", "_scale_2"))),
    "MXFP8": ("mxfp8_e4m3", "float8_e4m3fn", "uint8", frozenset(("_scale",))),
}
"""ModelOpt's algorithms that engines know: the scheme, the dtypes of codes and scales, the parts."""


@dataclass(frozen=True, slots=True)
class _Engine:
    """What tells the engines apart.

    Attributes
    ----------
    name
        The consumer.
    suffixes
        A plain target or exception of a head also matches the end of a name.
    integer_embeddings
        Embeddings of packed integers are loaded.
    refuses_order
        Groups in an order of their own are refused.

    """

    name: str
    suffixes: bool
    integer_embeddings: bool
    refuses_order: bool


_ENGINES = {
    "vllm": _Engine("vllm", suffixes=False, integer_embeddings=True, refuses_order=True),
    "sglang": _Engine("sglang", suffixes=True, integer_embeddings=False, refuses_order=False),
}


def engine_problems(view: View) -> Iterator[Problem]:
    """Yield what keeps vLLM or SGLang from loading a checkpoint."""
    engine = _ENGINES[view.consumer]
    section = view.section("quantization_config", "compression_config")
    method = section.get("quant_method")
    if method == "compressed-tensors":
        yield from _problems(view, _CompressedTensors(engine, section))
    elif method == "fp8":
        yield from _problems(view, _Float8(engine, section))
    elif method == "mxfp4":
        yield from _mxfp4(view)
    elif method == "modelopt" or "hf_quant_config.json" in view.files:
        yield from _problems(view, _ModelOpt(engine, section, view.files))
    elif method is None and any(module.is_quantized for module in view.modules):
        yield Problem(
            "",
            f"config.json states no quantisation that {engine.name} reads",
            "quantise it with a recipe that it loads (castwise quantize --for)",
        )


class _Method:
    """How an engine stores modules, by a configuration of some method."""

    def __init__(self, engine: _Engine) -> None:
        self.engine = engine

    def fault(self) -> str | None:
        """Say why no module can be loaded."""
        return None

    def excepted(self, name: str) -> bool:
        """Return True for a module that is left without quantisation."""
        raise NotImplementedError

    def stored(self, names: Sequence[str], class_name: str) -> object | None:
        """Return how the weights that are joined to one are stored; None if they are plain."""
        raise NotImplementedError

    def misfit(self, view: View, module: Module, stored: Any) -> Iterator[Problem]:  # noqa: ANN401
        """Yield what a module lacks that is stored so."""
        raise NotImplementedError

    def holds(self, scheme: str, *, is_expert: bool, recipe: str) -> bool:
        """Return True if the engine has a method for a scheme, of weights alone."""
        loads = find_consumer(self.engine.name).loads
        return any(row.recipe == recipe and row.holds(scheme, is_expert=is_expert) for row in loads)


class _CompressedTensors(_Method):
    def __init__(self, engine: _Engine, section: Mapping[str, Any]) -> None:
        super().__init__(engine)
        self._targets = {
            target: arguments for targets, arguments in groups_of(section) for target in targets
        }
        self._ignore = [text for text in section.get("ignore") or () if isinstance(text, str)]

    def excepted(self, name: str) -> bool:
        return any(self._names(name, text) for text in self._ignore)

    def _names(self, name: str, text: str) -> bool:
        if text.startswith("re:"):
            return re.match(text[3:], name) is not None
        return text == name or (self.engine.suffixes and name.endswith(f".{text}"))

    def stored(self, names: Sequence[str], class_name: str) -> Arguments | None:
        found = [next((t for t in self._targets if self._names(name, t)), None) for name in names]
        target = found[0] if all(found) else None
        if target is None:
            target = next((t for t in self._targets if t.lower() in class_name.lower()), None)
        return None if target is None else self._targets[target]

    def misfit(self, view: View, module: Module, stored: Any) -> Iterator[Problem]:  # noqa: ANN401
        has_method = self.holds(
            stored.scheme, is_expert=module.is_expert, recipe="compressed-tensors"
        ) or (stored.inputs and stored.scheme.startswith(("fp8", "int8")))
        if stored.ordered and self.engine.refuses_order:
            yield Problem(
                module.name,
                f"{view.consumer} loads no groups in an order of their own (actorder)",
                "quantise it anew",
            )
        elif not has_method:
            kind = "experts" if module.is_expert else "linear layers"
            yield Problem(
                module.name,
                f"{view.consumer} has no method for {kind} of {stored.scheme}",
                "choose another scheme, or leave it (--ignore)",
            )
        else:
            yield from view.quantized(module, stored)


class _Float8(_Method):
    def __init__(self, engine: _Engine, section: Mapping[str, Any]) -> None:
        super().__init__(engine)
        stated = section.get("ignored_layers") or section.get("modules_to_not_convert") or ()
        self._ignored = [text for text in stated if isinstance(text, str)]
        block = section.get("weight_block_size")
        self._block = tuple(block) if isinstance(block, list) else None

    def excepted(self, name: str) -> bool:
        if ".experts." in name:
            layer = name.partition(".experts.")[0] + ".experts"
            return any(layer in text for text in self._ignored if "experts" in text)
        if self.engine.suffixes:
            return any(
                name == text or name.endswith(f".{text}") or name.startswith(f"{text}.")
                for text in self._ignored
            )
        return name in self._ignored

    def stored(self, names: Sequence[str], class_name: str) -> str | None:
        del names
        return None if class_name in {_HEAD, _EMBEDDING} else "fp8_block"

    def misfit(self, view: View, module: Module, stored: Any) -> Iterator[Problem]:  # noqa: ANN401
        part = "_scale" if self._block is None else "_scale_inv"
        yield from _misfit(view, module, str(stored), "float8_e4m3fn", frozenset((part,)))
        payload, scale = module.tensors.get(""), module.tensors.get("_scale_inv")
        if payload is None or scale is None or self._block is None or len(payload.shape) < 2:
            return
        wanted = tuple(-(-n // b) for n, b in zip(payload.shape[-2:], self._block, strict=True))
        if scale.shape[-2:] != wanted:
            yield Problem(
                module.name,
                f"its scales have the shape {scale.shape}, and the stated block needs {wanted}",
                "quantise it anew with that block, or state the block that it has",
            )


class _ModelOpt(_Method):
    def __init__(
        self, engine: _Engine, section: Mapping[str, Any], files: Mapping[str, Any]
    ) -> None:
        super().__init__(engine)
        file = files.get("hf_quant_config.json")
        inner = file.get("quantization") if isinstance(file, Mapping) else None
        values = section or (inner if isinstance(inner, Mapping) else {})
        nested = values.get("quantization")
        values = nested if isinstance(nested, Mapping) else values
        excepted = values.get("exclude_modules") or values.get("ignore") or ()
        self._excepted = [text for text in excepted if isinstance(text, str)]
        self._algorithm = str(values.get("quant_algo", "")).upper()

    def fault(self) -> str | None:
        if self._algorithm in _ALGORITHMS or self._algorithm == "MIXED_PRECISION":
            return None
        return f"{self.engine.name} does not know ModelOpt's algorithm {self._algorithm!r}"

    def excepted(self, name: str) -> bool:
        layer = name.partition(".experts.")[0] + ".experts" if ".experts." in name else name
        return any(
            text in name or fnmatch(name, text) or (layer != name and layer in text)
            for text in self._excepted
        ) or any(text in name for text in _BY_NAME_ALONE)

    def stored(self, names: Sequence[str], class_name: str) -> str | None:
        del names
        return None if class_name == _EMBEDDING else self._algorithm

    def misfit(self, view: View, module: Module, stored: Any) -> Iterator[Problem]:  # noqa: ANN401
        if stored not in _ALGORITHMS:
            return
        scheme, codes, scales, parts = _ALGORITHMS[stored]
        if not self.holds(scheme, is_expert=module.is_expert, recipe="modelopt") and not (
            ".input_scale" in module.tensors
        ):
            kind = "experts" if module.is_expert else "linear layers"
            yield Problem(
                module.name,
                f"{view.consumer} has no method for {kind} of {scheme} as ModelOpt stores it",
                "choose another scheme or recipe, or leave it (--ignore)",
            )
            return
        yield from _misfit(view, module, scheme, codes, parts)
        scale = module.tensors.get("_scale")
        if module.is_quantized and scale is not None and scale.format != scales:
            yield Problem(
                module.name, f"its scales are {scale.label}, and {scheme} needs {scales}", LEAVE
            )


def _misfit(
    view: View, module: Module, scheme: str, codes: str, parts: frozenset[str]
) -> Iterator[Problem]:
    """Yield what a module lacks of codes under its own name and of parts beside them."""
    payload = module.tensors.get("")
    found = {suffix for suffix in module.tensors if suffix.startswith("_")}
    if not module.is_quantized:
        yield Problem(
            module.name,
            f"{view.consumer} builds it as {scheme}, and the file has it as "
            f"{module.tensors[''].label}",
            f"{IGNORE}, or quantise it",
        )
    elif payload is None or payload.format != codes or found != parts:
        label = "none" if payload is None else payload.label
        yield Problem(
            module.name,
            f"{view.consumer} builds it as {scheme}: it needs {codes} and "
            f"{', '.join(sorted(parts))}, and the file has {label} and "
            f"{', '.join(sorted(found)) or 'no scale'}",
            "quantise it anew, or state how it is stored",
        )
    elif module.parameter.axes.endswith("in out"):
        yield wrong_axis(module)


def _problems(view: View, method: _Method) -> Iterator[Problem]:
    """Yield what differs, module by module and for those that an engine joins together."""
    if (fault := method.fault()) is not None:
        yield Problem("", fault, "choose another scheme or recipe")
        return
    plain = view.architecture.unquantized.get(view.consumer, frozenset())
    groups = view.architecture.joined.get(view.consumer, ())
    joined = {}
    for group in instances(groups, view.by_name):
        if not any(module.is_expert for module in group):
            joined |= {module.name: group for module in group}
            yield from _group_problems(view, method, group)
    layers: dict[str, list[Module]] = {}
    for module in view.modules:
        if module.is_expert:
            layers.setdefault(module.layer, []).append(module)
        elif normalize_name(module.name) in plain or module.role not in {
            *("linear", "head", "embedding", "router"),
        }:
            yield from view.unquantized(module)
        else:
            yield from _module_problems(view, method, module, joined.get(module.name))
    for layer, modules in layers.items():
        yield from _expert_problems(view, method, layer, modules)


def _module_problems(
    view: View, method: _Method, module: Module, group: Sequence[Module] | None
) -> Iterator[Problem]:
    class_name = {"head": _HEAD, "embedding": _EMBEDDING}.get(module.role, _LINEAR)
    names = [each.name for each in group or (module,)]
    stored = None if method.excepted(module.name) else method.stored(names, class_name)
    if module.role == "router" and not module.is_quantized:
        return  # engines build most without quantisation, whatever the configuration says
    if stored is None:
        yield from view.unquantized(module)
    elif class_name == _EMBEDDING and not (
        method.engine.integer_embeddings
        and isinstance(stored, Arguments)
        and stored.form == "pack-quantized"
    ):
        yield from view.unquantized(module)
    else:
        yield from method.misfit(view, module, stored)


def _group_problems(view: View, method: _Method, group: Sequence[Module]) -> Iterator[Problem]:
    """Yield what differs of weights that an engine joins to one."""
    names = [module.name for module in group]
    listed = ", ".join(name.rpartition(".")[2] for name in names)
    excepted = {method.excepted(name) for name in names}
    schemes = {repr(method.stored([name], _LINEAR)) for name in names}
    formats = {_storage(module) for module in group}
    if len(excepted) > 1 or len(formats) > 1 or (excepted == {False} and len(schemes) > 1):
        yield Problem(
            names[0],
            f"{view.consumer} joins {listed} to one weight, and they are stored differently",
            _NEEDS_ALIKE,
        )
    elif view.read is not None:
        for suffix in ("_global_scale", "_scale_2"):
            tensors = [module.tensors[suffix] for module in group if suffix in module.tensors]
            if len({view.read(info.name) for info in tensors}) > 1:
                yield Problem(
                    names[0],
                    f"{view.consumer} joins {listed} to one weight, and their global scales differ",
                    "quantise the unquantised model anew",
                )


def _storage(module: Module) -> tuple[Any, ...]:
    if not module.is_quantized:
        return ("plain",)
    parts = sorted((name, info.format) for name, info in module.tensors.items() if name[:1] != ".")
    return tuple(parts)


def _expert_problems(
    view: View, method: _Method, layer: str, modules: Sequence[Module]
) -> Iterator[Problem]:
    """Yield what differs of the experts of a layer, which are one module of an engine."""
    stem = layer if layer.endswith("experts") else f"{layer}.experts"
    names = [name for name in (module.name for module in modules) if ".experts." in name]
    first = [name for name in names if ".experts.0." in name]
    candidates = (
        [first]
        if first and not any(module.is_stack for module in modules)
        else [
            [f"{stem}.0.{projection}" for projection in projections] for projections in _PROJECTIONS
        ]
    )
    excepted = [{method.excepted(name) for name in each} for each in candidates]
    if any(len(each) > 1 for each in excepted) and not any(each == {True} for each in excepted):
        yield Problem(
            layer,
            f"{view.consumer} stores all experts of a layer alike, and the configuration excepts "
            "some",
            _NEEDS_ALIKE,
        )
        return
    is_left = any(each == {True} for each in excepted)
    found = {repr(method.stored([name], "RoutedExperts")) for name in candidates[0]}
    stored = None if is_left else method.stored(candidates[0][:1], _LINEAR)
    if stored is None:
        for module in modules:
            yield from view.unquantized(module)
    elif len(found) > 1:
        yield Problem(
            layer,
            f"{view.consumer} stores all experts of a layer alike, and the configuration gives "
            "them several schemes",
            _NEEDS_ALIKE,
        )
    else:
        for module in modules:
            if module.is_stack:
                yield Problem(
                    module.name,
                    f"{view.consumer} builds quantised experts one by one, and the file has them "
                    "in one tensor"
                    + ("" if module.is_quantized else f" as {module.tensors[''].label}"),
                    _ALONE if module.is_quantized else f"{IGNORE} ('re:.*experts.*')",
                )
            else:
                yield from method.misfit(view, module, stored)


def _mxfp4(view: View) -> Iterator[Problem]:
    """Yield what keeps an engine from loading experts in the form of gpt-oss."""
    is_gpt_oss = view.architecture.model_type == "gpt_oss"
    for module in view.modules:
        if not module.is_stack:
            yield from view.unquantized(module)
        elif not is_gpt_oss and module.is_quantized:
            yield Problem(
                module.name,
                f"{view.consumer} loads MXFP4 in the form of gpt-oss for gpt-oss alone",
                "choose another recipe (--recipe compressed-tensors)",
            )
        elif is_gpt_oss and {"_blocks", "_scales"} - module.tensors.keys():
            yield Problem(
                module.name,
                f"{view.consumer} builds it as MXFP4, and the file has no blocks and scales of it",
                "quantise all experts",
            )
        elif is_gpt_oss:
            yield from view.blocks(module)
