"""What is found of quantized weights."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from castwise.quantization.producers.layouts import ACTIVATION, SCALE, Layout
from castwise.rendering import Rendered
from castwise.rendering.sheet import Lines, Sheet, Table
from castwise.text.brief import (
    LEFT_OUT,
    brief,
    brief_fields,
    counted,
    listed,
    plain_dict,
    plain_fields,
)

# The bits in a name of a scheme: 4 of `int4_group`, `nvfp4` and `mxint4`; `bnb_` has none.
_CODE_BITS = r"bnb_|(?:u?int|mxint|fp|mxfp|nvfp)([1-8])(?![0-9])"
# Of bitsandbytes, whose schemes state none in their names.
_MAP_BITS = 4


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """A weight that is stored as codes, with the tensors that decode them.

    Attributes
    ----------
    name
        Name of the weight, as it would be without quantization.
    scheme
        The scheme, such as "fp8_block", "nvfp4" or "int4_group"; None if neither names, formats and
        shapes nor a configuration determine it.
    block
        Elements of the weight that share a scale, along its last two axes; None if nothing states
        it. It is never derived from the ratio of two shapes.
    recipes
        The producers whose layout it may be.
    payload
        Name of the tensor with the codes.
    parts
        Names of the tensors without which the codes mean nothing or cannot be used, each with its
        role: "scale", "global scale", "zero point", "activation" or "other".
    problem
        A contradiction between two statements or tensors; None if there is none.
    foreign
        Names of tensors beside the payload that are not part of how it is stored.
    by_shapes
        True if no statement describes the storage, and the shapes allow only one.

    """

    name: str
    scheme: str | None
    block: tuple[int, ...] | None
    recipes: tuple[str, ...]
    payload: str
    parts: Mapping[str, str]
    problem: str | None = None
    foreign: tuple[str, ...] = ()
    by_shapes: bool = field(default=False, metadata=LEFT_OUT)
    # Private: the rows of the table of layouts that match it best.
    layouts: tuple[Layout, ...] = field(default=(), repr=False, compare=False, metadata=LEFT_OUT)

    __repr__ = brief_fields

    @property
    def scale(self) -> str | None:
        """Name of the first tensor whose role is "scale"."""
        for name, role in self.parts.items():  # faster than a generator, for each weight
            if role == SCALE:
                return name
        return None

    @property
    def code_bits(self) -> int | None:
        """Bits of a code; None if the scheme does not tell."""
        match = re.match(_CODE_BITS, self.scheme or "")
        return int(match[1] or _MAP_BITS) if match else None

    @property
    def activations(self) -> list[str]:
        """Names of the tensors whose role is "activation"."""
        return [name for name, role in self.parts.items() if role == ACTIVATION]

    to_dict = plain_dict


@dataclass(frozen=True, slots=True)
class Orphan:
    """A tensor of a quantized weight whose other tensors are missing.

    Attributes
    ----------
    name
        Its name.
    is_payload
        True for codes without a scale; False for a scale, or the like, without codes.
    missing
        Names that its counterpart might have.
    plain
        The first of them that is there, but as plain numbers; None if none is.

    """

    name: str
    is_payload: bool
    missing: tuple[str, ...]
    plain: str | None = None

    __repr__ = brief_fields

    def __str__(self) -> str:
        """Say what it is, and what it lacks."""
        if self.plain is not None:
            return (
                f"{self.name!r} is a scale of {self.plain!r}, which holds plain numbers and no "
                "codes, as where quantization_status is 'frozen': save it compressed with the "
                "library that made it, or remove the scales and what states them"
            )
        role, lacks = ("payload", "scale") if self.is_payload else ("scale", "payload")
        if self.is_payload and "scale" not in self.missing[0].lower():
            lacks = "part"
        return f"{self.name!r} is a {role} without its {lacks} {self.missing[0]!r}"

    to_dict = plain_dict


DYNAMIC_INPUTS = "inputs are quantized while the model runs"


@dataclass(frozen=True, slots=True)
class Quantization(Rendered):
    """The quantized weights of a checkpoint.

    Attributes
    ----------
    stated
        Methods that configurations and metadata name, each after the file: "config.json: fp8".
    unknown
        A stated method that castwise does not know; any tensor may be part of it.
    weights
        The quantized weights, in the order of their payloads.
    orphans
        Payloads without scale and scales without payload.
    others
        Scales that belong to no weight, such as those of a key-value cache, and markers.
    unreadable
        Configurations beside the tensors that could not be read, each with the reason.
    inputs
        "dynamic" if a configuration states that the inputs of quantized layers are quantized while
        the model runs; None if none does. Scales of inputs that are stored are parts of weights.

    """

    stated: tuple[str, ...] = ()
    unknown: str | None = None
    weights: tuple[QuantizedWeight, ...] = ()
    orphans: tuple[Orphan, ...] = ()
    others: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    inputs: str | None = field(default=None, metadata=LEFT_OUT)

    def __repr__(self) -> str:
        schemes = listed(weight.scheme or "unknown" for weight in self.weights)
        return brief(
            self,
            f"stated in {listed(self.stated)}" if self.stated else "not stated",
            counted(len(self.weights), "weight") + (f" of {schemes}" if schemes else ""),
            counted(len(self.orphans), "orphan") if self.orphans else None,
            f"not known: {self.unknown}" if self.unknown is not None else None,
            counted(len(self.unreadable), "unreadable file") if self.unreadable else None,
        )

    def __sheet__(self) -> Sheet:
        """Return a table of the weights, and what lacks its counterpart."""
        rows = [
            (
                weight.name,
                weight.scheme or "unknown",
                "-" if weight.block is None else "x".join(map(str, weight.block)),
                " or ".join(weight.recipes),
            )
            for weight in self.weights
        ]
        statement_lines = [f"stated in {', '.join(self.stated)}"] if self.stated else []
        statement_lines += [DYNAMIC_INPUTS] * (self.inputs is not None)
        problems = [f"{weight.name}: {weight.problem}" for weight in self.weights if weight.problem]
        table = Table.of(("weight", "scheme", "block", "producer"), rows)
        return [Lines(statement_lines), table, Lines([*problems, *map(str, self.orphans)])]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; `inputs` only where they are stated."""
        return {**plain_fields(self), **({} if self.inputs is None else {"inputs": self.inputs})}


def add_prefix(quantization: Quantization, prefix: str) -> Quantization:
    """Put the folder of a component before all names."""
    if not prefix:
        return quantization

    def prefixed(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(prefix + name for name in names)

    return replace(
        quantization,
        stated=prefixed(quantization.stated),
        weights=tuple(
            replace(
                weight,
                name=prefix + weight.name,
                payload=prefix + weight.payload,
                parts={prefix + name: role for name, role in weight.parts.items()},
                foreign=prefixed(weight.foreign),
            )
            for weight in quantization.weights
        ),
        orphans=tuple(
            replace(
                orphan,
                name=prefix + orphan.name,
                missing=prefixed(orphan.missing),
                plain=None if orphan.plain is None else prefix + orphan.plain,
            )
            for orphan in quantization.orphans
        ),
        others=prefixed(quantization.others),
        unreadable=prefixed(quantization.unreadable),
    )


def join_components(components: Sequence[Quantization]) -> Quantization:
    return Quantization(
        stated=tuple(text for component in components for text in component.stated),
        unknown=next(
            (component.unknown for component in components if component.unknown is not None), None
        ),
        weights=tuple(weight for component in components for weight in component.weights),
        orphans=tuple(orphan for component in components for orphan in component.orphans),
        others=tuple(name for component in components for name in component.others),
        unreadable=tuple(text for component in components for text in component.unreadable),
        inputs=next((one.inputs for one in components if one.inputs is not None), None),
    )
