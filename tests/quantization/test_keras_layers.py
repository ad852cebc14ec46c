"""What a Keras model states of its layers, and what is told without it; no Keras is needed."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from castwise.quantization.producers.keras_layers import plain_model, stated_layers
from castwise.quantization.producers.stored_weight import LazyArray
from hypothesis import given
from hypothesis import strategies as st

CODES = np.random.default_rng(2).integers(-127, 128, (6, 5), dtype=np.int8)
SCALE = np.linspace(1, 90, 5, dtype=np.float32)


def test_int8_of_a_dense_layer_is_told_by_its_place(tmp_path: Path) -> None:
    bias = np.arange(5, dtype=np.float32)
    names = ("a/layers/dense_3/vars/", "layers/dense/vars/")
    tensors = {names[0] + "0": CODES, names[0] + "1": bias, names[0] + "2": SCALE}
    tensors |= {names[1] + "0": CODES, names[1] + "1": SCALE}
    checkpoint.save(tmp_path / "in.safetensors", tensors)
    checkpoint.dequantize_file(
        tmp_path / "in.safetensors", out := tmp_path / "out.safetensors", "float32"
    )
    found = checkpoint.load(out)
    assert set(found) == {names[0] + "0", names[0] + "1", names[1] + "0"}
    for name in names:
        np.testing.assert_array_equal(found[name + "0"], CODES / SCALE)
    np.testing.assert_array_equal(found[names[0] + "1"], bias)


@pytest.mark.parametrize(
    ("path", "codes", "scale"),
    [
        ("layers/embedding", CODES, SCALE),
        ("layers/einsum_dense", CODES, SCALE),
        ("encoder/output", CODES, SCALE),
        ("layers/dense", CODES[:, :1], SCALE[:1]),  # int4 of one or two outputs has this shape
        ("layers/dense", CODES[:, :3], SCALE),
        ("layers/dense", CODES.reshape(6, 5, 1), SCALE),
    ],
)
def test_others_are_refused(tmp_path: Path, path: str, codes: Any, scale: Any) -> None:
    tensors = {f"{path}/vars/0": codes, f"{path}/vars/1": scale}
    checkpoint.save(tmp_path / "in.safetensors", tensors)
    with pytest.raises(
        CheckpointError, match=rf"'{path}/vars'.*shapes do not tell; save the model"
    ):
        checkpoint.dequantize_file(tmp_path / "in.safetensors", tmp_path / "out.safetensors")


@pytest.mark.thinned(3)
@pytest.mark.parametrize("chunks", [None, (512, 512)])
@pytest.mark.parametrize("kind", ["int8", "gptq"])
def test_memory_is_less_than_a_kernel(
    tmp_path: Path, kind: str, chunks: tuple[int, int] | None
) -> None:
    """Rows of int8 follow each other in the file; those of GPTQ are columns there."""
    h5py = pytest.importorskip("h5py")
    inputs, columns = 1 << 13, 1 << 12
    codes = np.random.default_rng(0).integers(0, 128, (inputs, columns), np.uint8)
    scale = np.linspace(1, 90, columns, dtype=np.float32)
    variables: list[Any] = [codes.view(np.int8), scale]
    if kind == "gptq":
        scales = scale[:, None], np.zeros((columns, 1), np.uint8)
        variables = [np.ascontiguousarray(codes.T), *scales, np.zeros(inputs, np.float32)]
    with h5py.File(source := tmp_path / "in.weights.h5", "w") as file:
        for place, one in enumerate(variables):
            cut = chunks if one.size == codes.size else None
            file.create_dataset(f"layers/dense/vars/{place}", data=one, chunks=cut)
    del variables
    out = tmp_path / "out.safetensors"
    tracemalloc.start()
    checkpoint.dequantize_file(source, out, "bfloat16", threads=2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < codes.nbytes
    few = slice(5000, 5010)
    plain = (codes[few] / scale if kind == "int8" else codes[few] * scale).astype(np.float32)
    found = checkpoint.load(out)["layers/dense/vars/0"][few]
    np.testing.assert_array_equal(found, plain.astype(found.dtype))


def policy(kind: str, mode: str) -> dict[str, Any]:
    return {
        "module": "keras",
        "class_name": kind,
        "config": {"mode": mode, "source_name": "mixed_bfloat16"},
        "registered_name": None,
    }


def dense(name: str, dtype: Any, **more: Any) -> dict[str, Any]:
    return {"class_name": "Dense", "config": {"name": name, "dtype": dtype, "units": 5, **more}}


PLAIN = {
    "module": "keras",
    "class_name": "DTypePolicy",
    "config": {"name": "mixed_bfloat16"},
    "registered_name": None,
}


def test_policies_become_those_of_before() -> None:
    maps = {
        "class_name": "DTypePolicyMap",
        "config": {
            "default_policy": PLAIN,
            "policy_map": {"a": policy("Int4DTypePolicy", "int4/8")},
        },
    }
    own = {"module": "mine", "class_name": "Own"}
    model = {
        "layers": [
            dense(
                "a", policy("QuantizedDTypePolicy", "int8"), quantization_config={"module": "keras"}
            ),
            dense("b", maps, quantization_config=own),
            dense("c", "float32", quantization_config=None, others=[1.5, None, {"x": "int8"}]),
        ]
    }
    text = json.dumps(model)
    plain_maps = json.loads(json.dumps(maps))
    plain_maps["config"]["policy_map"]["a"] = PLAIN
    assert plain_model(model) == {
        "layers": [
            dense("a", PLAIN, quantization_config=None),
            dense("b", plain_maps, quantization_config=own),
            model["layers"][2],
        ]
    }
    assert json.dumps(model) == text


def test_what_is_stated_of_layers() -> None:
    model = {
        "a": dense("one", policy("Int4DTypePolicy", "int4/8")),
        "b": [dense("two", policy("QuantizedDTypePolicy", "int8")), dense("two", "float32")],
        "c": dense("odd", {"class_name": "Own", "config": {}}),
        "d": dense("channels", policy("Int4DTypePolicy", "int4/-1")),
    }
    names = {"x/vars": "one", "y/vars": "two", "z/vars": "odd", "w/vars": "channels", "v": "none"}
    found = stated_layers(model, names)
    told = {path: [(one.mode, one.block) for one in several] for path, several in found.items()}
    assert told == {
        "x/vars": [("int4", 8)],
        "y/vars": [("int8", None), (None, None)],
        "z/vars": [(None, None)],
        "w/vars": [("int4", None)],
    }
    assert stated_layers({"a": dense("one", "float32")}, names) == {}
    deep: Any = []
    for _ in range(300):
        deep = [deep]
    for read in (plain_model, lambda model: stated_layers(model, names)):
        with pytest.raises(ValueError, match="nested more than"):
            read(deep)


def test_what_attention_layers_make() -> None:
    """Their projections are told by the path, not by a name that other layers may have, too."""
    shapes = {"query_shape": [None, 6, 9], "value_shape": [None, None, 7], "key_shape": [None, 2]}
    heads = {"num_heads": 3, "key_dim": 4, "value_dim": 5, "output_shape": None, "use_bias": False}
    model = {
        "class_name": "MultiHeadAttention",
        "config": {"name": "mha", "dtype": "float32", **heads},
        "build_config": {"shapes_dict": shapes},
        "other": dense("query", "float32"),
    }
    kinds = ("query", "key", "value", "output", "softmax")
    names = {f"a/_{one}_dense/vars": one for one in kinds} | {"a/vars": "mha", "b/vars": "query"}
    assert stated_layers(model, names) == {}
    found = stated_layers(model, names, names)
    ends = {
        path: (
            layer.config["equation"],
            layer.build_config["input_shape"],
            layer.config["output_shape"],
        )
        for path, (layer,) in found.items()
        if layer.kind == "EinsumDense"
    }
    assert ends == {
        "a/_query_dense/vars": ("ab,bcd->acd", [9], [3, 4]),
        "a/_key_dense/vars": ("ab,bcd->acd", [2], [3, 4]),
        "a/_value_dense/vars": ("ab,bcd->acd", [7], [3, 5]),
        "a/_output_dense/vars": ("abc,bcd->ad", [3, 5], [9]),
    }
    assert found["b/vars"][0].kind == "Dense"


@given(
    shape=st.lists(st.integers(1, 4), min_size=3, max_size=4),
    joined=st.integers(1, 3),
    ends=st.tuples(*[st.integers(0, 9)] * 4),
)
def test_rows_of_joined_axes(shape: list[int], joined: int, ends: tuple[int, ...]) -> None:
    """Rows are read of whole indices of the first axis, and no more."""
    whole = np.arange(np.prod(shape)).reshape(shape)
    reads: list[int] = []

    def box(ranges: Sequence[tuple[int, int]]) -> Any:
        found = whole[tuple(slice(*one) for one in ranges)]
        reads.append(len(found))
        return found

    rows = int(np.prod(shape[: min(joined, len(shape) - 1)]))
    wanted = whole.reshape(rows, -1)
    lazy = LazyArray("x", whole.shape, whole.dtype, whole.shape, box).as_rows(wanted.shape)
    first, last = sorted(number % rows for number in ends[:2])
    left, right = sorted(number % wanted.shape[1] for number in ends[2:])
    columns = slice(left, right + 1) if lazy.stored_shape == wanted.shape else slice(None)
    got = lazy[first : last + 1, columns]
    np.testing.assert_array_equal(got, wanted[first : last + 1, columns])
    inside = rows // shape[0]
    assert reads == [last // inside - first // inside + 1]
