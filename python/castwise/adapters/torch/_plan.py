"""Choose the dtype of each tensor by a map of torch's names, and report what matched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from castwise._dtype_map import Decision, DtypeMap
from castwise._frameworks import require
from castwise._spelling import unused
from castwise._tables import aligned, unused_lines
from castwise.adapters.torch._bridge import dtype_name, torch_dtype
from castwise.dtype_policies import DTypePolicyMap

torch: Any = require("torch")


class Named(NamedTuple):
    """A tensor and its place."""

    path: str
    """torch's name of the tensor, with dots."""
    module: str | None
    """The name of the module that has it; None in a state dict."""
    tensor: Any


class TensorCast(NamedTuple):
    """The dtypes of a tensor before and after, and the key that matched."""

    before: str
    after: str
    key: str | None


class Planned(NamedTuple):
    """A tensor and its target."""

    named: Named
    cast: TensorCast
    target: Any
    """The torch dtype to cast to; None to leave it alone."""
    place: Any
    """Equal for tensors that share all their elements."""


@dataclass(frozen=True)
class Summary:
    """The dtypes that a map gives to the tensors of a module or a state dict. Prints as a table.

    Attributes
    ----------
    tensors
        Each tensor by name: its dtypes before and after, and the key that matched.
    keys
        Each key with the number of names that it was used for.
    unused
        Each unused key, with the name that is spelled most like it.

    """

    tensors: dict[str, TensorCast]
    keys: dict[str, int]
    unused: dict[str, str | None]

    def __str__(self) -> str:
        rows = [("tensor", "from", "to", "key")]
        rows += [
            (path, cast.before or "-", cast.after, cast.key or "-")
            for path, cast in self.tensors.items()
        ]
        return "\n".join([aligned(rows), *unused_lines(self.unused)])


@dataclass
class NameMap:
    """A map whose keys are torch's names, with dots; or castwise's paths, if a key has a "/".

    Keys of a map of dtypes match names of tensors first, then names of modules; keys of a map of
    policies match names of modules.
    """

    targets: DtypeMap
    slashed: bool
    of_modules: bool
    is_uniform: bool
    """Whether one dtype or policy is for all."""
    hits: dict[str, int] = field(default_factory=dict)
    seen: dict[str, None] = field(default_factory=dict)

    @classmethod
    def of(cls, value: Any, role: str) -> NameMap:
        """Return the map for an argument.

        Raises
        ------
        TypeError
            As `DtypeMap.of`; or torch lacks a dtype.
        ValueError
            As `DtypeMap.of`.

        """
        policies = isinstance(value, DTypePolicyMap)
        targets = DtypeMap.of(value, role)
        items = targets.keys.items()
        for target in (targets.default, *(target for _, target in items)):
            if target is not None and torch_dtype(target) is None:
                raise TypeError(f"{targets.origin}: torch has no dtype {target!r}; use another.")
        keys = [key for key, _ in items]
        slashed = any("/" in key for key in keys)
        return cls(targets, slashed, policies, not keys, dict.fromkeys(keys, 0))

    def tensor(self, named: Named) -> Decision:
        """Return a tensor's target. Integers, bools and complex numbers stay, unless named."""
        floating = named.tensor.is_floating_point()
        decision = Decision(None)
        if not (self.of_modules and named.module is not None):
            decision = self._find(named.path, floating)
        if decision.key is None and named.module is not None:
            decision = self._find(named.module, floating)
        if not floating and decision.key != self.spelled(named.path):
            return Decision(None)
        self._count(decision.key)
        return decision

    def module(self, path: str) -> Decision:
        """Return the dtype for the floating inputs of a module."""
        decision = self._find(path, True)
        self._count(decision.key)
        return decision

    def summary(self, casts: dict[str, TensorCast]) -> Summary:
        """Report on all tensors that were looked up."""
        return Summary(casts, dict(self.hits), unused(self.hits, self.seen))

    def _find(self, path: str, floating: bool) -> Decision:
        spelled = self.spelled(path)
        self.seen[spelled] = None
        return self.targets.decide(spelled, floating)

    def _count(self, key: str | None) -> None:
        if key is not None:
            self.hits[key] += 1

    def spelled(self, path: str) -> str:
        """Return a name in the spelling of the keys."""
        return path.replace(".", "/") if self.slashed else path


def decide(tensors: Iterable[Named], names: NameMap) -> Iterator[Planned]:
    """Yield every tensor with what a map makes of it.

    Raises
    ------
    ValueError
        Two keys match a name; a tensor has two names with different dtypes; a parameter of a lazy
        module has no elements yet.

    """
    chosen: dict[Any, tuple[str, Any]] = {}
    for named in tensors:
        refuse_lazy(named.path, named.tensor)
        target, key, _ = names.tensor(named)
        dtype = named.tensor.dtype if target is None else torch_dtype(target)
        place = _place(named.tensor)
        path, other = chosen.setdefault(place, (named.path, dtype))
        if other != dtype:
            raise ValueError(
                f"{path!r} and {named.path!r} are one tensor, and are to be {dtype_name(other)} "
                f"and {dtype_name(dtype)}; give both the same dtype."
            )
        cast = TensorCast(dtype_name(named.tensor.dtype), dtype_name(dtype), key)
        yield Planned(named, cast, None if dtype == named.tensor.dtype else dtype, place)


def refuse_lazy(path: str, tensor: Any) -> None:
    """Raise ValueError for a parameter of a lazy module that was never called."""
    if torch.nn.parameter.is_lazy(tensor):
        raise ValueError(
            f"{path!r} has no elements yet; call the module once, so that it gets them."
        )


def _place(tensor: Any) -> Any:
    """Return what is equal for tensors that are the same object or the same memory."""
    if tensor.layout is not torch.strided or tensor.is_meta or not tensor.numel():
        return id(tensor)
    try:
        address = tensor.data_ptr()
    except RuntimeError:  # a class without memory of its own
        return id(tensor)
    return address, tensor.shape, tensor.stride(), tensor.dtype, tensor.device
