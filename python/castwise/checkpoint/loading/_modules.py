"""The modules of a model that have weights in a file, each with the tensors that store it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from castwise._core import finfo
from castwise.checkpoint._tensors import TensorInfo
from castwise.models import normalize_name

if TYPE_CHECKING:
    from castwise.models import Architecture, Parameter

WEIGHT = ".weight"
MATRIX = 2
_OF_CODES = {"linear", "experts", "head", "embedding"}
"""Roles of which whole numbers are codes, and not a table of positions or a count."""

_OF_ANY_CLASS = {"router", "recurrent", "other"}
_CODE_BITS = 8

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
"""What quantisers add to the name of a parameter, in whose place or beside which a tensor is."""

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
"""What they add to the name of a module, each with a dot before it."""


@dataclass(frozen=True, slots=True)
class Module:
    """A weight of the model, and what the file stores of it.

    Attributes
    ----------
    name
        The module by its name in the file, or the parameter of a stack of experts.
    parameter
        The row of the table.
    weight
        The name of the parameter in an unquantised file.
    tensors
        What the file stores, by what follows `weight`, or after a dot by what follows the module:
        "" is the weight itself, or a payload under its name.

    """

    name: str
    parameter: Parameter
    weight: str
    tensors: dict[str, TensorInfo] = field(default_factory=dict)

    @property
    def role(self) -> str:
        """The role of the weight."""
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
        """The weight as an unquantised file stores it; None if there is none."""
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
        return has_class and is_matrix and self.weight.endswith(WEIGHT)

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


def modules_of(
    architecture: Architecture, tensors: Iterable[TensorInfo]
) -> tuple[list[Module], list[str]]:
    """Return the weights that the table knows, and the names of tensors of which it knows none."""
    modules: dict[str, Module] = {}
    unknown = []
    rows: dict[str, Parameter | None] = {}

    def find(name: str) -> Parameter | None:
        normalized = normalize_name(name)
        if normalized not in rows:
            rows[normalized] = architecture.find(name)
        return rows[normalized]

    for info in tensors:
        for weight, suffix in _owners(info.name):
            if (parameter := find(weight)) is not None:
                if parameter.role == "bias":
                    break
                module = modules.get(weight)
                if module is None:
                    name = weight.removesuffix(WEIGHT)
                    module = modules[weight] = Module(name, parameter, weight)
                module.tensors[suffix] = info
                break
        else:
            unknown.append(info.name)
    return list(modules.values()), unknown


def _owners(name: str) -> Iterator[tuple[str, str]]:
    """Yield the parameters that a tensor may be of, each with what follows it."""
    yield name, ""
    for suffix in _BESIDE_WEIGHT:
        if name.endswith(suffix):
            yield name.removesuffix(suffix), suffix
    module, _, tail = name.rpartition(".")
    if tail in _BESIDE_MODULE:
        yield module + WEIGHT, f".{tail}"
        yield module, f".{tail}"
