"""`tf.keras.layers`: the base class of layers.

>>> class Scale(Layer):
...     def build(self, input_shape):
...         self.factor = self.add_weight("factor", input_shape[-1:], initializer="ones")
...     def call(self, inputs):
...         return inputs * self.factor
>>> Scale(dtype="mixed_float16")(np.array([1.0, 2.0]))
array([1., 2.], dtype=float16)
"""

from collections.abc import Iterable
from typing import Any

from castwise.autocast._layer import Layer as _Layer
from castwise.autocast._variable import AutoCastVariable

__all__ = ["Layer"]


def __dir__() -> list[str]:
    return __all__


class Layer(_Layer):
    """`castwise.autocast.Layer` with TF 2's rules, and its order of arguments.

    Parameters
    ----------
    trainable, name, dtype, autocast
        As there; `dtype` as for `castwise.compat.tf_keras.mixed_precision.get_policy`.

    """

    dialect = "tf_keras"

    def __init__(
        self, trainable: bool = True, name: str | None = None, dtype: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(trainable=trainable, name=name, dtype=dtype, **kwargs)

    def add_weight(  # type: ignore[override]
        self,
        name: str | None = None,
        shape: Iterable[int] | None = None,
        dtype: Any = None,
        initializer: Any = None,
        *,
        trainable: bool = True,
        autocast: bool | None = None,
        experimental_autocast: bool | None = None,
    ) -> AutoCastVariable:
        """Make a variable of the layer; see `castwise.autocast.Layer.add_weight`."""
        return super().add_weight(
            shape,
            initializer,
            dtype,
            trainable=trainable,
            autocast=autocast,
            name=name,
            experimental_autocast=experimental_autocast,
        )

    def call(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs; for subclasses. Without it, a layer returns its inputs."""
        return inputs
