"""The libraries whose loss scales the presets imitate, each behind `step(finite) -> Seen`.

Keras, tf_keras, TensorFlow, jmp, mpx and torch are the real ones. Megatron-LM and apex need a GPU
to import; theirs are written down here from the published sources, in Python's and torch-like
floats.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
from peers import framework as library

__all__ = ["ORIGINALS", "library"]


class Seen(NamedTuple):
    """What a library's loss scale shows after a step."""

    scale: float
    counter: int
    applies: bool | None


class Original(ABC):
    """One library's loss scale, made with numbers under castwise's names."""

    @abstractmethod
    def step(self, finite: bool) -> Seen:
        """Take a step and tell the state after it."""


class Keras(Original):
    def __init__(self, initial_scale: float, growth_interval: int) -> None:
        keras = library("keras")
        self.variable = keras.Variable(np.zeros(1, np.float32))
        self.optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(1.0), initial_scale, growth_interval
        )
        self.convert = keras.ops.convert_to_tensor

    def step(self, finite: bool) -> Seen:
        before = int(self.optimizer.inner_optimizer.iterations) if self.optimizer.built else 0
        gradient = np.array([0 if finite else np.inf], np.float32)
        with np.errstate(all="ignore"):
            self.optimizer.apply([self.convert(gradient)], [self.variable])
        applied = int(self.optimizer.inner_optimizer.iterations) > before
        scale = float(np.asarray(self.optimizer.dynamic_scale))
        return Seen(scale, int(np.asarray(self.optimizer.step_counter)), applied)


class TensorFlow(Original):
    def __init__(
        self, initial_scale: float, growth_interval: int, growth_factor: float = 2.0
    ) -> None:
        self.tf = library("tensorflow")
        cls = self.tf.compat.v1.mixed_precision.DynamicLossScale
        self.state = cls(initial_scale, growth_interval, growth_factor)

    def step(self, finite: bool) -> Seen:
        _, applies = self.state.update([self.tf.constant(1.0 if finite else np.nan)])
        return Seen(float(self.state()), int(self.state._num_good_steps), bool(applies))


class TFKeras(Original):
    def __init__(self, initial_scale: float, growth_interval: int) -> None:
        self.tf = library("tensorflow")
        module = library("tf_keras.src.mixed_precision.loss_scale_optimizer")
        self.state = module._DynamicLossScaleState(initial_scale, growth_interval, multiplier=2)

    def step(self, finite: bool) -> Seen:
        _, applies = self.state.update([self.tf.constant(1.0 if finite else np.inf)])
        return Seen(float(self.state()), int(self.state.counter), bool(applies))


class Jmp(Original):
    def __init__(
        self,
        initial_scale: float,
        growth_interval: int,
        growth_factor: float = 2,
        minimum: float = 1.0,
    ) -> None:
        self.jnp = library("jax.numpy")
        self.state = library("jmp").DynamicLossScale(
            self.jnp.float32(initial_scale),
            self.jnp.int32(0),
            growth_interval,
            growth_factor,
            self.jnp.float32(minimum),
        )

    def step(self, finite: bool) -> Seen:
        self.state = self.state.adjust(self.jnp.asarray(finite))
        return Seen(float(self.state.loss_scale), int(self.state.counter), None)


class Mpx(Original):
    def __init__(
        self,
        initial_scale: float,
        growth_interval: int,
        growth_factor: float = 2,
        minimum: float = 1.0,
    ) -> None:
        self.jnp = library("jax.numpy")
        self.state = library("mpx").DynamicLossScaling(
            self.jnp.float32(initial_scale),
            self.jnp.float32(minimum),
            growth_factor,
            growth_interval,
        )

    def step(self, finite: bool) -> Seen:
        self.state = self.state.adjust(self.jnp.asarray(finite))
        return Seen(float(self.state.loss_scaling), int(self.state.counter), None)


class Torch(Original):
    def __init__(
        self,
        initial_scale: float,
        growth_interval: int,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
    ) -> None:
        self.torch = library("torch")
        self.scale = self.torch.tensor(initial_scale, dtype=self.torch.float32)
        self.tracker = self.torch.tensor(0, dtype=self.torch.int32)
        self.numbers = (growth_factor, backoff_factor, growth_interval)

    def step(self, finite: bool) -> Seen:
        found = self.torch.tensor(0.0 if finite else 1.0)
        self.torch._amp_update_scale_(self.scale, self.tracker, found, *self.numbers)
        return Seen(float(self.scale), int(self.tracker), None)


class Megatron(Original):
    def __init__(  # noqa: PLR0917
        self,
        initial_scale: float,
        growth_interval: int,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        minimum: float = 1.0,
        hysteresis: int = 2,
    ) -> None:
        numbers = (initial_scale, growth_factor, backoff_factor, minimum)
        self.scale, self.growth, self.backoff, self.minimum = map(np.float32, numbers)
        self.interval, self.hysteresis = growth_interval, hysteresis
        self.tracker, self.hysteresis_tracker = 0, hysteresis

    def step(self, finite: bool) -> Seen:
        with np.errstate(all="ignore"):
            if finite:
                self.tracker += 1
                if self.tracker == self.interval:
                    self.tracker = 0
                    self.hysteresis_tracker = self.hysteresis
                    self.scale = self.scale * self.growth
            else:
                self.tracker = 0
                self.hysteresis_tracker -= 1
                if self.hysteresis_tracker <= 0:
                    self.scale = np.maximum(self.scale * self.backoff, self.minimum)
        return Seen(float(self.scale), self.tracker, None)


class Apex(Original):
    def __init__(
        self,
        initial_scale: float,
        growth_interval: int,
        minimum: float | None = None,
        maximum: float = 2.0**24,
    ) -> None:
        self.scale = min(maximum, initial_scale)
        self.interval, self.minimum, self.maximum = growth_interval, minimum, maximum
        self.unskipped = 0

    def step(self, finite: bool) -> Seen:
        if finite:
            self.unskipped += 1
        else:
            self.scale = self.scale / 2.0
            if self.minimum:
                self.scale = max(self.minimum, self.scale)
            self.unskipped = 0
        if self.unskipped == self.interval:
            self.scale = min(self.maximum, self.scale * 2.0)
            self.unskipped = 0
        return Seen(self.scale, self.unskipped, finite)


ORIGINALS: dict[str, type[Original]] = {
    "keras": Keras,
    "tf": TensorFlow,
    "tf_keras": TFKeras,
    "jmp": Jmp,
    "mpx": Mpx,
    "torch": Torch,
    "megatron": Megatron,
    "apex": Apex,
}
