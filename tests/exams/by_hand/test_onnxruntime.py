"""onnxruntime's Cast: its float8 are its own, and a float64 is rounded to float32 first."""

from __future__ import annotations

from typing import Any

import castwise
import numpy as np
import onnxruntime
import pytest
from examination import Record, differing_values, examine
from onnx import TensorProto, helper
from oracle import FORMATS, Array
from sources import all_codes, sources_around
from support import array_of

TYPES = {
    "float64": TensorProto.DOUBLE,
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "float8_e4m3fn": TensorProto.FLOAT8E4M3FN,
    "float8_e4m3fnuz": TensorProto.FLOAT8E4M3FNUZ,
    "float8_e5m2": TensorProto.FLOAT8E5M2,
    "float8_e5m2fnuz": TensorProto.FLOAT8E5M2FNUZ,
    "float8_e8m0fnu": TensorProto.FLOAT8E8M0,
}
SOURCES = ("float64", "float32", "float16")
ROUNDINGS = {"up": "towards-positive", "down": "towards-zero", "nearest": "nearest-away"}
Options = dict[str, Any]
OF_E8M0 = [({"round_mode": mode}, {"rounding": name}) for mode, name in ROUNDINGS.items()]
OF_FLOAT8: list[tuple[Options, Options]] = [
    ({"saturate": 1}, {"overflow": "saturate"}),
    ({"saturate": 0}, {"overflow": "ieee"}),
]
CASES = [
    pytest.param(source, target, theirs, ours, id=f"{source} {target} {theirs}")
    for source in SOURCES
    for target in TYPES
    if source != target
    for theirs, ours in (
        [(mode, {**name, "overflow": "saturate"}) for mode, name in OF_E8M0]
        if target == "float8_e8m0fnu"
        else OF_FLOAT8
        if target.startswith("float8")
        else [({}, {})]
    )
]
UNSATURATED = {"float8_e4m3fn": (480, 496, 448.0), "float8_e5m2": (61440, 65536, np.nan)}
"""From where to where onnxruntime gives what, without saturation."""


def cast(x: Array, target: str, attributes: Options) -> Array:
    """Cast by onnxruntime, and back to float64 or float32, which is exact."""
    wide = TensorProto.DOUBLE if target == "float64" else TensorProto.FLOAT
    nodes = [
        helper.make_node("Cast", ["x"], ["code"], to=TYPES[target], **attributes),
        helper.make_node("Cast", ["code"], ["y"], to=wide),
    ]
    inputs = [helper.make_tensor_value_info("x", TYPES[x.dtype.name], [None])]
    outputs = [helper.make_tensor_value_info("y", wide, [None])]
    graph = helper.make_graph(nodes, "cast", inputs, outputs)
    opset = helper.make_opsetid("", 24)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=11)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"x": x})[0].astype(np.float64)


@pytest.mark.parametrize(("source", "target", "theirs", "ours"), CASES)
def test_a_cast_is_that_of_onnxruntime(
    source: str, target: str, theirs: Options, ours: Options, record_property: Record
) -> None:
    row = FORMATS[source]
    x = array_of(sources_around(row, FORMATS[target]) if row.bits > 16 else all_codes(row), row)
    values = castwise.cast(x, target, **ours).astype(np.float64)
    single = castwise.cast(x, "float32")
    twice = castwise.cast(single, target, **ours).astype(np.float64)
    explained = {"float64, onnxruntime": differing_values(values, twice)}
    if target in UNSATURATED and not theirs["saturate"]:
        low, high, result = UNSATURATED[target]
        is_wrong = (np.abs(single) >= low) & (np.abs(single) < high)
        twice[is_wrong] = np.copysign(result, twice[is_wrong])
        explained["without saturation, onnxruntime"] = is_wrong
    others = cast(x, target, theirs)
    assert not differing_values(others, twice).any()
    examine(record_property, x, differing_values(values, others), explained)
