"""The policies of quantized layers: how weights are stored, and the policy of all else."""

from __future__ import annotations

import operator
from typing import Any, ClassVar

from castwise.dtype_policies._policy import DTypePolicy


class QuantizedDTypePolicy(DTypePolicy):
    """A policy whose layers store their weights quantized.

    Parameters
    ----------
    mode : str
        "int8", "int4", "float8", "gptq", "awq" or "ternary", which is new in Keras 3.16.
    source_name : str, optional
        The plain policy for all else; None is the one in force.

    Raises
    ------
    ValueError
        An unknown mode, a source that is itself quantized or unknown, or a mode that does not work
        with the source's compute dtype.
    TypeError
        `source_name` is not a str.

    Examples
    --------
    >>> policy = QuantizedDTypePolicy("int8", "mixed_bfloat16")
    >>> policy
    <QuantizedDTypePolicy "int8_from_mixed_bfloat16">
    >>> policy.quantization_mode, policy.compute_dtype, policy.variable_dtype
    ('int8', 'bfloat16', 'float32')

    """

    module: ClassVar[str | None] = "keras.dtype_policies"

    keras_class: ClassVar[str] = "QuantizedDTypePolicy"
    """The class of Keras that has these arguments, also for subclasses."""

    has_parameters: ClassVar[bool] = False
    """Whether the mode has integers after slashes, so that it is checked to be a text first."""

    def __init__(self, mode: str, source_name: str | None = None) -> None:
        if self.has_parameters and not isinstance(mode, str):
            raise TypeError(f"mode={mode!r} must be a str, such as 'gptq/4/128'")
        if source_name is None:
            source_name = self._name_in_force()
        self._set_quantized(self.keras_class, mode, source_name)


class _WithParameters(QuantizedDTypePolicy):
    """A policy whose mode has integers after slashes."""

    has_parameters = True

    @property
    def mode(self) -> str:
        """The mode without its integers."""
        return self.quantization_mode or ""


class _WithGroups(_WithParameters):
    """A policy of weights that are quantized in groups."""

    @property
    def weight_bits(self) -> int:
        """The number of bits of a weight."""
        return dict(self._parameters)["weight_bits"]

    @property
    def group_size(self) -> int:
        """The number of weights that share a scale; -1 for all."""
        return dict(self._parameters)["group_size"]


class Int4DTypePolicy(_WithParameters):
    """A policy of weights in 4-bit integers, with a scale for each block.

    `mode` is "int4/<block_size>": how many elements share a scale, or -1 for a scale per channel.

    >>> policy = Int4DTypePolicy("int4/128", "float32")
    >>> policy.name, policy.block_size
    ('int4/128_from_float32', 128)
    """

    keras_class = "Int4DTypePolicy"

    @property
    def block_size(self) -> int:
        """The number of elements that share a scale; -1 for a whole channel."""
        return dict(self._parameters)["block_size"]


class GPTQDTypePolicy(_WithGroups):
    """A policy of weights quantized by GPTQ.

    `mode` is "gptq/<weight_bits>/<group_size>": 2, 3, 4 or 8 bits; how many elements share a scale,
    or -1 for all.

    >>> policy = GPTQDTypePolicy("gptq/4/64", "mixed_bfloat16")
    >>> policy.weight_bits, policy.group_size
    (4, 64)
    """

    keras_class = "GPTQDTypePolicy"


class AWQDTypePolicy(_WithGroups):
    """A policy of weights quantized by AWQ, with regard to activations.

    `mode` is "awq/4/<group_size>": how many elements share a scale, or -1 for all.

    >>> AWQDTypePolicy("awq/4/-1", "float32").get_config()
    {'mode': 'awq/4/-1', 'source_name': 'float32'}
    """

    keras_class = "AWQDTypePolicy"


class QuantizedFloat8DTypePolicy(QuantizedDTypePolicy):
    """A policy of matrix products in float8, with scales from previous maxima (delayed scaling).

    Parameters
    ----------
    mode : str
        "float8".
    source_name : str, optional
        The plain policy for all else; None is the one in force.
    amax_history_length : int
        How many maxima are stored, 1 or more.

    Raises
    ------
    ValueError
        Another mode, an unknown source, a length below 1.
    TypeError
        `source_name` is not a str, or the length not an integer.

    Examples
    --------
    >>> policy = QuantizedFloat8DTypePolicy("float8", "mixed_bfloat16", amax_history_length=512)
    >>> policy.compute_dtype, policy.amax_history_length
    ('bfloat16', 512)

    """

    keras_class = "QuantizedFloat8DTypePolicy"
    default_amax_history_length: ClassVar[int] = 1024

    def __init__(
        self,
        mode: str,
        source_name: str | None = None,
        amax_history_length: int = default_amax_history_length,
    ) -> None:
        super().__init__(mode, source_name)
        refusal = f"amax_history_length={amax_history_length!r} must be an int of 1 or more"
        if isinstance(amax_history_length, bool):
            raise TypeError(refusal)
        try:
            self._amax_history_length = operator.index(amax_history_length)
        except TypeError as error:
            raise TypeError(refusal) from error
        if self._amax_history_length < 1:
            raise ValueError(refusal)

    @property
    def amax_history_length(self) -> int:
        """The number of maxima from which the scale is computed."""
        return self._amax_history_length

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of this policy, as Keras writes them."""
        return {**super().get_config(), "amax_history_length": self.amax_history_length}

    def __eq__(self, other: object) -> bool:
        equal = super().__eq__(other)
        if equal is not True:
            return equal
        return self.amax_history_length == getattr(other, "amax_history_length", None)

    def __hash__(self) -> int:
        return hash((super().__hash__(), self.amax_history_length))
