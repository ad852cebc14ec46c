"""castwise for jax: arrays and pytrees, and loss scales that step inside of `jax.jit`.

`cast` and `cast_tree` cast arrays on the host by castwise's kernels, traced and other ones by XLA;
`paths` names the leaves of a pytree; `loss_scale` makes a pytree of any of castwise's loss scales;
`value_and_grad` gives a loss and its gradients under such a loss scale; `survey_gradients` logs
where gradients lie while a model is trained.
jmp's policies and loss scales, which work on jax's arrays and under `jax.jit` too, are in
`castwise.compat.jmp`.
"""

from castwise.adapters.jax._casting import cast
from castwise.adapters.jax._gradients import (
    all_finite,
    select_tree,
    survey_gradients,
    unscale,
    value_and_grad,
)
from castwise.adapters.jax._scaling import LossScale, loss_scale
from castwise.adapters.jax._trees import cast_tree, paths

__all__ = [
    "LossScale",
    "all_finite",
    "cast",
    "cast_tree",
    "loss_scale",
    "paths",
    "select_tree",
    "survey_gradients",
    "unscale",
    "value_and_grad",
]


def __dir__() -> list[str]:
    return __all__
