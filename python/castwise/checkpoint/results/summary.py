"""The summary of a conversion, or of a dry run: what became of all tensors, and what that lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from castwise._core import CastReport
from castwise._numbers import is_real
from castwise._options import FindingKind
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.results.report import (
    FINDINGS,
    LOSSES,
    MAX_ZEROS,
    SCHEMA,
    CastRow,
    Finding,
    KeptTensors,
    RowReport,
    kept_text,
    report_dict,
)
from castwise.checkpoint.results.sheets import GROUPS, conversion_sheet, counts_text, plan_sheet
from castwise.models.architecture import normalize_name
from castwise.quantization.producers.schemes import bits_of_schemes
from castwise.rendering import Rendered
from castwise.rendering.sheet import Lines, Sheet
from castwise.rendering.text import unused_lines
from castwise.text.brief import brief, brief_fields, counted, listed, plain_dict, shorten
from castwise.text.wording import argument, parenthesis, setting

# Of 3 bits all values of a normal distribution may become zero, of each further bit half.
_NORMAL_BITS = 3


@dataclass(frozen=True, slots=True)
class ImportanceUse:
    """How the numbers of input channels were used.

    Attributes
    ----------
    path
        Their file.
    weighted
        How many weights have scales that were searched by them.
    unweighted
        The weights that were searched without them, wholly or some experts, each with the reason.
    unused
        The names in the file that are those of no weight that was searched.

    """

    path: str
    weighted: int
    unweighted: Mapping[str, str]
    unused: Sequence[str]

    __repr__ = brief_fields

    def lines(self) -> list[str]:
        """Write what a person should know, names of all layers in one."""
        lines = [f"by {self.path}: the scales of {counted(self.weighted, 'weight')} are searched"]
        reasons = dict.fromkeys(self.unweighted.values())
        for reason in reasons:
            names = [name for name, other in self.unweighted.items() if other == reason]
            lines.append(f"searched without importance, since {reason}: {_names_text(names)}")
        if self.unused:
            lines.append(f"names in it that match no searched weight: {_names_text(self.unused)}")
        return lines

    to_dict = plain_dict


@dataclass(frozen=True, slots=True)
class CastSummary(Rendered):
    """The result of a conversion.

    Attributes
    ----------
    source
        The source of the conversion.
    destination
        The one that was written.
    options
        Rounding, overflow, nan and seed of the run. They include a seed that castwise chose, so
        that every run can be repeated.
    rows
        Every tensor, in the order in which it was written.
    total
        The sum of the reports, None if nothing was cast.
    unused_patterns
        Keys of the map that matched no tensor, each with the name that is spelled most like it.
    max_zeros
        The share of a tensor's nonzero values that may become zero without an underflow: that of
        the run, or by default that of `default_max_zeros`.
    action
        The conversion of the tensors: "cast", "quantized", "decoded" or "transcoded".
    kept
        The unchanged tensors by role and reason, if the model was quantized, or cast by a map that
        comes with castwise.
    importance
        How the numbers of input channels were used, where there are some.

    """

    source: str
    destination: str
    options: dict[str, Any]
    rows: Sequence[CastRow]
    unused_patterns: Mapping[str, str | None] = field(default_factory=dict)
    max_zeros: float = MAX_ZEROS
    action: str = "converted"
    kept: Sequence[KeptTensors] = ()
    importance: ImportanceUse | None = None

    _VERB: ClassVar[str] = ""

    def __repr__(self) -> str:
        old_size, new_size = (
            sum(getattr(row, f"nbytes_{when}") for row in self.rows) for when in ("before", "after")
        )
        findings = self.findings()
        return brief(
            self,
            f"{shorten(str(self.source), 60)!r} -> {shorten(str(self.destination), 60)!r}",
            counts_text(self.rows, self.action, self._VERB),
            f"{old_size:,} -> {counted(new_size, 'byte')}",
            f"lost: {listed(finding.kind for finding in findings)}" if findings else None,
        )

    def __sheet__(self) -> Sheet:
        """Return tables of the tensors, those of all layers in one row, and what was lost."""
        by_kind: dict[str, list[Finding]] = {}
        for finding in self.findings():
            by_kind.setdefault(finding.kind, []).append(finding)
        findings = [
            f"{kind}: {sum(finding.count for finding in losses):,} values of "
            f"{counted(len(losses), 'tensor')}, most of "
            f"{max(losses, key=lambda finding: finding.count).tensor}"
            for kind, losses in by_kind.items()
        ]
        return [*summary_sheet(self), Lines([*findings, *unused_lines(self.unused_patterns)])]

    @property
    def total(self) -> RowReport | None:
        """The sum of the reports of all tensors that were cast or decoded."""
        reports = [row.report for row in self.rows if row.report is not None]
        return sum(reports[1:], reports[0]) if reports else None

    @property
    def changed(self) -> bool:
        """True if a tensor has another format than before."""
        return any(row.target not in {None, row.source} for row in self.rows)

    @property
    def out_of_range(self) -> int:
        """Values that became infinite or NaN, and integers that wrapped."""
        return sum(
            row.not_finite(losses) + losses["wrapped"]
            for row, losses in zip(self.rows, map(self._losses, self.rows), strict=True)
        )

    @property
    def nan_lost(self) -> int:
        """NaN that became numbers because the format has no NaN, without `nan="zero"`.

        float4, float6, the integers and bool have no NaN.
        """
        return sum(self._losses(row)["nan-lost"] for row in self.rows)

    @property
    def zeroed(self) -> int:
        """Nonzero values that became zero."""
        return sum(row.zeroed for row in self.rows)

    def findings(
        self, kinds: FindingKind | Iterable[FindingKind] = LOSSES, *, max_zeros: float | None = None
    ) -> list[Finding]:
        """List what was lost, tensor by tensor.

        Parameters
        ----------
        kinds
            The kinds to list, or one; see `Finding`. By default all but "saturated" and "inexact".
        max_zeros
            The share of a tensor's nonzero values, from 0 to 1, that may become zero without an
            underflow; by default that of the run, so that the exit code agrees.

        Raises
        ------
        ValueError
            There is no such kind, or `max_zeros` is not a share.

        """
        row_kinds = chosen_kinds(kinds)
        share = self.max_zeros if max_zeros is None else checked_share(max_zeros)
        return [
            Finding(kind, row.name, losses[kind], row.shard)
            for row in self.rows
            for losses in [self._losses(row, share)]
            for kind in row_kinds
            if losses[kind]
        ]

    def _losses(self, row: CastRow, share: float = MAX_ZEROS) -> dict[str, int]:
        return row.losses(max_zeros=share, nan=self.options.get("nan", "keep"))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; see `report_dict`."""
        return summary_dict(self, [row.to_dict() for row in self.rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class CastPlan(CastSummary):
    """The result of a dry run: the rows of a conversion, without reports.

    Attributes
    ----------
    needed_bytes
        The least number of bytes of the result: its tensors and copied files, without those that an
        interrupted run has kept if this run would resume it.
    free_bytes
        Free bytes in the file system of the destination; None if it does not report them.
    left_out
        Files and folders of the source that would be copied only with `include`.

    """

    _VERB: ClassVar[str] = "to be "

    needed_bytes: int
    free_bytes: int | None
    left_out: Sequence[str]

    __repr__ = CastSummary.__repr__

    def __sheet__(self) -> Sheet:
        """Return a table of what would become of the tensors, and the room for it."""
        return preview_sheet(self)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            **CastSummary.to_dict(self),
            "dry_run": True,
            "needed_bytes": self.needed_bytes,
            "free_bytes": self.free_bytes,
            "left_out": list(self.left_out),
        }


def checked_share(max_zeros: object) -> float:
    """Return a share from 0 to 1; ValueError for anything else."""
    if not is_real(max_zeros):
        raise TypeError(argument("max_zeros", max_zeros) + " is not a share; use a number, as 0.05")
    if not 0 <= max_zeros <= 1:
        raise ValueError(argument("max_zeros", max_zeros) + " is not a share, which is from 0 to 1")
    return float(max_zeros)


def default_max_zeros(rows: Iterable[CastRow]) -> float:
    """Return the share of a tensor's values that may become zero where nobody says it."""
    # The share is 1 %. For quantized weights it is about twice what normally distributed ones lose
    # in so few bits.
    names = {row.target for row in rows if isinstance(row.report, CastReport)}
    bits = [bits for name, bits in bits_of_schemes().items() if name in names]
    return min(2.0 ** (_NORMAL_BITS - min(bits)), 1.0) if bits else MAX_ZEROS


def chosen_kinds(
    kinds: FindingKind | Iterable[FindingKind], name: str = "kinds"
) -> tuple[FindingKind, ...]:
    """Return kinds of findings, of which one may stand alone; ValueError if one is none."""
    if not isinstance(kinds, Iterable):
        known = ", ".join(FINDINGS)
        raise TypeError(setting(name, kinds) + f" is not a finding or several; those are {known}")
    names = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    for kind in names:
        if kind not in FINDINGS:
            raise ValueError(f"{kind!r} is not a finding; those are {', '.join(FINDINGS)}")
    return names


def summary_sheet(summary: CastSummary, detail: str = GROUPS, action: str | None = None) -> Sheet:
    """Return the tables of a summary, by default with its own action; see `conversion_sheet`."""
    paths = str(summary.source), str(summary.destination)
    seed = summary.options.get("seed")
    action = action or summary.action
    sheet = conversion_sheet(summary.rows, paths, detail=detail, action=action, seed=seed)
    return [*sheet, *_lines_of_weights(summary)]


def preview_sheet(plan: CastPlan, detail: str = GROUPS) -> Sheet:
    """Return the tables of a plan; see `plan_sheet`."""
    sheet = plan_sheet(
        plan.rows,
        (str(plan.source), str(plan.destination)),
        detail=detail,
        action=plan.action,
        room=(plan.needed_bytes, plan.free_bytes),
        left_out=plan.left_out,
    )
    return [*sheet, *_lines_of_weights(plan)]


def _lines_of_weights(summary: CastSummary) -> Iterator[Lines]:
    """Say what stays, if anything does, and how importance was used, if there was some."""
    if summary.kept:
        what = "not quantized" if summary.action == "quantized" else "unchanged"
        yield Lines([what + ": " + kept_text(summary.kept)])
    if summary.importance is not None:
        yield Lines(summary.importance.lines())


def _names_text(names: Iterable[str]) -> str:
    """List names, those of several layers as one with their count."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(normalize_name(name), []).append(name)
    return ", ".join(
        each[0] if len(each) == 1 else f"{group} ({len(each):,})" for group, each in groups.items()
    )


def check_losses(summary: CastSummary, kinds: Iterable[FindingKind]) -> None:
    """Refuse a result that lost something and would replace its source."""
    findings = summary.findings(kinds)
    if not findings:
        return
    most = max(findings, key=lambda finding: finding.count)
    everything = parenthesis("fail_on", (), option="--exit-zero", typed=True)
    more = f" and {len(findings) - 1:,} more findings" if findings[1:] else ""
    raise CheckpointError(
        f"{most.count:,} value{'s' * (most.count != 1)} of tensor {most.tensor!r} would be lost "
        f"({most.kind}){more}; {summary.source}, which the result would replace, is as it was. "
        "Name another destination, or accept these losses " + everything
    )


def summary_dict(summary: CastSummary, tensors: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a summary as plain values, with these in the place of its rows."""
    return {
        "schema": SCHEMA,
        "source": summary.source,
        "destination": summary.destination,
        "options": dict(summary.options),
        "tensors": tensors,
        "total": report_dict(summary.total),
        "nbytes_before": sum(row.nbytes_before for row in summary.rows),
        "nbytes_after": sum(row.nbytes_after for row in summary.rows),
        "unused_patterns": dict(summary.unused_patterns),
        "kept": [tensors.to_dict() for tensors in summary.kept],
        **({} if summary.importance is None else {"importance": summary.importance.to_dict()}),
        "out_of_range": summary.out_of_range,
        "nan_lost": summary.nan_lost,
        "zeroed": summary.zeroed,
        "max_zeros": summary.max_zeros,
        "findings": [finding.to_dict() for finding in summary.findings()],
    }
