"""Error texts that tell a user of loss scales what to do."""

from __future__ import annotations

import socket
from typing import Any

import castwise
import numpy as np
import pytest
from castwise.compat.keras.mixed_precision import LossScaleOptimizer
from castwise.compat.torch import GradScaler
from castwise.loss_scale import DelayedScaling, agree, all_finite, get, pack, select_tree, unscale
from originals import library


def endless() -> list[Any]:
    grads: list[Any] = [np.ones(1)]
    grads.append({"again": (None, grads)})
    return grads


@pytest.mark.parametrize(
    "call",
    [
        lambda tree: unscale(tree, 2.0),
        lambda tree: unscale(tree, 2.0, tree),
        lambda tree: unscale(tree, 2.0, list(tree)),
        all_finite,
        lambda tree: select_tree(True, tree, tree),
        lambda tree: castwise.cast_tree(tree, "float16"),
    ],
)
def test_a_tree_that_contains_itself(call: Any) -> None:
    with pytest.raises(ValueError, match="the tree contains itself, at '1/again/1'"):
        call(endless())
    cast: dict[str, Any] = {"a": 1.0}
    cast["b"] = cast
    with pytest.raises(ValueError, match="the tree contains itself, at 'b'"):
        call(cast)


def test_a_tree_that_only_repeats_itself_has_an_end() -> None:
    once = [np.full(1, 4.0)]
    assert unscale([once, {"a": once}], 2.0)[0][1]["a"][0] == 2.0


@pytest.mark.parametrize("norm", ["l2", 2, None])
def test_norm_says_whether_and_not_which(norm: Any) -> None:
    with pytest.raises(TypeError, match=f"norm={norm!r} is not valid; use True or False"):
        unscale([np.ones(1)], 2.0, norm=norm)
    assert unscale([np.ones(1)], 2.0, norm=np.True_)[2] == 0.5


@pytest.mark.parametrize("masked", [np.ma.masked_array([1.0, 2.0], [True, False])])
def test_masked_arrays_have_a_remedy(masked: Any) -> None:
    remedy = r"whose mask would be lost; give its `\.data` or its `\.filled\(value\)` instead"
    calls = [
        lambda: unscale({"a": masked}, 2.0),
        lambda: unscale({"a": masked.data}, 2.0, {"a": masked}),
        lambda: all_finite({"a": masked}),
        lambda: DelayedScaling().quantize(masked),
    ]
    for place, call in zip(("grads at 'a'", "out at 'a'", "tree at 'a'", "x"), calls, strict=True):
        with pytest.raises(TypeError, match=f"{place} is .*{remedy}"):
            call()


@pytest.mark.parametrize("identifier", [np.array([1.0, 2.0]), [1.0], True, {"a": 1}, b"dynamic"])
def test_what_stands_for_no_loss_scale(identifier: Any) -> None:
    with pytest.raises(TypeError, match=r'loss_scale=.* is not valid; use "dynamic", a number, No'):
        get(identifier)


def test_a_handle_of_a_reduction_that_runs() -> None:
    torch = library("torch")
    if not torch.distributed.is_gloo_available():
        pytest.skip("torch without gloo")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1
    )
    largest = torch.distributed.ReduceOp.MAX

    def reduce(vector: Any, wait: bool) -> Any:
        handle = torch.distributed.all_reduce(torch.from_numpy(vector), largest, async_op=True)
        return handle.wait() and None if wait else handle

    try:
        with pytest.raises(TypeError, match=r"reduce returned .*Work.*, which is not a vector"):
            agree(True, [2.0], reduce=lambda vector: reduce(vector, wait=False))
        finite, amaxes = agree(True, [2.0], reduce=lambda vector: reduce(vector, wait=True))
        assert (finite, amaxes.tolist()) == (True, [2.0])
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("returned", ["text", [[1.0], [1.0, 2.0]], {"a": 1}])
def test_a_reduction_returns_a_vector(returned: Any) -> None:
    with pytest.raises(TypeError, match=r"reduce returned .*which is not a vector"):
        agree(True, reduce=lambda vector: returned)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras' own
def test_an_optimizer_of_keras_wants_variables_of_keras() -> None:
    keras = library("keras")
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(1.0), 4.0)
    grads, arrays = [np.full(2, 4.0, np.float32)], [np.ones(2, np.float32)]
    message = r"trainable_variables\[0\] is a numpy array, which Keras' SGD cannot assign to; give"
    for call in (optimizer.build, lambda arrays: optimizer.apply(grads, arrays)):
        with pytest.raises(TypeError, match=message):
            call(arrays)
    assert not optimizer.built
    variable = keras.Variable(arrays[0])
    optimizer.apply(grads, [variable])
    assert variable.value.tolist() == [0.0, 0.0]
    config = optimizer.get_config()
    for custom in (None, {"SGD": keras.optimizers.SGD}):
        again = LossScaleOptimizer.from_config(config, custom_objects=custom)
        assert again.inner_optimizer.learning_rate == 1.0
    config["inner_optimizer"] |= {"module": "nowhere", "class_name": "Unknown"}
    with pytest.raises(ValueError, match="which is unknown; give the class in custom_objects"):
        LossScaleOptimizer.from_config(config)


def test_what_can_be_read_only_once() -> None:
    arrays = {"a": np.ones(1)}
    for grads in ((array for array in arrays.values()), arrays.values(), {1.0, 2.0}):
        kind = type(grads).__name__
        with pytest.raises(TypeError, match=f"grads is of type {kind}; give a list of its arrays"):
            unscale(grads, 2.0)
        with pytest.raises(TypeError, match=f"tree is of type {kind}; give a list of its arrays"):
            all_finite(grads)


def test_amaxes_are_numbers() -> None:
    for amaxes in (["a"], [[1.0], [1.0, 2.0]]):
        with pytest.raises(ValueError, match=r"amaxes=.* is not valid; give one number per tensor"):
            pack(True, amaxes)


def test_a_tensor_is_not_an_iterable_of_arrays() -> None:
    loss = library("torch").ones(2)
    with pytest.raises(ValueError, match=r"outputs=tensor.* must be an array of numpy or an iter"):
        GradScaler().scale(loss)
    with pytest.raises(ValueError, match=r"outputs=tensor.*"):
        GradScaler().scale([loss])
