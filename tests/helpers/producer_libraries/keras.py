# ruff: noqa: PLC0415 - each library is imported by what needs it
"""Keras: what it writes for a weight, decodes from it, and saves of a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from scheme_oracle import Array

from ._arrays import Parts, Producer, array, tensor


def keras_int8(x: Array) -> tuple[Parts, Array | None]:
    from keras import quantizers

    codes, scale = quantizers.abs_max_quantize(tensor(x), axis=0)
    return {"kernel": array(codes), "kernel_scale": array(scale).reshape(-1)}, None


SCHEMES = {
    "int8": Producer("int8_channel", "", keras_int8, options={"axis": 0}, dtypes=("float32",)),
}


def written(mode: str) -> Callable[[Path, Path], None]:
    def make(plain: Path, out: Path) -> None:
        del plain
        import h5py
        import keras
        import numpy as np
        from safetensors.numpy import save_file

        layers = [keras.Input((16,)), keras.layers.Dense(8), keras.layers.Dense(4, use_bias=False)]
        model = keras.Sequential(layers)
        model.quantize(mode)
        out.mkdir()
        model.save_weights(out / "model.weights.h5")
        tensors = {}
        with h5py.File(out / "model.weights.h5") as file:
            file.visititems(
                lambda name, item: (
                    tensors.update({name: np.asarray(item)})
                    if isinstance(item, h5py.Dataset)
                    else None
                )
            )
        save_file(tensors, out / "model.safetensors")  # the names of the file, as they are

    return make


WRITERS = {"keras int8": written("int8"), "keras int4": written("int4")}
