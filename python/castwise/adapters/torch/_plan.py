"""Choose the dtype of each tensor by a map of torch's names, and report what matched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from castwise.adapters.torch._bridge import dtype_name, torch_dtype
from castwise.arrays.dtype_map import Decision, DtypeMap, is_whole_name
from castwise.dtype_policies import DTypePolicyMap
from castwise.environment.frameworks import require
from castwise.rendering import Rendered
from castwise.rendering.sheet import Lines, Sheet, Table
from castwise.rendering.text import unused_lines
from castwise.text.brief import brief, counted, listed
from castwise.text.spelling import unused_patterns

torch: Any = require("torch")


class Named(NamedTuple):
    """A tensor, its name, and the module that has it."""

    path: str  # torch's name of the tensor, with dots
    module: str | None  # the name of the module that has it; None in a state dict
    tensor: Any


class TensorCast(NamedTuple):
    """The dtypes of a tensor before and after, and the key that matched."""

    before: str
    after: str
    key: str | None


class PlannedTensorCast(NamedTuple):
    """A tensor, the dtypes that a map gives it, and what tells whether it shares memory."""

    named: Named
    cast: TensorCast
    target: Any  # the torch dtype to cast to; None to leave it alone
    place: Any  # equal for tensors that share all their elements


@dataclass(frozen=True)
class Summary(Rendered):
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

    def __repr__(self) -> str:
        cast = sum(entry.before != entry.after for entry in self.tensors.values())
        return brief(
            self,
            f"{cast:,} of {counted(len(self.tensors), 'tensor')} cast",
            f"unused: {listed(map(repr, self.unused))}" if self.unused else None,
        )

    def __sheet__(self) -> Sheet:
        rows = [
            (path, cast.before or "-", cast.after, cast.key or "-")
            for path, cast in self.tensors.items()
        ]
        header = ("tensor", "from", "to", "key")
        return [Table.of(header, rows), Lines(unused_lines(self.unused))]


# Keys of a map of dtypes match names of tensors first, then names of modules; keys of a map of
# policies match names of modules. Where no key matches a name, the name is looked up without the
# names that wrappers add: torch.compile, DataParallel, FSDP, checkpoint_wrapper, AveragedModel.
@dataclass
class NameMap:
    """A map whose keys are torch's names, with dots; or castwise's paths, if a key has a "/"."""

    targets: DtypeMap
    has_slashes: bool
    of_modules: bool
    is_uniform: bool  # whether one dtype or policy is for all
    hits: dict[str, int] = field(default_factory=dict)
    names_seen: dict[str, None] = field(default_factory=dict)
    prefix: str = ""  # what a wrapper around the whole model puts before every name

    @classmethod
    def of(cls, value: Any, role: str) -> NameMap:
        policies = isinstance(value, DTypePolicyMap)
        targets = DtypeMap.of(value, role)
        items = targets.keys.items()
        for target in (targets.default, *(target for _, target in items)):
            if target is not None and torch_dtype(target) is None:
                raise TypeError(f"{targets.origin}: torch has no dtype {target!r}; use another.")
        keys = [key for key, _ in items]
        has_slashes = any("/" in key for key in keys)
        return cls(targets, has_slashes, policies, not keys, dict.fromkeys(keys, 0))

    def tensor(self, named: Named) -> Decision:
        """Return a tensor's target. Integers, bools and complex numbers stay, unless named."""
        floating = named.tensor.is_floating_point()
        decision = Decision(None)
        if not (self.of_modules and named.module is not None):
            decision = self._find(named.path, floating)
        if decision.key is None and named.module is not None:
            decision = self._find(named.module, floating)
        key = decision.key
        if not floating and not any(
            is_whole_name(key or "", name) for name in self._spellings(named.path)
        ):
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
        return Summary(casts, dict(self.hits), unused_patterns(self.hits, self.names_seen))

    def matches(self, path: str) -> bool:
        return self._find(path, True).key is not None

    def _find(self, path: str, floating: bool) -> Decision:
        decision = Decision(None)
        for spelling in self._spellings(path):
            decision = self.targets.decide(spelling, floating)
            if decision.key is not None:
                break
        self.names_seen[spelling] = None
        return decision

    def _count(self, key: str | None) -> None:
        if key is not None:
            self.hits[key] += 1

    def _spellings(self, path: str) -> tuple[str, ...]:
        """Return a name in the spelling of the keys, and the same without those of wrappers."""
        parts = [part for part in f"{path}.".split(".") if part not in _WRAPPED]
        bare = ".".join(parts).removeprefix(self.prefix)[:-1]
        names = (path,) if bare == path else (path, bare)
        return tuple(name.replace(".", "/") if self.has_slashes else name for name in names)


# The names of what torch.compile, FSDP and checkpoint_wrapper wrap.
_WRAPPED = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")

_BESIDE = "n_averaged"  # the buffer of `torch.optim.swa_utils.AveragedModel` beside its module


def prefix_of(names: Iterable[str]) -> str:
    """Return what `DataParallel` and the like put before the names of all tensors; "" if none."""
    prefix = ""
    for name in names:
        parts = [part for part in name.split(".") if part not in _WRAPPED]
        if parts[0] != "module" and parts != [_BESIDE]:
            return ""
        if parts[0] == "module":
            prefix = "module."
    return prefix


def decide(tensors: Iterable[Named], names: NameMap) -> Iterator[PlannedTensorCast]:
    listed = list(tensors)
    names.prefix = prefix_of(named.path for named in listed)
    choices: dict[Any, tuple[str, Any]] = {}
    for named in listed:
        refuse_lazy(named.path, named.tensor)
        target, key, _ = names.tensor(named)
        dtype = named.tensor.dtype if target is None else torch_dtype(target)
        place = _place(named.tensor)
        path, other = choices.setdefault(place, (named.path, dtype))
        if other != dtype:
            raise ValueError(
                f"{path!r} and {named.path!r} are one tensor, and are to be {dtype_name(other)} "
                f"and {dtype_name(dtype)}; give both the same dtype."
            )
        cast = TensorCast(dtype_name(named.tensor.dtype), dtype_name(dtype), key)
        yield PlannedTensorCast(named, cast, None if dtype == named.tensor.dtype else dtype, place)


def refuse_unused(names: NameMap, module: Any) -> None:
    """Raise ValueError if a map has keys, and none matches a tensor or module of a model."""
    # A map of dtypes with a default is left, because it may be for many models.
    is_general = names.targets.has_default and not names.of_modules
    if not names.hits or any(names.hits.values()) or is_general:
        return
    modules = (path for path, _ in module.named_modules(remove_duplicate=False))
    if any(map(names.matches, [*modules, *tensor_names(module)])):
        return
    key, nearest = next(iter(unused_patterns(names.hits, names.names_seen).items()))
    raise ValueError(
        f"{names.targets.origin}: no tensor or module of the model matches any of its keys, and "
        f"nothing was changed: the name nearest to {key!r} is {nearest!r}."
    )


def tensor_names(module: Any) -> Iterator[str]:
    for members in (module.named_parameters, module.named_buffers):
        for name, _ in members(remove_duplicate=False):
            yield name


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
