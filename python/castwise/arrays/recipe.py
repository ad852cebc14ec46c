"""A way to cast: one rounding or two, each with its options, and zeros for subnormals."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from castwise._core import CastReport, cast, finfo
from castwise._numbers import BYTE_BITS
from castwise._options import Nan, Overflow, Rounding

NEAREST: Rounding = "nearest-even"

_FLUSHED = {
    "source": "subnormals of A",
    "result": "subnormals of B",
    "step": "subnormals of the format between",
    "both": "subnormals of A and of B",
}


class Recipe(NamedTuple):
    """What may have made B of A: two casts at most, a factor, and zeros for subnormals."""

    # Of the cast to the format of B.
    rounding: Rounding | None = NEAREST
    overflow: Overflow = "ieee"
    nan: Nan = "keep"
    through: str | None = None  # the format that A was cast to before; None if to no other
    # Of the cast to that format.
    step_rounding: Rounding = NEAREST
    step_overflow: Overflow = "ieee"
    # "source", "step", "result" or "both" ends: where subnormals became zero.
    flushed: str | None = None
    factor: float | None = None  # what A was multiplied by, in the cast

    @property
    def cost(self) -> int:
        """How far from a plain cast it is: of recipes that agree the plainest is taken."""
        step = 0
        if self.through is not None:
            # A factor is the dearest of single options: one explains nearly any array.
            step = 4 + 2 * (self.step_overflow != self.overflow)
            if self.step_rounding != self.rounding:
                step += 1
        return (
            step
            + 2 * (self.rounding != NEAREST)
            + (self.overflow != "ieee")
            + 3 * (self.nan != "keep")
            + 5 * (self.flushed is not None)
            + (self.flushed == "both")
            + 6 * (self.factor is not None)
        )

    @property
    def is_plain(self) -> bool:
        """True for one cast, to the nearest."""
        return self == Recipe()

    @property
    def most_ulps(self) -> int | None:
        """How far its results are at most from the nearest number; None if that is not known."""
        if self.through is not None or self.flushed is not None or self.factor is not None:
            return None
        return int(self.rounding != NEAREST)

    def is_reported(self, target: str) -> bool:
        """Return True if the report of one cast says what all of it lost."""
        if self.flushed is not None or self.factor is not None:
            return False
        return self.through is None or not loses(self.through, target)

    def applied(self, array: NDArray[Any], target: str, threads: int | None) -> NDArray[Any]:
        result: NDArray[Any] = self.cast(array, target, threads=threads)
        return result

    def cast(self, array: NDArray[Any], dtype: Any, **options: Any) -> Any:  # noqa: ANN401
        """Cast an array by it, with the options of `castwise.cast` that it leaves open."""
        if self.flushed in {"source", "both"}:
            array = _flush(array)
        if self.through is not None:
            array = self._step(array, threads=options.get("threads"))
        if self.flushed == "step":
            array = _flush(array)
        result = cast(array, dtype, scale=self.factor, **self.options, **options)
        if self.flushed in {"result", "both"}:
            if options.get("out") is None:
                return _flush(result)
            result[...] = _flush(result)
        return result

    def applied_fully(
        self, array: NDArray[Any], target: str, threads: int | None
    ) -> tuple[NDArray[Any], CastReport | None]:
        """Return what it makes of an array, with a report if that says all."""
        if not self.is_reported(target):
            return self.applied(array, target, threads), None
        if self.through is not None:
            step, report = self._step(array, report=True, threads=threads)
            return cast(step, target, threads=threads), report
        result, report = cast(array, target, report=True, threads=threads, **self.options)
        return result, report

    def _step(self, array: NDArray[Any], **options: Any) -> Any:  # noqa: ANN401
        """Cast to the format that lies between."""
        return cast(
            array,
            self.through,
            rounding=self.step_rounding,
            overflow=self.step_overflow,
            nan=self.nan,
            **options,
        )

    @property
    def options(self) -> dict[str, Any]:
        return {"rounding": self.rounding, "overflow": self.overflow, "nan": self.nan}

    def to_dict(self) -> dict[str, Any]:
        """Return the options that differ from none: those of `castwise.cast` always."""
        options = self.options | {"through": self.through}
        if self.through is not None:
            options |= {
                "through_rounding": self.step_rounding,
                "through_overflow": self.step_overflow,
            }
        if self.flushed is not None:
            options["flushed"] = self.flushed
        if self.factor is not None:
            options["scale"] = self.factor
        return options

    def text(self, source: str, target: str) -> str:
        """Say in words what B is."""
        parts = [] if self.factor is None else [f"times {self.factor:.9g}"]
        if self.through is not None and loses(source, self.through):
            twice = "" if source == target else "twice, "
            parts.append(f"rounded {twice}through {self.through}")
        elif source != target:
            parts.append("rounded once" if loses(source, target) else "converted exactly")
        elif not parts and self.flushed is None and self.nan == "keep":
            parts.append("unchanged")
        losses = self._losses(target)
        if self.through is not None and self.step_rounding != self.rounding:
            parts.append(f"{self.step_rounding} and then {self.rounding}")
        elif self.rounding is not None and self.rounding != NEAREST:
            parts.append(self.rounding)
        return ", ".join([f"B is A {parts[0]}" if parts else "B is A", *parts[1:], *losses])

    def _losses(self, target: str) -> list[str]:
        """Say in words what becomes of numbers beyond the range, of NaN and of subnormals."""
        parts: list[str] = []
        if self.overflow == "saturate":
            row = finfo(target)
            is_nan = row.bits == BYTE_BITS and row.kind == "float" and row.specials == "finite-nan"
            also = " where ml_dtypes gives NaN, as torch does from 2.12"
            parts.append(f"saturated{also if is_nan else ''}")
        elif self.step_overflow == "saturate":
            parts.append(f"saturated in {self.through}")
        if self.nan != "keep":
            parts.append("NaN made 0")
        if self.flushed is not None:
            parts.append(f"{_FLUSHED[self.flushed]} made 0")
        return parts


def loses(source: str, target: str) -> bool:
    """Return True if some value of a format is not one of another."""
    source_format, target_format = finfo(source), finfo(target)
    if source_format.kind != "float" or target_format.kind != "float":
        return True
    # A widened mantissa loses nothing if the exponents reach as far, with subnormals.
    return not (
        source_format.mantissa_bits <= target_format.mantissa_bits
        and source_format.max <= target_format.max
        and source_format.smallest_subnormal >= target_format.smallest_subnormal
    )


def _flush(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array with zeros of the same sign in place of its subnormals."""
    if array.dtype.kind == "c":
        return _flush(np.ascontiguousarray(array).view(array.real.dtype)).view(array.dtype)
    info = finfo(array.dtype)
    if info.kind != "float" or not info.mantissa_bits or not info.exponent_bits:
        return array
    array = np.asarray(array, array.dtype.newbyteorder("="), order="C")
    bits = array.view(f"u{info.itemsize}")
    exponent = bits.dtype.type(((1 << info.exponent_bits) - 1) << info.mantissa_bits)
    sign = bits.dtype.type(1 << (info.bits - 1))
    zeros = bits & sign
    if info.specials == "fnuz":  # a zero with a sign is NaN
        is_subnormal = ((bits & exponent) == 0) & (bits != sign)
        zeros = np.zeros_like(bits)
    else:
        is_subnormal = (bits & exponent) == 0
    return np.where(is_subnormal, zeros, bits).view(array.dtype)
