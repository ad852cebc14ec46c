"""Surveys of the gradients of a training run, step by step."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from castwise._core import finfo
from castwise._trees import leaves
from castwise.rendering import Rendered
from castwise.rendering.sheet import (
    Exponents,
    FormatRange,
    Histogram,
    Lines,
    Sheet,
    Table,
    joint_axis,
)
from castwise.surveys._loss_scales import ALL, LossScales, fitting_loss_scales, float_format
from castwise.surveys._prediction import Prediction
from castwise.surveys._survey import Survey, restoring, sum_of, survey
from castwise.text.brief import brief, counted
from castwise.text.wording import check_switch

SCHEMA = 1  # the version of what `GradientLog.to_dict` returns
SHARE = 0.001  # how many of the elements that are not zero a loss scale may lose, by default

_COLUMNS = (
    *("step", "loss scale", "amax", "amin_nonzero", "zeros"),
    *("underflow", "subnormal", "overflow", "fitting", "exponents"),
)
_DRAWN = 20
"""How many steps are drawn, spread over the run."""


@dataclass(frozen=True, slots=True, repr=False)
class GradientSurvey:
    """Where the magnitudes of the gradients of one step lie.

    Attributes
    ----------
    step : int
        The number of the step.
    loss_scale : float
        What the loss was multiplied by.
    unscaled : bool
        Whether the gradients were divided by it before they were surveyed.
    total : Survey
        Of all gradients, as they were recorded.
    by_name : mapping of str to Survey
        Of each gradient; empty unless the log keeps them.

    """

    step: int
    loss_scale: float
    unscaled: bool
    total: Survey
    by_name: Mapping[str, Survey] = field(default_factory=dict)

    @property
    def amax(self) -> float:
        """The largest finite magnitude, without the loss scale; 0.0 if there is none."""
        return self.total.amax / self._divisor

    @property
    def amin_nonzero(self) -> float:
        """The smallest magnitude that is not zero, without the loss scale; 0.0 without."""
        return self.total.amin_nonzero / self._divisor

    def predict(
        self, target: str = "float16", *, loss_scale: float | None = None, name: str | None = None
    ) -> Prediction:
        """Predict what a format loses of the gradients at a loss scale.

        Parameters
        ----------
        target : str
            A format, as `Survey.predict` takes it.
        loss_scale : float, optional
            What the loss is multiplied by; by default what it was.
        name : str, optional
            Of one gradient, and not of all.

        Raises
        ------
        KeyError
            No gradient has this name, or the log does not keep them.
        TypeError, ValueError
            As `Survey.predict`.

        """
        factor = self.loss_scale if loss_scale is None else loss_scale
        return self._of(name).predict(target, scale=factor / self._divisor)

    def loss_scales(
        self, target: str = "float16", *, share: float = SHARE, name: str | None = None
    ) -> LossScales | None:
        """Return the loss scales at which a format holds the gradients.

        At each power of two of the range nothing overflows when castwise casts the gradients to the
        format, and of the elements that are not zero at most a share is smaller than the smallest
        number of the format: so no more become zero. The range is exact if gradients were recorded
        without a loss scale or at one that is a power of two; otherwise the lowest may be twice
        what would do.

        Parameters
        ----------
        target : str
            A float format with a sign.
        share : float
            From 0 to below 1.
        name : str, optional
            Of one gradient, and not of all.

        Returns
        -------
        LossScales or None
            None if there is none, or a gradient is infinite or NaN. From 2**-126 to 2**127 if all
            are zero.

        Raises
        ------
        KeyError
            No gradient has this name, or the log does not keep them.
        TypeError, ValueError
            `target` is not such a format, `share` not in its range.

        """
        return fitting_loss_scales(self._of(name), float_format(target), self._divisor, share)

    @property
    def _divisor(self) -> float:
        return 1.0 if self.unscaled else self.loss_scale

    def _of(self, name: str | None) -> Survey:
        if name is None:
            return self.total
        if name not in self.by_name:
            raise KeyError(
                f"name={name!r} is not among the {counted(len(self.by_name), 'gradient')} of step "
                f"{self.step}; give a key of by_name, which GradientLog(by_name=True) fills."
            )
        return self.by_name[name]

    def __add__(self, other: GradientSurvey) -> GradientSurvey:
        if not isinstance(other, GradientSurvey):
            return NotImplemented
        for name in ("step", "loss_scale", "unscaled"):
            _check_equal(name, getattr(self, name), getattr(other, name), f"of step {self.step}")
        by_name = dict(self.by_name)
        for name, part in other.by_name.items():
            by_name[name] = by_name[name] + part if name in by_name else part
        return replace(self, total=self.total + other.total, by_name=by_name)

    def __repr__(self) -> str:
        return brief(
            self,
            f"step {self.step}",
            f"loss scale {self.loss_scale:g}",
            counted(self.total.count, "element"),
            f"{self.amin_nonzero:.3g} to {self.amax:.3g}" if self.amax else None,
        )


@dataclass(slots=True, repr=False)
class GradientLog(Rendered):
    """Surveys of the gradients of one step in `every` of a training run.

    Logs add up: those of parts of a run, and those of ranks that have a part of the gradients each.

    Attributes
    ----------
    every : int
        Steps are recorded whose number is a multiple of this.
    target : str
        The format that the log is printed for.
    by_name : bool
        Whether the survey of each gradient is kept, and not only their sum.

    Examples
    --------
    >>> log = castwise.surveys.GradientLog(every=10)
    >>> for step in range(20):
    ...     gradients = {"kernel": np.geomspace(1e-12, 1e-6, 100, dtype=np.float32), "bias": None}
    ...     recorded = log.record(step, gradients, loss_scale=1024.0)
    >>> log.steps, log.at(10).predict("float16").underflowed
    ((0, 10), 74)
    >>> print(log.loss_scales(share=0.01))
    2^26 to 2^45

    """

    every: int = 100
    target: str = "float16"
    by_name: bool = False
    _surveys: dict[int, GradientSurvey] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if _index("every", self.every) < 1:
            raise ValueError(f"every={self.every!r} is not valid; use 1 or more.")
        float_format(self.target)
        check_switch("by_name", self.by_name)

    def is_due(self, step: int) -> bool:
        """Tell whether a step is one of those that are recorded."""
        return step % self.every == 0

    def record(
        self, step: int, gradients: object, *, loss_scale: float = 1.0, unscaled: bool = False
    ) -> GradientSurvey | None:
        """Survey the gradients of a step, if it is due.

        Parameters
        ----------
        step : int
            From 0. A step that was recorded before is replaced, as where training resumes.
        gradients : array, or tree of arrays and None
            Of numpy, or of a library with an adapter.
        loss_scale : float
            What the loss was multiplied by.
        unscaled : bool
            Whether the gradients were divided by it since.

        Returns
        -------
        GradientSurvey or None
            None if the step is not due.

        Raises
        ------
        TypeError
            A gradient is complex, or not an array; the message has its path.
        ValueError
            A number is not in its range.

        """
        step = _step(step)
        check_switch("unscaled", unscaled)
        if not self.is_due(step):
            return None
        loss_scale = _loss_scale(loss_scale)
        by_name = {path: _survey_of(path, gradient) for path, gradient in leaves(gradients)}
        gradient_survey = GradientSurvey(
            step,
            loss_scale,
            bool(unscaled),
            sum_of(by_name.values()),
            by_name if self.by_name else {},
        )
        self._surveys[gradient_survey.step] = gradient_survey
        return gradient_survey

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps that were recorded, in order."""
        return tuple(sorted(self._surveys))

    def at(self, step: int) -> GradientSurvey:
        """Return the survey of a step.

        Raises
        ------
        KeyError
            It was not recorded.

        """
        if step not in self._surveys:
            steps = self.steps
            span = f"; there are {len(steps)} from {steps[0]} to {steps[-1]}" if steps else ""
            raise KeyError(f"step={step!r} was not recorded{span}; give one of steps.")
        return self._surveys[step]

    def loss_scales(self, *, share: float = SHARE) -> LossScales | None:
        """Return the loss scales at which the format holds the gradients of all steps.

        As `GradientSurvey.loss_scales`, for `target`. Of a step with infinite or NaN gradients it
        is known only that its loss scale is too high. None if no loss scale does for all steps.

        Raises
        ------
        ValueError
            `share` is not from 0 to below 1.

        """
        scales: LossScales | None = ALL
        for gradient_survey in self:
            if gradient_survey.total.infinities or gradient_survey.total.nans:
                # The highest power of two that is lower.
                limit = math.ldexp(
                    1.0, math.frexp(math.nextafter(gradient_survey.loss_scale, 0))[1] - 1
                )
                fitting: LossScales | None = LossScales(0.0, limit)
            else:
                fitting = gradient_survey.loss_scales(self.target, share=share)
            scales = fitting and scales and scales.intersection(fitting)
        return scales

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, from which `from_dict` makes an equal log."""
        return {
            "schema": SCHEMA,
            "every": self.every,
            "target": self.target,
            "by_name": self.by_name,
            "steps": [
                {
                    "step": gradient_survey.step,
                    "loss_scale": gradient_survey.loss_scale.hex(),
                    "unscaled": gradient_survey.unscaled,
                    "total": None if self.by_name else gradient_survey.total.to_dict(),
                    "by_name": {
                        name: part.to_dict()
                        for name, part in sorted(gradient_survey.by_name.items())
                    },
                }
                for gradient_survey in self
            ],
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        """Return the log that `to_dict` saved.

        Raises
        ------
        ValueError
            It is not what `to_dict` returns, or of another version.

        """
        with restoring("log", saved, SCHEMA):
            every, target, by_name = (saved[key] for key in ("every", "target", "by_name"))
            if not isinstance(by_name, bool):
                raise TypeError(f"by_name is {by_name!r}, and not a bool")
            log = cls(every, target, by_name)
            for row in saved["steps"]:
                log._restore(row)
        return log

    def _restore(self, row: Mapping[str, Any]) -> None:
        """Add the survey of a step that `to_dict` saved."""
        step = _step(row["step"])
        if step in self._surveys:
            raise ValueError(f"step {step} stands twice")
        if not self.is_due(step):
            raise ValueError(f"step {step} is not a multiple of every={self.every}")
        if not isinstance(row["unscaled"], bool):
            raise TypeError(f"step {step}: unscaled is {row['unscaled']!r}, and not a bool")
        if self.by_name is not (row["total"] is None) or (row["by_name"] and not self.by_name):
            raise ValueError(f"step {step}: by_name={self.by_name} leaves one of total and by_name")
        by_name = {name: Survey.from_dict(part) for name, part in row["by_name"].items()}
        total = sum_of(by_name.values()) if self.by_name else Survey.from_dict(row["total"])
        scale = _loss_scale(float.fromhex(row["loss_scale"]))
        self._surveys[step] = GradientSurvey(step, scale, row["unscaled"], total, by_name)

    def __len__(self) -> int:
        return len(self._surveys)

    def __iter__(self) -> Iterator[GradientSurvey]:
        """Yield the surveys of the steps, in their order."""
        return (self._surveys[step] for step in self.steps)

    def __add__(self, other: GradientLog) -> GradientLog:
        if not isinstance(other, GradientLog):
            return NotImplemented
        for name in ("every", "target", "by_name"):
            _check_equal(name, getattr(self, name), getattr(other, name), "of the logs")
        both = GradientLog(self.every, self.target, self.by_name)
        both._surveys = dict(self._surveys)
        for step, gradient_survey in other._surveys.items():
            own_survey = both._surveys.get(step)
            both._surveys[step] = (
                gradient_survey if own_survey is None else own_survey + gradient_survey
            )
        return both

    def __radd__(self, other: object) -> GradientLog:
        """Return itself for 0, with which `sum` begins."""
        if isinstance(other, int) and other == 0:
            return self
        return NotImplemented

    def __repr__(self) -> str:
        steps = self.steps
        return brief(
            self,
            f"{counted(len(steps), 'step')} recorded",
            f"{steps[0]} to {steps[-1]}" if steps else f"every {self.every}",
            f"{self.target} holds them at {self.loss_scales() or 'no loss scale'}"
            if steps
            else None,
        )

    def __sheet__(self) -> Sheet:
        """Return the exponents of the steps with their loss scales, and a table."""
        if not len(self):
            return [Lines(("no step was recorded",))]
        band = FormatRange.of(self.target)
        histograms = [_scaled_histogram(gradient_survey) for gradient_survey in self]
        low, high = joint_axis(histograms)
        axis = min(low, band.normal), max(high, band.normal)
        table = Table(
            _COLUMNS,
            lambda: (
                self._row(gradient_survey, histogram.text(axis, band))
                for gradient_survey, histogram in zip(self, histograms, strict=True)
            ),
            text_columns=0,
            spare=("amin_nonzero", "amax", "subnormal", "zeros", "exponents"),
            losses=frozenset(("underflow", "overflow")),
        )
        step = max(math.ceil(len(histograms) / _DRAWN), 1)
        strips = [
            (f"step {number}", histogram)
            for number, histogram in zip(self.steps, histograms, strict=True)
        ]
        lines = (
            f"underflow, subnormal and overflow are those of {self.target} at the loss scale, and "
            "brackets are around its normal numbers",
            f"fitting loss scales lose at most {100 * SHARE:g} % of what is not zero; for all "
            f"steps {self.loss_scales() or 'none'}",
        )
        return [Exponents(strips[::step], [band]), table, Lines(lines)]

    def _row(self, gradient_survey: GradientSurvey, strip: str) -> tuple[str, ...]:
        total, prediction = gradient_survey.total, gradient_survey.predict(self.target)
        nonzero = max(total.count - total.zeros, 1)
        lost_count = prediction.overflowed + prediction.saturated + total.nans
        if finfo(self.target).has_infinity:  # others have counted infinities as beyond their range
            lost_count += total.infinities
        return (
            str(gradient_survey.step),
            f"{gradient_survey.loss_scale:g}",
            f"{gradient_survey.amax:.2e}",
            f"{gradient_survey.amin_nonzero:.2e}",
            *(
                _percent(part, whole)
                for part, whole in (
                    (total.zeros, max(total.count, 1)),
                    (prediction.underflowed, nonzero),
                    (prediction.subnormal, nonzero),
                    (lost_count, nonzero),
                )
            ),
            str(gradient_survey.loss_scales(self.target) or "none"),
            strip,
        )


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f} %" if part else "0"


def _scaled_histogram(gradient_survey: GradientSurvey) -> Histogram:
    """Return the exponents of gradients with the loss scale, of which only whole binades count."""
    factor = gradient_survey.loss_scale if gradient_survey.unscaled else 1.0
    exponents, counts, _ = gradient_survey.total.binades
    return Histogram.of(exponents + math.frexp(factor)[1] - 1, counts)


def _survey_of(path: str, gradient: Any) -> Survey:  # noqa: ANN401  (of any library)
    try:
        return survey(gradient)
    except TypeError as error:
        raise TypeError(f"the gradient at {path or 'the root'!r}: {error}") from error


def _index(argument: str, value: object) -> int:
    try:
        if not isinstance(value, bool):  # which counts as 1
            return operator.index(value)  # type: ignore[arg-type]
        raise TypeError  # noqa: TRY301
    except TypeError:
        raise TypeError(f"{argument}={value!r} is not valid; use an int.") from None


def _step(step: object) -> int:
    if (number := _index("step", step)) < 0:
        raise ValueError(f"step={step!r} is not valid; use 0 or more.")
    return number


def _loss_scale(scale: float) -> float:
    if isinstance(scale, bool | np.bool_):
        raise TypeError(f"loss_scale={scale!r} is not valid; use a number.")
    scale = float(scale)
    if not 0 < scale < math.inf:
        raise ValueError(f"loss_scale={scale!r} is not valid; use a positive finite number.")
    return scale


def _check_equal(name: str, value: object, other_value: object, place: str) -> None:
    if value != other_value:
        raise ValueError(
            f"{name} {place} is {value!r} and {other_value!r}; add logs that agree in it."
        )
