"""Survey the tensors of a checkpoint: what formats and schemes would lose of each."""

from __future__ import annotations

import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from castwise._core import CastReport, cast, compare_stacks, finfo, report_losses, survey_rows
from castwise._options import Recipe, Scales
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import TensorInfo
from castwise.checkpoint.containers import open_checkpoint, source_path
from castwise.checkpoint.containers.checkpoint import Checkpoint
from castwise.checkpoint.containers.whole_models import WholeModelReader
from castwise.checkpoint.planning.checkpoint_model import component_model
from castwise.checkpoint.planning.decode.options import FORMATS, checked_threads
from castwise.checkpoint.planning.encode.blocks import measured_dtype
from castwise.checkpoint.planning.encode.encoded_weight import compare_decoded
from castwise.checkpoint.planning.stated_quantization import quantization_of, stale_statement
from castwise.checkpoint.planning.stored_tensors import StoredTensors
from castwise.checkpoint.planning.written_schemes import scheme_beside, scheme_names
from castwise.checkpoint.results.report import SCHEMA, Progress, ProgressMeter
from castwise.models.model import EXPERTS, MATRIX, Model, has_last_outputs
from castwise.quantization import Quantization, QuantizedArray, Scheme, dequantize, schemes
from castwise.quantization.arrays.comparison import report_rows
from castwise.quantization.arrays.quantize import quantize_each, quantize_slab
from castwise.quantization.producers.block_types import (
    BeyondFloat16Error,
    decode_type,
    encode_type,
    type_of_scheme,
)
from castwise.quantization.producers.registry import written_layout
from castwise.quantization.producers.schemes import has_global_scale, has_scales
from castwise.rendering import Rendered
from castwise.rendering.sheet import Exponents, Histogram, Lines, Section, Sheet, Table, joint_axis
from castwise.rendering.text import group_name, shape_text
from castwise.surveys import Prediction, Survey, pictured_ranges, survey
from castwise.text.brief import brief, brief_fields, counted, listed, plain_fields, shorten
from castwise.text.spelling import suggestion
from castwise.text.wording import function, setting

_LOGGER = logging.getLogger(__name__)

# Rows that are read together, or a multiple: surveys of such bands add up.
_BAND = 128

# Bytes of tensors that are held together, or of matrices of experts, about.
_BYTES = 1 << 23

# So many bands of a larger tensor have these bytes: one stays in the caches.
_BANDS = 4

# Tensors that are held together, at most: a survey takes as much memory as a small weight.
_TOGETHER = 1 << 8

# Elements that are cast, or quantized, in less time than a prediction takes, at most.
_MEASURED = 1 << 14

# Elements of a large tensor, about, by which types of llama.cpp are measured: 256 blocks of 256, or
# more where a few elements have most of the squares.
_SAMPLES = (1 << 16, 1 << 18, 1 << 20)

# Elements of the largest blocks of these types; all others are parts of such a block.
_BLOCK = 256
_LEAST_BLOCK = 32

# How many times the mean square of a tensor may be that of its sample, or the inverse: 0.4 dB.
_CLOSE_SQUARES = 1.1

_FLOAT8 = "fp8"
# The formats that models are cast to without scales.
_WIDE_BITS = 16
_LEAST_SHARE = 5e-4  # less is 0.0 % in print
_SCHEMES: dict[str, Scheme] = {row.name: row for row in schemes()}
_TEXT_COLUMNS = ("tensor", "dtype", "shape")
_LAST_COLUMNS = ("tensors", "smallest", "largest", "exponents")
# How many groups are drawn, the worst first.
_DRAWN = 16


@dataclass(frozen=True, slots=True)
class TensorSurvey:
    """What was counted of a tensor, and what is predicted.

    Attributes
    ----------
    name
        Its name.
    shape
        Number of elements along each axis.
    dtype
        Its format.
    count, zeros, infinities, nans
        Elements, and how many are zeros, infinite and NaN.
    amax, amin_nonzero
        The largest finite magnitude, and the smallest that is not zero; 0.0 without.
    exponents
        Finite elements that are not zero by the exponent of their magnitude.
    predictions
        What each format or scheme would lose, by its name: of few elements, and where a prediction
        does not know, as measured.

    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    count: int
    zeros: int
    infinities: int
    nans: int
    amax: float
    amin_nonzero: float
    exponents: Mapping[int, int]
    predictions: Mapping[str, Prediction]

    __repr__ = brief_fields

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**plain_fields(self), "exponents": [[*pair] for pair in self.exponents.items()]}


@dataclass(frozen=True, slots=True)
class CheckpointSurvey(Rendered):
    """The surveys of the floating tensors of a checkpoint.

    Attributes
    ----------
    source
        The checkpoint.
    targets
        The formats and schemes whose losses are predicted.
    tensors
        The tensors, those of which the last target keeps least first.

    """

    source: str
    targets: tuple[str, ...]
    tensors: Sequence[TensorSurvey]

    def __repr__(self) -> str:
        return brief(
            self,
            repr(shorten(str(self.source), 60)),
            counted(len(self.tensors), "tensor"),
            counted(sum(tensor.count for tensor in self.tensors), "element"),
            f"for {listed(self.targets)}",
        )

    def __sheet__(self) -> Sheet:
        """Return the picture of exponents, and a table: a row for the tensors of all layers."""
        return survey_sheet(self)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"schema": SCHEMA, **plain_fields(self)}


def survey_file(
    source: str | os.PathLike[str],
    targets: Sequence[str] | None = None,
    *,
    threads: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> CheckpointSurvey:
    """Survey the floating tensors of a checkpoint, and predict what formats would lose of them.

    Every tensor is read once, in bands of rows; see `castwise.survey` and `Survey.predict`.

    Parameters
    ----------
    source
        A file or a folder that is not quantized.
    targets
        Formats, to which tensors would be cast without a scale, and names of
        `castwise.quantization.schemes()`. By default the floats of 16 bits, float8_e4m3fn, and the
        scheme of such codes with a scale for each row.
    threads
        How many threads may survey.
    progress
        Called when a tensor begins, and at the end.

    Returns
    -------
    CheckpointSurvey
        The tensors, those of which the last target keeps least first.

    Raises
    ------
    CheckpointError
        The checkpoint is quantized, or what states that cannot be read; it has no floating tensor;
        or a target is not known.
    OSError
        A file cannot be read.

    Examples
    --------
    >>> from castwise import checkpoint
    >>> checkpoint.save("model.safetensors", {"fc.weight": np.eye(64, dtype=np.float32)})
    >>> surveyed = checkpoint.survey_file("model.safetensors", ["float8_e4m3fn"])
    >>> surveyed.tensors[0].name
    'fc.weight'

    """
    names = _targets(targets)
    path = source_path(source, "source")
    workers = checked_threads(threads)
    rows: list[TensorSurvey] = []
    with open_checkpoint(path, decodes=True) as checkpoint:
        quantization = quantization_of(checkpoint) or Quantization()
        if replace(quantization, stated=(), unreadable=(), inputs=None) != Quantization():
            # A file of llama.cpp states the type of each tensor.
            is_typed, infos = isinstance(checkpoint.file, WholeModelReader), checkpoint.tensors
            kinds = {
                infos[weight.payload].stored.lower() if is_typed else weight.scheme or ""
                for weight in quantization.weights
            }
            types = f" ({listed(sorted(kinds - {''}))})" if kinds - {""} else ""
            raise CheckpointError(
                f"{path} is quantized{types}: its codes have no magnitudes of "
                "their own. Survey what castwise dequantize makes of it"
            )
        if quantization.unreadable:
            raise CheckpointError(
                f"{path} cannot be surveyed: what may state how it is stored cannot be read: "
                f"{quantization.unreadable[0]}"
            )
        if (stale := stale_statement(checkpoint, quantization)) is not None:
            _LOGGER.warning(
                "%s: no weight is quantized as %s states: %s removes that",
                path,
                stale,
                function("dequantize"),
            )
        tensors = {
            name: info
            for name, info in checkpoint.tensors.items()
            if info.kind == "float" and info.format is not None
        }
        if not tensors:
            raise CheckpointError(f"{path} has no floating tensor, so there is nothing to survey")
        for batch in survey_tensors(checkpoint, tensors, workers, progress):
            predictor = Predictor([*batch.values()])
            columns = [predictor.predict(target) for target in names]
            for (name, tensor), *predictions in zip(batch.items(), *columns, strict=True):
                rows.append(_row(name, tensor, dict(zip(names, predictions, strict=True))))
    rows.sort(key=lambda row: _severity(row, names[-1]))
    return CheckpointSurvey(str(source), names, tuple(rows))


class MagnitudeCounts(NamedTuple):
    """What a survey counts of a tensor, without its blocks."""

    zeros: int
    infinities: int
    nans: int
    amax: float
    amin_nonzero: float
    exponents: Mapping[int, int]  # finite elements that are not zero, by exponent

    @classmethod
    def of(cls, counts: Survey) -> MagnitudeCounts:
        """Return those of a survey."""
        exponents, elements, _ = counts.binades
        return cls(
            counts.zeros,
            counts.infinities,
            counts.nans,
            counts.amax,
            counts.amin_nonzero,
            dict(zip(exponents.tolist(), elements.tolist(), strict=True)),
        )


class SurveyedTensor(NamedTuple):
    """What is known of an open tensor, as the matrix or the stack of them that is quantized."""

    info: TensorInfo
    magnitudes: MagnitudeCounts
    small: NDArray[Any] | None  # its elements, if they are few
    counts: Survey | None  # its survey; None if they are few
    # Reads it, in pieces that are surveyed, and quantized, apart from each other.
    pieces: Callable[[], Iterable[NDArray[Any]]]


_Small = tuple[TensorInfo, NDArray[Any]]
"""A tensor of few elements, and these."""


class Predictor:
    """Predicts what targets lose of tensors that were surveyed together, or measures it."""

    def __init__(self, tensors: Sequence[SurveyedTensor], scales: Scales = "amax") -> None:
        # `scales` concerns the schemes that have such a choice.
        self._tensors, self._scales = tensors, scales
        # Few elements are measured. Small tensors of a shape are quantized together.
        groups: dict[Any, list[tuple[int, NDArray[Any]]]] = {}
        self._large: list[int] = []
        self._specials: set[int] = set()  # those with elements that are not finite
        for index, tensor in enumerate(tensors):
            is_special = bool(tensor.magnitudes.infinities or tensor.magnitudes.nans)
            if is_special:
                self._specials.add(index)
            if (array := tensor.small) is not None:
                groups.setdefault((array.dtype, array.shape, is_special), []).append((index, array))
            else:
                self._large.append(index)
        self._stacks = [
            ([index for index, _ in rows], np.stack([piece for _, piece in rows]))
            for rows in groups.values()
        ]

    def predict(self, target: str, recipe: Recipe | None = None) -> list[Prediction]:
        """Predict what a target loses of each tensor, or measure it.

        TypeError, ValueError: As `Survey.predict`.
        """
        is_scheme = target in _SCHEMES
        return [
            row
            if isinstance(row, Prediction)
            else Prediction.of_report(target, row, is_scheme=is_scheme)
            for row in self._losses(target, recipe, _reports)
        ]

    def decibels(self, target: str, recipe: Recipe | None = None) -> list[float | None]:
        """Return the ratio of signal to noise of each tensor alone; raises as `predict`."""
        if type_of_scheme(target) is not None:
            return [self._block_decibels(read(), target) for read in self._readers_of_blocks]
        if target not in _SCHEMES:
            return [row.sqnr_db for row in self.predict(target, recipe)]
        rows = self._losses(target, recipe, compare_stacks)
        return [row if isinstance(row, float) else row.sqnr_db for row in rows]

    @cached_property
    def _readers_of_blocks(self) -> list[_Blocks]:
        """What gives the elements of each tensor by which types of llama.cpp are measured."""
        return [
            _blocks_of(tensor) if tensor.small is None else partial(tuple, (tensor.small,))
            for tensor in self._tensors
        ]

    def _block_decibels(self, matrices: Iterable[NDArray[Any]], target: str) -> float:
        """Return the ratio of signal to noise of matrices as blocks of a type of llama.cpp."""
        # No scale is predicted of these, whose search looks at all elements of a block.
        name, reports = target.upper(), []
        for rows in matrices:
            matrix = rows.reshape(-1, rows.shape[-1])
            try:
                encoded = encode_type(matrix, name, scales=self._scales)
            except BeyondFloat16Error:
                return -math.inf
            dtype = np.float64 if rows.dtype == np.float64 else np.float32
            reports.append(report_losses(matrix, cast(decode_type(encoded, name), dtype)))
        return sum(reports[1:], reports[0]).sqnr_db if reports else math.inf

    def _losses(
        self,
        target: str,
        recipe: Recipe | None,
        measure: Callable[[NDArray[Any], NDArray[Any]], Sequence[Any]],
    ) -> list[Any]:
        """Return of each tensor a prediction, a report, or what a function makes of a small one."""
        scheme = _SCHEMES.get(target)
        is_whole = scheme is not None and _has_one_scale(scheme, recipe)
        quantize: Callable[..., QuantizedArray] | None = None
        scales: Scales = "amax"
        if scheme is not None:
            producer = recipe or scheme.recipes[0]
            scales = self._scales if has_scales(self._scales, scheme, producer) else "amax"
            quantize = partial(
                quantize_slab, scheme=scheme.name, recipe=recipe, scales=scales, threads=1
            )
        losses: dict[int, Any] = {}
        for index in self._large:
            counts = self._tensors[index].counts
            assert counts is not None, "it is not small"  # noqa: S101
            losses[index] = counts.predict(target, recipe=recipe, scales=scales)
            is_final = not counts.count or (scheme is not None and index in self._specials)
            if not is_final and losses[index].sqnr_db is None:
                amax = counts.amax if is_whole else None
                losses[index] = self._measure(index, target, quantize, amax)
        for indices, stack in self._stacks:
            rows: Sequence[Any]
            q: QuantizedArray | None = None
            if scheme is None or quantize is None:
                rows = [cast(x, target, report=True)[1] for x in stack]
            elif indices[0] in self._specials:  # no scheme holds them
                rows = [survey(x, threads=1).predict(target, recipe=recipe) for x in stack]
            else:
                if not is_whole:
                    q = quantize(stack if len(stack) > 1 else stack[0])
                elif stack.ndim == MATRIX + 1:
                    q = quantize_each(stack, scheme.name, recipe=recipe, scales=scales)
                if q is None:
                    rows = [_quantization_report(x, quantize) for x in stack]
                else:
                    dtype = np.float64 if stack.dtype == np.float64 else np.float32
                    rows = measure(stack, dequantize(q, dtype, threads=1).reshape(stack.shape))
            losses |= zip(indices, rows, strict=True)
        return [losses[index] for index in range(len(self._tensors))]

    def _measure(
        self,
        index: int,
        target: str,
        quantize: Callable[..., QuantizedArray] | None,
        amax: float | None,
    ) -> CastReport:
        """Measure what a target loses of a large tensor, piece by piece."""
        whole: Any = sum(
            cast(x, target, report=True)[1]
            if quantize is None
            else _quantization_report(x, quantize, amax)
            for x in self._tensors[index].pieces()
        )
        report: CastReport = whole
        return report


def _reports(stack: NDArray[Any], values: NDArray[Any]) -> list[CastReport]:
    return [report_losses(array, decoded) for array, decoded in zip(stack, values, strict=True)]


def _quantization_report(
    x: NDArray[Any], quantize: Callable[..., QuantizedArray], amax: float | None = None
) -> CastReport:
    """Quantize a matrix, or a stack of them, and measure what that loses."""
    q = quantize(x, amax=amax)
    report = report_rows(x, q, measured_dtype(x.dtype)) if x.ndim == MATRIX else None
    return compare_decoded(x[None], q)[0] if report is None else report


def _has_one_scale(scheme: Scheme, recipe: str | None) -> bool:
    """Return True if a scale is that of the whole tensor."""
    layout = written_layout(recipe or next(iter(scheme.recipes), None), scheme, symmetric=True)
    return scheme.block == (0, 0) or (scheme.global_scale and has_global_scale(layout))


def survey_tensors(
    source: Checkpoint,
    tensors: Mapping[str, TensorInfo],
    threads: int,
    progress: Callable[[Progress], None] | None,
) -> Iterator[dict[str, SurveyedTensor]]:
    """Survey tensors of an opened checkpoint in the order of their files, small ones together."""
    meter = ProgressMeter(sum(info.nbytes for info in tensors.values()), progress)
    for component in source.components:
        tensors_of_shards, model = StoredTensors(component.shards), component_model(component)
        for shard in component.shards.values():
            with tensors_of_shards.open_files([shard]):
                batch: dict[str, SurveyedTensor | _Small] = {}
                nbytes = 0
                for name in shard.tensors:
                    if (whole_name := component.prefix + name) not in tensors:
                        continue
                    info = tensors_of_shards[name]
                    nbytes += info.nbytes
                    if batch and (nbytes > _BYTES or len(batch) == _TOGETHER):
                        yield _with_magnitudes(batch)
                        batch, nbytes = {}, info.nbytes
                    meter.starts(whole_name)
                    is_small = 0 < math.prod(info.shape) <= _MEASURED
                    survey_one = _read_small if is_small else survey_stored
                    batch[whole_name] = survey_one(tensors_of_shards, info, model, threads)
                    meter.finish(info.nbytes)
                yield _with_magnitudes(batch)
    meter.starts(None)


def survey_stored(
    tensors: StoredTensors, info: TensorInfo, model: Model, threads: int
) -> SurveyedTensor:
    """Survey a tensor, in pieces of some megabytes, each with its inputs along the rows."""
    pieces = partial(_pieces, tensors, info, model)
    small = None if info.nbytes > _BYTES else [*pieces()]
    counts: Any = sum(survey(piece, threads=threads) for piece in small or pieces())
    counts = counts or survey(np.zeros(0, np.float32))  # without a piece
    magnitudes = MagnitudeCounts.of(counts)
    return SurveyedTensor(
        info, magnitudes, None, counts, pieces if small is None else lambda: small
    )


_Blocks = Callable[[], Iterable[NDArray[Any]]]
"""Gives matrices that consist of whole blocks."""


def _blocks_of(tensor: SurveyedTensor) -> _Blocks:
    """Give the least sample of a large tensor whose mean square is about its own, or all blocks."""
    width = next((piece.shape[-1] for piece in tensor.pieces()), 0)
    fitting_widths = (size for size in (_BLOCK, _LEAST_BLOCK) if size <= width)
    width = next(fitting_widths, max(width, 1))
    top = max(tensor.magnitudes.exponents, default=0)
    mean = _squares(tensor.magnitudes, top) / max(math.prod(tensor.info.shape), 1)
    for size in _SAMPLES:
        sample = tuple(_drawn_blocks(tensor, width, size))
        magnitudes = [MagnitudeCounts.of(survey(blocks)) for blocks in sample]
        squares = sum(_squares(counts, top) for counts in magnitudes)
        sample_mean = squares / max(sum(blocks.size for blocks in sample), 1)
        if mean / _CLOSE_SQUARES <= sample_mean <= mean * _CLOSE_SQUARES:
            return partial(tuple, sample)
    return partial(_all_blocks, tensor, width)


def _all_blocks(tensor: SurveyedTensor, width: int) -> Iterator[NDArray[Any]]:
    for piece in tensor.pieces():
        columns = piece.shape[-1] // width * width
        if columns and piece.size:
            yield piece[..., :columns].reshape(-1, width)


def _drawn_blocks(tensor: SurveyedTensor, width: int, size: int) -> Iterator[NDArray[Any]]:
    """Yield blocks of each piece, of about so many elements in all."""
    # One block is drawn of each of so many equal parts of the tensor: rows at even distances may
    # all be the first ones of heads.
    count = max(size // width, 1)
    blocks = math.prod(tensor.info.shape) // width
    offsets = np.arange(count) + np.random.default_rng(0).random(count)
    drawn = np.unique((offsets * (blocks / count)).astype(np.int64))
    begin = 0
    for piece in tensor.pieces():
        in_row = piece.shape[-1] // width
        end = begin + math.prod(piece.shape[:-1]) * in_row
        places = drawn[(drawn >= begin) & (drawn < end)] - begin
        begin = end
        if len(places):
            rows = np.unravel_index(places // in_row, piece.shape[:-1])
            columns = places[:, None] % in_row * width + np.arange(width)
            yield piece[(*(row[:, None] for row in rows), columns)]


def _squares(magnitudes: MagnitudeCounts, top: int) -> float:
    """Return about the sum of squares of finite elements, over that of 2 to the power of `top`."""
    exponents = magnitudes.exponents.items()
    return sum(count * 4.0 ** (exponent - top) for exponent, count in exponents)


def _read_small(tensors: StoredTensors, info: TensorInfo, model: Model, _threads: int) -> _Small:
    """Read a tensor of few elements, which is one piece."""
    if len(info.shape) == MATRIX:
        piece = tensors.box(info.name, [(0, count) for count in info.shape])
        return info, piece.swapaxes(-1, -2) if model.is_in_out(info.name) else piece
    (piece,) = _pieces(tensors, info, model)
    return info, piece


def _with_magnitudes(batch: Mapping[str, SurveyedTensor | _Small]) -> dict[str, SurveyedTensor]:
    """Survey the small tensors of a batch, those of a dtype and a size together."""
    surveyed: dict[str, Any] = dict(batch)
    groups: dict[Any, list[tuple[str, _Small]]] = {}
    for name, row in batch.items():
        if not isinstance(row, SurveyedTensor):
            groups.setdefault((row[1].dtype, row[1].size), []).append((name, row))
    for rows in groups.values():
        elements = np.stack([array.reshape(-1) for _, (_, array) in rows])
        for (name, small), found in zip(rows, survey_rows(elements), strict=True):
            info, array = small
            pieces = partial(tuple, (array,))
            surveyed[name] = SurveyedTensor(info, MagnitudeCounts(*found), array, None, pieces)
    return surveyed


def _pieces(tensors: StoredTensors, info: TensorInfo, model: Model) -> Iterator[NDArray[Any]]:
    """Read a tensor in pieces with its inputs along the rows."""
    # A piece is rows of a matrix, or matrices of experts as far as there is room.
    is_in_out = model.is_in_out(info.name)
    shape = (1, 1, *info.shape)[-max(len(info.shape), MATRIX) :]
    is_stack = len(shape) > MATRIX and model.role(info.name) == EXPERTS
    step = max(_BYTES // max(info.nbytes // max(shape[0], 1), 1), 1)
    axes = 0
    if not is_stack or info.nbytes // max(shape[0], 1) > _BYTES:
        axes = len(shape) - MATRIX if is_stack else 0
        row_bytes = max(info.nbytes // max(math.prod(shape[: axes + 1]), 1), 1)
        step = max(_BYTES // _BANDS // row_bytes // _BAND, 1) * _BAND
        is_stack = False
    # A convolution is the matrix (out, rest), one of Keras, whose outputs are last, (rest, out).
    are_last = len(shape) == MATRIX or axes or has_last_outputs(info.name)
    columns = shape[-1] if are_last else math.prod(shape[1:])
    for index in product(*map(range, shape[:axes])):
        for start in range(0, shape[axes], step):
            ranges = [(place, place + 1) for place in index]
            ranges.append((start, min(start + step, shape[axes])))
            ranges += [(0, size) for size in shape[axes + 1 :]]
            piece = tensors.box(info.name, ranges[len(ranges) - len(info.shape) :])
            if not is_stack:
                piece = piece.reshape(piece.size // max(columns, 1), columns)
            yield piece.swapaxes(-1, -2) if is_in_out else piece


def survey_sheet(result: CheckpointSurvey, *, every: bool = False) -> Sheet:
    """Show exponents and predictions, of each tensor or in a row for those of all layers."""
    # Matrices come before vectors, which no recipe quantizes.
    groups: dict[Any, list[TensorSurvey]] = {}
    for index, tensor in enumerate(result.tensors):
        key = index if every else (group_name(tensor.name), tensor.shape, tensor.dtype)
        groups.setdefault(key, []).append(tensor)
    rows = sorted(
        groups.values(), key=lambda group: sum(size > 1 for size in group[0].shape) < MATRIX
    )
    histograms = [_histogram(group) for group in rows]
    axis = joint_axis(histograms)
    left_out = set() if len(rows) < len(result.tensors) else {"tensors"}

    def table(
        groups: Sequence[Sequence[TensorSurvey]], left_out: set[str], *, is_ranked: bool
    ) -> Table:
        columns = (*_TEXT_COLUMNS, *result.targets, *_LAST_COLUMNS)
        header = [name for name in columns if name not in left_out]

        @cache
        def rows() -> list[list[str]]:
            rows_of_cells = (
                _cells(group, result.targets, _histogram(group).text(axis)) for group in groups
            )
            return [[cells[name] for name in header] for cells in rows_of_cells]

        return Table(
            header,
            lambda: iter(rows()),
            text_columns=sum(name in _TEXT_COLUMNS for name in header),
            has_last_text=True,
            spare=(
                *("dtype", "shape", "smallest", "exponents", "tensors", "largest"),
                *result.targets[:-1],
            ),
            decision=frozenset(result.targets),
            short=frozenset(result.targets),
            ranked=is_ranked,
        )

    pictures = [
        (_name(group), histogram) for group, histogram in zip(rows, histograms, strict=True)
    ]
    sections = [
        Section(
            f"{_name(group)} ({shape_text(group[0].shape)}): {counted(len(group), 'tensor')}",
            [table([[tensor] for tensor in group], {"dtype", "shape", "tensors"}, is_ranked=False)],
        )
        for group in rows
        if len(group) > 1
    ]
    about = "under each format or scheme: the predicted ratio of signal to noise in dB, and the "
    lines = [
        f"{result.source}: {counted(len(result.tensors), 'tensor')}, "
        f"{counted(sum(tensor.count for tensor in result.tensors), 'element')}",
        f"{about}share of elements that would become zero, infinite or NaN, from 0.05 %",
    ]
    if not_finite := sum(tensor.infinities + tensor.nans for tensor in result.tensors):
        lines.append(f"{counted(not_finite, 'element')} infinite or NaN")
    picture = Exponents(pictures[:_DRAWN], pictured_ranges())
    return [picture, table(rows, left_out, is_ranked=True), *sections, Lines(lines)]


def default_targets() -> tuple[str, ...]:
    """Return the floats of 16 bits, the usual one of 8, and its scheme with scales of rows."""
    wide = [name for name in FORMATS if finfo(name).bits == _WIDE_BITS]
    float8 = finfo(_FLOAT8).name
    scheme = scheme_beside(float8)
    return (*wide, float8, *([] if scheme is None else [scheme]))


def _targets(targets: Sequence[str] | None) -> tuple[str, ...]:
    if targets is None:
        return default_targets()
    if isinstance(targets, str):
        raise TypeError(setting("targets", targets) + " is a text; give a list of names")
    if not isinstance(targets, Iterable):
        raise TypeError(setting("targets", targets) + " is not a list of names")
    # Of those that are written; types of blocks of llama.cpp are not schemes of arrays.
    scheme_targets = [name for name in scheme_names() if name in _SCHEMES]
    names: list[str] = []
    for target in targets:
        if target in scheme_targets:
            names.append(target)
            continue
        try:
            names.append(finfo(target).name)
        except (TypeError, ValueError):
            all_names = [*scheme_targets, *FORMATS]
            raise CheckpointError(
                setting("targets", target) + " is neither a format nor a scheme; "
                f"{suggestion(str(target), all_names)}castwise formats lists the formats, and "
                f"schemes are {', '.join(scheme_targets)}"
            ) from None
    if not names:
        raise ValueError(setting("targets", targets) + " is empty; name a format or a scheme")
    return tuple(dict.fromkeys(names))


def _row(name: str, tensor: SurveyedTensor, predictions: Mapping[str, Prediction]) -> TensorSurvey:
    info = tensor.info
    count = math.prod(info.shape)
    return TensorSurvey(name, info.shape, info.label, count, *tensor.magnitudes, predictions)


def _severity(tensor: TensorSurvey, target: str) -> float:
    ratio = tensor.predictions[target].sqnr_db
    return math.inf if ratio is None or math.isnan(ratio) else ratio


def _histogram(group: Sequence[TensorSurvey]) -> Histogram:
    counts: Counter[int] = Counter()
    for tensor in group:
        counts.update(tensor.exponents)
    return Histogram.of_counts(counts)


def _name(group: Sequence[TensorSurvey]) -> str:
    return group_name(group[0].name) if len(group) > 1 else group[0].name


def _cells(group: Sequence[TensorSurvey], targets: Sequence[str], strip: str) -> dict[str, str]:
    tensor = group[0]
    smallest = min((row.amin_nonzero for row in group if row.amin_nonzero), default=0.0)
    columns = (
        _name(group),
        tensor.dtype,
        shape_text(tensor.shape),
        f"{len(group):,}",
        f"{smallest:.1e}",
        f"{max(row.amax for row in group):.3g}",
        strip,
    )
    return dict(zip((*_TEXT_COLUMNS, *_LAST_COLUMNS), columns, strict=True)) | {
        target: _prediction_text(group, target) for target in targets
    }


def _prediction_text(group: Sequence[TensorSurvey], target: str) -> str:
    """Write the least ratio of a group, and the share of elements that would be lost."""
    predictions = [tensor.predictions[target] for tensor in group]
    ratios = [ratio for row in predictions if not math.isnan(ratio := row.sqnr_db or math.nan)]
    elements = sum(row.count for row in predictions)
    share = sum(row.underflowed + row.overflowed for row in predictions) / max(elements, 1)
    text = f"{min(ratios):.1f}" if ratios else "-"
    return f"{text} ({100 * share:.1f}%)" if share >= _LEAST_SHARE else text
