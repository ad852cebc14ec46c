"""What the pickles of torch files may name, and what stands for it: storages, dtypes, tensors.

Nothing of torch is imported. A dense tensor is described by the calls with which torch rebuilds it;
what stands for them here only checks their arguments.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeGuard

from castwise.checkpoint._errors import CheckpointError, damage

REMEDY = (
    "where you trust the file, load it in torch and save only the tensors: "
    "torch.save(model.state_dict(), PATH)"
)


@dataclass(frozen=True, slots=True)
class StorageType:
    """A storage class of torch, by the dtype of its elements; None if it is untyped."""

    dtype: str | None


@dataclass(frozen=True, slots=True)
class TorchDtype:
    """A dtype of torch, by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class TorchStorage:
    """Bytes that stand elsewhere in the file."""

    key: str  # name of the storage in the file
    dtype: str | None  # dtype of its elements; None if they are bytes
    size: int  # number of its elements
    problem: str | None = None  # why tensors in it cannot be read


@dataclass(frozen=True, slots=True)
class TorchTensor:
    """A strided view of a storage; `offset` and `strides` count elements."""

    storage: TorchStorage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    problem: str | None = None  # why it cannot be read, once its name is known


@dataclass(frozen=True, slots=True)
class Opaque:
    """A value that holds no tensor: `type_name` names its type."""

    type_name: str


@dataclass(frozen=True, slots=True)
class _PickledFunction:
    """A function that a pickle may name, and what stands for its result."""

    name: str
    result: Callable[..., Any]


# Those of quantized tensors, which are refused by their names, are bytes here.
_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
    "QInt8Storage": "int8",
    "QUInt8Storage": "uint8",
    "QInt32Storage": "int32",
    "QUInt4x2Storage": "uint8",
    "QUInt2x4Storage": "uint8",
}

DTYPE_BYTES = {
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
    **dict.fromkeys(("float32", "int32", "uint32", "complex32", "bcomplex32"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16", "bits16"), 2),
    **dict.fromkeys(("int8", "uint8", "bool", "bits8", "bits1x8", "bits2x4", "bits4x2"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"), 1),
    **dict.fromkeys(("float8_e8m0fnu", "float4_e2m1fn_x2"), 1),
    "complex128": 16,
}
"""The bytes of an element of each dtype of torch that a tensor in a file can have."""

PACKED = {"float4_e2m1fn_x2": "float4_e2m1fn"}
"""The dtypes of which two elements share a byte, and the formats of one element."""

REFUSED = {
    "_rebuild_sparse_tensor": "a sparse tensor; make it dense (to_dense)",
    "_rebuild_sparse_csr_tensor": "a sparse tensor; make it dense (to_dense)",
    "_rebuild_qtensor": "a quantized tensor; make it a float tensor (dequantize)",
    "_rebuild_nested_tensor": "a nested tensor; pad it (to_padded_tensor)",
    "_rebuild_meta_tensor_no_storage": "on the meta device, and has no elements",
}
"""Functions for tensors that are not dense arrays of numbers."""

REFUSED_AT_ONCE = {
    "_rebuild_wrapper_subclass": "a tensor of a class of its own; save what it is made of",
}
"""Those whose arguments cannot be read either."""


def _tensor(
    dtype: str | None, view: tuple[object, ...], flags: tuple[object, ...] = ()
) -> TorchTensor:
    """Check a tensor that torch describes by storage, offset, shape and strides."""
    storage, offset, shape, strides = view
    if not isinstance(storage, TorchStorage):
        raise damage("a tensor names no storage")
    dtype = dtype or storage.dtype
    if dtype is None:
        raise damage(f"the tensor of storage {storage.key!r} has no dtype")
    if not (
        isinstance(shape, tuple) and isinstance(strides, tuple) and is_count(offset)
    ) or not all(is_count(number) for number in (*shape, *strides)):
        raise damage(
            f"the tensor of storage {storage.key!r} has an offset, a shape or strides that are "
            "not numbers of elements"
        )
    if len(shape) != len(strides):
        raise damage(
            f"the tensor of storage {storage.key!r} has {len(shape)} axes and {len(strides)} "
            "strides"
        )
    problem = storage.problem
    if any(flags):
        problem = "a conjugated or negated view; save it with resolve_conj() and resolve_neg()"
    return TorchTensor(storage, dtype, offset, shape, strides, problem)


def _unreadable(problem: str, *arguments: object) -> TorchTensor:
    """Stand for a tensor that is refused if it is one of the model's."""
    del arguments
    return TorchTensor(TorchStorage("", None, 0), "uint8", 0, (), (), problem)


def _tensor_v2(*arguments: object) -> TorchTensor:
    """Take storage, offset, shape, strides, two things about gradients, and at times flags."""
    return _tensor(None, arguments[:4], arguments[6:])


def _tensor_v3(*arguments: object) -> TorchTensor:
    """Take the same, with the dtype before the flags."""
    dtype = arguments[6] if len(arguments) > 6 else None  # noqa: PLR2004
    if not isinstance(dtype, TorchDtype):
        raise damage("a tensor has something else for a dtype")
    return _tensor(dtype.name, arguments[:4], arguments[7:])


def _parameter(data: object, *arguments: object) -> TorchTensor:
    del arguments
    if not isinstance(data, TorchTensor):
        raise damage("a parameter is not made of a tensor")
    return data


def _from_type(function: object, kind: object, arguments: object, state: object) -> object:
    """Return a tensor that has attributes; these are left out, as torch's flags of buffers are."""
    del state
    if kind != Opaque("torch.Tensor") and kind != Opaque("torch.nn.parameter.Parameter"):
        raise CheckpointError("a tensor is of a class of its own; save what it is made of")
    return call_function(function, arguments)


def _ordered_dict(pairs: Iterable[object] = ()) -> dict[Any, Any]:
    """Return an `OrderedDict`, which older Pythons pickled with its items."""
    mapping: dict[Any, Any] = {}
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:  # noqa: PLR2004
            raise damage("an OrderedDict is not made of pairs")
        mapping[key_of(pair[0])] = pair[1]
    return mapping


def opaque(name: str, *arguments: object) -> Opaque:
    """Stand for an object that neither is nor holds a tensor."""
    if any(isinstance(value, TorchTensor) for part in arguments for value in _parts(part)):
        raise CheckpointError(f"a tensor is inside of a {name}; {REMEDY}")
    return Opaque(name)


def _parts(value: object) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else [value]


def _globals() -> dict[str, Any]:
    """Make the table of all that a pickle may name, and what stands for it."""
    calls: dict[str, Callable[..., Any]] = {
        "torch._utils._rebuild_tensor": lambda *arguments: _tensor(None, arguments),
        "torch._utils._rebuild_tensor_v2": _tensor_v2,
        "torch._utils._rebuild_tensor_v3": _tensor_v3,
        "torch._utils._rebuild_parameter": _parameter,
        "torch._utils._rebuild_parameter_with_state": _parameter,
        "torch._tensor._rebuild_from_type_v2": _from_type,
        "collections.OrderedDict": _ordered_dict,
        "collections.Counter": lambda counts=(): dict(counts),
        "collections.defaultdict": lambda default=None: {},
        "torch.Size": tuple,
    }
    for module in ("torch._utils", "torch._tensor"):
        calls |= {
            f"{module}.{name}": partial(_unreadable, type_name)
            for name, type_name in REFUSED.items()
        }
    calls["torch.serialization._get_layout"] = partial(opaque, "torch.layout")
    builtin = ("bytearray", "complex", "set", "frozenset")
    calls |= {name: partial(opaque, name) for name in ("torch.device", "_codecs.encode")}
    for module in ("builtins", "__builtin__"):
        calls |= {f"{module}.{name}": partial(opaque, name) for name in builtin}
    types = [f"{module}.{name}" for module in ("builtins", "__builtin__") for name in _TYPES]
    return {
        **{name: _PickledFunction(name, result) for name, result in calls.items()},
        **{f"torch.{name}": StorageType(dtype) for name, dtype in _STORAGES.items()},
        **{f"torch.cuda.{name}": StorageType(dtype) for name, dtype in _STORAGES.items()},
        "torch.storage.UntypedStorage": StorageType(None),
        **{f"torch.{name}": TorchDtype(name) for name in DTYPE_BYTES},
        **{f"torch.{name}": Opaque(name) for name in _QUANTIZERS},
        **{name: Opaque(name) for name in types},
        **{name: Opaque(name) for name in ("torch.Tensor", "torch.nn.parameter.Parameter")},
    }


_QUANTIZERS = tuple(
    f"per_{scheme}"
    for scheme in ("tensor_affine", "channel_affine", "channel_affine_float_qparams")
)
_TYPES = ("int", "long", "float", "str", "bool", "list", "dict", "tuple")
GLOBALS = _globals()


def call_function(function: object, arguments: object) -> object:
    """Return what stands for the result of a call."""
    if not isinstance(function, _PickledFunction) or not isinstance(arguments, tuple):
        raise CheckpointError(f"the pickle calls what is not a function of torch; {REMEDY}")
    try:
        return function.result(*arguments)
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            f"the pickle calls {function.name} with other arguments; {REMEDY}"
        ) from error


def key_of(value: object) -> object:
    """Return a key of a dictionary; what is neither text nor number becomes one of its own."""
    plain = value is None or isinstance(value, str | bytes | int | float)
    return value if plain else _OtherKey()


class _OtherKey:
    """A key that no name can be made of; equal to itself only."""


def is_count(value: object) -> TypeGuard[int]:
    """Return True for a whole number that can count elements: not negative, below 2^63."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
