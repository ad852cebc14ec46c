"""castwise's `LossScaleOptimizer` around an optimizer of tf_keras.

It derives from tf_keras' own wrapper, of legacy optimizers (V2) or of new ones (V3), so that it is
accepted in their place. Operations of TensorFlow compute the loss scale, so that it works with
eager execution, ``tf.function``, XLA and distribution strategies.
"""

import functools
import types
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from castwise._core import DynamicLossScale
from castwise.environment.frameworks import require
from castwise.loss_scale._array_steps import Arrays, next_scale
from castwise.loss_scale._optimizer import ScaledOptimizer, unchanged_on_failure
from castwise.loss_scale.tf_keras._arguments import checked_machine, checked_pairs, config_arguments


def wrap(inner_optimizer: Any, *args: Any, **options: Any) -> Any:
    """Wrap an optimizer of tf_keras; arguments as for `LossScaleOptimizer`."""
    module = _module()
    legacy = _is_legacy(inner_optimizer)
    base = module.LossScaleOptimizer if legacy else module.LossScaleOptimizerV3
    return _class(base)(inner_optimizer, *args, **options)


@functools.cache
def arrays() -> Arrays:
    """Return TensorFlow's functions by numpy's names."""
    tf = _module().tf

    def where(condition: Any, x: Any, y: Any) -> Any:
        dtype = (x if tf.is_tensor(x) else y).dtype
        return tf.where(condition, tf.convert_to_tensor(x, dtype), tf.convert_to_tensor(y, dtype))

    functions = {name: getattr(tf, name) for name in ("minimum", "maximum", "multiply", "divide")}
    return types.SimpleNamespace(where=where, isfinite=tf.math.is_finite, **functions)


class LossScaleOptimizer(ScaledOptimizer):
    """castwise's methods, before those of tf_keras' class; errors show this class' name."""

    _loss_scale: Any
    inner_optimizer: Any
    dynamic: bool
    initial_scale: float
    dynamic_growth_steps: int

    def __init__(
        self,
        inner_optimizer: Any,
        dynamic: bool = True,
        initial_scale: float | None = None,
        dynamic_growth_steps: int | None = None,
    ) -> None:
        arguments = (inner_optimizer, dynamic, initial_scale, dynamic_growth_steps)
        checked_machine(*arguments)
        original: Any = super().__init__
        original(*arguments)
        if self.dynamic:
            self._loss_scale.update = self._update

    def apply_gradients(self, grads_and_vars: Iterable[Any], *args: Any, **options: Any) -> Any:
        """Apply the gradients, unless one is not finite; then update the scale."""
        # In eager execution, and while a ``tf.function`` is traced, an exception leaves the scale,
        # the counters and all variables unchanged.
        original: Any = super()
        pairs = checked_pairs(grads_and_vars)
        if not pairs and not _is_legacy(self.inner_optimizer):  # which takes them
            raise ValueError("grads_and_vars holds no gradient; give at least one.")
        state = self._loss_scale
        with _restored_on_error([state.current_loss_scale, state.counter] if self.dynamic else []):
            return original.apply_gradients(pairs, *args, **options)

    def _apply_gradients(self, grads: Any, wrapped_vars: Any, *name: Any) -> Any:
        """Apply finite gradients; tf_keras calls this."""
        original: Any = super()
        inner, variables = self.inner_optimizer, list(wrapped_vars.value)
        if legacy := _is_legacy(inner):
            with _module().tf.init_scope():  # as it begins a step
                inner._create_all_weights(variables)
        with _restored_on_error([*variables, *(inner.variables() if legacy else inner.variables)]):
            return original._apply_gradients(grads, wrapped_vars, *name)

    @property
    def _is_dynamic(self) -> bool:  # type: ignore[override]
        return self.dynamic

    @property
    def _machine(self) -> DynamicLossScale:
        state = self._loss_scale
        machine = DynamicLossScale(self.initial_scale, self.dynamic_growth_steps, preset="tf_keras")
        scale, counter = state.current_loss_scale.numpy(), state.counter.numpy()
        return machine.with_state({"current_loss_scale": float(scale), "good_steps": int(counter)})

    @_machine.setter
    def _machine(self, machine: DynamicLossScale) -> None:
        self._loss_scale.current_loss_scale.assign(machine.scale)
        self._loss_scale.counter.assign(machine.counter)

    _read_config = staticmethod(config_arguments)

    def _update(self, grads: Any) -> tuple[Any, Any]:
        """Return the operation that updates the scale, and whether the gradients apply."""
        tf, state = _module().tf, self._loss_scale
        finite = _all_finite(tf.nest.flatten(grads))
        scale, counter = map(tf.convert_to_tensor, (state.current_loss_scale, state.counter))
        machine = DynamicLossScale(None, state.growth_steps, state.multiplier, preset="tf")
        scale, counter = next_scale(arrays(), scale, counter, machine, finite)
        with tf.control_dependencies([scale, counter]):
            assignments = state.current_loss_scale.assign(scale), state.counter.assign(counter)
        return tf.group(*assignments), finite


def _restored_on_error(variables: Iterable[Any]) -> AbstractContextManager[None]:
    """Restore the values of variables if the block raises in eager execution."""
    tf = _module().tf
    eager = tf.executing_eagerly() and not tf.distribute.has_strategy()
    read = tf.raw_ops.ReadVariableOp  # a third of the time of read_value, also without a copy
    return unchanged_on_failure(
        variables if eager else [],
        lambda variable: read(resource=variable.handle, dtype=variable.dtype),
        lambda variable, value: variable.assign(value),
    )


def _all_finite(grads: list[Any]) -> Any:
    """Tell whether all gradients, summed over replicas, are finite: the same in each replica."""
    module = _module()
    distribute = module.tf.distribute
    if not (distribute.has_strategy() and distribute.in_cross_replica_context()):
        return module._is_all_finite(grads)
    strategy = distribute.get_strategy()
    flags = strategy.extended.call_for_each_replica(module._is_all_finite, args=(grads,))
    return strategy.experimental_local_results(flags)[0]


@functools.cache
def _class(base: Any) -> Any:
    """Derive castwise's class from one of tf_keras' two wrappers."""
    # The class has the name and module of the wrapper, so that a saved model names a class that
    # tf_keras finds also without castwise.
    names = {"__module__": base.__module__, "__qualname__": base.__qualname__}
    return types.new_class(
        base.__name__,
        (LossScaleOptimizer, base),
        exec_body=lambda namespace: namespace.update(names),
    )


def _is_legacy(optimizer: Any) -> bool:
    return isinstance(optimizer, _module().optimizer_v2.OptimizerV2)


def _module() -> Any:
    return require("tf_keras").src.mixed_precision.loss_scale_optimizer
