"""The node tests of ONNX: Cast, CastLike, QuantizeLinear and DequantizeLinear by castwise.cast.

Compatibility, not independence: ONNX computes most of what they expect with ml_dtypes.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import castwise
import numpy as np
import peers
import pytest
from examination import Record, differing_values, examine
from oracle import Array

OPERATORS = {"Cast": 60, "CastLike": 56, "QuantizeLinear": 13, "DequantizeLinear": 14}
"""How many tests onnx 1.23 has of each; an expanded function repeats the data of another test."""
ROUNDINGS = {b"up": "towards-positive", b"down": "towards-negative", b"nearest": "nearest-even"}


class Node(NamedTuple):
    """One node with what it is given and what it must give."""

    name: str
    attributes: dict[str, Any]
    inputs: list[Array]
    output: Array

    def option(self, name: str, default: Any) -> Any:
        return self.attributes.get(name, default)


@cache
def given_nodes() -> list[tuple[str, Node]]:
    """Every node of the four operators, with its operator."""
    onnx = peers.framework("onnx")
    helper, numpy_helper = (peers.framework(f"onnx.{name}") for name in ("helper", "numpy_helper"))
    package = "onnx.backend.test.case.node"
    for name in OPERATORS:  # its import fills the list of cases
        peers.framework(f"{package}.{name.lower()}")

    def array(value: Any) -> Array:
        is_tensor = isinstance(value, onnx.TensorProto)
        return numpy_helper.to_array(value) if is_tensor else np.asarray(value)

    nodes = []
    for case in peers.framework(package)._NodeTestCases:
        node = case.model.graph.node[0]
        if node.op_type not in OPERATORS or case.name.endswith("_expanded"):
            continue
        attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        for inputs, outputs in case.data_sets:
            given = Node(case.name, attributes, list(map(array, inputs)), array(outputs[0]))
            nodes.append((node.op_type, given))
    return nodes


def cast(node: Node) -> Array:
    """Cast as Cast and CastLike say: `saturate` is of 8 bits alone, `round_mode` of E8M0."""
    target = node.output.dtype
    is_saturated = target.name.startswith("float8") and node.option("saturate", 1) != 0
    has_mode = target.name == "float8_e8m0fnu"
    rounding = ROUNDINGS[node.option("round_mode", b"up")] if has_mode else None
    overflow = "saturate" if is_saturated else "ieee"
    return castwise.cast(node.inputs[0], target, rounding=rounding, overflow=overflow)


def spread(node: Node, place: int) -> Array:
    """Give each element its scale or zero point: of the array, of an axis, or of a block."""
    x, values = node.inputs[0], node.inputs[place]
    axis, block = node.option("axis", 1), node.option("block_size", 0)
    if block:
        repeated = np.repeat(values, block, axis)
        return repeated[tuple(map(slice, x.shape))]
    if values.size == 1:
        return values.reshape(())
    return np.expand_dims(values, [each for each in range(x.ndim) if each != axis % x.ndim])


def quantize(node: Node) -> Array:
    """Divide, round once to an integer, add the zero point, and saturate."""
    quotients, target = node.inputs[0] / spread(node, 1), node.output.dtype
    if castwise.finfo(target).kind == "float":
        return castwise.cast(quotients, target, overflow="saturate")
    codes = castwise.cast(quotients, "int32", rounding="nearest-even")
    if len(node.inputs) > 2:
        codes = codes + castwise.cast(spread(node, 2), "int32")
    return castwise.cast(codes, target, overflow="saturate")


def dequantize(node: Node) -> Array:
    """Subtract the zero point and multiply, in float32."""
    values = castwise.cast(node.inputs[0], "float32")
    if len(node.inputs) > 2:
        values = values - castwise.cast(spread(node, 2), "float32")
    scale = castwise.cast(spread(node, 1), "float32")
    return castwise.cast(values * scale, node.output.dtype)


COMPUTED = {"Cast": cast, "CastLike": cast, "QuantizeLinear": quantize}


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_node_gives_what_onnx_expects(operator: str, record_property: Record) -> None:
    nodes = [node for name, node in given_nodes() if name == operator]
    assert len(nodes) >= OPERATORS[operator]
    for node in nodes:
        result = COMPUTED.get(operator, dequantize)(node)
        assert (result.dtype, result.shape) == (node.output.dtype, node.output.shape), node.name
        values, others = (each.astype(np.float64).ravel() for each in (result, node.output))
        explained = {}
        if node.name == "test_quantizelinear_float4e2m1":
            x = node.inputs[0].ravel()
            explained["minus zero, ONNX"] = np.signbit(x) & (x == 0)
        examine(record_property, node.inputs[0], differing_values(values, others), explained)
