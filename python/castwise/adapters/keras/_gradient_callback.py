"""The callback that surveys gradients; importing this module imports Keras.

Gradients exist only inside of a compiled train step. At a step that is due, the callback lets the
model take one with a second train function, which is compiled while the optimizer's `apply` also
hands on the gradients: with TensorFlow it copies them to variables, which XLA can do, with jax the
step returns them. All other steps are the model's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from typing import Any

from castwise._frameworks import require
from castwise.surveys import GradientLog

keras: Any = require("keras")


class GradientSurveyCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Records gradients in a log, as `castwise.adapters.keras.survey_gradients` says."""

    def __init__(self, log: GradientLog) -> None:
        super().__init__()
        self._log = log
        self._step: int | None = None
        self._fitted: Any = None
        self._train: Any = None
        self._survey: Any = None
        self._recorder = _recorder_class()(self)

    def set_model(self, model: Any) -> None:
        """Keep the model: to read `model` in a step attaches its state, with the jax backend."""
        super().set_model(model)
        self._fitted = model

    def on_train_begin(self, logs: Any = None) -> None:
        """Check that the model's gradients can be seen; count from the optimizer's iterations."""
        del logs
        _check(self._fitted)
        if self._step is None:
            iterations = keras.ops.convert_to_numpy(self._fitted.optimizer.iterations)
            self._step = int(iterations)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Take the next step with the function that surveys, if it is due."""
        del batch, logs
        if self._step is not None and self._log.is_due(self._step):
            if self._train is not self._fitted.train_function:
                self._train, self._survey = self._fitted.train_function, None
                self._recorder = _recorder_class()(self)
            self._fitted.train_function = self._survey_step

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count the step."""
        del batch, logs
        self._step = self.step + 1

    @property
    def step(self) -> int:
        """The number of the step that is taken."""
        return self._step or 0

    def record(self, gradients: dict[str, Any], loss_scale: float) -> None:
        """Record the gradients of the step; RuntimeError if there are none."""
        if not gradients:
            raise RuntimeError(
                "the model's train_step gave no gradients to its optimizer; let it call "
                "optimizer.apply, with jax optimizer.stateless_apply, or survey without a callback."
            )
        self._log.record(self.step, gradients, loss_scale=float(loss_scale))

    def _survey_step(self, *arguments: Any) -> Any:
        model = self._fitted
        model.train_function = self._train
        if self._survey is None:
            # A function of its own: `jax.jit` has one program for calls of the same function.
            with _replaced(model, "train_step", self._recorder.step_of(model.train_step)):
                model.make_train_function(force=True)
            self._survey, model.train_function = model.train_function, self._train
        with self._recorder.watching(model.optimizer):
            result = self._survey(*arguments)
        return self._recorder.finish(result)


def _check(model: Any) -> None:
    """Refuse a model whose gradients cannot be seen."""
    if not isinstance(model.optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            f"the model's optimizer is {model.optimizer!r}; compile it with one of "
            "keras.optimizers to survey gradients."
        )
    if model.steps_per_execution != 1:
        raise ValueError(
            f"steps_per_execution={model.steps_per_execution} hides single steps; compile the "
            "model with steps_per_execution=1 to survey gradients."
        )
    if keras.config.backend() == "torch" and model.jit_compile:
        raise ValueError(
            "jit_compile=True hides gradients with the torch backend; compile the model with "
            "jit_compile=False to survey them."
        )
    replicas = getattr(getattr(model, "distribute_strategy", None), "num_replicas_in_sync", 1)
    if replicas != 1:
        raise ValueError(
            f"the model is trained by {replicas} replicas of tf.distribute; train it without a "
            "strategy to survey gradients."
        )


@contextmanager
def _replaced(instance: Any, name: str, method: Any) -> Iterator[None]:
    """Give an instance another method within the block; not by setattr, which Keras tracks."""
    attributes = vars(instance)
    before = attributes.get(name)
    attributes[name] = method
    try:
        yield
    finally:
        if before is None:
            del attributes[name]
        else:
            attributes[name] = before


class _Recorder:
    """Records gradients when the optimizer gets them, as with the torch backend."""

    METHOD = "apply"

    def __init__(self, callback: GradientSurveyCallback) -> None:
        self._callback = callback
        self._is_recorded = False

    def watching(self, optimizer: Any) -> AbstractContextManager[None]:
        """See the gradients that the optimizer is given within the block."""
        original = getattr(optimizer, self.METHOD)

        def watched(*arguments: Any, **options: Any) -> Any:
            self.see(optimizer, *arguments, **options)
            return original(*arguments, **options)

        return _replaced(optimizer, self.METHOD, watched)

    def see(
        self, optimizer: Any, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None
    ) -> None:
        """Hand on gradients that the optimizer is given."""
        variables = trainable_variables or optimizer._trainable_variables
        self.keep(_by_path(grads, variables), _loss_scale(optimizer))

    def keep(self, gradients: dict[str, Any], loss_scale: Any) -> None:
        """Record gradients, or hold them until the step is done."""
        self._callback.record(gradients, keras.ops.convert_to_numpy(loss_scale))
        self._is_recorded = True

    def step_of(self, train_step: Callable[..., Any]) -> Callable[..., Any]:
        """Return a train step that does the same, and hands on what `finish` needs."""
        return train_step

    def finish(self, result: Any) -> Any:
        """Record what was held, and return what the model's own train function returns."""
        if not self._is_recorded:
            self._callback.record({}, 1.0)
        self._is_recorded = False
        return result


class _TensorFlowRecorder(_Recorder):
    """Copies gradients to variables in the graph, and records them after the step."""

    def __init__(self, callback: GradientSurveyCallback) -> None:
        super().__init__(callback)
        self._copies: dict[str, Any] = {}

    def keep(self, gradients: dict[str, Any], loss_scale: Any) -> None:
        """Copy gradients to variables of their shapes."""
        tensorflow: Any = import_module("tensorflow")
        for name, value in {**gradients, _SCALE: loss_scale}.items():
            tensor = tensorflow.convert_to_tensor(value)  # also of the rows of an embedding
            if name not in self._copies:
                with tensorflow.init_scope():
                    zeros = tensorflow.zeros(tensor.shape, tensor.dtype)
                    self._copies[name] = tensorflow.Variable(zeros, trainable=False)
            self._copies[name].assign(tensor)

    def finish(self, result: Any) -> Any:
        """Record the copies."""
        gradients = {name: copy.numpy() for name, copy in self._copies.items()}
        self._callback.record(gradients, gradients.pop(_SCALE, 1.0))
        return result


_SCALE = ""
"""The name of the copy of the loss scale; paths of variables are not empty."""


class _JaxRecorder(_Recorder):
    """Records gradients that the compiled step returns among its logs.

    Not by a call from the step to the host: on a CPU with one core jax may wait for ever in those.
    """

    METHOD = "stateless_apply"

    def __init__(self, callback: GradientSurveyCallback) -> None:
        super().__init__(callback)
        self._kept: tuple[dict[str, Any], Any] = {}, 1.0

    def see(  # type: ignore[override]
        self,
        optimizer: Any,
        optimizer_variables: Sequence[Any],
        grads: Sequence[Any],
        trainable_variables: Sequence[Any],
    ) -> None:
        """Hand on gradients; `trainable_variables` are values of the optimizer's."""
        del trainable_variables
        values = dict(zip(map(id, optimizer.variables), optimizer_variables, strict=True))
        scale = _loss_scale(optimizer)
        self.keep(_by_path(grads, optimizer._trainable_variables), values.get(id(scale), scale))

    def keep(self, gradients: dict[str, Any], loss_scale: Any) -> None:
        """Keep gradients, which may be traced, for the end of the step."""
        self._kept = gradients, loss_scale

    def step_of(self, train_step: Callable[..., Any]) -> Callable[..., Any]:
        """Return a train step that also returns the gradients."""

        def step(*arguments: Any) -> Any:
            logs, state = train_step(*arguments)
            kept, self._kept = self._kept, ({}, 1.0)
            return (logs, kept), state

        return step

    def finish(self, result: Any) -> Any:
        """Record what the step returned."""
        (logs, kept), state = result
        self._callback.record(*kept)
        return logs, state


_RECORDERS: dict[str, Callable[[GradientSurveyCallback], _Recorder]] = {
    "tensorflow": _TensorFlowRecorder,
    "jax": _JaxRecorder,
    "torch": _Recorder,
}


def _recorder_class() -> Callable[[GradientSurveyCallback], _Recorder]:
    backend = keras.config.backend()
    if backend not in _RECORDERS:
        raise ValueError(
            f"the {backend} backend does not train; set KERAS_BACKEND to one of "
            f"{', '.join(_RECORDERS)}."
        )
    return _RECORDERS[backend]


def _by_path(grads: Sequence[Any], variables: Sequence[Any]) -> dict[str, Any]:
    """Return gradients by the paths of their variables, of which several may be equal."""
    gradients: dict[str, Any] = {}
    for index, (variable, grad) in enumerate(zip(variables, grads, strict=True)):
        if grad is not None:
            is_known = variable.path in gradients
            gradients[f"{variable.path}/{index}" if is_known else variable.path] = grad
    return gradients


def _loss_scale(optimizer: Any) -> Any:
    """Return the variable or the number that an optimizer multiplies the loss by."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return optimizer.dynamic_scale if optimizer.built else optimizer.initial_scale
    factor = optimizer.loss_scale_factor
    return 1.0 if factor is None else factor
