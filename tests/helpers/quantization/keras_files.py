"""Models of the real Keras, and changes of the files that it saves."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import keras
from numpy.typing import NDArray

Array = NDArray[Any]


def leaves(model: Any) -> list[Any]:
    """Give the layers that are no models."""
    return [one for one in model._flatten_layers() if not isinstance(one, keras.Model)]


def changed(source: Path, target: Path, config: Any = None, weights: Any = None) -> Path:
    """Write a `.keras` file anew, with changes."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "config.json" and config is not None:
                text = data.decode()
                data = config(text).encode()
                assert data.decode() != text
            if name == "model.weights.h5" and weights is not None:
                path = target.with_suffix(".h5")
                path.write_bytes(data)
                with h5py.File(path, "r+") as tree:
                    weights(tree)
                data = path.read_bytes()
            new.writestr(name, data)
    return target


def put(name: str, change: Callable[[Array], Any]) -> Callable[[Any], None]:
    def apply(tree: Any) -> None:
        value = change(tree[name][...])
        attributes = dict(tree[name].attrs)
        del tree[name]
        tree[name] = value
        tree[name].attrs.update(attributes)

    return apply
