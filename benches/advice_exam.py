"""What a choice of schemes does to a network of `advise.py`, and what castwise advises for it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import castwise
import numpy as np
from advice_networks import Examples, Floats, Network, Weights
from castwise import checkpoint
from castwise.quantization import schemes
from numpy.typing import NDArray

_HEADER_BYTES = 1000
"""Of the parts of a weight, more than they ever are."""
_ROUNDS = 4

RECIPE: Literal["compressed-tensors"] = "compressed-tensors"
KEEP = "keep"
NARROW: tuple[Any, ...] = ("nvfp4", "mxfp4", "int4_channel")
WIDER: tuple[Any, ...] = ("mxfp6_e2m3", "mxfp8_e4m3", "fp8_channel", "int8_channel")
SCHEMES = (*NARROW, *WIDER)

Choice = dict[str, str]
"""A scheme, or "keep", for each weight that may change."""


class Marks(NamedTuple):
    """Of each example, in nats and means over its predictions."""

    divergence: NDArray[np.float64]
    cross_entropy: NDArray[np.float64]


class Exam:
    """A network as a checkpoint of bfloat16, and its weights by every scheme that castwise writes.

    Attributes
    ----------
    groups
        The weights that share a choice, in the order of the network.
    values, nbytes
        Of each weight, by "keep" or scheme: its values once decoded, and its bytes in a file.
    cross_entropy
        The float32 network's on held-out examples, in nats.

    """

    def __init__(self, network: Network, folder: Path) -> None:
        self.network = network
        self._source = folder / "network.safetensors"
        rounded = {
            name: castwise.cast(array, "bfloat16") for name, array in network.weights.items()
        }
        checkpoint.save(self._source, rounded)
        whole = self._advise("1GB", None)
        self._beside = whole.nbytes - sum(choice.nbytes for choice in whole.choices)
        order = list(network.weights)
        groups = (sorted(choice.tensors, key=order.index) for choice in whole.choices)
        self.groups: list[list[str]] = sorted(groups, key=lambda group: order.index(group[0]))
        self.names = [name for group in self.groups for name in group]
        self._plain = {name: array.astype(np.float32) for name, array in rounded.items()}
        self.values: dict[str, dict[str, Floats]] = {
            name: {KEEP: self._plain[name]} for name in self.names
        }
        self.nbytes = {name: {KEEP: rounded[name].nbytes} for name in self.names}
        for scheme in SCHEMES:
            self._convert(scheme, folder)
        self._exact: dict[int, Floats] = {}
        self._marks: dict[Any, Marks] = {}
        exact = self._compared(network.weights, network.held_out)
        self.cross_entropy = float(exact.cross_entropy.mean())

    def _convert(self, scheme: Any, folder: Path) -> None:
        """Convert all weights that a scheme can hold, in files."""
        columns = next(row.block[1] for row in schemes() if row.name == scheme) or 1
        unfit = [name for name in self.names if self._plain[name].shape[1] % columns]
        stored, decoded = (folder / f"{scheme}-{word}.safetensors" for word in ("codes", "values"))
        ignored = [re.escape(name) for name in unfit]
        checkpoint.quantize_file(self._source, stored, scheme, recipe=RECIPE, ignore=ignored)
        checkpoint.dequantize_file(stored, decoded, "float32")
        parts, values = checkpoint.load(stored), checkpoint.load(decoded)
        for name in self.names:
            if name not in unfit:
                self.values[name][scheme] = np.asarray(values[name])
                self.nbytes[name][scheme] = sum(
                    array.nbytes for part, array in parts.items() if part.startswith(name)
                )

    def _advise(self, budget: int | str, importance: Mapping[str, float] | None) -> Any:
        return checkpoint.advise(
            self._source,
            budget=budget,
            formats=SCHEMES,
            recipe=RECIPE,
            importance=importance,
            quantize_embeddings=False,  # rivals choose among the weights that every recipe takes
        )

    def advised(self, budget: int, importance: Mapping[str, float] | None = None) -> Choice | None:
        """What castwise advises within these bytes of `names`; None if nothing fits.

        A budget is of the whole file: headers and what states the schemes come on top, and depend
        on the choice, so the budget is raised by those of the choice before.
        """
        best: tuple[float, Choice] | None = None
        limit = budget + self._beside + _HEADER_BYTES * len(self.names)
        for _ in range(_ROUNDS):
            try:
                advice = self._advise(limit, importance)
            except checkpoint.CheckpointError:
                break
            choice = {name: row.target for row in advice.choices for name in row.tensors}
            size = self.size(choice)
            if size <= budget and (best is None or advice.error < best[0]):
                best = advice.error, choice
            limit = budget + advice.nbytes - size
        return None if best is None else best[1]

    def targets(self, group: Sequence[str]) -> list[str]:
        """What all weights of a group may become."""
        return [
            target
            for target in self.nbytes[group[0]]
            if all(target in self.nbytes[name] for name in group)
        ]

    def uniform(self, target: str) -> Choice:
        """One scheme, except for weights that it cannot hold."""
        return {name: target if target in self.nbytes[name] else KEEP for name in self.names}

    def size(self, choice: Choice) -> int:
        """The bytes of a choice, in a file."""
        return sum(self.nbytes[name][target] for name, target in choice.items())

    def noise(self, name: str, target: str) -> float:
        """The squared error of a weight over the sum of its squares."""
        plain = self._plain[name].astype(np.float64)
        return float(((self.values[name][target] - plain) ** 2).sum() / (plain**2).sum())

    def marks(self, choice: Choice, examples: Examples | None = None) -> Marks:
        """How the network does with a choice, on held-out examples if on no others."""
        shown = self.network.held_out if examples is None else examples
        key = id(shown), tuple(choice[name] for name in self.names)
        if key not in self._marks:
            changed = {name: self.values[name][target] for name, target in choice.items()}
            self._marks[key] = self._compared({**self._plain, **changed}, shown)
        return self._marks[key]

    def _compared(self, weights: Weights, examples: Examples) -> Marks:
        if id(examples) not in self._exact:
            self._exact[id(examples)] = self.network.log_probabilities(
                self.network.weights, examples.inputs
            )
        exact = self._exact[id(examples)].astype(np.float64)
        logs = self.network.log_probabilities(weights, examples.inputs).astype(np.float64)
        divergence = (np.exp(exact) * (exact - logs)).sum(axis=-1)
        right = np.take_along_axis(logs, examples.labels[..., None], axis=-1)[..., 0]
        return Marks(divergence.mean(axis=1), -right.mean(axis=1))
