"""Report what the application of policies changed in a model."""

from __future__ import annotations

from dataclasses import dataclass

from castwise.dtype_policies import Explanation
from castwise.rendering import Rendered
from castwise.rendering.sheet import Lines, Sheet
from castwise.text.brief import brief, counted, listed, plain_dict


@dataclass(frozen=True, slots=True)
class AppliedPolicies(Rendered):
    """What was changed in a model's layers and variables. Prints as a table.

    Attributes
    ----------
    explanation
        The key of the map that matches the path of each layer, and the unused keys.
    layers
        The paths of the layers whose policy changed, with its names before and after.
    variables
        The paths of the variables that were cast, with their dtypes before and after.
    quantized
        Each layer that was quantized, as (path, mode, name of its policy): as in the
        ``quantized`` of Keras 3.16's ``QuantizationReport``.
    skipped
        Each built layer that a policy would quantize and that was not, as (path, reason), with
        Keras' reasons: "no quantize support" or "already quantized".
    unquantized
        The paths of the skipped layers without support that have weights.
    notes
        What the caller may have to do, in sentences.

    """

    explanation: Explanation
    layers: dict[str, tuple[str, str]]
    variables: dict[str, tuple[str, str]]
    quantized: tuple[tuple[str, str, str], ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    unquantized: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return brief(
            self,
            f"{len(self.layers):,} of {len(self.explanation.paths):,} layers",
            counted(len(self.variables), "variable"),
            f"{len(self.quantized):,} quantized" if self.quantized else None,
            f"not quantized: {listed(self.unquantized)}" if self.unquantized else None,
            counted(len(self.notes), "note") if self.notes else None,
        )

    to_dict = plain_dict

    def __sheet__(self) -> Sheet:
        lines = [
            f"{len(self.layers)} of {len(self.explanation.paths)} layers have another policy, "
            f"{len(self.variables)} variables were cast"
            + (f", {counted(len(self.quantized), 'layer')} quantized" if self.quantized else ""),
        ]
        lines += [f"{path} is not quantized: its class cannot be" for path in self.unquantized]
        return [*self.explanation.__sheet__(), Lines([*lines, *self.notes])]
