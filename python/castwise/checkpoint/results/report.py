"""The report of a conversion, tensor by tensor: how far it is, and what each became and lost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from castwise._core import CastReport, finfo, formats
from castwise._options import FindingKind
from castwise.checkpoint._tensors import Planned, TensorInfo
from castwise.text.brief import brief_fields, counted, plain_dict
from castwise.text.wording import join

# The version of the JSON of reports; another if a key changes its meaning or goes.
SCHEMA = 1

_FORMATS = frozenset(formats())
# Formats without infinity, in which what overflows comes out as another number.
_WRAPPING = frozenset(name for name in _FORMATS if finfo(name).kind in ("int", "uint", "bool"))


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is: bytes of the source, and the tensor that is next or being cast.

    The name is None at the end.
    """

    done: int
    total: int
    name: str | None


class ProgressMeter:
    """Adds up the bytes of the source and tells a listener."""

    def __init__(self, total: int, listener: Callable[[Progress], None] | None) -> None:
        if listener is not None and not callable(listener):
            raise TypeError(f"progress must be a function of a Progress, or None, not {listener!r}")
        self._total = total
        self._bytes_done = 0
        self._listener = listener

    @property
    def is_heard(self) -> bool:
        """True if there is a listener."""
        return self._listener is not None

    def starts(self, name: str | None) -> None:
        """Say that the tensor `name` is next; None when there is no other."""
        self.reaches(0, name)

    def reaches(self, nbytes: int, name: str | None) -> None:
        """Say that `nbytes` of the tensor `name` have been taken."""
        if self._listener is not None:
            self._listener(Progress(self._bytes_done + nbytes, self._total, name))

    def finish(self, nbytes: int) -> None:
        """Count a tensor of `nbytes` as done."""
        self._bytes_done += nbytes


@dataclass(frozen=True, slots=True)
class Finding:
    """Values of one tensor that a cast or decoding lost.

    Attributes
    ----------
    kind
        "overflow": values became infinite or NaN. "nan": values became NaN, for example by
        overflow. "wrapped": integers became other integers. "nan-lost": NaN became numbers without
        `nan="zero"`. "underflow": too many values became zero. "scale": the format in which scales
        are stored, or in which the producer's decoder multiplies, does not hold the scales of this
        weight, so that it loses at least 1 dB more than other weights. "saturated": values became
        the largest or smallest number. "inexact": values changed.
    tensor
        Name of the tensor.
    count
        How many values.
    shard
        The file of a sharded folder that holds the tensor, else None.

    """

    kind: FindingKind
    tensor: str
    count: int
    shard: str | None = None

    __repr__ = brief_fields

    to_dict = plain_dict


@dataclass(frozen=True, slots=True)
class KeptTensors:
    """The floating tensors of one role that stay as they are, for one reason.

    Attributes
    ----------
    role
        What they are: one of `castwise.models.ROLES`, or "unknown".
    reason
        Why they stay.
    count
        How many.
    nbytes
        Their bytes.
    share
        Their part of the bytes of all tensors, from 0 to 1.

    """

    role: str
    reason: str
    count: int
    nbytes: int
    share: float

    __repr__ = brief_fields

    def __str__(self) -> str:
        nouns = _ROLE_NAMES.get(self.role, "other tensors")
        noun = nouns if self.count > 1 else nouns.removesuffix("s")
        return f"{self.count:,} {noun}, {_percent(self.share)} of the bytes: " + self.reason

    to_dict = plain_dict


_ROLE_NAMES = {
    "linear": "linear layers",
    "experts": "tensors of all experts",
    "embedding": "embeddings",
    "head": "heads",
    "convolution": "convolutions",
    "norm": "norms",
    "router": "routers",
    "recurrent": "recurrent parameters",
    "position": "position tables",
    "bias": "vectors of biases",
    "buffer": "buffers",
}
# Kept tensors below the one share are told together; above the other, percents need no decimals.
_SMALL_SHARE, _LARGE_SHARE = 0.005, 0.1


def _percent(share: float) -> str:
    return f"{100 * share:.{'0f' if share >= _LARGE_SHARE else '2g'}} %"


def kept_tensors(rows: Iterable[tuple[TensorInfo, str, str]], nbytes: int) -> list[KeptTensors]:
    """Count tensors, each with its role and why it stays; `nbytes` are those of all tensors."""
    groups: dict[tuple[str, str], list[int]] = {}
    for info, role, reason in rows:
        groups.setdefault((role, reason), []).append(info.nbytes)
    reasons = [
        KeptTensors(role, reason, len(sizes), sum(sizes), sum(sizes) / max(nbytes, 1))
        for (role, reason), sizes in groups.items()
    ]
    return sorted(reasons, key=lambda tensors: -tensors.nbytes)


def kept_text(groups: Sequence[KeptTensors]) -> str:
    """Write in a line the kept tensors with a share of the bytes, and the number of others."""
    large = [tensors for tensors in groups if tensors.share >= _SMALL_SHARE]
    rest = sum(tensors.count for tensors in groups if tensors.share < _SMALL_SHARE)
    share = sum(tensors.share for tensors in groups if tensors.share < _SMALL_SHARE)
    text = f"{counted(rest, 'other tensor')}, {_percent(share)} of the bytes"
    others = [text] if rest else []
    return join("; ", [*map(str, large), *others])


# The kinds of findings that are losses in any model.
LOSSES: tuple[FindingKind, ...] = ("overflow", "nan", "wrapped", "nan-lost", "underflow", "scale")

# All kinds of findings.
FINDINGS: tuple[FindingKind, ...] = (*LOSSES, "saturated", "inexact")

# The share of a tensor's nonzero values that may become zero before that is a finding.
MAX_ZEROS = 0.01


@dataclass(frozen=True, slots=True)
class DecodeReport:
    """What decoding a quantized weight lost; reports can be added, also to those of casts.

    Attributes
    ----------
    count
        Elements.
    overflowed
        Infinite values: their scale is infinite, or their product is beyond the range.
    underflowed
        Codes that are not 0, but whose product with their scale is 0.
    nan_out
        NaN values: their code or scale is NaN, or 0 is multiplied by an infinite scale.
    zero_in
        Codes that are 0. castwise counts them only where a value is lost.

    """

    count: int = 0
    overflowed: int = 0
    underflowed: int = 0
    nan_out: int = 0
    zero_in: int = 0

    def __add__(self, other: DecodeReport | CastReport) -> DecodeReport:
        """Add the counts of another report."""
        names = [field.name for field in fields(self)]
        return DecodeReport(*(getattr(self, name) + getattr(other, name) for name in names))

    __radd__ = __add__

    to_dict = plain_dict


# What became of a tensor's values, as a row has it.
RowReport = CastReport | DecodeReport


# Values are multiplied by the roots of the numbers of their input channels, so that squared errors
# are by the numbers. Experts without numbers are not in it.
@dataclass(frozen=True, slots=True)
class WeightedReport:
    """What became of a weight's values, and the same of these times what their channels count."""

    values: CastReport
    weighted: CastReport

    def __add__(self, other: WeightedReport) -> WeightedReport:
        """Add the counts and sums of another report."""
        return WeightedReport(self.values + other.values, self.weighted + other.weighted)


# What became of a tensor's values, as a run counts it.
Report = RowReport | WeightedReport


def add_report(total: Report | None, report: Report | None) -> Report | None:
    """Return the report of values of which some are in the one, and some in the other."""
    if total is None or report is None:
        return report if total is None else total
    if isinstance(total, WeightedReport) or isinstance(report, WeightedReport):
        assert isinstance(total, WeightedReport), "of the same weight"  # noqa: S101
        assert isinstance(report, WeightedReport), "of the same weight"  # noqa: S101
        return total + report
    return total + report


class CastRow(NamedTuple):
    """One tensor of a checkpoint that was cast.

    Attributes
    ----------
    name
        Key of the tensor.
    shape
        Number of elements along each axis.
    source
        Its format before, as the source's container calls it if castwise knows no name.
    target
        Its format in the result, or the scheme of a payload; None if it did not change.
    nbytes_before
        Its size in the source, in bytes, uncompressed.
    nbytes_after
        Its size in the result.
    report
        The losses of the cast, or of decoding the weight; None if it did not change.
    shard
        The file of a folder that holds it, by its path there; None if a single file does.
    pattern
        The key of the map or policy map that decided; None if the default decided, or nothing did.
    decided_by
        The argument that decided: "dtype", "map" or "policy"; None if none did.
    weighted
        As `report`, with squared errors weighted by input channel; None without importance.

    """

    name: str
    shape: tuple[int, ...]
    source: str
    target: str | None
    nbytes_before: int
    nbytes_after: int
    report: RowReport | None
    shard: str | None = None
    pattern: str | None = None
    decided_by: str | None = None
    weighted: CastReport | None = None

    def __repr__(self) -> str:
        return brief_fields(self)

    @classmethod
    def of(
        cls, plan: Planned, nbytes_after: int, report: Report | None, shard: str | None
    ) -> CastRow:
        """Return the row of a planned tensor that was written."""
        name, format_name, _, stored_format, shape, nbytes = plan.info
        source, target = format_name or stored_format, plan.label or plan.target
        sizes, decision = (nbytes, nbytes_after), (plan.pattern, plan.decided_by)
        weighted: CastReport | None = None
        if isinstance(report, WeightedReport):
            weighted, report = report.weighted, report.values
        return cls(name, shape, source, target, *sizes, report, shard, *decision, weighted)

    def with_report(self, report: Report | None) -> CastRow:
        """Return the row of the same tensor, of whose values a run counted that."""
        if isinstance(report, WeightedReport):
            return self._replace(report=report.values, weighted=report.weighted)
        return self._replace(report=report, weighted=None)

    @property
    def whole_report(self) -> Report | None:
        """What a run counted."""
        if self.weighted is None or not isinstance(self.report, CastReport):
            return self.report
        return WeightedReport(self.report, self.weighted)

    @property
    def zeroed(self) -> int:
        """Nonzero values that became zero."""
        return self.report.underflowed if self.report is not None else 0

    @property
    def zeroed_share(self) -> float:
        """Nonzero values that became zero, as a share of the finite nonzero ones; from 0 to 1."""
        report = self.report
        if report is None or not report.underflowed:
            return 0.0
        without_value = report.zero_in
        if isinstance(report, CastReport):
            without_value += report.nan_in + report.inf_in
        return report.underflowed / (report.count - without_value)

    def not_finite(self, losses: Mapping[str, int]) -> int:
        """Count values that became infinite or NaN; overflow of a cast counts both."""
        both = losses["overflow"], losses["nan"]
        return sum(both) if isinstance(self.report, DecodeReport) else max(both)

    @property
    def has_scheme(self) -> bool:
        """True for a weight that was quantized before, or is now, and not for a scale of it."""
        return self._is_scheme or self.source not in _FORMATS

    @property
    def _is_scheme(self) -> bool:
        """True for a payload: what is counted as saturated is values with scales out of range."""
        return self.target is not None and self.target not in _FORMATS

    @property
    def _wraps(self) -> bool:
        return self.target in _WRAPPING

    def losses(self, *, max_zeros: float = MAX_ZEROS, nan: str = "keep") -> dict[str, int]:
        """Count the values of each kind of finding; see `Finding`.

        Parameters
        ----------
        max_zeros
            Values that became zero count if their share of the nonzero values is larger.
        nan
            The option of the cast.

        """
        if self.report is None:
            return dict.fromkeys(FINDINGS, 0)
        zeros = self.report.underflowed if self.zeroed_share > max_zeros else 0
        if isinstance(self.report, DecodeReport):
            counts = {"overflow": self.report.overflowed, "nan": self.report.nan_out}
            return dict.fromkeys(FINDINGS, 0) | counts | {"underflow": zeros}
        report, makes_zeros = self.report, nan == "zero"
        nan_added = report.nan_out - (0 if makes_zeros else report.nan_in)
        return {
            "overflow": 0 if self._wraps else report.overflowed,
            "nan": max(nan_added, 0),
            "wrapped": report.overflowed if self._wraps else 0,
            "nan-lost": 0 if makes_zeros else max(-nan_added, 0),
            "underflow": zeros,
            "scale": report.saturated if self._is_scheme else 0,
            "saturated": 0 if self._is_scheme else report.saturated,
            "inexact": report.count - report.exact,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; see `report_dict`."""
        return {
            "name": self.name,
            "shard": self.shard,
            "shape": list(self.shape),
            "from": self.source,
            "to": self.target,
            "decided_by": self.decided_by,
            "pattern": self.pattern,
            "nbytes_before": self.nbytes_before,
            "nbytes_after": self.nbytes_after,
            "zeroed_share": self.zeroed_share,
            "report": report_dict(self.report),
            **({} if self.weighted is None else {"weighted_sqnr_db": self._weighted_db}),
        }

    @property
    def _weighted_db(self) -> float | None:
        ratio = math.nan if self.weighted is None else self.weighted.sqnr_db
        return ratio if math.isfinite(ratio) else None


# Looks at the rows of what was written, before it takes its place; raises to leave it away.
Judge = Callable[[Sequence[CastRow]], None]


def judge_nothing(rows: Sequence[CastRow]) -> None:
    """Let anything take its place."""
    del rows


def report_dict(report: RowReport | None) -> dict[str, Any] | None:
    """Return a report as plain values that JSON can say."""
    # What is infinite or NaN is None. "infinite" maps the names of those that are infinite to their
    # sign, 1 or -1.
    if report is None or isinstance(report, DecodeReport):
        return None if report is None else report.to_dict()
    values = report.to_dict()
    infinite = {name: 1 if value > 0 else -1 for name, value in values.items() if math.isinf(value)}
    finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
    return {**finite, "infinite": infinite}
