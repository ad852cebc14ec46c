"""castwise for torch: tensors, modules, state dicts and gradients.

`to_numpy` and `from_numpy` share memory in every dtype that both libraries have; `cast` casts a
tensor with all options of `castwise.cast`; `cast_module` casts a model, and `autocast` runs it,
in the dtypes of a map; `cast_state_dict` casts state dicts; `GradScaler` has the interface of
torch.amp's; `survey_gradients` logs where gradients lie while a model is trained.
"""

from castwise.adapters.torch._autocast import Autocast, autocast
from castwise.adapters.torch._bridge import from_numpy, to_numpy
from castwise.adapters.torch._casting import Loss, cast
from castwise.adapters.torch._gradients import GradScaler, survey_gradients
from castwise.adapters.torch._modules import ModuleCast, cast_module, cast_state_dict, explain
from castwise.adapters.torch._plan import Summary

__all__ = [
    "Autocast",
    "GradScaler",
    "Loss",
    "ModuleCast",
    "Summary",
    "autocast",
    "cast",
    "cast_module",
    "cast_state_dict",
    "explain",
    "from_numpy",
    "survey_gradients",
    "to_numpy",
]


def __dir__() -> list[str]:
    return __all__
