"""Every public name of Keras is in castwise's stand-in, refused by name, or listed here."""

from __future__ import annotations

from typing import Any

import castwise.compat.keras
import numpy as np
import peers
import pytest
from castwise import autocast, dtype_policies
from castwise.compat.keras import config, mixed_precision
from public_names import missing, unneeded


def listed(**names: str) -> dict[str, str]:
    """Give the reason, an argument's name, of each of its names."""
    return {name: reason for reason, several in names.items() for name in several.split()}


LAYERS = listed(
    graph_and_symbolic="compute_output_shape compute_output_spec symbolic_call stateless_call "
    "input output input_spec call_signature_parameters rematerialized_call supports_jit",
    losses_and_metrics="activity_regularizer add_loss add_metric losses metrics metrics_variables",
    masks="compute_mask supports_masking",
    saving="build_from_config get_build_config save_own_variables load_own_variables",
    quantizing="quantize quantized_build quantized_call",
    older_name_of_add_weight="add_variable",
    read_from_the_list_of_weights="count_params get_weights set_weights non_trainable_variables "
    "non_trainable_weights",
)
"""`castwise.autocast.Layer` has the casting rules: arrays in, arrays out, nothing traced."""

VARIABLES = listed(
    distribution="aggregation synchronization",
)
"""`castwise.autocast.AutoCastVariable` holds a value and presents it in a dtype."""

CONFIG = listed(
    backend="backend set_backend is_nnx_enabled",
    numbers_of_other_functions="epsilon set_epsilon image_data_format set_image_data_format",
    training_loops="max_epochs set_max_epochs max_steps_per_epoch set_max_steps_per_epoch",
    kernels_of_attention="disable_flash_attention enable_flash_attention "
    "is_flash_attention_enabled",
    logs_and_tracebacks="disable_interactive_logging enable_interactive_logging "
    "is_interactive_logging_enabled disable_traceback_filtering enable_traceback_filtering "
    "is_traceback_filtering_enabled",
    loading_of_code="enable_unsafe_deserialization",
)
"""`castwise.compat.keras.config` holds what is about dtypes."""

OF_CASTWISE = ("Explanation", "PathMatch")
"""What Keras 3.15 has not; the last comes with Keras 3.16."""


def theirs(name: str) -> Any:
    """What Keras has under a dotted name."""
    value: Any = peers.keras()
    for part in name.split("."):
        value = getattr(value, part)
    return value


def layers() -> tuple[Any, Any]:
    made = []
    for cls in (theirs("Layer"), autocast.Layer):
        layer = cls(name="layer")
        layer.build((None, 2))
        made.append(layer)
    return made[0], made[1]


def variables() -> tuple[Any, Any]:
    made = (cls(name="layer") for cls in (theirs("Layer"), autocast.Layer))
    original, ours = (layer.add_weight(shape=(2,), name="w") for layer in made)
    return original, ours


@pytest.mark.parametrize("name", dtype_policies.__all__)
def test_policies(name: str) -> None:
    """Classes, what they are made as, and the functions of the module."""
    if name in OF_CASTWISE:
        assert not hasattr(theirs("dtype_policies"), name)
        return
    original, ours = theirs(f"dtype_policies.{name}"), getattr(dtype_policies, name)
    assert missing(original, ours, {}) == set()
    arguments: tuple[Any, ...] = {
        "QuantizedDTypePolicy": ("int8", "float32"),
        "QuantizedFloat8DTypePolicy": ("float8", "float32"),
        "Int4DTypePolicy": ("int4/128", "float32"),
        "GPTQDTypePolicy": ("gptq/4/128", "float32"),
        "AWQDTypePolicy": ("awq/4/128", "float32"),
        "get": ("float32",),
        "deserialize": ({"class_name": "DTypePolicy", "config": {"name": "float32"}},),
        "serialize": (dtype_policies.DTypePolicy("float32"),),
    }.get(name, ("float32",))
    if name != "serialize":
        assert missing(original(*arguments), ours(*arguments), {}) == set()


@pytest.mark.parametrize(
    ("name", "ours", "names"),
    [
        ("dtype_policies", castwise.compat.keras.dtype_policies, {}),
        ("mixed_precision", mixed_precision, {}),
        ("config", config, CONFIG),
    ],
)
def test_modules(name: str, ours: Any, names: dict[str, str]) -> None:
    original = theirs(name)
    assert missing(original, ours, names) == set()
    assert unneeded(original, ours, names) == set()


@pytest.mark.parametrize(("make", "names"), [(layers, LAYERS), (variables, VARIABLES)])
def test_objects(make: Any, names: dict[str, str]) -> None:
    """The attributes that objects have beside those of their classes, too."""
    original, ours = make()
    assert missing(original, ours, names) == set()
    assert unneeded(original, ours, names) == set()


def test_what_is_missing_is_found() -> None:
    """A name is present, refused by name, listed, or missing."""

    class Original:
        had = refused = left_out = absent = 1

    class Ours:
        had = 1

        def __getattr__(self, name: str) -> Any:
            if name == "refused":
                raise AttributeError("Ours has no refused; use had.")
            raise AttributeError(f"'Ours' object has no attribute {name!r}")

    assert missing(Original, Ours(), {"left_out": "why"}) == {"absent"}
    assert missing(Original, Ours, {"left_out": "why"}) == {"absent", "refused"}
    assert unneeded(Original, Ours(), {"had": "", "refused": "", "absent": "", "unknown": ""}) == {
        *("had", "refused", "unknown")
    }
    assert missing(np, np, {}) == set()
