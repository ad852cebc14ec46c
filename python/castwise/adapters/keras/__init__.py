"""castwise's policies in Keras 3, on each of its backends.

```text
policies       to_keras, from_keras: policies of one side as those of the other
models         apply_policy_map, cast_model: change the policies of an existing model
installation   install, uninstall: Keras' own layers take castwise's policies and casts
```
"""

from castwise.adapters.keras._installation import Installation, install, uninstall
from castwise.adapters.keras._models import apply_policy_map, cast_model
from castwise.adapters.keras._policies import from_keras, to_keras
from castwise.adapters.keras._report import AppliedPolicies

__all__ = [
    "AppliedPolicies",
    "Installation",
    "apply_policy_map",
    "cast_model",
    "from_keras",
    "install",
    "to_keras",
    "uninstall",
]


def __dir__() -> list[str]:
    return __all__
