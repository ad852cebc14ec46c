"""The literal types of options list the values that are accepted."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, get_args

import castwise
import numpy as np
import pytest
from castwise import DTypePolicyMap, _options, loss_scale

X = np.ones(2, np.float32)

REFUSALS: list[tuple[Any, Callable[[Any], object]]] = [
    (_options.Rounding, lambda value: castwise.cast(X, "float16", rounding=value)),
    (_options.Overflow, lambda value: castwise.cast(X, "float16", overflow=value)),
    (_options.Nan, lambda value: castwise.cast(X, "float16", nan=value)),
    (_options.Order, lambda value: castwise.cast(X, "float16", order=value)),
    (_options.Match, lambda value: DTypePolicyMap("float32", match=value)),
    (_options.OnOverlap, lambda value: DTypePolicyMap("float32", on_overlap=value)),
    (_options.Role, lambda value: castwise.cast_tree(X, "float16", role=value)),
    (_options.LossScalePreset, lambda value: loss_scale.DynamicLossScale(preset=value)),
    (_options.DelayedScalingPreset, lambda value: loss_scale.DelayedScaling(preset=value)),
    (_options.AmaxAlgorithm, lambda value: loss_scale.DelayedScaling(amax_algorithm=value)),
]


@pytest.mark.parametrize(("literal", "call"), REFUSALS)
def test_a_literal_lists_what_the_error_lists(literal: Any, call: Callable[[Any], object]) -> None:
    with pytest.raises(ValueError, match=r"not (valid|known)") as caught:
        call("another")
    listed = re.split("use one of|valid", str(caught.value))[-1]
    words = set(re.findall(r"[A-Za-z0-9_-]+", listed))
    assert set(get_args(literal)) <= words, caught.value
    assert len(get_args(literal)) == len(words), caught.value
