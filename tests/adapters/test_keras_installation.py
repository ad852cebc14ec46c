"""What install() does to Keras' functions, and whose policy is in force while it lasts."""

from __future__ import annotations

import functools
import importlib
import inspect
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import castwise.adapters.keras._installation as installation_module
import peers
import pytest
from castwise import config
from castwise.adapters._replaced_function import ReplacedFunction
from castwise.adapters.keras import install, uninstall
from castwise.dtype_policies import DTypePolicy


@pytest.fixture(autouse=True)
def _not_installed(keras_state: None) -> Iterator[None]:
    yield
    uninstall()


def in_a_fresh_thread(function: Callable[[], Any]) -> Any:
    """What a function returns in a thread where no policy was ever set or read."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def in_force() -> tuple[str, str]:
    keras = peers.keras()
    names = keras.config.dtype_policy().name, config.dtype_policy().name
    assert keras.layers.Dense(1).dtype_policy.name == names[0]
    return names


def test_what_castwise_made_of_floatx_does_not_hide_what_was_set_in_keras() -> None:
    def run() -> tuple[str, str]:
        assert config.dtype_policy().name == "float32"
        peers.keras().config.set_dtype_policy("mixed_bfloat16")
        with install():
            assert config.dtype_policy().name == "mixed_bfloat16"
            return in_force()

    assert in_a_fresh_thread(run) == ("mixed_bfloat16", "mixed_bfloat16")


def test_what_was_set_in_keras_last_is_in_force() -> None:
    keras = peers.keras()
    with install():
        keras.config.set_dtype_policy("mixed_float16")
    keras.config.set_dtype_policy("mixed_bfloat16")
    with install():
        assert in_force() == ("mixed_bfloat16", "mixed_bfloat16")
        assert keras.config.dtype_policy() is keras.config.dtype_policy()
        config.set_dtype_policy("float16")
        assert in_force() == ("float16", "float16")
    with install():
        assert in_force() == ("float16", "float16")


def test_what_is_in_force_in_castwise_hides_what_was_set_in_keras() -> None:
    peers.keras().config.set_dtype_policy("mixed_bfloat16")
    with config.dtype_policy_scope("float16"), install():
        assert in_force() == ("float16", "float16")
    config.set_dtype_policy("float64")
    with install():
        assert in_force() == ("float64", "float64")


def test_a_policy_that_castwise_cannot_take_over_is_refused_at_once() -> None:
    keras = peers.keras()
    code = keras.dtype_policies.get.__code__
    wrong = keras.dtype_policies.QuantizedFloat8DTypePolicy("float8", "float32", 0)
    keras.config.set_dtype_policy(wrong)
    with pytest.raises(ValueError, match="amax_history_length=0"):
        install()
    assert keras.dtype_policies.get.__code__ is code
    assert keras.config.dtype_policy() is wrong


def test_keras_floatx_decides_where_nothing_was_set() -> None:
    def run() -> tuple[str, str]:
        peers.keras().config.set_floatx("bfloat16")
        with install():
            config.dtype_policy()
            return in_force()

    assert in_a_fresh_thread(run) == ("bfloat16", "bfloat16")


def test_what_is_set_in_keras_within_a_scope_ends_with_it() -> None:
    keras = peers.keras()

    def run() -> list[tuple[str, str]]:
        with install():
            with config.dtype_policy_scope("mixed_float16"):
                keras.config.set_dtype_policy("bfloat16")
                inside = in_force()
            after = in_force()
        return [inside, after, in_force()]

    expected = [("bfloat16", "bfloat16"), ("float32", "float32"), ("float32", "float32")]
    assert in_a_fresh_thread(run) == expected


def test_what_is_set_in_keras_stays_in_both() -> None:
    with install():
        peers.keras().config.set_dtype_policy(DTypePolicy("mixed_float16"))
    assert in_force() == ("mixed_float16", "mixed_float16")


def test_wrong_calls_are_refused_as_keras_refuses_them() -> None:
    keras = peers.keras()
    calls: list[Callable[[], Any]] = [
        keras.dtype_policies.get,
        lambda: keras.dtype_policies.get(1, 2),
        lambda: keras.dtype_policies.get(name="float32"),
        keras.config.set_dtype_policy,
        lambda: keras.dtype_policies.get([]),
        lambda: keras.layers.Dense(1, dtype=3),
    ]

    def refusals() -> list[str]:
        found = []
        for call in calls:
            with pytest.raises((TypeError, ValueError)) as caught:
                call()
            found.append(str(caught.value))
        return found

    before = refusals()
    with install():
        assert refusals() == before


def test_a_block_that_fails_is_undone_and_blocks_nest() -> None:
    get = peers.keras().dtype_policies.get
    code = get.__code__
    outer = install()
    with pytest.raises(RuntimeError, match="on purpose"), install():  # noqa: PT012
        assert get.__code__ is not code
        raise RuntimeError("on purpose")
    assert get.__code__ is not code
    outer.__exit__(None, None, None)
    outer.__exit__(None, None, None)
    assert get.__code__ is code


def test_the_module_loaded_again_while_castwise_is_installed() -> None:
    keras = peers.keras()
    get, code = keras.dtype_policies.get, keras.dtype_policies.get.__code__
    first = install()
    again = importlib.reload(installation_module)
    with again.install():
        assert get(DTypePolicy("mixed_float16")) == keras.DTypePolicy("mixed_float16")
        keras.config.set_dtype_policy("mixed_bfloat16")
        assert in_force() == ("mixed_bfloat16", "mixed_bfloat16")
    assert get(DTypePolicy("mixed_float16")) == keras.DTypePolicy("mixed_float16")
    first.__exit__(None, None, None)
    uninstall()
    assert get.__code__ is code


def doubled(function: Any) -> Any:
    """A decorator, whose wrappers have free variables."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return 2 * function(*args, **kwargs)

    return wrapper


@doubled
def decorated(x: int, *, y: int = 1) -> int:
    return x + y


def test_a_function_with_free_variables_is_replaced_and_restored() -> None:
    signature, code, held = inspect.signature(decorated), decorated.__code__, decorated
    replaced = ReplacedFunction(decorated, lambda original, *args, **kw: -original(*args, **kw))
    again = ReplacedFunction(decorated, lambda original, *args, **kw: (original(*args, **kw),))
    assert held(2, y=3) == (-10,)
    assert inspect.signature(decorated) == signature
    again.restore()
    assert held(2) == -6
    replaced.restore()
    assert (held(2), decorated.__code__) == (6, code)
    assert inspect.signature(decorated) == signature


@pytest.mark.parametrize("strange", [len, functools.lru_cache(in_force), SimpleNamespace(), None])
def test_a_keras_of_another_shape_is_refused_and_left_as_it_was(
    strange: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy_module = importlib.import_module("keras.src.dtype_policies.dtype_policy")
    get = peers.keras().dtype_policies.get
    code = get.__code__
    if strange is None:
        monkeypatch.delattr(policy_module, "set_dtype_policy")
    else:
        monkeypatch.setattr(policy_module, "set_dtype_policy", strange)
    with pytest.raises(RuntimeError, match=r"keras 3\.\d+.* differs from those .* install one of"):
        install()
    assert get.__code__ is code
    monkeypatch.undo()
    with install():
        assert get(DTypePolicy("float16")).name == "float16"
    assert get.__code__ is code
