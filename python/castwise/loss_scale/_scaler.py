"""A mutable loss scale with events, around an immutable one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from castwise._core import DynamicLossScale, FixedLossScale
from castwise.loss_scale._agreement import Reduce, agree

LossScale: TypeAlias = FixedLossScale | DynamicLossScale

LOGGER = logging.getLogger("castwise.loss_scale")

_EVENTS = {
    "grew": (logging.INFO, "loss scale grew from %(before)g to %(scale)g"),
    "backed off": (
        logging.INFO,
        "gradients not finite; loss scale backed off from %(before)g to %(scale)g",
    ),
    "held back": (logging.INFO, "gradients not finite; loss scale held at %(scale)g"),
    "at the ceiling": (logging.DEBUG, "loss scale stays at its limit %(scale)g"),
    "at the floor": (
        logging.WARNING,
        "gradients not finite, and the loss scale has been at its floor %(scale)g for "
        "%(floor_steps)d steps: a smaller scale would not help",
    ),
    "lost": (logging.ERROR, "loss scale is %(scale)g; no gradient is usable from here on"),
}


@dataclass(frozen=True, slots=True)
class LossScaleEvent:
    """What happened to a loss scale.

    Attributes
    ----------
    name
        "grew", "backed off", "held back" (by the hysteresis), "at the floor", "at the ceiling" or
        "lost" (0, infinite or NaN, which only presets reach).
    step
        The number of the update; the first is 1.
    before, scale
        The scale before and after.
    floor_steps
        For "at the floor": the number of successive nonfinite steps at the floor.

    """

    name: str
    step: int
    before: float
    scale: float
    floor_steps: int

    def __str__(self) -> str:
        _, message = _EVENTS[self.name]
        values = {field: getattr(self, field) for field in self.__slots__}
        return f"step {self.step}: {message % values}"


class LossScaler:
    """Hold a loss scale, and replace it at each update.

    Parameters
    ----------
    loss_scale : FixedLossScale, DynamicLossScale, float, "dynamic" or None
        A number means FixedLossScale, "dynamic" the default DynamicLossScale, None a scale of 1.
    on_event : callable, optional
        Called with a LossScaleEvent whenever one occurs. Events are also logged to the logger
        "castwise.loss_scale"; "at the floor" and "lost" at steps 1, 2, 4, 8, ... in a row only.

    Examples
    --------
    >>> scaler = LossScaler(DynamicLossScale(4.0, growth_interval=2), on_event=print)
    >>> scaler.update(True), scaler.update(False)
    step 2: gradients not finite; loss scale backed off from 4 to 2
    (True, False)

    """

    def __init__(
        self,
        loss_scale: LossScale | float | Literal["dynamic"] | None = "dynamic",
        *,
        on_event: Callable[[LossScaleEvent], object] | None = None,
    ) -> None:
        self.loss_scale = get(loss_scale)
        self.on_event = on_event
        self.steps = 0
        self._lost_steps = 0

    @property
    def scale(self) -> float:
        """The number by which to multiply the next loss."""
        return self.loss_scale.scale

    def update(self, finite: Any, *, reduce: Reduce | None = None) -> bool:
        """Update the loss scale after a step; return whether its gradients apply.

        Parameters
        ----------
        finite : bool
            Whether all gradients of the step were finite.
        reduce : callable, optional
            The MAX all-reduce of a data-parallel run (see `agree`); every rank must call.

        """
        if reduce is not None:
            finite, _ = agree(finite, reduce=reduce)
        previous_scale = self.loss_scale.scale
        self.loss_scale, applies, name = self.loss_scale.transition(finite)
        self.steps += 1
        self._lost_steps = self._lost_steps + 1 if name == "lost" else 0
        if name is not None:
            floor_steps = getattr(self.loss_scale, "floor_steps", 0)
            self._tell(LossScaleEvent(name, self.steps, previous_scale, self.scale, floor_steps))
        return applies

    def _tell(self, event: LossScaleEvent) -> None:
        times = {"at the floor": event.floor_steps, "lost": self._lost_steps}.get(event.name, 1)
        if times & (times - 1) == 0:
            LOGGER.log(_EVENTS[event.name][0], "%s", event)
        if self.on_event is not None:
            self.on_event(event)

    def state_dict(self) -> dict[str, Any]:
        """Return the loss scale's state, under the keys of its preset, and "steps"."""
        return {**self.loss_scale.state_dict(), "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a saved state; ValueError if it is another class's or preset's.

        A state without "steps", as of a loss scale or its original, does not change `steps`.
        """
        scale_state, steps = state, self.steps
        if isinstance(state, dict) and "steps" in state:
            scale_state = {key: value for key, value in state.items() if key != "steps"}
            steps = state["steps"]
            if not isinstance(steps, int) or isinstance(steps, bool) or steps < 0:
                raise ValueError(f"state: steps={steps!r} is not valid; use an int of 0 or more.")
        self.loss_scale = self.loss_scale.with_state(scale_state)
        self.steps, self._lost_steps = steps, 0

    def __repr__(self) -> str:
        return f"LossScaler({self.loss_scale!r})"


def get(identifier: LossScale | float | Literal["dynamic"] | None) -> LossScale:
    """Return the loss scale for a number, "dynamic" or None.

    Raises
    ------
    TypeError, ValueError
        There is no such loss scale.

    Examples
    --------
    >>> from castwise import loss_scale
    >>> loss_scale.get(1024)
    FixedLossScale(1024.0)
    >>> loss_scale.get("dynamic").scale
    32768.0

    """
    if isinstance(identifier, FixedLossScale | DynamicLossScale):
        return identifier
    if identifier is None:
        return FixedLossScale(1.0, skip_nonfinite=False)
    if isinstance(identifier, str):
        if identifier == "dynamic":
            return DynamicLossScale()
        raise ValueError(_refusal(identifier))
    try:
        return FixedLossScale(identifier)
    except TypeError:
        raise TypeError(_refusal(identifier)) from None


def _refusal(identifier: object) -> str:
    return (
        f'loss_scale={identifier!r} is not valid; use "dynamic", a number, None, or a '
        "FixedLossScale or DynamicLossScale."
    )
