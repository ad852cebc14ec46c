"""An array with a mask is refused wherever an array is taken, in lists and in other objects too."""

from __future__ import annotations

from collections import UserList, deque
from collections.abc import Callable
from typing import Any

import castwise
import numpy as np
import pytest
from castwise import checkpoint, loss_scale, quantization
from castwise.compat.tf_keras.mixed_precision import LossScaleOptimizer

MASKED = np.ma.masked_array([[1.0, 2.0], [3.0, 4.0]], [[True, False], [False, False]], np.float32)
ONES = np.ones((2, 2), np.float32)


class WithMask(np.ndarray[Any, Any]):
    """An array with a mask that is no `numpy.ma.MaskedArray`, as of astropy."""

    mask: Any = None

    def __array_finalize__(self, base: Any) -> None:
        self.mask = getattr(base, "mask", np.zeros(self.shape, bool))

    @property
    def unmasked(self) -> Any:
        return self.view(np.ndarray)


class SGD:
    def apply_gradients(self, pairs: Any) -> None:
        """Apply nothing."""


class Holder:
    """An object that numpy reads as an array with a mask, as a variable of netCDF."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return MASKED


TO_BF16 = castwise.caster("float32", "bfloat16")
CODES = np.ones((2, 2), np.int8)
QUANTIZED = quantization.quantize(np.ones((2, 32), np.float32), "mxfp4")

CALLS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "cast": ("x", lambda m: castwise.cast(m, "bfloat16")),
    "cast, report": ("x", lambda m: castwise.cast(m, "bfloat16", report=True)),
    "cast, scale": ("scale", lambda m: castwise.cast(ONES, "bfloat16", scale=m)),
    "caster": ("x", TO_BF16),
    "caster, scale": ("scale", lambda m: castwise.caster("float32", "bfloat16", scale=m)),
    "explain_cast": ("source", lambda m: castwise.explain_cast(m, "bfloat16")),
    "tree, scale": ("scale", lambda m: castwise.cast_tree({"a": ONES}, "bfloat16", scale=m)),
    "delayed scaling": ("x", lambda m: loss_scale.DelayedScaling().quantize(m)),
    "pack": ("amaxes", lambda m: loss_scale.pack(True, m)),
    "merge": ("reduced", loss_scale.merge),
    "quantize": ("x", lambda m: quantization.quantize(m, "mxfp4")),
    "report": ("x", QUANTIZED.report),
    "pack codes": ("codes", lambda m: quantization.pack(m, 4)),
    "unpack codes": ("packed", lambda m: quantization.unpack(m, 4)),
    "swizzle": ("scales", quantization.swizzle_scales),
    "unswizzle": ("swizzled", lambda m: quantization.unswizzle_scales(m, 2, 2)),
    "parts": (
        "part 'weight'",
        lambda m: quantization.QuantizedArray.from_parts({"weight": m}, "modelopt"),
    ),
}
LISTS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "array": ("", lambda m: m),
    "list": ("[0]", lambda m: [m, m]),
    "tuple": ("[1]", lambda m: (np.ones((2, 2)), m)),
    "nested": ("[1][0]", lambda m: [[np.ones((2, 2))], [m]]),
    "deque": ("[0]", lambda m: deque([m])),
    "UserList": ("[0]", lambda m: UserList([m])),
}


@pytest.mark.parametrize("wrap", LISTS)
@pytest.mark.parametrize("call", CALLS)
def test_it_is_refused_by_every_door(call: str, wrap: str) -> None:
    (argument, function), (place, wrapped) = CALLS[call], LISTS[wrap]
    with pytest.raises(TypeError) as caught:
        function(wrapped(MASKED))
    assert str(caught.value).startswith(
        f"{argument}{place} is a masked array, whose mask would be lost; give its `.data`"
    )


@pytest.mark.parametrize("wrap", LISTS)
def test_other_classes_with_masks(wrap: str) -> None:
    place, wrapped = LISTS[wrap]
    for masked, remedy in ((ONES.view(WithMask), "unmasked"), (Holder(), "data")):
        with pytest.raises(TypeError) as caught:
            castwise.cast(wrapped(masked), "bfloat16")
        assert str(caught.value).startswith(f"x{place} is a masked array, whose mask would be lost")
        assert f"`.{remedy}`" in str(caught.value)


def test_the_constant_for_one_element() -> None:
    with pytest.raises(TypeError, match=r"x\[1\] is a masked array"):
        castwise.cast([1.0, np.ma.masked], "bfloat16")


def test_in_trees_the_path_is_named() -> None:
    for tree, path in (
        ({"a": MASKED}, "a"),
        ({"a": [ONES, MASKED]}, "a/1"),
        ({"a": Holder()}, "a"),
    ):
        with pytest.raises(TypeError, match=f"^'{path}': x is a masked array"):
            castwise.cast_tree(tree, "bfloat16")
        with pytest.raises(TypeError, match=f"{path}.* is a masked array"):
            loss_scale.unscale(tree, 2.0)
    with pytest.raises(TypeError, match=r"grads\[1\] is a masked array"):
        LossScaleOptimizer(SGD()).get_unscaled_gradients([ONES, MASKED])


def test_in_files(tmp_path: Any) -> None:
    for masked in (MASKED, [MASKED], Holder()):
        with pytest.raises(TypeError, match=r"tensor 'w'.* is a masked array"):
            checkpoint.save(tmp_path / "f.npz", {"w": masked})
    assert not list(tmp_path.iterdir())


def test_an_attribute_of_that_name_need_not_be_a_mask() -> None:
    """None is no mask, and a method is none, as `mask(condition)` of pandas."""
    plain = ONES.view(WithMask)
    plain.mask = None
    assert castwise.cast(plain, "bfloat16").tolist() == [[1, 1], [1, 1]]
    plain.mask = np.logical_not
    assert castwise.cast([plain], "bfloat16").shape == (1, 2, 2)
