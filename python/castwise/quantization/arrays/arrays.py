"""Quantized arrays: the parts as stored, checked against each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from castwise._core import read_array
from castwise._numbers import BYTE_BITS
from castwise._options import Arithmetic, StoredRecipe, StoredScheme, Variant
from castwise.quantization.arrays._arguments import block_pair, native, shape_of
from castwise.quantization.arrays._checks import check
from castwise.quantization.arrays.decode import decode_array
from castwise.quantization.arrays.from_parts import recognized_parts
from castwise.quantization.arrays.named_parts import named_parts
from castwise.quantization.arrays.report import QuantizationReport, report_on
from castwise.quantization.arrays.row_slices import row_step, rows_of
from castwise.quantization.arrays.views import Array, StoredArray, views_of
from castwise.quantization.producers.layouts import BF16, Layout
from castwise.quantization.producers.registry import known_recipe, written_layout
from castwise.quantization.producers.schemes import generic_layout, scheme_of_files
from castwise.rendering import Rendered
from castwise.rendering.sheet import Lines, Sheet, Table
from castwise.text.brief import brief

_PARTS = ("data", "scale", "global_scale", "zero_point")


@dataclass(frozen=True, eq=False)
class QuantizedArray(StoredArray, Rendered):
    """A weight as codes that share scales, in the arrays that its producer stores.

    Parameters
    ----------
    scheme : str
        One of `schemes()`, or a block type of llama.cpp in small letters, as "q4_k".
    data : ndarray
        The packed codes, as the producer stores them.
    scale : ndarray
        The scales as stored: E8M0 as uint8 or float8_e8m0fnu, never decoded values.
    global_scale : ndarray of float32, optional
        The scale of the scales of nvfp4, of shape () or (1,). compressed-tensors divides by it, all
        others multiply.
    zero_point : ndarray, optional
        As stored: int8 of the scales' shape, or packed as codes are.
    shape : tuple of int
        Of the array that was quantized, which `data` does not show: it has no default.
    recipe : str, optional
        The producer in whose form the arrays are. None: codes in bytes, low bits first, beside
        plain scales.
    block : int or tuple of int, optional
        The (rows, columns) that share a scale, 0 for the whole axis; one number is columns. By
        default the scheme's.
    axis : int
        The axis along which the columns of a block lie, by default that of the producer's weights;
        the rows of a block lie along the last of the other axes. Any further axes are a stack.
    extras : mapping of str to ndarray
        What else decoding needs: "bias", "group index", "code map", "divisor" or "factor" (of each
        column), "float8 scale" (of ModelOpt's W4A8), and for nested scales "nested scale", "nested
        code map", "nested bias", "nested block".
    variant : str, optional
        Of the producer's layout: "dense" or "padded" words of compressed-tensors, "gptq" or
        "gptq_v2" zero points. By default the one that is written today.

    Raises
    ------
    ValueError
        An unknown scheme or recipe; a part that has another shape than the ceiling division of
        `shape` by `block` says.

    Examples
    --------
    >>> from castwise.quantization import dequantize, quantize
    >>> q = quantize(np.ones((2, 64), np.float32), "mxfp4")
    >>> q.data.shape, q.scale.shape, q.bits_per_weight
    ((2, 32), (2, 2), 4.25)
    >>> dequantize(q)[0, :2]
    array([1, 1], dtype=dtype(bfloat16))

    """

    def __post_init__(self) -> None:
        scheme = scheme_of_files(self.scheme)
        if self.layout is None:
            symmetric = self.zero_point is None and "bias" not in self.extras
            layout = written_layout(self.recipe, scheme, symmetric=symmetric)
            object.__setattr__(self, "layout", layout)
        shape = shape_of(self.shape)
        object.__setattr__(self, "shape", shape)
        if self.axis is None:
            producer = known_recipe(self.recipe)
            axis = -1 if producer is None else producer.axis_of(len(shape))
            object.__setattr__(self, "axis", axis)
        block = scheme.block if self.block is None else block_pair(self.block)
        object.__setattr__(self, "block", block)
        parts = {name: getattr(self, name) for name in _PARTS}
        extras = {name: _as_native(part) for name, part in dict(self.extras).items()}
        for name, part in (parts | {"extras": MappingProxyType(extras)}).items():
            object.__setattr__(self, name, _as_native(part))
        check(self)

    def __getstate__(self) -> dict[str, Any]:
        # Neither a view of a mapping nor a decoder, which is made again, can be pickled; of the
        # table of layouts the row is stored, because rows are told apart by identity.
        rows = _rows_of(self.recipe)
        row = (rows.index(self.layout), _fields_of(self.layout)) if self.layout in rows else None
        return self.__dict__ | {"extras": dict(self.extras), "layout": row, "_ready": {}}

    def __setstate__(self, fields: dict[str, Any]) -> None:
        layout: Layout | None = generic_layout(scheme_of_files(fields["scheme"]))
        if fields["layout"] is not None:
            (index, fields_of_row), rows = fields["layout"], _rows_of(fields["recipe"])
            layout = rows[index] if index < len(rows) else None
            if _fields_of(layout) != fields_of_row:
                raise ValueError(
                    f"this castwise does not store {fields['scheme']} of {fields['recipe']} as the "
                    "one that pickled it; unpickle it with that one, and save its parts"
                )
        extras = MappingProxyType(fields["extras"])
        object.__setattr__(self, "__dict__", fields | {"extras": extras, "layout": layout})

    def __repr__(self) -> str:
        return brief(
            self,
            f"{self.scheme} of shape {self.shape}",
            f"block {self.block}",
            None if self.recipe is None else f"as {self.recipe}",
            *(f"{name} {part.dtype} {part.shape}" for name, part in self._arrays().items()),
        )

    def __sheet__(self) -> Sheet:
        """Return a table of the parts."""
        rows = [(name, str(part.dtype), str(part.shape)) for name, part in self._arrays().items()]
        return [
            Lines((f"{self.scheme} of shape {self.shape}",)),
            Table.of(("part", "dtype", "shape"), rows),
        ]

    def _arrays(self) -> dict[str, Array]:
        parts = {name: getattr(self, name) for name in _PARTS} | dict(self.extras)
        return {name: part for name, part in parts.items() if part is not None}

    @property
    def dtype_of_codes(self) -> str:
        """The format of a code by name; "map" if codes are indices into a code map."""
        return scheme_of_files(self.scheme).element

    @property
    def nbytes(self) -> int:
        """The bytes of all parts."""
        if views_of(self).storage.block_type:  # scales are views of blocks
            return self.data.nbytes
        return sum(part.nbytes for part in self._arrays().values())

    @property
    def bits_per_weight(self) -> float:
        """The bits of all parts over the elements of the weight."""
        elements = math.prod(views_of(self).shape)
        return self.nbytes * BYTE_BITS / elements if elements else math.nan

    def parts(self, recipe: StoredRecipe | None = None) -> dict[str, Array]:
        """Return the arrays by the names that a producer gives them.

        Parameters
        ----------
        recipe : str, optional
            The producer; by default the one in whose form the arrays are. Another one gives its own
            names, shapes and dtypes to the same bytes, if those are what it stores: MXFP4 of
            "compressed-tensors" is that of "modelopt", and its float8 of a whole tensor that of
            "comfy", which rounds their product otherwise.

        Returns
        -------
        dict of str to ndarray
            From the producer's suffix, as ``"weight_packed"``, to the array as it is stored.

        Raises
        ------
        ValueError
            The producer stores this scheme otherwise, or has no names for it: the arrays are then
            `data`, `scale` and the other attributes. So does each that
            multiplies by a global scale where the other one divides, as for NVFP4: the reciprocal
            is rounded.

        Examples
        --------
        >>> from castwise.quantization import quantize
        >>> q = quantize(np.ones((2, 64), np.float32), "mxfp4", recipe="compressed-tensors")
        >>> {name: part.shape for name, part in q.parts("modelopt").items()}
        {'weight': (2, 32), 'weight_scale': (2, 2)}

        """
        return named_parts(self, recipe)

    @classmethod
    def from_parts(
        cls,
        parts: Mapping[str, Array],
        recipe: StoredRecipe,
        shape: Sequence[int] | None = None,
        *,
        scheme: StoredScheme | None = None,
        block: int | Sequence[int] | None = None,
        axis: int | None = None,
        variant: Variant | None = None,
    ) -> Self:
        """Make a quantized array from the arrays that a producer stored.

        Parameters
        ----------
        parts : mapping of str to ndarray
            All tensors of one weight, by their names or by suffix: ``weight_packed``,
            ``weight_scale``, .... Scales of inputs may be among them and are left out.
        recipe : str
            The producer.
        shape : sequence of int, optional
            Of the weight. By default what the parts state, or have room for, padding included.
        scheme : str, optional
            What is stored, where the parts fit several: the bits of integers, say.
        block : int or sequence of int, optional
            As stated by the configuration. By default the scheme's.
        axis : int, optional
            As for `quantize`, which must have had the same. By default the producer's.
        variant : str, optional
            As for `QuantizedArray`.

        Returns
        -------
        QuantizedArray

        Raises
        ------
        ValueError
            A payload without its scale, or a scale without its payload; parts that no layout of the
            producer has, that fit several schemes or packings, or whose shapes are not the ceiling
            division of `shape` by the block.

        """
        return recognized_parts(
            cls, parts, recipe, shape, scheme=scheme, block=block, axis=axis, variant=variant
        )

    def report(self, x: ArrayLike, *, arithmetic: Arithmetic = "peer") -> QuantizationReport:
        """Compare the decoded values with the array that was quantized.

        Parameters
        ----------
        x : array_like
            Of the shape of the weight, any real float dtype.
        arithmetic : {"peer", "exact"}
            As for `dequantize`.

        Returns
        -------
        QuantizationReport

        Raises
        ------
        ValueError
            `x` has another shape.

        """
        bits = self.bits_per_weight
        return report_on(self, read_array("x", x), arithmetic=arithmetic, bits_per_weight=bits)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        """Refuse to become an array in silence: codes and scales are not values."""
        del dtype, copy
        raise TypeError("a QuantizedArray is decoded by castwise.quantization.dequantize")

    @property
    def _row_step(self) -> int:
        """The rows of which slabs are multiples: whole blocks, whole words, whole tiles."""
        return row_step(self)

    def _rows(
        self,
        start: int,
        stop: int,
        dtype: DTypeLike = BF16,
        *,
        arithmetic: Arithmetic = "peer",
        out: Array | None = None,
    ) -> Array:
        """Decode some rows of a matrix whose axis is the last."""
        # `start` is a multiple of `_row_step`, and `stop` is one or the end.
        return decode_array(rows_of(self, start, stop), dtype, arithmetic=arithmetic, out=out)


def _as_native(part: object) -> object:
    """Return an array in the machine's byte order, and what is none as it is."""
    return native(part) if isinstance(part, np.ndarray) else part


def _rows_of(recipe: StoredRecipe | None) -> tuple[Layout | None, ...]:
    producer = known_recipe(recipe)
    return () if producer is None else producer.layouts


def _fields_of(layout: Layout | None) -> tuple[object, ...]:
    """Return what tells whether a row of the table is still the same one."""
    if layout is None:
        return ()
    return layout.scheme, layout.payload, layout.formats, tuple(part.name for part in layout.parts)


def dequantize(
    q: QuantizedArray,
    dtype: DTypeLike = BF16,
    *,
    arithmetic: Arithmetic = "peer",
    out: NDArray[Any] | None = None,
    threads: int | None = None,
) -> NDArray[Any]:
    """Decode a quantized array, in one pass.

    Parameters
    ----------
    q : QuantizedArray
        What to decode.
    dtype : dtype
        Any real float dtype. Ignored if `out` is given.
    arithmetic : {"peer", "exact"}
        "peer" computes as the producer's library does: the float32 product, rounded once to `dtype`
        (into float32: the float32 product itself); of "comfy" and "mlx" with each step rounded to
        `dtype`; of ModelOpt's NVFP4 without -0, and of its W4A8 as multiples of float8, which its
        products have. "exact" rounds the real product once.
    out : ndarray, optional
        Of the shape of the weight, any strides, byte order and real float dtype; written and
        returned.
    threads : int, optional
        The most threads.

    Returns
    -------
    ndarray
        The values, of the shape of the weight.

    Raises
    ------
    TypeError
        `q` is not a QuantizedArray, or the dtype is not a real float dtype.
    ValueError
        `out` has another shape, or `arithmetic` is unknown.

    Examples
    --------
    >>> from castwise.quantization import quantize
    >>> q = quantize(np.full((1, 32), 3.0, np.float32), "mxfp8_e4m3")
    >>> dequantize(q, "float32")[0, :2]
    array([3., 3.], dtype=float32)

    """
    if not isinstance(q, QuantizedArray):
        raise TypeError(f"q is a {type(q).__name__}; use a castwise.quantization.QuantizedArray.")
    return decode_array(q, dtype, arithmetic=arithmetic, out=out, threads=threads)
