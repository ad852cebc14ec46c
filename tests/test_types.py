"""Types of options list the values that are accepted, and the stub of conversions is today's."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any, get_args

import castwise
import conversion_stub
import numpy as np
import pytest
from castwise import DTypePolicyMap, _options, loss_scale
from castwise.arrays.library_casts import ALIASES, libraries
from castwise.checkpoint.planning import written_schemes
from castwise.checkpoint.results.report import FINDINGS
from castwise.quantization import consumers, dequantize, pack, quantize, schemes
from castwise.quantization.producers import schemes as stored_schemes
from castwise.quantization.producers.block_types import MIXES
from castwise.quantization.producers.gguf import GGUF
from castwise.quantization.producers.registry import PRODUCERS, WRITTEN, WRITTEN_WITH_INPUTS

X = np.ones(2, np.float32)
BLOCK = np.ones((2, 32), np.float32)

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
    (_options.ScaleRule, lambda value: quantize(BLOCK, "mxfp4", scale_rule=value)),
    (_options.Nonfinite, lambda value: quantize(BLOCK, "mxfp4", nonfinite=value)),
    (_options.Scales, lambda value: quantize(BLOCK, "nvfp4", scales=value)),
    (_options.Arithmetic, lambda value: dequantize(quantize(BLOCK, "mxfp4"), arithmetic=value)),
    (_options.Packing, lambda value: pack(BLOCK.astype(np.uint8), 4, layout=value)),
]


@pytest.mark.parametrize(("literal", "call"), REFUSALS)
def test_a_literal_lists_what_the_error_lists(literal: Any, call: Callable[[Any], object]) -> None:
    with pytest.raises(ValueError, match=r"not (valid|known)") as caught:
        call("another")
    listed = re.split("use one of|valid", str(caught.value))[-1]
    found = set(re.findall(r"[A-Za-z0-9_-]+", listed)) - {"use", "or"}
    assert set(get_args(literal)) == found, caught.value


def words(alias: Any) -> list[str]:
    """The words of a Literal, or of several in a union."""
    parts = get_args(alias)
    return [word for part in parts for word in ([part] if isinstance(part, str) else words(part))]


def recipes_of_layouts() -> set[str]:
    return {name for row in (*PRODUCERS, GGUF) for name in (row.name, *row.also)}


def variants() -> set[str]:
    storages = [
        layout.storage
        for producer in (*PRODUCERS, GGUF)
        for layout in producer.layouts
        if layout.storage is not None
    ]
    return {word for storage in storages for word in (*storage.packing, *dict(storage.zeros_add))}


TABLES: dict[str, Callable[[], Collection[str]]] = {
    "Like": lambda: [*(library.name for library in libraries()), *ALIASES],
    "SchemeName": lambda: [row.name for row in schemes()],
    "BlockTypeName": stored_schemes._block_types,
    "MixName": lambda: MIXES,
    "StoredScheme": lambda: [*stored_schemes._rows(), *stored_schemes._block_types()],
    "WrittenScheme": written_schemes.scheme_names,
    "TranscodedScheme": written_schemes.changed_schemes,
    "Recipe": lambda: {name for row in schemes() for name in row.recipes},
    "StoredRecipe": recipes_of_layouts,
    "WrittenRecipe": written_schemes.recipes,
    "ConsumerName": lambda: [consumer.name for consumer in consumers()],
    "TranscodedRecipe": written_schemes.form_names,
    "Variant": variants,
    "FindingKind": lambda: FINDINGS,
    "Inputs": lambda: {row.inputs for row in (*WRITTEN, *WRITTEN_WITH_INPUTS)} - {"", "constant"},
}
"""What each alias mirrors."""


@pytest.mark.parametrize("name", TABLES)
def test_an_alias_has_the_words_of_its_table(name: str) -> None:
    found = words(getattr(_options, name))
    assert len(found) == len(set(found))
    assert set(found) == set(TABLES[name]())


def test_every_alias_is_compared() -> None:
    aliases = {name for name, value in vars(_options).items() if name[0].isupper() and words(value)}
    checked = [literal for literal, _ in REFUSALS]
    compared = {name for name, value in vars(_options).items() if value in checked}
    # The levels of other machines are in no table of this one.
    assert aliases - {"Level"} == {*TABLES, *compared}


def test_the_stub_of_conversions_is_that_of_their_options() -> None:
    assert conversion_stub.STUB.read_text("utf-8") == conversion_stub.stub_text()
