"""Checks of castwise.adapters.keras that every backend must pass, run as a program.

``KERAS_BACKEND=jax python keras_checks.py`` prints, as JSON, for each check None or its traceback.
"""

from __future__ import annotations

import json
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

Check = Callable[[], None]
BITS = {2: np.uint16, 4: np.uint32, 8: np.uint64}


def as_bits(tensor: Any) -> tuple[str, tuple[int, ...], bytes]:
    """Dtype, shape and bytes of a tensor of any backend."""
    import keras  # noqa: PLC0415 - by then, the process has chosen a backend

    array = np.ascontiguousarray(keras.ops.convert_to_numpy(tensor))
    return keras.backend.standardize_dtype(tensor.dtype), array.shape, array.tobytes()


def sources() -> list[np.ndarray]:
    """Every 16-bit float; each of them as float32 and its neighbors; ties of double rounding."""
    codes = np.arange(1 << 16, dtype=np.uint16)
    half, brain = codes.view(np.float16), codes.view(ml_dtypes.bfloat16)
    with np.errstate(all="ignore"):
        exact = np.concatenate([half.astype(np.float32), brain.astype(np.float32)])
        above = np.nextafter(exact, np.float32(np.inf))
        ties = np.concatenate([exact.astype(np.float64) * (1 + 2.0**-k) for k in (8, 11)])
        single = np.concatenate([exact, above, ties.astype(np.float32)])
        double = np.concatenate([single.astype(np.float64), ties, ties * (1 + 2.0**-45)])
    return [half, brain, single, double]


def check_casts_have_the_bits_of_keras() -> None:
    """With NaN and infinity in the arrays, and without; also the warnings of numpy."""
    import keras  # noqa: PLC0415
    from castwise.adapters.keras import install  # noqa: PLC0415
    from castwise.adapters.keras._input_casts import kernel_cast  # noqa: PLC0415

    backend, policy = keras.config.backend(), keras.DTypePolicy("float32")
    ran = 0
    for source in sources():
        with np.errstate(all="ignore"):
            tame = source[np.abs(source.astype(np.float64)) < 60000]
        for target in ("float16", "bfloat16", "float32", "float64"):
            for x in (source, tame, tame[: tame.size // 3 * 3].reshape(3, -1).T[::2]):

                def cast(x: np.ndarray = x, target: str = target) -> Any:
                    with warnings.catch_warnings(record=True) as seen:
                        warnings.simplefilter("always")
                        bits = as_bits(policy.convert_input(x, True, target))
                    return bits, [str(each.message) for each in seen]

                before = cast()
                with install():
                    assert cast() == before, (backend, x.dtype, target)
                ran += kernel_cast(tame, target, backend) is not None
    assert ran == 3 * (6 if backend == "tensorflow" else 9)


def check_layers_obey_policies_and_maps() -> None:
    """As ``dtype=``, as ``dtype_policy``, in a config, as the global policy."""
    import keras  # noqa: PLC0415
    from castwise import config  # noqa: PLC0415
    from castwise.adapters.keras import from_keras, install  # noqa: PLC0415
    from castwise.dtype_policies import DTypePolicy, DTypePolicyMap  # noqa: PLC0415

    x = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    rules = DTypePolicyMap(
        "float32", {"a.*": "mixed_bfloat16", "ab": "float32", "abc.*": "float16"}
    )
    rules = DTypePolicyMap("float32", dict(rules), on_overlap="longest")
    expected = {"other": "float32", "a_": "bfloat16", "ab": "float32", "abcd": "float16"}
    with install():
        for name, dtype in expected.items():
            layer = keras.layers.Dense(4, dtype=rules, name=name)
            layer.build((None, 32))
            assert (layer.path, layer.compute_dtype) == (name, dtype)
            assert as_bits(layer(x))[0] == dtype
            again = keras.layers.Dense.from_config(layer.get_config())
            assert from_keras(again.dtype_policy) == rules
        layer = keras.layers.Dense(4, dtype=DTypePolicy("mixed_bfloat16"))
        plain = keras.layers.Dense(4, dtype="mixed_bfloat16")
        for each in (layer, plain):
            each.build((None, 32))
        plain.set_weights(layer.get_weights())
        assert as_bits(layer(x)) == as_bits(plain(x))
        layer.dtype_policy = DTypePolicy("float32")
        assert as_bits(layer(x))[0] == "float32"
        with config.dtype_policy_scope("mixed_float16") as policy:
            assert keras.layers.Dense(1).dtype_policy == keras.DTypePolicy("mixed_float16")
            assert from_keras(keras.config.dtype_policy()) == policy
        assert keras.layers.Dense(1).compute_dtype == "float32"
        keras.config.set_dtype_policy(DTypePolicy("mixed_bfloat16"))
        assert config.dtype_policy().name == keras.config.dtype_policy().name == "mixed_bfloat16"
        keras.utils.clear_session(free_memory=False)
        assert config.dtype_policy().name == keras.config.dtype_policy().name == "float32"


def check_uninstall_restores_every_function() -> None:
    """Those imported before, those imported meanwhile, and the methods."""
    import keras  # noqa: PLC0415
    from castwise.adapters.keras import install, uninstall  # noqa: PLC0415
    from castwise.dtype_policies import DTypePolicy  # noqa: PLC0415
    from keras.src import backend  # noqa: PLC0415

    functions = [
        keras.dtype_policies.get,
        keras.config.dtype_policy,
        keras.config.set_dtype_policy,
        keras.utils.clear_session,
        keras.saving.serialize_keras_object,
        backend.convert_to_tensor,
    ]
    classes = [keras.DTypePolicy, keras.dtype_policies.DTypePolicyMap, keras.layers.Layer]

    def state() -> Any:
        of_functions = [
            (each.__code__, each.__defaults__, each.__kwdefaults__, vars(each).copy())
            for each in functions
        ]
        return of_functions, [dict(vars(each)) for each in classes]

    before = state()
    install()
    with install():
        during = keras.dtype_policies.get
        assert during(DTypePolicy("mixed_float16")) == keras.DTypePolicy("mixed_float16")
    assert state() != before
    uninstall()
    assert state() == before
    try:
        during(DTypePolicy("mixed_float16"))
    except ValueError:
        pass
    else:
        raise AssertionError("a function imported meanwhile still takes castwise's policies")
    uninstall()
    assert state() == before


def check_a_cast_model_is_one_built_so() -> None:
    """Predictions are those of a model built under the policy, with the same weights: every bit."""
    import keras  # noqa: PLC0415
    from castwise.adapters.keras import cast_model  # noqa: PLC0415
    from keras_models import MODELS, sequential  # noqa: PLC0415

    policies = ("mixed_bfloat16", "float16", "float64")
    for make, policy in ((make, policy) for make in MODELS for policy in policies):
        # jax has no float64 unless it is told, and takes its time: it compiles every operation.
        compiled = policy != "mixed_bfloat16" and make is not sequential
        if keras.config.backend() == "jax" and (policy == "float64" or compiled):
            continue
        model, x = make()
        before = model.get_weights()
        cast_model(model, policy)
        keras.config.set_dtype_policy(policy)
        fresh, _ = make()
        keras.config.set_dtype_policy("float32")
        assert [each.dtype for each in model.weights] == [each.dtype for each in fresh.weights]
        fresh.set_weights(before)
        assert as_bits(model(x)) == as_bits(fresh(x)), (make.__name__, policy)
        for ours, theirs in zip(model.weights, fresh.weights, strict=True):
            assert as_bits(ours.value) == as_bits(theirs.value), (policy, ours.path)
        assert model(x).shape == (8, 2)


def check_training_goes_on() -> None:
    """A compiled model is cast between two steps; the optimizer keeps what it has."""
    import keras  # noqa: PLC0415
    from castwise.adapters.keras import cast_model  # noqa: PLC0415
    from keras_models import convolutional, sequential  # noqa: PLC0415

    if keras.config.backend() == "numpy":
        return  # trains nothing
    y = np.random.default_rng(1).standard_normal((8, 2)).astype(np.float32)
    for make, policies in (
        (convolutional, ("mixed_float16",)),
        (sequential, ("bfloat16", "float32")),
    ):
        model, x = make()
        # Keras' Adam, on torch in bfloat16, steps by 0: 1 - 0.999 is 0 there.
        model.compile(keras.optimizers.Adam(0.01, beta_2=0.9), "mse")
        model.fit(x, y, verbose=0)
        model.predict(x, verbose=0)
        for policy in policies:
            state = [as_bits(each.value) for each in model.optimizer.variables]
            held = list(model.optimizer.variables)
            report = cast_model(model, policy)
            assert [as_bits(each.value) for each in model.optimizer.variables] == state
            assert all(a is b for a, b in zip(held, model.optimizer.variables, strict=True))
            assert bool(report.notes) == bool(report.variables or policy == "mixed_float16")
            weights = model.get_weights()
            loss = model.fit(x, y, verbose=0).history["loss"]
            assert np.isfinite(loss).all(), policy
            assert any((a != b).any() for a, b in zip(weights, model.get_weights(), strict=True))
            if keras.config.backend() == "torch":
                parameters = {id(each) for each in model.parameters()}
                assert parameters == {id(each.value) for each in model.variables}
            compute = model.dtype_policy.compute_dtype
            assert model.predict(x, verbose=0).dtype.name == compute


def check_every_float_can_be_kept() -> None:
    """Also those of 8 bits, in which no layer computes."""
    import keras  # noqa: PLC0415
    from castwise.adapters.keras import cast_model  # noqa: PLC0415

    for dtype in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        layer = keras.layers.Dense(2)
        layer.build((None, 3))
        before = as_bits(layer.kernel.value)
        assert cast_model(layer, dtype).variables
        assert (layer.kernel.dtype, layer.kernel.shape) == (dtype, (3, 2))
        cast_model(layer, "float32")
        assert as_bits(layer.kernel.value)[:2] == before[:2]


def check_paths_decide() -> None:
    """In models that are built, and in models that are not, as in models that Keras builds so."""
    import keras  # noqa: PLC0415
    from castwise.adapters.keras import apply_policy_map  # noqa: PLC0415
    from castwise.dtype_policies import DTypePolicyMap  # noqa: PLC0415
    from keras_models import attention, convolutional  # noqa: PLC0415

    rules = DTypePolicyMap(
        "mixed_bfloat16",
        {r"text/attend(/.*)?": "mixed_float16", "text/last": "float32", "no": "int8"},
    )
    for built in (True, False):
        model, x = attention(built)
        report = apply_policy_map(model, rules)
        assert report.explanation.unused == {"no": report.explanation.unused["no"]}
        assert as_bits(model(x))[0] == "float32"
        dtypes = {
            layer.path or layer.name: layer.compute_dtype for layer in model._flatten_layers()
        }
        assert dtypes["text/attend/query"] == dtypes["text/attend"] == "float16"
        assert dtypes["text/recur/gru_cell"] == dtypes["text/embed"] == "bfloat16"
        found = set(report.explanation.paths)
        assert {path for path in dtypes if "/" in path} <= found or not built
    model, x = convolutional()
    report = apply_policy_map(model, DTypePolicyMap("float32", {"head/.*": "bfloat16"}))
    assert set(report.layers) == {"head/one", "head/two"}
    assert set(report.variables) == {
        f"head/{name}/{kind}" for name in ("one", "two") for kind in ("kernel", "bias")
    }
    assert as_bits(model(x))[0] == "bfloat16"
    assert keras.config.dtype_policy().name == "float32"


def check_what_layers_derived_from_their_dtype_follows() -> None:
    """Constants, the input that a Sequential model made, the first call of a layer not built."""
    import keras  # noqa: PLC0415
    from castwise.adapters.keras import apply_policy_map, cast_model  # noqa: PLC0415
    from castwise.dtype_policies import DTypePolicyMap  # noqa: PLC0415

    layers, fine = keras.layers, np.array([[1 + 2.0**-15, 2.0]], np.float32)
    adapted = layers.Normalization()
    adapted.adapt(np.array([[1.0, 2.0], [3.0, 4567.0]], np.float32))
    for layer in (adapted, layers.Normalization(mean=3.3, variance=2.2)):
        model = keras.Sequential([keras.Input((2,)), layer])
        before = as_bits(model(fine))
        for policy, dtype in (("mixed_float16", "float16"), ("float32", "float32")):
            cast_model(model, policy)
            assert as_bits(model(fine))[0] == dtype
        assert as_bits(model(fine)) == before
    keras.config.set_dtype_policy("float16")
    model = keras.Sequential([layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    model.build((None, 2))
    keras.config.set_dtype_policy("float32")
    cast_model(model, "float32")
    assert float(keras.ops.convert_to_numpy(model(fine))[0, 0]) == fine.sum()
    layer = layers.Dense(1, use_bias=False, kernel_initializer="ones", name="fine")
    apply_policy_map(layer, DTypePolicyMap("float16", {"fi.*": "float32"}))
    assert float(keras.ops.convert_to_numpy(layer(fine))[0, 0]) == fine.sum()
    assert layer.path == "fine"


def check_quantized_policies_quantize() -> None:
    """As ``quantize`` does; layers that cannot be are told."""
    import keras  # noqa: PLC0415
    from castwise.adapters.keras import cast_model  # noqa: PLC0415
    from keras_models import convolutional, sequential  # noqa: PLC0415

    policies = ("int8_from_float32", "int4/2_from_mixed_bfloat16", "float8_from_float32")
    # What differs by policy differs by no backend; jax compiles each operation of each.
    for policy in policies[:1] if keras.config.backend() == "jax" else policies:
        mode, _, source = policy.partition("_from_")
        model, x = sequential()
        other, _ = sequential()
        other.set_weights(model.get_weights())
        cast_model(model, policy)
        assert {layer.dtype_policy.name for layer in model.layers} == {policy}
        cast_model(other, source)
        if "/" not in mode:
            other.quantize(mode)
            assert as_bits(model(x)) == as_bits(other(x))
        assert model(x).shape == (8, 2)
    model, x = convolutional()
    report = cast_model(model, "int8_from_float32")
    assert report.unquantized == ("conv", "norm")
    assert model(x).shape == (8, 2)


def checks_among(names: dict[str, Any]) -> dict[str, Check]:
    """The functions of a program that check something, by what they check."""
    return {
        name.removeprefix("check_"): check
        for name, check in names.items()
        if name.startswith("check_")
    }


CHECKS = checks_among(globals())


def run(checks: dict[str, Check]) -> None:
    """Run all, and print what came of each."""
    answer, sys.stdout = sys.stdout, sys.stderr  # the libraries print, too
    warnings.simplefilter("ignore")
    results: dict[str, str | None] = {}
    for name, check in checks.items():
        try:
            check()
            results[name] = None
        except Exception:
            results[name] = traceback.format_exc()
    json.dump(results, answer)


if __name__ == "__main__":
    run(CHECKS)
