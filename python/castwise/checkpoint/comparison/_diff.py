"""What differs between two checkpoints, by how much, and what explains it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import block_amax, cast
from castwise._dtype_map import DtypeMap
from castwise._measures import Measures
from castwise._numbers import is_real
from castwise._options import Arithmetic, MapArgument, PathArgument
from castwise._wording import argument
from castwise.checkpoint._tensors import format_info, numpy_dtype
from castwise.checkpoint.comparison._explanations import (
    CastExplanation,
    KnownRecipes,
    Pairs,
    Prover,
)
from castwise.checkpoint.comparison._pairing import paired, rename_mapping
from castwise.checkpoint.comparison._results import Diff, TensorDiff, severity
from castwise.checkpoint.comparison._scale_shifts import scale_shifts, shifts_text
from castwise.checkpoint.comparison._schemes import SchemeProver, SchemeSearch
from castwise.checkpoint.comparison._sides import Side, common_format, in_step
from castwise.checkpoint.comparison._transcodings import first_rows, have_same_parts
from castwise.checkpoint.comparison._walk import PieceWalk
from castwise.checkpoint.containers import open_checkpoint, source_path
from castwise.checkpoint.containers.checkpoint import Checkpoint
from castwise.checkpoint.plan import Decide, decided
from castwise.checkpoint.planning import CheckpointModel, checked_threads
from castwise.checkpoint.report import Progress, ProgressMeter
from castwise.checkpoint.requests import chosen_dtypes
from castwise.quantization import QuantizedArray

_KEPT_BYTES = 16 << 20
_MOST_WORKERS = 8
_PIECES_BYTES = 2 << 20
"""Of A, in all pieces that are compared at a time. What is computed of them is several times that,
so that the memory of a comparison does not grow with the threads."""
_MOST_DECODERS = 2
"""Threads that decode slabs of a side ahead, each of which holds some MiB: decoding takes a
fraction of the time of a comparison."""
_TURNED = "B has the experts of A, stored the other way round"
_TRANSCODED = "B has the codes and scales of A, which its producer multiplies in another order"
_LEAST_DECIBELS, _MOST_DECIBELS = 1.0, 60.0
"""Codes of at most 8 bits lose more than the second, and no recipe as much as the first."""


def diff(
    first: PathArgument,
    second: PathArgument,
    *,
    dtype_map: MapArgument | DtypeMap | None = None,
    rename: Mapping[str, str] | str | os.PathLike[str] | None = None,
    reference: PathArgument | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    dtype: object = None,
    arithmetic: Arithmetic = "peer",
    threads: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Diff:
    """Compare two checkpoints: names, shapes, formats, metadata and values, and explain these.

    Tensors are compared by name, those that have no other by their values, as they stream by.
    Where values of floats differ, or their format does, recipes are tried that may have made B of
    A: all roundings, what becomes of numbers beyond the range and of NaN, a format between, zeros
    for subnormals, a factor; of quantised weights how blocks get their scales. The plainest one
    that is right on a sample is tried on every element, and the result says for how many it is
    wrong.

    Parameters
    ----------
    first, second
        A and B: files or folders, as `verify` takes.
    dtype_map
        What A was to become, as in `cast_file`: B is compared with what the map makes of A.
    rename
        The names of tensors of A, each with its name in B: a mapping, or a JSON or TOML file.
    reference
        A checkpoint with the names of A from which errors are measured: those of A and of B, each
        over the error of its format, of the reference rounded once.
    rtol, atol
        The tolerances of `|a - b| <= atol + rtol |a|`, as in `numpy.isclose`. If one is given, the
        other is 0 by default, and other formats, names and metadata are no differences.
    dtype, arithmetic
        As in `verify`. With a map that has no default, `dtype` is that.
    threads
        How many threads may decode and compare.
    progress
        Called when a tensor begins, now and then within a large one, and at the end.

    Returns
    -------
    All tensors, the worst first.

    Raises
    ------
    CheckpointError
        One is damaged or cannot be decoded for certain; or `rename` names no tensor.
    ValueError, TypeError
        An option is wrong.
    OSError
        A file cannot be read.

    Examples
    --------
    >>> from castwise import checkpoint
    >>> weight = np.linspace(0, 1, 9, dtype=np.float32) / 3
    >>> checkpoint.save("model.safetensors", {"fc.weight": weight})
    >>> _ = checkpoint.cast_file("model.safetensors", "small.safetensors", "bfloat16")
    >>> difference = checkpoint.diff("model.safetensors", "small.safetensors").tensors[0]
    >>> print(difference.explanation)
    B is A rounded once (every element)

    """
    tolerances = _tolerances(rtol, atol)
    workers = min(checked_threads(threads), _MOST_WORKERS)
    dtypes = None if dtype_map is None else chosen_dtypes(dtype, dtype_map, None, "variable")
    asked = None if dtypes is not None else dtype
    paths = {"first": first, "second": second} | (
        {} if reference is None else {"reference": reference}
    )
    with ExitStack() as stack:
        opened = [
            stack.enter_context(open_checkpoint(source_path(path, name), decodes=True))
            for name, path in paths.items()
        ]
        decide: Decide | None = None
        if dtypes is not None:
            if dtypes.is_general:
                dtypes = CheckpointModel(opened[0]).bound(dtypes)
            decide = partial(decided, dtypes)
        left, right, *others = (
            Side.decoded(
                source,
                opened[place == 0],
                dtype=asked,
                arithmetic=arithmetic,
                threads=min(workers, _MOST_DECODERS),
                decide=decide if place == 0 else None,
                piece_bytes=_PIECES_BYTES // max(workers, 2),
            )
            for place, source in enumerate(opened)
        )
        for side in (left, right, *others):
            stack.callback(side.close)
        pairing = paired(left, right, rename_mapping(rename, left, right))
        comparing = _Comparing(
            left,
            right,
            others[0] if others else None,
            opened=opened,
            tolerances=tolerances,
            threads=threads,
            pool=stack.enter_context(ThreadPoolExecutor(workers + 1)),
            workers=workers,
        )
        # Blocks up to the largest that was freed are not mapped anew by glibc, as pieces would be.
        np.empty(_KEPT_BYTES, np.uint8)
        meter = ProgressMeter(sum(left.info(name).nbytes for name in pairing.pairs), progress)
        tensors = [
            TensorDiff(name, reason, tied_to=tied, beyond=tolerances and 1)
            for reason, lonely in (
                ("only in A", pairing.only_left),
                ("only in B", pairing.only_right),
            )
            for name, tied in lonely.items()
        ]
        for name, other in pairing.pairs.items():
            meter.starts(name)
            tensors.append(comparing.compared(name, other, meter))
            meter.finished(left.info(name).nbytes)
        meter.starts(None)
        for side in (left, right, *others):
            side.check_unchanged()
        return Diff(
            str(first),
            str(second),
            None if reference is None else str(reference),
            tuple(sorted(tensors, key=severity)),
            _metadata(left, right),
            tolerances is not None,
        )


def _tolerances(rtol: float | None, atol: float | None) -> tuple[float, float] | None:
    if rtol is None and atol is None:
        return None
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value is not None and not (is_real(value) and value >= 0 and math.isfinite(value)):
            raise ValueError(f"{argument(name)} must be a number from 0 on, not {value!r}")
    return rtol or 0.0, atol or 0.0


def _metadata(left: Side, right: Side) -> dict[str, tuple[str | None, str | None]]:
    """Return the keys of metadata that differ; none where one of the two is decoded."""
    if left.decodes or right.decodes:
        return {}
    ahead, behind = left.metadata, right.metadata
    return {
        key: (ahead.get(key), behind.get(key))
        for key in dict.fromkeys([*ahead, *behind])
        if ahead.get(key) != behind.get(key)
    }


class _Comparing:
    """Compares pairs of tensors of two checkpoints."""

    def __init__(
        self,
        left: Side,
        right: Side,
        reference: Side | None,
        *,
        opened: Sequence[Checkpoint],
        tolerances: tuple[float, float] | None,
        threads: int | None,
        pool: Executor,
        workers: int,
    ) -> None:
        self._pool, self._workers = pool, workers
        self._left, self._right, self._reference = left, right, reference
        self._quantized = [left.weights, right.weights]
        self._stored = [Side(source) for source in opened[:2]]
        self._schemes = SchemeProver(threads)
        self._amaxes: dict[str, float] = {}
        self._known = KnownRecipes()
        self._tolerances, self._threads = tolerances, threads

    def compared(self, name: str, other: str, meter: ProgressMeter) -> TensorDiff:
        """Compare the tensor `name` of A with `other` of B."""
        left, right = self._left, self._right
        shapes = left.shape(name), right.shape(other)
        stored = left.info(name), right.info(other)
        formats = left.format(name, stored[1].format), right.format(other, stored[0].format)
        labels = tuple(known or info.stored for known, info in zip(formats, stored, strict=True))
        tensor = TensorDiff(
            name,
            "equal",
            None if name == other else other,
            formats=(labels[0], labels[1]),
            quantized=(left.is_decoded(name), right.is_decoded(other)),
            shapes=shapes,
            beyond=None if self._tolerances is None else 0,
        )
        if shapes[0] != shapes[1]:
            return replace(tensor, reason="shapes", beyond=self._tolerances and 1)
        if formats == (None, None) and stored[0].stored == stored[1].stored:
            return self._bytes_compared(tensor, name, other)
        if formats[0] is None or formats[1] is None or common_format(*formats) is None:
            return replace(tensor, reason="formats", beyond=self._tolerances and 1)
        return self._values_compared(tensor, (name, other), (formats[0], formats[1]), meter)

    def _bytes_compared(self, tensor: TensorDiff, name: str, other: str) -> TensorDiff:
        """Compare tensors in a format that castwise does not know, byte by byte."""
        different, count, place = 0, 0, None
        for left, right in in_step(self._left.pieces(name, None), self._right.pieces(other, None)):
            places = np.flatnonzero(left != right)
            if places.size and place is None:
                place = count + int(places[0])
            different += places.size
            count += left.size
        if not different:
            return replace(tensor, count=count)
        return replace(
            tensor,
            reason="values",
            count=count,
            different=different,
            beyond=self._tolerances and different,
            max_abs_index=None if place is None else (place,),
        )

    def _values_compared(
        self,
        tensor: TensorDiff,
        names: tuple[str, str],
        formats: tuple[str, str],
        meter: ProgressMeter,
    ) -> TensorDiff:
        name, other = names
        shape = self._left.shape(name)
        nbytes, size = self._left.info(name).nbytes, max(math.prod(shape), 1)
        measures = Measures(*formats, self._tolerances, self._threads)
        prover = Prover(*formats, size, self._known, self._threads)

        def lefts() -> Iterator[NDArray[Any]]:
            return self._left.pieces(name, formats[0])

        def pairs() -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
            return in_step(lefts(), self._right.pieces(other, formats[1]))

        are_floats = {format_info(known).kind for known in formats} == {"float"}
        search = trial = None
        if are_floats:
            weight = self._quantized[1].get(other) if tensor.quantized[1] else None
            search = self._schemes.search(
                lefts,
                pairs,
                shape=shape,
                to=formats[1],
                weight=weight,
                form=partial(self._form, other),
                shared_amax=partial(self._shared_amax, name),
            )
            # Of others it is not likely that a recipe explains them.
            trial = search.trial() if tensor.quantized == (False, True) else None
        walk = PieceWalk(measures, prover, trial, pool=self._pool, workers=self._workers)
        unmeasured = walk.over(
            pairs(), lambda: meter.reaches(round(measures.count / size * nbytes), name)
        )
        if measures.different and unmeasured:
            for (left, _), place in zip(pairs(), range(max(unmeasured) + 1), strict=False):
                if place in unmeasured:
                    measures.add_signal(left)
        explanation = None
        if other in self._right.transposed and not measures.different:
            explanation = CastExplanation(_TURNED, {"transposed": True}, measures.count)
        elif measures.different or formats[0] != formats[1]:
            explanation = self._explained(tensor, prover, pairs, search, sqnr_db=measures.sqnr_db)
        ratios = None
        if self._reference is not None and name in self._reference.names:
            ratios = (
                self._error_ratio(self._left, name, name, formats[0]),
                self._error_ratio(self._right, other, name, formats[1]),
            )
        is_equal = not measures.different
        reason = "values" if not is_equal else "equal" if formats[0] == formats[1] else "dtype"

        def index(place: int) -> tuple[int, ...]:
            return tuple(int(axis) for axis in np.unravel_index(place, shape))

        measured = replace(
            tensor,
            reason=reason,
            count=measures.count,
            different=measures.different,
            beyond=None if self._tolerances is None else measures.beyond,
            max_ulp=measures.max_ulp,
            max_abs=measures.gap.size,
            max_abs_index=None if measures.gap.values is None else index(measures.gap.place),
            max_abs_values=measures.gap.values,
            max_rel=measures.max_rel,
            max_rel_index=None if measures.rel_values is None else index(measures.rel_place),
            max_rel_values=measures.rel_values,
            sqnr_db=None if is_equal else measures.sqnr_db,
            error_ratios=ratios,
            explanation=explanation,
        )
        return self._with_scales(measured, name, other)

    def _explained(
        self,
        tensor: TensorDiff,
        prover: Prover,
        pairs: Pairs,
        search: SchemeSearch | None,
        *,
        sqnr_db: float | None,
    ) -> CastExplanation | None:
        """Return what makes B of A: of what fits alike a scheme if B is quantised, else a cast."""
        is_quantized = tensor.quantized[1]
        is_likely = is_quantized or (
            sqnr_db is not None and _LEAST_DECIBELS < sqnr_db < _MOST_DECIBELS
        )
        if sqnr_db is None or not is_likely:
            search = None
        if search is not None and (is_quantized or prover.has_failed):
            proved = search.proved()
            if proved is not None:
                return proved
        if all(tensor.quantized) and self._is_transcoded(tensor):
            return CastExplanation(_TRANSCODED, {"transcoded": True}, tensor.count)
        assert tensor.shapes is not None, "they are alike"  # noqa: S101
        found = prover.explanation(pairs, tensor.shapes[0])
        if found is not None and found.every_element and not is_quantized:
            return found
        quantized = None if search is None else search.explanation()
        both = (quantized, found) if is_quantized else (found, quantized)
        fitting = [explanation for explanation in both if explanation is not None]
        return min(fitting, key=lambda explanation: explanation.disagreeing, default=None)

    def _is_transcoded(self, tensor: TensorDiff) -> bool:
        """Return True if both are quantised with the same codes and scales."""
        left = self._left.decodings.get(tensor.name)
        right = self._right.decodings.get(tensor.renamed or tensor.name)
        return left is not None and right is not None and have_same_parts(left(), right())

    def _form(self, name: str) -> QuantizedArray | None:
        """Return some rows of a weight of B as they are stored; None if it is plain."""
        plan = self._right.decodings.get(name)
        return None if plan is None else first_rows(plan())

    def _shared_amax(self, name: str) -> float:
        """Return the largest magnitude of a tensor of A and of those that engines fuse with it."""
        partners = self._left.model.partners(name)
        return max(self._amax(other) for other in partners if other in self._left.names)

    def _amax(self, name: str) -> float:
        if name not in self._amaxes:
            pieces = self._left.pieces(name, self._left.format(name, None))
            self._amaxes[name] = max(
                (block_amax(piece.reshape(1, -1)) for piece in pieces), default=0
            )
        return self._amaxes[name]

    def _with_scales(self, tensor: TensorDiff, name: str, other: str) -> TensorDiff:
        """Add how the stored scales of two quantised weights differ, and whether that is all."""
        left, right = self._quantized[0].get(name), self._quantized[1].get(other)
        if left is None or right is None or left.scheme != right.scheme or not tensor.different:
            return tensor
        scales = self._stored_arrays(left.scale, right.scale)
        shifts = None if scales is None else scale_shifts(*scales)
        if shifts is None or set(shifts) == {0}:
            return tensor
        tensor = replace(tensor, scale_shifts=shifts)
        codes = self._stored_arrays(left.payload, right.payload) if len(shifts) == 1 else None
        if codes is None or not _same_bytes(*codes):
            return tensor
        text = f"B has the codes of A, and {shifts_text(shifts)}"
        options = {"scale_shift": next(iter(shifts))}
        return replace(tensor, explanation=CastExplanation(text, options, tensor.count))

    def _stored_arrays(
        self, left: str | None, right: str | None
    ) -> tuple[NDArray[Any], NDArray[Any]] | None:
        """Read a tensor of each of the two as it is stored; None if one has none of that name."""
        ahead, behind = self._stored
        self._left.close()
        self._right.close()
        if left not in ahead.names or right not in behind.names:
            return None
        return ahead.array(left), behind.array(right)

    def _error_ratio(self, side: Side, name: str, origin: str, to: str) -> float | None:
        """Return the error of a tensor over that of the reference, rounded once to its format."""
        reference = self._reference
        if reference is None or side.is_decoded(name):
            return None
        source = reference.format(origin, to)
        if source is None or common_format(source, to) is None:
            return None
        if reference.shape(origin) != side.shape(name):
            return None
        noise = least = 0.0
        pieces = in_step(reference.pieces(origin, source), side.pieces(name, to))
        with np.errstate(all="ignore"):
            for exact, rounded in pieces:
                wide = exact.astype(np.float64)
                best = cast(exact, numpy_dtype(to), threads=self._threads).astype(np.float64)
                noise += _energy(wide - rounded.astype(np.float64))
                least += _energy(wide - best)
        if not least:
            return 1.0 if not noise else math.inf
        return math.sqrt(noise / least)


def _same_bytes(left: NDArray[Any], right: NDArray[Any]) -> bool:
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    ahead, behind = (np.ascontiguousarray(array).view(np.uint8) for array in (left, right))
    return bool(np.array_equal(ahead, behind))


def _energy(errors: NDArray[np.float64]) -> float:
    """Return the sum of squares of the errors that are finite."""
    finite = errors[np.isfinite(errors)]
    return float(np.dot(finite, finite))
