"""The words of options for type checkers are those that the tables and checks know."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any, get_args

import castwise
import numpy as np
import pytest
from castwise import _options, loss_scale
from castwise.checkpoint.encoding import _written_schemes
from castwise.checkpoint.report import FINDINGS
from castwise.quantization import dequantize, pack, quantize, schemes
from castwise.quantization.producers import _schemes

BLOCK = np.ones((2, 32), np.float32)


def words(alias: Any) -> list[str]:
    """The words of a Literal, or of several in a union."""
    parts = get_args(alias)
    return [word for part in parts for word in ([part] if isinstance(part, str) else words(part))]


def recipes_of_layouts() -> set[str]:
    rows = (*_schemes.RECIPES, _schemes.GGUF)
    return {name for row in rows for name in (row.name, *row.also)}


def variants() -> set[str]:
    storages = [
        layout.storage
        for recipe in (*_schemes.RECIPES, _schemes.GGUF)
        for layout in recipe.layouts
        if layout.storage is not None
    ]
    return {word for storage in storages for word in (*storage.packing, *dict(storage.zeros_add))}


TABLES: dict[str, Callable[[], Collection[str]]] = {
    "SchemeName": lambda: [row.name for row in schemes()],
    "StoredScheme": _schemes._rows,
    "WrittenScheme": _written_schemes.scheme_names,
    "TranscodedScheme": _written_schemes.changed_schemes,
    "Recipe": lambda: {name for row in schemes() for name in row.recipes},
    "StoredRecipe": recipes_of_layouts,
    "WrittenRecipe": _written_schemes.recipes,
    "TranscodedRecipe": _written_schemes.form_names,
    "Variant": variants,
    "FindingKind": lambda: FINDINGS,
    "Level": lambda: {"neon", *castwise.cpu_levels()},
}
"""What each alias mirrors."""


@pytest.mark.parametrize("name", TABLES)
def test_an_alias_has_the_words_of_its_table(name: str) -> None:
    found = words(getattr(_options, name))
    assert len(found) == len(set(found))
    known = set(TABLES[name]())
    assert set(found) >= known if name == "Level" else set(found) == known


CHECKS: dict[str, Callable[[Any], object]] = {
    "Rounding": lambda word: castwise.cast(BLOCK, "float16", rounding=word),
    "Overflow": lambda word: castwise.cast(BLOCK, "float16", overflow=word),
    "Nan": lambda word: castwise.cast(BLOCK, "float16", nan=word),
    "Order": lambda word: castwise.cast(BLOCK, "float16", order=word),
    "Match": lambda word: castwise.DTypePolicyMap("float32", match=word),
    "OnOverlap": lambda word: castwise.DTypePolicyMap("float32", on_overlap=word),
    "Role": lambda word: castwise.cast_tree(BLOCK, "mixed_float16", role=word),
    "LossScalePreset": lambda word: loss_scale.DynamicLossScale(preset=word),
    "DelayedScalingPreset": lambda word: loss_scale.DelayedScaling(preset=word),
    "AmaxAlgorithm": lambda word: loss_scale.DelayedScaling(amax_algorithm=word),
    "ScaleRule": lambda word: quantize(BLOCK, "mxfp4", scale_rule=word),
    "Nonfinite": lambda word: quantize(BLOCK, "mxfp4", nonfinite=word),
    "FourOverSix": lambda word: quantize(BLOCK, "nvfp4", four_over_six=word),
    "Arithmetic": lambda word: dequantize(quantize(BLOCK, "mxfp4"), arithmetic=word),
    "Packing": lambda word: pack(BLOCK.astype(np.uint8), 4, layout=word),
}
"""What takes the words of an alias, and lists them where it is given another one."""


@pytest.mark.parametrize("name", CHECKS)
def test_an_alias_has_the_words_that_its_function_takes(name: str) -> None:
    known = words(getattr(_options, name))
    for word in known:
        CHECKS[name](word)
    with pytest.raises(ValueError, match="nonsense") as refusal:
        CHECKS[name]("nonsense")
    listed = re.sub(r".*nonsense", "", str(refusal.value), count=1, flags=re.DOTALL)
    assert set(re.findall(r"[\w-]+", listed)) >= set(known)


def test_every_alias_is_compared() -> None:
    aliases = {
        name
        for name, value in vars(_options).items()
        if name[0].isupper() and words(value) and name not in ("Any", "ArrayLike")
    }
    assert aliases == {*TABLES, *CHECKS}
