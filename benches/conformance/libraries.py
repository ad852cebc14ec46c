"""The casts of other libraries, each by its plain public call on numpy's arrays."""

from __future__ import annotations

import importlib
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar

import numpy as np
from castwise._core import finfo
from castwise._options import Like
from castwise.arrays.library_casts import ALIASES
from castwise.quantization import pack, unpack
from castwise.text.spelling import suggestion
from numpy.typing import NDArray

EXTRA = "test-frameworks"
"""The extra that installs all of them."""

_TORCH_SATURATES = (2, 12)
"""The first release whose casts to float8_e4m3fn saturate."""

_ML_DTYPES_ROUNDS_ONCE = (0, 7)
"""The first release that rounds float64 and wide integers once, and casts every pair."""


def _release(distribution: str) -> tuple[int, ...]:
    """Return the first two numbers of the version of an installed package."""
    return tuple(map(int, version(distribution).split(".")[:2]))


class LibraryCast(ABC):
    """How one library is called."""

    distributions: ClassVar[tuple[str, ...]]
    """The packages whose versions say how it casts, the one that is imported first."""

    @property
    @abstractmethod
    def name(self) -> Like:
        """The name that `like=` has for it, in the version that is installed."""

    @abstractmethod
    def load(self) -> None:
        """Import it; ImportError if it is not installed."""

    @abstractmethod
    def cast(self, array: NDArray[Any], target: np.dtype[Any]) -> NDArray[Any] | None:
        """Cast an array of one axis; None where the library does not have the pair."""

    def versions(self) -> str:
        """Return its packages with their versions."""
        return ", ".join(f"{name} {version(name)}" for name in self.distributions)


class Numpy(LibraryCast):
    """`ndarray.astype`, which ml_dtypes extends to its dtypes."""

    distributions = ("numpy", "ml_dtypes")

    @property
    def name(self) -> Like:
        """See LibraryCast."""
        return "numpy" if _release("ml_dtypes") >= _ML_DTYPES_ROUNDS_ONCE else "ml_dtypes<0.7"

    def load(self) -> None:
        """See LibraryCast."""

    def cast(self, array: NDArray[Any], target: np.dtype[Any]) -> NDArray[Any] | None:
        """See LibraryCast."""
        try:
            with np.errstate(all="ignore"):
                return array.astype(target)
        except TypeError:
            return None


class Torch(LibraryCast):
    """`Tensor.to` on the CPU."""

    distributions = ("torch",)

    @property
    def name(self) -> Like:
        """See LibraryCast."""
        return "torch" if _release("torch") >= _TORCH_SATURATES else "torch<2.12"

    def load(self) -> None:
        """See LibraryCast."""
        self._bridge: Any = importlib.import_module("castwise.adapters.torch._bridge")

    def cast(self, array: NDArray[Any], target: np.dtype[Any]) -> NDArray[Any] | None:
        """See LibraryCast."""
        dtype = self._bridge.torch_dtype(target)
        if dtype is None or self._bridge.torch_dtype(array.dtype) is None:
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that complex32 is experimental
                tensor = self._bridge.from_numpy(array, copy=None).to(dtype)
        except (RuntimeError, TypeError, ValueError):
            return None
        result: NDArray[Any] = self._bridge.to_numpy(tensor)
        return result


class Jax(LibraryCast):
    """`Array.astype` on the CPU, not traced, with 64-bit types."""

    name: Like = "jax"
    distributions = ("jax", "jaxlib")

    def load(self) -> None:
        """See LibraryCast."""
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        self._jax: Any = importlib.import_module("jax")

    def cast(self, array: NDArray[Any], target: np.dtype[Any]) -> NDArray[Any] | None:
        """See LibraryCast."""
        if {finfo(array.dtype).name, finfo(target).name} & {"int1", "uint1"}:
            return None  # which it takes, but cannot compute with
        try:
            with self._jax.enable_x64(True):
                result = np.asarray(self._jax.numpy.asarray(array).astype(target))
        except (TypeError, ValueError, NotImplementedError, RuntimeError):
            return None
        return result if result.dtype == target else None


class TensorFlow(LibraryCast):
    """`tf.cast` on the CPU."""

    name: Like = "tensorflow"
    distributions = ("tensorflow",)

    def load(self) -> None:
        """See LibraryCast."""
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
        self._tensorflow: Any = importlib.import_module("tensorflow")

    def versions(self) -> str:
        """See LibraryCast; its packages have several names."""
        return f"tensorflow {self._tensorflow.__version__}"

    def cast(self, array: NDArray[Any], target: np.dtype[Any]) -> NDArray[Any] | None:
        """See LibraryCast."""
        tensorflow = self._tensorflow
        try:
            dtype = tensorflow.dtypes.as_dtype(target)
            result: NDArray[Any] = tensorflow.cast(tensorflow.constant(array), dtype).numpy()
        except (TypeError, ValueError, tensorflow.errors.OpError):
            return None
        return result if result.dtype == target else None


class OnnxRuntime(LibraryCast):
    """The operator Cast in onnxruntime, with the defaults of its attributes."""

    name: Like = "onnx"
    distributions = ("onnxruntime", "onnx")

    _SPELLED: ClassVar[dict[str, str]] = {
        "float32": "FLOAT",
        "float64": "DOUBLE",
        "float8_e8m0fnu": "FLOAT8E8M0",
        "float4_e2m1fn": "FLOAT4E2M1",
    }
    """Where its names of formats differ."""
    _OPERATOR_SETS = (25, 24, 21, 19)
    """The newest in which onnxruntime has a pair is taken."""

    def load(self) -> None:
        """See LibraryCast."""
        self._runtime: Any = importlib.import_module("onnxruntime")
        self._onnx: Any = importlib.import_module("onnx")
        self._runtime.set_default_logger_severity(4)

    def cast(self, array: NDArray[Any], target: np.dtype[Any]) -> NDArray[Any] | None:
        """See LibraryCast."""
        source, result = self._element_type(array.dtype), self._element_type(target)
        session = None if None in (source, result) else self._session(source, result)
        if session is None:
            return None
        codes, count = _packed(array), array.size
        bits = _bits(target)
        out = np.empty((count * bits + 7) // 8, np.uint8)
        binding = session.io_binding()
        binding.bind_input("x", "cpu", 0, source, [count], codes.ctypes.data)
        binding.bind_output("y", "cpu", 0, result, [count], out.ctypes.data)
        try:
            session.run_with_iobinding(binding)
        except RuntimeError:
            return None
        return _unpacked(out, target, count)

    def _element_type(self, dtype: np.dtype[Any]) -> int | None:
        name = finfo(dtype).name
        spelled = self._SPELLED.get(name, name.upper().replace("_", ""))
        return getattr(self._onnx.TensorProto, spelled, None)

    @cache  # noqa: B019  (one runtime is made)
    def _session(self, source: int, target: int) -> Any:
        """Return what runs a model of one Cast; None if onnxruntime has no such cast."""
        helper, runtime = self._onnx.helper, self._runtime
        graph = helper.make_graph(
            [helper.make_node("Cast", ["x"], ["y"], to=target)],
            "cast",
            [helper.make_tensor_value_info("x", source, [None])],
            [helper.make_tensor_value_info("y", target, [None])],
        )
        options = runtime.SessionOptions()
        options.intra_op_num_threads = 1
        for number in self._OPERATOR_SETS:
            operators = [helper.make_opsetid("", number)]
            model = helper.make_model(graph, opset_imports=operators)
            model.ir_version = helper.find_min_ir_version_for(operators)
            try:
                return runtime.InferenceSession(
                    model.SerializeToString(), options, providers=["CPUExecutionProvider"]
                )
            except Exception:  # noqa: S112  (classes of its own, for each reason another)
                continue
        return None


class NumKong(LibraryCast):
    """`numkong.astype`."""

    name: Like = "numkong"
    distributions = ("numkong",)

    SPELLED: ClassVar[dict[str, str]] = {
        "float8_e4m3fn": "e4m3",
        "float8_e5m2": "e5m2",
        "float6_e2m3fn": "e2m3",
        "float6_e3m2fn": "e3m2",
    }
    """Where its names of formats differ."""

    OTHER_MEANING = ("uint1", "int4", "uint4", "float8_e4m3", "complex32", "bcomplex32")
    """Its uint1 and int4 are packed, several to a byte; what it calls float8_e4m3 has no
    infinities; and its complex formats of less than 64 bits do not survive its casts."""

    def load(self) -> None:
        """See LibraryCast."""
        self._numkong: Any = importlib.import_module("numkong")

    def cast(self, array: NDArray[Any], target: np.dtype[Any]) -> NDArray[Any] | None:
        """See LibraryCast."""
        names = finfo(array.dtype).name, finfo(target).name
        if set(names) & set(self.OTHER_MEANING):
            return None
        source, spelled = (self.SPELLED.get(name, name) for name in names)
        try:
            tensor = self._numkong.from_pointer(
                array.ctypes.data, array.shape, source, strides=array.strides, owner=array
            )
            result = np.asarray(self._numkong.astype(tensor, spelled))
        except (TypeError, ValueError):
            return None
        return result if result.dtype == target else result.view(target)


def _bits(dtype: np.dtype[Any]) -> int:
    """Return how many bits onnxruntime stores an element in."""
    row = finfo(dtype)
    return row.bits if row.bits in (2, 4) else 8 * dtype.itemsize


def _packed(array: NDArray[Any]) -> NDArray[Any]:
    """Return the bytes of an array as onnxruntime stores it."""
    codes = np.ascontiguousarray(array).view(np.uint8)
    bits = _bits(array.dtype)
    return codes if bits >= 8 else pack(codes, bits)


def _unpacked(data: NDArray[Any], dtype: np.dtype[Any], count: int) -> NDArray[Any]:
    """Return the array of what onnxruntime has stored."""
    bits = _bits(dtype)
    if bits < 8:
        signed = finfo(dtype).kind == "int"
        data = unpack(data, bits, columns=count, signed=signed)
    return data.view(dtype)


CASTS: tuple[LibraryCast, ...] = (Numpy(), Torch(), Jax(), TensorFlow(), OnnxRuntime(), NumKong())
"""All, in the order of the page."""


def installed(packages: Collection[str] | None = None) -> tuple[list[LibraryCast], list[str]]:
    """Load the libraries of some packages, or all that are installed.

    Parameters
    ----------
    packages : collection of str, optional
        "numpy", "torch", "jax", "tensorflow", "onnxruntime" (or "onnx") or "numkong".

    Returns
    -------
    list of LibraryCast, list of str
        What is loaded, and the packages that cannot be imported.

    Raises
    ------
    ValueError
        None of them is called so.

    """
    known = {library.distributions[0]: library for library in CASTS}
    packages_of: dict[str, str] = {name: package for package, name in ALIASES.items()}
    wanted = None if packages is None else [packages_of.get(name, name) for name in packages]
    for name in wanted or ():
        if name not in known:
            raise ValueError(
                f"{name!r} is not a library that is compared; {suggestion(name, known)}use one of "
                f"{', '.join(known)}."
            )
    loaded: list[LibraryCast] = []
    missing: list[str] = []
    for library in (known[name] for name in known if wanted is None or name in wanted):
        try:
            library.load()
            library.versions()
        except (ImportError, PackageNotFoundError):
            missing.append(library.distributions[0])
        else:
            loaded.append(library)
    return loaded, missing
