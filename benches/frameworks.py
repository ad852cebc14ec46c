"""Libraries of machine learning that cast arrays too: torch, jax, TensorFlow, NumKong.

Each takes part where it is installed and has both formats. Inputs lie in its own kind of array
before the clock starts, sharing memory with numpy's where that is possible.
"""

from __future__ import annotations

import importlib
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import avx2
import numpy as np
from numpy.typing import NDArray
from peers import Peer, Prepared, returned

sys.path.append(str(Path(__file__).parent / "conformance"))
from libraries import NumKong as NumKongCast


def codes(x: NDArray[Any]) -> NDArray[Any]:
    """The same memory as integers, for libraries that do not know the dtypes of ml_dtypes."""
    return x if x.dtype.isbuiltin == 1 else x.view(f"i{x.itemsize}")


class Torch(Peer):
    """`Tensor.to` and `Tensor.copy_` on the CPU."""

    name = "torch"
    distributions: tuple[str, ...] = ("torch",)

    def load(self, threads: int) -> None:
        """See Peer."""
        self.module: Any = importlib.import_module("torch")
        self.module.set_num_threads(threads)

    def prepare(self, x: NDArray[Any], target: np.dtype[Any]) -> dict[str, Prepared]:
        """See Peer."""
        try:
            tensor, out = self.tensor(x), self.tensor(np.empty(x.shape, target))
            out.copy_(tensor)
        except (AttributeError, RuntimeError, TypeError):
            return {}
        array = partial(self.array, target=target)
        return {
            "fresh": Prepared(partial(tensor.to, out.dtype), array),
            "out": Prepared(partial(out.copy_, tensor), array),
        }

    def tensor(self, x: NDArray[Any]) -> Any:
        """The same memory as a tensor."""
        dtype = getattr(self.module, x.dtype.name)
        tensor = self.module.from_numpy(codes(x))
        return tensor if tensor.dtype == dtype else tensor.view(dtype)

    def array(self, tensor: Any, target: np.dtype[Any]) -> NDArray[Any]:
        """The same memory as an array."""
        if target.isbuiltin == 1:
            return np.asarray(tensor.numpy())
        same_size = getattr(self.module, f"int{8 * target.itemsize}")
        return np.asarray(tensor.view(same_size).numpy().view(target))


class Jax(Peer):
    """A compiled `astype`, waited for; jax has no call that writes into an existing array."""

    name = "jax"
    distributions = ("jax", "jaxlib")

    def load(self, threads: int) -> None:
        """See Peer."""
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        if threads == 1:
            flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
            os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}"
        self.module: Any = importlib.import_module("jax")
        self.module.config.update("jax_enable_x64", True)

    def prepare(self, x: NDArray[Any], target: np.dtype[Any]) -> dict[str, Prepared]:
        """See Peer."""
        if not x.flags.c_contiguous:
            return {}
        try:
            array: Any = self.module.numpy.asarray(x)
            compiled = self.module.jit(lambda value: value.astype(target)).lower(array).compile()
            if compiled(array).dtype != target:
                return {}
        except (NotImplementedError, TypeError, ValueError, RuntimeError):
            return {}
        return {"fresh": Prepared(lambda: compiled(array).block_until_ready(), returned)}


class TensorFlow(Peer):
    """`tf.cast`, eagerly; there is no call that writes into an existing tensor."""

    name = "tensorflow"
    distributions = ("tensorflow-cpu",)

    def load(self, threads: int) -> None:
        """See Peer."""
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        self.module: Any = importlib.import_module("tensorflow")
        self.module.config.threading.set_intra_op_parallelism_threads(threads)

    def prepare(self, x: NDArray[Any], target: np.dtype[Any]) -> dict[str, Prepared]:
        """See Peer."""
        if not x.flags.c_contiguous:
            return {}
        try:
            tensor, dtype = self.module.constant(x), self.module.dtypes.as_dtype(target)
            self.module.cast(tensor, dtype)
        except (TypeError, ValueError, self.module.errors.OpError):
            return {}
        run = partial(self.module.cast, tensor, dtype)
        return {"fresh": Prepared(run, returned)}


class NumKong(Peer):
    """`numkong.astype`."""

    name = "numkong"
    distributions = ("numkong",)
    names = NumKongCast.SPELLED
    """Where they differ from the dtype's own."""

    def load(self, threads: int) -> None:
        """See Peer; it always uses one thread."""
        del threads
        self.module: Any = importlib.import_module("numkong")
        if avx2.HELD:
            for name in avx2.NUMKONG_CAPABILITIES:
                self.module.disable_capability(name)

    def prepare(self, x: NDArray[Any], target: np.dtype[Any]) -> dict[str, Prepared]:
        """See Peer."""
        if {x.dtype.name, target.name} & set(NumKongCast.OTHER_MEANING):
            return {}
        array = np.empty(x.shape, target)
        name = self.names.get(target.name, target.name)
        try:
            tensor, out = self.tensor(x), self.tensor(array)
            self.module.astype(tensor, name, out=out)
        except (TypeError, ValueError):
            return {}
        run = partial(self.module.astype, tensor, name)
        into = partial(self.module.astype, tensor, name, out=out)
        return {
            "fresh": Prepared(run, partial(self.array, target=target)),
            "out": Prepared(into, lambda _: array),
        }

    def tensor(self, x: NDArray[Any]) -> Any:
        """The same memory as a tensor."""
        name = self.names.get(x.dtype.name, x.dtype.name)
        return self.module.from_pointer(x.ctypes.data, x.shape, name, strides=x.strides, owner=x)

    def array(self, tensor: Any, target: np.dtype[Any]) -> NDArray[Any]:
        """The elements as an array."""
        found = np.asarray(tensor)
        return found if found.dtype == target else found.view(target)
