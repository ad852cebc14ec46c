"""The modules of a model that have weights in a file, each with the tensors that store it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from castwise._core import finfo
from castwise.checkpoint._tensors import TensorInfo

try:
    from castwise.models import normalize_name
except ImportError:  # until the table is merged
    normalize_name = str

if TYPE_CHECKING:
    from castwise.models import Architecture, Parameter

WEIGHT = ".weight"
MATRIX = 2
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
        return self.role == "experts"

    @property
    def plain(self) -> TensorInfo | None:
        """The weight as an unquantised file stores it; None if there is none."""
        info = self.tensors.get("")
        return info if info is not None and is_wide(info) else None

    @property
    def is_quantized(self) -> bool:
        """True if the file stores codes, or any scale of the module."""
        return self.plain is None or any(
            suffix.startswith("_") or suffix in {".scales", ".biases"} for suffix in self.tensors
        )

    @property
    def layer(self) -> str:
        """The name up to the experts, for a weight of them; else the module that holds it."""
        head, dot, _ = self.name.partition(".experts.")
        return head + ".experts" if dot else self.name.rpartition(".")[0]


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


def instances(
    groups: Iterable[tuple[str, ...]], modules: Mapping[str, Module]
) -> Iterator[list[Module]]:
    """Yield, layer by layer, the modules of the file that a consumer joins, of normalised names."""
    place = {
        name: (number, k) for number, group in enumerate(groups) for k, name in enumerate(group)
    }
    found: dict[tuple[int, tuple[str, ...]], list[Module]] = {}
    for module in modules.values():
        hit = place.get(normalize_name(module.name))
        if hit is not None:
            numbers = tuple(part for part in module.name.split(".") if part.isdecimal())
            found.setdefault((hit[0], numbers), []).append(module)
    return (group for group in found.values() if len(group) > 1)
