"""Cast tensors: by castwise's kernels on the CPU, by torch on other devices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from castwise._core import CastReport, finfo
from castwise._core import cast as cast_array
from castwise._options import ArrayOptions
from castwise.adapters.torch._bridge import (
    from_numpy,
    layout_obstacle,
    numpy_dtype,
    plain_array,
    to_numpy,
    torch_dtype,
)
from castwise.adapters.torch._pairs import NUMBERS, PAIRS, cast_to_pairs, unpack_pairs
from castwise.arrays.adapter_registry import Adapter
from castwise.environment.frameworks import require

if TYPE_CHECKING:
    from torch import Tensor

torch: Any = require("torch")


@overload
def cast(
    tensor: Tensor,
    dtype: Any = None,
    *,
    out: Tensor | None = None,
    report: Literal[False] = False,
    **options: Unpack[ArrayOptions],
) -> Tensor: ...
@overload
def cast(
    tensor: Tensor,
    dtype: Any = None,
    *,
    out: Tensor | None = None,
    report: Literal[True],
    **options: Unpack[ArrayOptions],
) -> tuple[Tensor, CastReport]: ...
def cast(tensor: Any, dtype: Any = None, *, out: Any = None, **options: Any) -> Any:
    """Cast a tensor to another dtype, rounding once from the exact value.

    Parameters
    ----------
    tensor : torch.Tensor
        Of any shape, strides and layout. On the CPU castwise casts it, also inside of torch.func's
        transformations. On another device, without strides, and in torch.compile, torch casts it,
        with the same result for the same `overflow`, with one exception: torch rounds twice from
        float64 and wide integers to 16 bits or less.
    dtype : dtype, optional
        A dtype that torch has, also one of torch's. May be left out if `out` is given. Of
        ``torch.float4_e2m1fn_x2`` an element holds two numbers: (M, K) becomes (M, K / 2), the
        first number in the low half of the byte, and back; on the CPU, without autograd.
    out : torch.Tensor, optional
        Written in place and returned.
    **options
        ``rounding``, ``overflow``, ``nan``, ``scale``, ``seed``, ``order``, ``copy``, ``report``,
        ``threads``, as in `castwise.cast`; on other devices and inside of transformations
        ``overflow`` ("ieee" or "saturate"), ``rounding="nearest-even"`` and ``copy`` only.

    Returns
    -------
    torch.Tensor, or (torch.Tensor, CastReport) with ``report=True``
        On the same device. Autograd records the cast (and the product with ``scale``), as it
        does for `Tensor.to`.

    Raises
    ------
    TypeError
        `tensor` is not a tensor, or torch has no such dtype.
    ValueError
        An option is wrong, or not available on that device.
    OverflowError
        With ``overflow="raise"``.

    Examples
    --------
    >>> import torch
    >>> from castwise.adapters import torch as torch_adapter
    >>> torch_adapter.cast(torch.tensor([1.0, 1e6]), "float16", overflow="saturate")
    tensor([1.0000e+00, 6.5504e+04], dtype=torch.float16)

    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"tensor is of type {type(tensor).__name__}; give a torch.Tensor.")
    if PAIRS is not None and PAIRS in (tensor.dtype, dtype, getattr(out, "dtype", None)):
        return _by_pairs(tensor, dtype, out, options)
    if out is not None:
        return _into(tensor, dtype, out, options)
    if dtype is None:
        raise TypeError("dtype=None says nothing to cast to; give dtype= or out=.")
    target = target_dtype(dtype)
    if not is_on_host(tensor):
        elsewhere = _transform if _is_transformed(tensor) else _by_torch
        return elsewhere(tensor, target, options)
    differentiable = target.is_floating_point or target.is_complex
    if tensor.requires_grad and differentiable and torch.is_grad_enabled():
        if options.pop("copy", True) is False and tensor.dtype == target and not options:
            return tensor
        return _HostCast.apply(tensor, target, options)
    return _on_host(tensor.detach() if tensor.requires_grad else tensor, target, options)


class Loss(NamedTuple):
    """How many elements of a tensor a cast lost."""

    infinite: int
    """Finite before, and infinite (in a format without infinities: NaN) after."""
    zero: int
    """Zero after, and not before."""

    def __str__(self) -> str:
        facts = (
            f"{count:,} {'value' if count == 1 else 'values'} became {kind}"
            for kind, count in self._asdict().items()
            if count
        )
        return ", ".join(facts)


def cast_with_loss(tensor: Any, target: Any, **options: Any) -> tuple[Any, Loss]:
    """Cast a tensor, and count the elements that became infinite or zero."""
    if not (target.is_floating_point or target.is_complex) or tensor.is_meta:
        return cast(tensor, target, **options), Loss(0, 0)
    if is_on_host(tensor):
        result, report = cast(tensor, target, report=True, **options)
        return result, Loss(report.overflowed, report.underflowed)
    result = cast(tensor, target, **options)
    before, after = (_wide_elements(side, target) for side in (tensor, result))
    losses = before.isfinite() & ~after.isfinite(), (before != 0) & (after == 0)
    return result, Loss(*(int(mask.sum()) for mask in losses))


def _wide_elements(tensor: Any, target: Any) -> Any:
    """Return the stored elements of a tensor in a dtype in which torch compares them."""
    if tensor.layout is torch.sparse_coo:
        tensor = tensor._values()
    elif tensor.layout not in (torch.strided, torch.jagged):
        tensor = tensor.values()
    return tensor if tensor.is_complex() else _wide(tensor, target)


def target_dtype(dtype: Any) -> Any:
    """Return the torch dtype that an argument means."""
    if isinstance(dtype, torch.dtype):
        if numpy_dtype(dtype) is None:
            raise TypeError(f"dtype={dtype} is not valid; castwise casts to formats of its own.")
        return dtype
    name = finfo(dtype).name
    target = torch_dtype(name)
    if target is None:
        remedy = (
            f"give dtype={PAIRS}, of which an element holds two numbers"
            if PAIRS is not None and name == NUMBERS
            else "choose another"
        )
        raise TypeError(f"dtype={name!r} is not a dtype that torch has; {remedy}.")
    return target


def is_on_host(tensor: Any) -> bool:
    """Tell whether numpy can read the elements: on the CPU, with strides, of a plain class."""
    return (
        tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.is_nested
        # Classes that override torch's calls may have their elements elsewhere, or none; so may
        # the tensors inside of torch.func's transformations, and those of a compiler.
        and type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
        and not torch.compiler.is_compiling()
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def _is_transformed(tensor: Any) -> bool:
    """Tell whether torch.func's transformations wrap a tensor whose elements numpy can read."""
    functorch = torch._C._functorch
    if torch.compiler.is_compiling() or not functorch.is_functorch_wrapped_tensor(tensor):
        return False
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_functionaltensor(tensor):
            return False
        tensor = functorch.get_unwrapped(tensor)
    return is_on_host(tensor)


def refuse_module(module: Any) -> NoReturn:
    """Raise TypeError for a module in the place of tensors."""
    raise TypeError(
        f"a {type(module).__name__} is cast where it is, by "
        "castwise.adapters.torch.cast_module; or give its state_dict()."
    )


def _into(tensor: Any, dtype: Any, out: Any, options: dict[str, Any]) -> Any:
    _check_out(tensor, out)
    name = None if dtype is None else numpy_dtype(target_dtype(dtype))
    source = plain_array(_plain(tensor.detach()))
    outcome = cast_array(source, name, out=to_numpy(out), **_for_numpy(options))
    return (out, outcome[1]) if options.get("report") else out


def _check_out(tensor: Any, out: Any) -> None:
    if not isinstance(out, torch.Tensor):
        raise TypeError(f"out is of type {type(out).__name__}; give a torch.Tensor.")
    if not (is_on_host(tensor) and is_on_host(out)):
        raise ValueError("out= is for tensors on the CPU; leave it out.")
    if out.requires_grad:
        raise ValueError("out is tracked by autograd; give out.detach().")


def _by_pairs(tensor: Any, dtype: Any, out: Any, options: dict[str, Any]) -> Any:
    """Cast from or to `torch.float4_e2m1fn_x2`, of which an element holds two numbers."""
    if out is not None:
        _check_out(tensor, out)
        dtype = out.dtype if dtype is None else dtype
    if dtype is None:
        raise TypeError("dtype=None says nothing to cast to; give dtype= or out=.")
    target = dtype if dtype is PAIRS else target_dtype(dtype)
    if out is not None and out.dtype != target:
        raise TypeError(
            f"out has dtype {out.dtype}, but dtype={target} was asked for; leave dtype out or give "
            "an out of that dtype."
        )
    if not is_on_host(tensor):
        raise ValueError(_only_on_host(str(PAIRS), tensor, "use another dtype"))
    options = _for_numpy(options)
    if options.pop("copy", True) is False and tensor.dtype == target and not options:
        return tensor
    tensor = tensor.detach()
    source = unpack_pairs(tensor) if tensor.dtype is PAIRS else plain_array(_plain(tensor))
    if target is PAIRS:
        return cast_to_pairs(source, out, options)
    if out is not None:
        outcome = cast_array(source, out=to_numpy(out), **options)
        return (out, outcome[1]) if options.get("report") else out
    outcome = cast_array(source, numpy_dtype(target), **options)
    array, *report = outcome if options.get("report") else (outcome,)
    return (from_numpy(array), *report) if report else from_numpy(array)


def _on_host(tensor: Any, target: Any, options: dict[str, Any]) -> Any:
    options = _for_numpy(options)
    source = plain_array(_plain(tensor))
    if "order" in options or "copy" in options:
        outcome = cast_array(source, numpy_dtype(target), **options)
        array, *report = outcome if options.get("report") else (outcome,)
        # With copy=False the array may be the tensor's own memory.
        result = tensor if array is source else from_numpy(array)
    else:
        result = torch.empty_like(tensor, dtype=target, requires_grad=False)
        outcome = cast_array(source, out=plain_array(result), **options)
        report = list(outcome[1:]) if options.get("report") else []
    return (result, *report) if report else result


def _plain(tensor: Any) -> Any:
    """Carry out conjugations and negations that torch has put off."""
    return tensor.resolve_conj().resolve_neg()


def _for_numpy(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options, with an array in the place of a scale that is a tensor."""
    scale = options.get("scale")
    if isinstance(scale, torch.Tensor):
        return {**options, "scale": to_numpy(scale.detach().cpu())}
    return options


def _transform(tensor: Any, target: Any, options: dict[str, Any]) -> Any:
    """Cast on the host, inside of torch.func's transformations."""
    _refuse_options(tensor, options)
    options = {name: value for name, value in options.items() if name in ("overflow", "rounding")}
    return _HostCast.apply(tensor, target, options)


def _refuse_options(tensor: Any, options: dict[str, Any]) -> None:
    for name, value in options.items():
        if value not in _ANYWHERE.get(name, (None, False)):
            raise ValueError(_only_on_host(f"{name}={value!r}", tensor, f"leave {name} out"))


def _only_on_host(subject: str, tensor: Any, remedy: str) -> str:
    """Say where a tensor is that must be on the CPU, outside of transformations."""
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return (
            f"{subject} is not available within torch.func's transformations, as vmap and grad; "
            f"{remedy}, or cast outside of them."
        )
    if tensor.is_cpu and (obstacle := layout_obstacle(tensor)) is not None:
        return f"{subject} is for dense tensors; this one {'; '.join(obstacle)}, or {remedy}."
    return (
        f"{subject} is for tensors on the CPU; this one is on {tensor.device} ({tensor.layout}). "
        f"Give tensor.cpu(), or {remedy}."
    )


def _by_torch(tensor: Any, target: Any, options: dict[str, Any]) -> Any:
    """Cast on another device, by castwise's rules for overflows."""
    _refuse_options(tensor, options)
    if tensor.is_complex():  # raises for targets that are not complex
        cast_array(np.empty(0, numpy_dtype(tensor.dtype)), numpy_dtype(target))
    saturates = options.get("overflow") == "saturate"
    if not (tensor.is_floating_point() and target.is_floating_point):
        if saturates:
            subject = f"overflow='saturate' from {tensor.dtype} to {target}"
            raise ValueError(_only_on_host(subject, tensor, "leave overflow out"))
        if tensor.is_floating_point() and target is not torch.bool and not target.is_complex:
            return _to_integer(tensor, target, options.get("rounding") is not None)
        return tensor.to(target, copy=options.get("copy", True))
    row = finfo(numpy_dtype(target))  # type: ignore[arg-type]
    if row.specials == "exponent-only" and tensor.dtype != target:
        raise ValueError(f"torch has rules of its own for {target}; give tensor.cpu().")
    if saturates:
        _refuse_layout(tensor, target)
        return _wide(tensor, target).clamp(-row.max, row.max).to(target)
    if row.specials != "finite-nan" or tensor.dtype == target:
        return tensor.to(target, copy=options.get("copy", True))
    # On some devices torch gives the largest value here, and castwise NaN. Half a step above the
    # largest value is still rounded down to it, because its last bit is even.
    if not tensor.is_nested:  # in which torch compares, and writes where a mask is
        _refuse_layout(tensor, target)
    half_step = 2.0 ** (math.frexp(row.max)[1] - 1) * row.eps / 2
    wide = _wide(tensor, target)
    return wide.masked_fill(wide.abs() > row.max + half_step, torch.nan).to(target)


# The options that are available on other devices.
_ANYWHERE: dict[str, tuple[Any, ...]] = {
    "copy": (True, False),
    "nan": ("keep",),
    "order": ("K",),
    "overflow": ("ieee", "saturate"),
    "rounding": (None, "nearest-even"),
}


def _to_integer(tensor: Any, target: Any, nearest: bool) -> Any:
    """Clamp floats to an integer dtype; NaN becomes 0."""
    _refuse_layout(tensor, target)
    limits = torch.iinfo(target)
    wide = _wide(tensor, target)
    whole = wide.round() if nearest else wide.trunc()
    # One beyond the largest is a power of two, which floats have.
    above, below = whole >= 2.0 ** limits.max.bit_length(), whole < limits.min
    inside = whole.masked_fill(above | below | whole.isnan(), 0).to(target)
    return inside.masked_fill(above, limits.max).masked_fill(below, limits.min)


def _refuse_layout(tensor: Any, target: Any) -> None:
    """Raise ValueError for a layout in which torch does not limit elements to a range."""
    if tensor.layout is not torch.jagged and (obstacle := layout_obstacle(tensor)) is not None:
        fact, remedy = obstacle
        if "sparse" in str(tensor.layout) and (not tensor.is_sparse or tensor.is_coalesced()):
            remedy += ", or its values()"
        raise ValueError(
            f"tensor {fact}, and torch cannot limit such a tensor to the range of {target}; "
            f"{remedy}."
        )


def _wide(tensor: Any, target: Any) -> Any:
    """Return the tensor in a dtype that holds all its values and the limits of the target."""
    needs_float64 = torch.float64 in (tensor.dtype, target)
    return tensor.to(torch.float64 if needs_float64 else torch.float32)


class _HostCast(torch.autograd.Function):  # type: ignore[misc]
    """A cast on the host, for autograd and torch.func: gradients and tangents are cast, too."""

    @staticmethod
    def forward(tensor: Any, target: Any, options: dict[str, Any]) -> Any:
        return _on_host(tensor.detach(), target, options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        tensor, ctx.target, options = inputs
        ctx.dtype, ctx.scale = tensor.dtype, options.get("scale")
        if not (ctx.target.is_floating_point or ctx.target.is_complex):
            ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, grad: Any, *_: Any) -> Any:
        grad = grad.to(ctx.dtype)
        if ctx.scale is not None:
            grad = grad * torch.as_tensor(ctx.scale, dtype=ctx.dtype, device=grad.device)
        return grad, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Any, *_: Any) -> Any:
        return tangent.to(ctx.target)

    @staticmethod
    def vmap(_info: Any, in_dims: Any, tensor: Any, target: Any, options: Any) -> Any:
        return _HostCast.apply(tensor, target, options), in_dims[0]


class TorchAdapter(Adapter):
    """Cast torch's tensors: on the CPU by castwise's kernels, on other devices by torch."""

    def is_array(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def dtype_of(self, array: Any) -> Any:
        """Return the numpy dtype of a tensor; None for those that only torch has."""
        return numpy_dtype(array.dtype)

    def to_host(self, array: Any) -> NDArray[Any]:
        """Return the elements, detached; only those on other devices are copied."""
        return to_numpy(array.detach().cpu().resolve_conj().resolve_neg())

    def from_host(self, array: NDArray[Any], like: Any) -> Any:
        return from_numpy(array, copy=None).to(like.device)

    def cast(self, array: Any, dtype: Any = None, **options: Any) -> Any:
        """Cast by `castwise.adapters.torch.cast`, which keeps the device and the graph."""
        return cast(array, dtype, **options)

    def children(self, node: Any) -> Sequence[tuple[Any, Any]] | None:
        """Return None, because torch has no containers but modules. TypeError for a module."""
        if isinstance(node, torch.nn.Module):
            refuse_module(node)
        return None


ADAPTER = TorchAdapter()  # `castwise` names this object in the registry of adapters
