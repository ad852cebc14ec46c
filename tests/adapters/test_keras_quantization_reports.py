"""What `cast_model` tells of quantized layers: the fields of Keras' own report.

Keras has one since 3.16, a nightly build so far; earlier releases quantize the same layers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras_quantization_worker as worker
import peers
import pytest
from castwise.adapters.keras import apply_policy_map, cast_model
from castwise.dtype_policies import DTypePolicyMap
from keras_release import ask

# Of Keras' own Variable.__array__.
pytestmark = [
    pytest.mark.usefixtures("keras_state"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

NIGHTLY = "keras-nightly==3.16.0.dev2026102704"
"""The newest build with a report, in November 2026."""


@pytest.mark.network
def test_keras_report_has_the_same_fields(tmp_path: Path) -> None:
    answers = ask(NIGHTLY, tmp_path, Path(worker.__file__))
    assert len(answers) == 9
    for question, (theirs, ours) in answers.items():
        assert ours == theirs, question
    assert answers["functional int4"][0]["quantized"][0] == ["up", "int4", "int4/128_from_float32"]
    reasons = {reason for _, reason in answers["functional int4"][0]["skipped"]}
    assert reasons == {"no quantize support", "already quantized"}


def functional() -> Any:
    peers.keras()
    return worker.models()["functional"]


def test_quantized_and_skipped_layers() -> None:
    model = functional()
    report = cast_model(model, "int8_from_float32")
    assert report.quantized == (
        ("up", "int8", "int8_from_float32"),
        ("head", "int8", "int8_from_float32"),
    )
    support = "no quantize support"
    assert report.skipped == (("norm", support), ("drop", support))
    assert report.unquantized == ("norm",)
    assert "variables were cast, 2 layers quantized\nnorm is not quantized" in str(report)
    assert "2 quantized, not quantized: " in repr(report)
    again = cast_model(model, "int8_from_float32")
    assert again.quantized == ()
    assert ("up", "already quantized") in again.skipped
    assert again.unquantized == ("norm",)


def test_layers_that_no_policy_quantizes_are_not_listed() -> None:
    model = functional()
    policies = DTypePolicyMap("bfloat16", {"head": "int8_from_bfloat16"})
    report = apply_policy_map(model, policies)
    assert report.quantized == (("head", "int8", "int8_from_bfloat16"),)
    assert (report.skipped, report.unquantized) == ((), ())
    plain = cast_model(functional(), "bfloat16")
    assert (plain.quantized, plain.skipped) == ((), ())
    assert "quantized" not in str(plain)
    assert plain.to_dict()["quantized"] == []
