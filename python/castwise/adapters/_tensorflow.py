"""The adapter by which `castwise.cast` and `castwise.cast_tree` cast TensorFlow's tensors."""

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import finfo
from castwise.arrays.adapter_registry import Adapter

tf: Any = importlib.import_module("tensorflow")


class TensorFlowAdapter(Adapter):
    """Cast tensors, and the values of variables, on the host; tapes record the cast."""

    def is_array(self, value: Any) -> bool:
        return isinstance(value, tf.Tensor | tf.Variable)

    def dtype_of(self, array: Any) -> Any:
        """Return the numpy dtype; that of strings and resources is object."""
        return np.dtype(array.dtype.as_numpy_dtype)

    def format_of(self, dtype: object) -> str | None:
        if not isinstance(dtype, tf.DType):
            return None
        try:
            return finfo(np.dtype(dtype.as_numpy_dtype)).name
        except TypeError:
            return None

    def to_host(self, array: Any) -> NDArray[Any]:
        """Return the elements. ValueError for a tensor that has none yet."""
        tensor = tf.convert_to_tensor(array)
        if tf.is_symbolic_tensor(tensor):
            raise ValueError(
                f"{tensor.name!r} has no elements inside of tf.function; cast outside of it, or "
                "use tf.cast."
            )
        return np.asarray(tensor.numpy())

    def from_host(self, array: NDArray[Any], like: Any) -> Any:
        with tf.device(like.device):
            return tf.convert_to_tensor(array)

    def cast(self, array: Any, dtype: Any = None, **options: Any) -> Any:
        """Cast on the host to a tensor, through which gradients pass as through `tf.cast`."""
        if dtype is not None:
            dtype = _target(dtype)
        if options == {"copy": False} and dtype == self.dtype_of(array):
            return array
        scale = options.get("scale")
        if self.is_array(scale):
            options["scale"] = self.to_host(scale)
        source = tf.convert_to_tensor(array)
        reports: list[Any] = []

        def apply(tensor: Any) -> Any:
            outcome = super(TensorFlowAdapter, self).cast(tensor, dtype, **options)
            result, *report = outcome if options.get("report") else (outcome,)
            reports.extend(report)

            def gradient(upstream: Any) -> Any:
                gradient_of_tensor = tf.cast(upstream, tensor.dtype)
                return (
                    gradient_of_tensor
                    if scale is None
                    else gradient_of_tensor * tf.cast(scale, tensor.dtype)
                )

            return result, gradient

        differentiable = dtype is not None and all(
            kind.is_floating or kind.is_complex for kind in (source.dtype, tf.as_dtype(dtype))
        )
        result = tf.custom_gradient(apply)(source) if differentiable else apply(source)[0]
        return (result, *reports) if reports else result


def _target(dtype: Any) -> np.dtype[Any]:
    """Return the numpy dtype that an argument means; TypeError if TensorFlow lacks it."""
    if isinstance(dtype, tf.DType):
        dtype = np.dtype(dtype.as_numpy_dtype)
    row = finfo(dtype)
    try:
        if row.dtype is not None:
            tf.as_dtype(row.dtype)
            return row.dtype
    except TypeError:
        pass
    raise TypeError(f"dtype={row.name!r} is not a dtype that TensorFlow has; choose another.")


ADAPTER = TensorFlowAdapter()  # `castwise` names this object in the registry of adapters
