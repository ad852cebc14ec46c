"""Let modules compute in the dtypes of a map, while their variables keep theirs.

During the outermost call, casts take the place of the parameters and buffers below it. Autograd
records the casts, so that gradients have the dtype of the parameters.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary, WeakValueDictionary

from castwise._frameworks import require
from castwise._trees import is_node, map_leaves
from castwise.adapters.torch._bridge import dtype_name
from castwise.adapters.torch._calls import Call, Computation, link, unlink
from castwise.adapters.torch._checkpointing import follow_checkpoints
from castwise.adapters.torch._computing import compute_dtypes
from castwise.adapters.torch._in_force import begin, end, is_in_force
from castwise.adapters.torch._plan import NameMap, Summary, TensorCast, refuse_lazy, refuse_unused
from castwise.adapters.torch._variables import Slot, presented, slots_of

torch: Any = require("torch")

__all__ = ["Autocast", "autocast"]


def autocast(module: Any, dtype_or_policy_or_map: Any) -> Autocast:
    r"""Let the modules of a model compute in the dtypes of a map.

    Each call of a module casts its floating inputs to the compute dtype of that module, and sees
    its floating parameters and buffers in that dtype. Outside of calls they keep their own dtype,
    which optimizers and `state_dict` see.

    Parameters
    ----------
    module : torch.nn.Module
        With all its submodules.
    dtype_or_policy_or_map : dtype, policy, or mapping of str to dtype or policy
        A dtype or the compute dtype of a policy, for every module. With a `DTypePolicyMap`, each
        module has the policy of its path. With a mapping of dtypes, a module has the dtype of the
        key that matches its path, else that of its own parameters, and without parameters it does
        not cast its inputs. Keys are torch's names, with dots, or paths with "/" if any key has
        one; with or without the names that torch.compile, DataParallel and the like add.

    Returns
    -------
    Autocast
        A context manager. It is in force until `remove` is called or its ``with`` block ends;
        another ``with`` puts it in force again.

    Raises
    ------
    TypeError, ValueError
        `module` is not a module, or torch.jit compiled its calls; torch does not compute in a
        dtype; two keys match a path, or no key matches a module or tensor; a module has two names
        with different dtypes.

    Notes
    -----
    - If several are on the same module, the last is in force.
    - Batch and instance norms see their variables in float32 beside 16-bit inputs, as torch's
      kernels need them. Elements of a buffer or parameter that a call changes are cast back. Dicts,
      lists and the like are copied where an input in them is cast.
    - What `torch.utils.checkpoint` runs again in backward is cast as in its first run, also after
      the end, as under `torch.autocast`. For that, the first autocast of a process changes the two
      functions of torch that begin a checkpoint.
    - A copy of a model (deepcopy, copy, pickle, `torch.save`) is cast as long as its original is. A
      file that another process loads is cast only if the autocast had no ``with`` when it was
      saved; there ``model.forward.computation.autocast.remove()`` ends it.
    - It is in force in all threads. Where parameters have to be cast, calls in several threads wait
      for each other; so a `forward` must not wait for a thread that calls modules of the same
      model. After the end, no thread may call a model while another runs parts of it again.
    - `torch.jit.script` refuses the model; `torch.jit.trace` and `torch.export` keep the casts.

    Examples
    --------
    >>> with autocast(model, {r"encoder\..*": "bfloat16"}):  # doctest: +SKIP
    ...     loss = model(x).float().sum()

    """
    return Autocast(module, dtype_or_policy_or_map)


class Autocast:
    """The changed calls of a model's modules; see `autocast`.

    Attributes
    ----------
    summary : Summary
        The modules by name, each with the dtype that it computes in and the key that matched, and
        the unused keys.

    """

    summary: Summary

    def __init__(self, module: Any, dtype_or_policy_or_map: Any) -> None:
        if not isinstance(module, torch.nn.Module):
            raise TypeError(f"module is of type {type(module).__name__}; give a torch.nn.Module.")
        names = NameMap.of(dtype_or_policy_or_map, "compute")
        for path, parameter in module.named_parameters():
            refuse_lazy(path, parameter)
        chosen = compute_dtypes(module, names)
        refuse_unused(names, module)
        summary = names.summary(
            {
                path: TensorCast("", dtype_name(computing.dtype), computing.key)
                for path, computing in chosen.items()
            }
        )
        self._prepare(summary, uuid4().hex)
        self._dtypes.update((computing.module, computing.dtype) for computing in chosen.values())
        follow_checkpoints()
        begin(self)

    def _prepare(self, summary: Summary, identity: str) -> None:
        self.summary = summary
        self.number = 0
        self.is_begun = False
        self._identity = identity
        self._dtypes: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self._links = 0
        self._blocks = 0
        self._ends_with_block = False
        self._lock = threading.RLock()
        self._thread = threading.local()
        _KNOWN[identity] = self

    def remove(self) -> None:
        """Let the modules compute as before; calling it again does nothing."""
        end(self)

    def __enter__(self) -> Autocast:
        self._ends_with_block = True
        self._blocks += 1
        if not is_in_force(self):
            begin(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._blocks -= 1
        if not self._blocks:
            self.remove()

    def link(self) -> None:
        """Change the calls of the modules, unless they are changed; `unlink` as often."""
        self._links += 1
        if self._links == 1:
            for module, dtype in list(self._dtypes.items()):
                link(module, Computation(self, dtype))

    def unlink(self) -> None:
        """Undo a `link`; after the last the modules compute as before."""
        self._links -= 1
        if not self._links:
            for module in list(self._dtypes):
                unlink(module, self)

    def follow(self, module: Any, dtype: Any) -> bool:
        """Count a copy of a module among the modules, unless the autocast has ended."""
        if self._links:
            self._dtypes[module] = dtype
        return self._links > 0

    def run(self, call: Call, dtype: Any, args: Any, kwargs: Any) -> Any:
        """Call `forward` with inputs and variables cast, then put the variables back."""
        args = tuple(_cast_floating(value, dtype) for value in args)
        kwargs = {name: _cast_floating(value, dtype) for name, value in kwargs.items()}
        # By identity: torch.compile traces this, and would track the modules of a set twice.
        covered: frozenset[int] = getattr(self._thread, "covered", frozenset())
        if id(call.module) in covered:
            return call.original(*args, **kwargs)
        try:
            # Other threads must not see or cast the variables while the casts are in their place.
            with self._lock_of(call.module):
                owners = [owner for owner in call.module.modules() if id(owner) not in covered]
                self._thread.covered = covered.union(map(id, owners))
                slots = list(self._slots(owners, call.module))
                if slots:
                    with presented(slots):
                        return call.original(*args, **kwargs)
            return call.original(*args, **kwargs)
        finally:
            self._thread.covered = covered

    def _lock_of(self, module: Any) -> AbstractContextManager[Any]:
        # A copy by torch.nn.DataParallel has variables that no other thread sees.
        return nullcontext() if getattr(module, "_is_replica", False) else self._lock

    def _slots(self, owners: Iterable[Any], outermost: Any) -> Iterator[Slot]:
        """Yield what a call has to cast: of the modules where this autocast is in force."""
        for owner in owners:
            call = owner.__dict__.get("forward")
            computation = call.computation if isinstance(call, Call) else None
            if computation is not None and computation.autocast is self:
                yield from slots_of(owner, computation.dtype, owner is outermost)

    def __deepcopy__(self, memo: object) -> Autocast:
        return self

    def __copy__(self) -> Autocast:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        lasts = self.is_begun and not self._ends_with_block
        return _loaded, (self._identity, _PROCESS, self.summary, lasts)


_KNOWN: WeakValueDictionary[str, Autocast] = WeakValueDictionary()
"""The autocasts by what identifies them in files."""

_PROCESS = uuid4().hex


def _loaded(identity: str, process: str, summary: Summary, lasts: bool) -> Autocast:
    """Return the same autocast; in another process a new one, in force if it had no ``with``."""
    autocast = _KNOWN.get(identity)
    if autocast is None:
        autocast = Autocast.__new__(Autocast)
        autocast._prepare(summary, identity)
        if lasts and process != _PROCESS:
            follow_checkpoints()
            begin(autocast)
    return autocast


def _cast_floating(value: Any, dtype: Any) -> Any:
    """Cast floating tensors, also inside of dicts, lists, tuples and dataclasses."""
    tensor_class = torch.Tensor

    def cast(leaf: Any, path: str = "") -> Any:
        del path
        if isinstance(leaf, tensor_class) and leaf.is_floating_point():
            return leaf.to(dtype)
        return leaf

    if isinstance(value, tensor_class):
        return cast(value)
    # The callee may change a dict or list; if nothing in it is cast, it stays the caller's.
    return map_leaves(value, cast, shared=True) if is_node(value) else value
