"""The modules of a model that have weights in a file, each with the tensors that store it.

What keeps a consumer from loading a checkpoint is a problem of some of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from castwise._core import finfo
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import TensorInfo
from castwise.models.architecture import Parameter, normalize_name
from castwise.quantization.producers.layouts import BF16

if TYPE_CHECKING:
    from castwise.models.model import Model


DECODED = "dequantize=True"
"""The option by which transformers decodes all weights while it loads them."""


@dataclass(frozen=True, slots=True)
class LoadingProblem:
    """One module that a consumer does not load as the file has it."""

    # The module, or the parameter of a stack of experts; "" for the whole checkpoint.
    module: str
    # What the consumer would do with it.
    problem: str
    # What to do.
    remedy: str
    # The option of the consumer with which it loads; None if it loads with none.
    option: str | None = None
    # True if it lacks a weight that its other layers have, which no way of storing it causes.
    is_lacking: bool = False

    def __str__(self) -> str:
        where = f"{self.module!r}: " if self.module else ""
        return where + self.problem + "; " + self.remedy


class UnloadableError(CheckpointError):
    """A result that would not be loaded, with the modules that would not."""

    def __init__(self, message: str, problems: Sequence[LoadingProblem] = ()) -> None:
        super().__init__(message)
        self.problems = problems


def loads_by_default(consumer: str, recipe: str, scheme: str, dtype: str | None) -> bool:
    """Return False if a consumer loads a scheme only with an option that it has not by default."""
    # `dtype` is the format of most tensors that are not quantized; None if there are none.
    is_narrow = consumer == "transformers" and recipe == "compressed-tensors"
    return not (is_narrow and is_decoded_alone(scheme, dtype))


def is_decoded_alone(scheme: str, dtype: str | None) -> bool:
    """Return True for what is decoded to bfloat16 where the model is computed in another dtype."""
    return scheme.startswith(("nvfp4", "mxfp")) and dtype not in {None, BF16}


WEIGHT = ".weight"
# The axes of a weight that multiplies inputs; one axis is a bias, a norm or a scale.
MATRIX = 2
# Roles of which whole numbers are codes, and not a table of positions or a count.
_OF_CODES = {"linear", "experts", "head", "embedding"}

_STACK_ROW = "experts", "experts out in"
_OF_ANY_CLASS = {"router", "recurrent", "other"}
# float8 is a code beside scales; no producer stores wider floats as codes.
_CODE_BITS = 8

# What quantizers add to the name of a parameter, in whose place or beside which a tensor is.
_BESIDE_WEIGHT = (
    "_packed",
    "_scale",
    "_scale_inv",
    "_scale_2",
    "_global_scale",
    "_shape",
    "_zero_point",
    "_g_idx",
    "_blocks",
    "_scales",
)

# What they add to the name of a module, each with a dot before it.
_BESIDE_MODULE = (
    "scales",
    "biases",
    "global_scale",
    "input_scale",
    "input_global_scale",
    "activation_scale",
    "pre_quant_scale",
    "output_scale",
    "scale",
)


class Module(NamedTuple):
    """A weight of the model, and what the file stores of it."""

    # The module by its name in the file, or the parameter of a stack of experts.
    name: str
    # The row of the table.
    parameter: Parameter
    # The name of the parameter in an unquantized file.
    weight: str
    # The name of the module with `#` for numbers.
    pattern: str
    # What the file stores, by what follows `weight`, or after a dot by what follows the module: ""
    # is the weight itself, or a payload under its name.
    tensors: dict[str, TensorInfo]

    def report(self, problem: str, remedy: str, option: str | None = None) -> LoadingProblem:
        return LoadingProblem(self.name, problem, remedy, option)

    @property
    def role(self) -> str:
        return self.parameter.role

    @property
    def is_stack(self) -> bool:
        """True for the weights of all experts in one tensor."""
        return self.parameter.axes.startswith("experts")

    @property
    def is_expert(self) -> bool:
        """True for weights of experts, one or all in one tensor."""
        return self.role == "experts" or "experts.#." in self.parameter.name

    @property
    def plain(self) -> TensorInfo | None:
        """The weight as an unquantized file stores it; None if there is none."""
        info = self.tensors.get("")
        return info if info is not None and is_wide(info) else None

    @property
    def is_quantized(self) -> bool:
        """True if the file stores codes, or any scale of the module."""
        if any(suffix[:1] == "_" or suffix in {".scales", ".biases"} for suffix in self.tensors):
            return True
        info = self.tensors.get("")
        if info is None or is_wide(info):
            return False
        return info.kind == "float" or (self.role in _OF_CODES and len(info.shape) >= MATRIX)

    @property
    def is_linear(self) -> bool:
        """True for the weight of a linear layer that is (out, in)."""
        has_class = self.role in {"linear", "head"} and self.parameter.axes != "in out"
        plain = self.plain
        is_matrix = plain is None or len(plain.shape) >= MATRIX
        is_weight = self.weight.endswith(WEIGHT) or self.parameter.conversion.startswith("split")
        return has_class and is_matrix and is_weight

    @property
    def may_be_linear(self) -> bool:
        """True for a matrix of which the table does not tell whether a linear layer holds it."""
        return self.role in _OF_ANY_CLASS and self.weight.endswith(WEIGHT)

    @property
    def layer(self) -> str:
        """The name up to the experts, for a weight of them; else the module that holds it."""
        head, dot, _ = self.name.partition(".experts.")
        return head + ".experts" if dot else self.name.rpartition(".")[0]


def code_of(info: TensorInfo) -> str | None:
    """Return what safetensors calls the format of a tensor."""
    return None if info.format is None else finfo(info.format).safetensors


def is_wide(info: TensorInfo) -> bool:
    """Return True for floating numbers of more than 8 bits, which are no codes."""
    return info.kind == "float" and info.format is not None and finfo(info.format).bits > _CODE_BITS


def modules_of(model: Model, tensors: Iterable[TensorInfo]) -> tuple[list[Module], list[str]]:
    """Return the weights that the table knows, and the names of tensors of which it knows none."""
    # Weights that may be those of all experts are among both: engines would build them quantized.
    modules: dict[str, Module] = {}
    unknown = []
    for info in tensors:
        pattern = normalize_name(info.name)
        for size, suffix in _suffixes(info.name):
            name = info.name[: len(info.name) - size] + (WEIGHT if suffix[:1] == "." else "")
            if (parameter := model.find(name)) is None:
                continue
            if parameter.role != "bias":
                module = modules.get(name)
                if module is None:
                    stem = name.removesuffix(WEIGHT)
                    module = Module(stem, parameter, name, normalize_name(stem), {})
                    modules[name] = module
                module.tensors[suffix] = info
            break
        else:
            unknown.append(info.name)
            if is_wide(info) and model.may_be_experts(info.name):
                stem, row = info.name.removesuffix(WEIGHT), Parameter(pattern, *_STACK_ROW)
                key = pattern.removesuffix(WEIGHT)
                modules[info.name] = Module(stem, row, info.name, key, {"": info})
    return list(modules.values()), unknown


def _suffixes(name: str) -> Iterator[tuple[int, str]]:
    """Yield what a tensor's name may add to that of a parameter: how many characters, and what."""
    yield 0, ""
    for suffix in _BESIDE_WEIGHT:
        if name.endswith(suffix):
            yield len(suffix), suffix
    tail = name.rpartition(".")[2]
    if tail in _BESIDE_MODULE:
        yield len(tail) + 1, f".{tail}"
