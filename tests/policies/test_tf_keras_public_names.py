"""Every public name of tf_keras is in castwise's stand-in, refused by name, or listed here."""

from __future__ import annotations

from typing import Any

import peers
import pytest
from castwise.compat.tf_keras import layers, mixed_precision
from public_names import missing, unneeded


def listed(**names: str) -> dict[str, str]:
    """Give the reason, an argument's name, of each of its names."""
    return {name: reason for reason, several in names.items() for name in several.split()}


LAYERS = listed(
    graphs="compute_output_shape compute_output_signature dynamic finalize_state get_input_at "
    "get_input_mask_at get_input_shape_at get_output_at get_output_mask_at get_output_shape_at "
    "inbound_nodes outbound_nodes input input_mask input_shape input_spec output output_mask "
    "output_shape stateful updates add_update",
    losses_and_metrics="activity_regularizer add_loss add_metric losses metrics",
    masks="compute_mask supports_masking",
    modules_of_tensorflow="name_scope submodules with_name_scope",
    saving="build_from_config get_build_config save_own_variables load_own_variables",
    older_name_of_add_weight="add_variable",
    read_from_the_list_of_weights="count_params get_weights set_weights non_trainable_variables "
    "non_trainable_weights",
)
"""`castwise.compat.tf_keras.layers.Layer` has the casting rules: arrays in, arrays out."""

VARIABLES = listed(
    graphs="device eval experimental_ref from_proto get_shape graph initial_value "
    "initialized_value initializer load op ref set_shape to_proto",
    partitions="SaveSliceInfo",
    distribution="aggregation synchronization",
    indexing_of_numpy="batch_scatter_update count_up_to gather_nd scatter_add scatter_div "
    "scatter_max scatter_min scatter_mul scatter_nd_add scatter_nd_sub scatter_nd_update "
    "scatter_sub scatter_update sparse_read",
)
"""`castwise.autocast.AutoCastVariable` holds a value and presents it in a dtype."""


def a_layer(cls: Any) -> Any:
    return cls(name="layer", dtype="mixed_float16")


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (a_layer, LAYERS),
        (lambda cls: a_layer(cls).add_weight("w", (2,)), VARIABLES),
    ],
    ids=["layer", "variable"],
)
def test_objects(make: Any, names: dict[str, str]) -> None:
    original, ours = make(peers.tf_keras().layers.Layer), make(layers.Layer)
    assert missing(original, ours, names) == set()
    assert unneeded(original, ours, names) == set()


def test_policies() -> None:
    original = peers.tf_keras().mixed_precision
    assert missing(original, mixed_precision, {}) == set()
    assert missing(original.Policy("float32"), mixed_precision.Policy("float32"), {}) == set()
