"""Survey gradients while a model of Keras is fitted."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from castwise.surveys import GradientLog

if TYPE_CHECKING:
    from castwise.adapters.keras._gradient_callback import GradientSurveyCallback


def survey_gradients(log: GradientLog) -> GradientSurveyCallback:
    """Return a callback that records the gradients of each train step that is due.

    It works with the backends that train, TensorFlow, jax and torch, compiled or not. A step that
    is due is taken by a second train function, which hands on the gradients; so there is one more
    compilation, and other steps take as long as without the callback. With TensorFlow, this
    function copies the gradients.

    Steps are counted from the optimizer's ``iterations`` at the first ``fit``. The loss scale is
    that of the optimizer: of a `LossScaleOptimizer`, or its ``loss_scale_factor``.

    Parameters
    ----------
    log : GradientLog
        Gradients are named by the paths of their variables.

    Returns
    -------
    keras.callbacks.Callback
        For one model. ``fit`` raises TypeError or ValueError if the model is not compiled with an
        optimizer of Keras, takes several steps per execution, is compiled with torch, or is trained
        by several replicas; RuntimeError if a ``train_step`` gives its optimizer no gradients.

    Raises
    ------
    TypeError
        `log` is not a GradientLog.
    ValueError
        Keras' backend does not train.

    Examples
    --------
    >>> from castwise.surveys import GradientLog
    >>> log = GradientLog(every=100)
    >>> model.fit(x, y, callbacks=[survey_gradients(log)])  # doctest: +SKIP
    >>> print(log)  # doctest: +SKIP

    """
    if not isinstance(log, GradientLog):
        raise TypeError(f"log={log!r} is not valid; give a castwise.surveys.GradientLog.")
    # Its class derives from one of Keras, which this package imports when it is needed.
    module: Any = import_module("castwise.adapters.keras._gradient_callback")
    callback: GradientSurveyCallback = module.GradientSurveyCallback(log)
    return callback
