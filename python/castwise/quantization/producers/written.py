"""What producers write: the schemes of their checkpoints, and what states them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from castwise.quantization.producers.schemes import Scheme, find_scheme
from castwise.quantization.producers.stated import STATED_KEY

Form = tuple[str, str]
"""The scheme of a stored weight, and the one that it becomes with the same values."""

INTEGERS = tuple(
    f"int{bits}_{unit}"
    for bits, unit in ((8, "channel"), (4, "channel"), (4, "group"), (8, "group"))
)
MXFP4_TO_NVFP4 = ("mxfp4", "nvfp4")


def same_schemes(*schemes: str) -> tuple[Form, ...]:
    """Return the forms of schemes that stay what they are."""
    return tuple((scheme, scheme) for scheme in schemes)


@dataclass(frozen=True, slots=True)
class Written:
    """A scheme as a producer's checkpoints hold it."""

    scheme: str  # one of `castwise.quantization.schemes()`
    code: str = ""  # what its configuration calls that
    block: tuple[int, int] | None = None  # the default block, if it is not the scheme's
    # Rows and columns of which those of a weight must be multiples, so that nothing is padded.
    tile: tuple[int, int] = (1, 1)
    step: int = 1  # slabs are multiples of so many rows, beside whole blocks
    stacks: bool = False  # experts may be stacked in one tensor
    # Only such experts are stored so, and in an unquantised model their matrices are (in, out).
    is_transposed: bool = False
    shares: bool = False  # what engines fuse must have the same global scale
    symmetric: bool = True  # false for groups that have a bias
    square: bool = False  # blocks have as many rows as columns
    only_named: bool = False  # a weight must be named so, since its parts are named in its place
    as_groups: bool = False  # channels are stored as groups of one row each
    recipe: str = ""  # the producer, which the registry fills in

    @property
    def row(self) -> Scheme:
        """The row of the scheme."""
        return find_scheme(self.scheme)


@dataclass(frozen=True, slots=True)
class Encoding:
    """A row, and the block that is used."""

    written: Written  # the row
    block: tuple[int, int]  # rows and columns that share a scale
    symmetric: bool = True  # false for integers with zero points
    has_index: bool = False  # true if an index says in which group each column is

    @property
    def bits(self) -> int:
        """The bits of a code."""
        return self.written.row.bits


@dataclass(frozen=True, slots=True)
class Statements:
    """What states how the weights of a component are stored."""

    sections: Mapping[str, Any]  # members of `config.json`
    files: Mapping[str, str]  # other files beside the tensors, with their texts
    # The same for a file without a configuration; None if its producer has no such form.
    metadata: Mapping[str, str] | None
    # What makes the text of `config.json` follow, where its sections stay.
    edit: Callable[[str], str] | None = None


@dataclass(frozen=True, slots=True)
class EncodedModules:
    """The modules of a component, as is to be stated of them."""

    encodings: Mapping[str, Encoding]  # how the weight of each is stored
    plain: Sequence[str]  # those that are not quantised
    inputs: bool  # true if there are scales of inputs, too
    # Those of `encodings` that are embeddings, and no linear layers.
    embeddings: frozenset[str] = frozenset()

    @property
    def distinct(self) -> list[Encoding]:
        """The encodings that differ, the most frequent first."""
        counts = Counter(self.encodings.values())
        return sorted(counts, key=lambda encoding: -counts[encoding])


StatementWriter = Callable[[EncodedModules], Statements]
"""States how weights are stored, as a producer does."""


def in_section(section: Mapping[str, Any], **files: str) -> Statements:
    """State it in the section that transformers reads."""
    return Statements({STATED_KEY: section}, files, {STATED_KEY: json.dumps(section)})
