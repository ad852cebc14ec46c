"""The networks whose outputs judge scales: those of `advise.py`, and real models, with importance.

The weights that may change are matrices, as `castwise quantize` takes them: no embeddings, heads of
language models or positions. Importance is the mean square of each input of a matrix, from inputs
that do not judge.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.overrides import TorchFunctionMode

sys.path.append(str(Path(__file__).resolve().parents[1] / "real"))

import models
from shared import bench_module

Floats = NDArray[np.float32]
Errors = NDArray[np.float64]

EXCLUDED = re.compile(r"embed|position|lm_head|proj_out|stft")

CONVOLUTION: dict[str, Any] = {
    "bias": None, "stride": 1, "padding": 0, "dilation": 1, "groups": 1,
}  # fmt: skip
"""The arguments of a convolution after its kernel, by default."""

advice_networks, advice_torch = map(bench_module, ("advice_networks", "advice_torch"))

torch.set_num_threads(1)
torch.set_grad_enabled(False)


@dataclass(frozen=True)
class Subject:
    """A network that is judged.

    Attributes
    ----------
    kind, name
        The networks of one kind have the same architecture.
    weights
        Those that may change.
    errors
        The error of each example with some weights replaced: a Kullback-Leibler divergence where
        the outputs are probabilities.
    is_divergence
        Whether it is one.
    importance
        By weight, the mean square of each input; of the weights for which that is known.
    moments
        By weight, the mean products of its inputs with each other; only where they were asked for.

    """

    kind: str
    name: str
    weights: dict[str, Floats]
    errors: Callable[[Mapping[str, Floats]], Errors]
    is_divergence: bool
    importance: dict[str, Floats]
    moments: dict[str, NDArray[np.float64]]


class InputMoments(TorchFunctionMode):  # type: ignore[misc]
    """Sums the products of the inputs of matrices while a network of torch runs.

    A matrix is recognized by its memory, so that views of it count, too.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self._names = {
            tensor.untyped_storage().data_ptr(): name for name, tensor in tensors.items()
        }
        self._columns = {name: tensor.shape[-1] for name, tensor in tensors.items()}
        self._sums: dict[str, torch.Tensor] = defaultdict(
            lambda: torch.zeros((), dtype=torch.float64)
        )
        self._counts: dict[str, int] = defaultdict(int)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a function, and note the inputs of a product with a known matrix."""
        if func in _PRODUCTS and len(args) > 1:
            name = self._names.get(args[1].untyped_storage().data_ptr())
            if name is not None:
                self._note(name, _PRODUCTS[func](*args, **(kwargs or {})))
        return func(*args, **(kwargs or {}))

    def _note(self, name: str, inputs: torch.Tensor | None) -> None:
        if inputs is None or inputs.shape[-1] != self._columns[name]:
            return
        rows = inputs.reshape(-1, inputs.shape[-1]).double()
        self._sums[name] = self._sums[name] + rows.T @ rows
        self._counts[name] += len(rows)

    def moments(self) -> dict[str, NDArray[np.float64]]:
        """The mean products, by matrix."""
        return {name: (total / self._counts[name]).numpy() for name, total in self._sums.items()}


def _patches(
    x: torch.Tensor, kernel: torch.Tensor, *rest: Any, **named: Any
) -> torch.Tensor | None:
    """What a convolution multiplies with each row of its kernel as a matrix."""
    options = {**CONVOLUTION, **dict(zip(CONVOLUTION, rest, strict=False)), **named}
    if options["groups"] != 1 or isinstance(options["padding"], str):
        return None
    window = {name: options[name] for name in ("stride", "padding", "dilation")}
    unfolded: torch.Tensor = torch.nn.functional.unfold(x, kernel.shape[2:], **window)
    return unfolded.transpose(1, 2)


def _first(x: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
    del rest, options
    return x


_PRODUCTS: dict[Any, Callable[..., torch.Tensor | None]] = {
    torch.nn.functional.linear: _first,
    torch.Tensor.__matmul__: _first,
    torch.Tensor.matmul: _first,
    torch.matmul: _first,
    torch.conv2d: _patches,
    torch.nn.functional.conv2d: _patches,
}


def subjects(trained: Path | None, names: list[str]) -> Iterator[Subject]:
    """Load all that have one of these names, or all: the small ones first."""
    networks: tuple[tuple[str, Callable[[], Iterator[Any]]], ...] = (
        ("dense", lambda: advice_networks.dense_networks(15)),
        ("convolutions", lambda: advice_torch.convolutional_networks(3, 300, 599, trained)),
        ("transformer", lambda: advice_torch.transformers(1, 1200, 128, trained)),
    )
    for name, make in networks:
        if not names or name in names:
            with torch.enable_grad():
                made = list(make())
            yield from map(_trained, made)
    for name, load in models.models():
        if not names or name in names:
            yield real(load)


def _may_change(name: str, array: Floats) -> bool:
    return array.ndim == 2 and name.endswith(".weight") and not EXCLUDED.search(name)


def _trained(network: Any) -> Subject:
    """A network of `advise.py`."""
    weights = {name: array for name, array in network.weights.items() if _may_change(name, array)}
    inputs = network.held_out.inputs
    exact = network.log_probabilities(network.weights, inputs).astype(np.float64)

    def errors(changed: Mapping[str, Floats]) -> Errors:
        logs = network.log_probabilities({**network.weights, **changed}, inputs).astype(np.float64)
        found: Errors = (np.exp(exact) * (exact - logs)).sum(axis=-1).mean(axis=1)
        return found

    calibration = network.calibration.inputs
    if network.kind.endswith("dense"):
        layers = advice_networks.layer_outputs(network.weights, calibration)
        moments = {
            name: x.T.astype(np.float64) @ x / len(x)
            for name, x in zip(network.weights, layers, strict=False)
        }
    else:
        # `log_probabilities` makes tensors of these arrays, in the same memory.
        tensors = {name: torch.from_numpy(array) for name, array in weights.items()}
        with InputMoments(tensors) as seen:
            network.log_probabilities(network.weights, calibration)
        moments = seen.moments()
    name = f"{network.shape}, seed {network.seed}"
    return Subject(network.kind, name, weights, errors, True, _diagonals(moments, weights), {})


def real(load: Callable[[], models.RealModel], *, with_moments: bool = False) -> Subject:
    """A real model, whose importance comes from other inputs than those that judge it."""
    token = models.INPUTS.set(1)
    other = load()
    models.INPUTS.reset(token)
    tensors = {name: torch.from_numpy(array) for name, array in other.weights.items()}
    changing = {name: tensors[name] for name in tensors if _may_change(name, other.weights[name])}
    with InputMoments(changing) as seen:
        other.answer(tensors)
    moments = seen.moments()
    del other, tensors, changing
    model = load()
    weights = {name: array for name, array in model.weights.items() if _may_change(name, array)}
    plain = {name: torch.from_numpy(array) for name, array in model.weights.items()}
    exact = model.answer(plain)

    def errors(changed: Mapping[str, Floats]) -> Errors:
        replaced = {name: torch.from_numpy(array) for name, array in changed.items()}
        return model.mark(exact, model.answer({**plain, **replaced}))

    return Subject(
        "real",
        model.name,
        weights,
        errors,
        model.mark is models.divergence,
        _diagonals(moments, weights),
        moments if with_moments else {},
    )


def _diagonals(
    moments: Mapping[str, NDArray[np.float64]], weights: Mapping[str, Floats]
) -> dict[str, Floats]:
    """The mean squares of the inputs of each weight that has as many."""
    diagonals = {name: np.diag(matrix).astype(np.float32) for name, matrix in moments.items()}
    return {
        name: diagonals[name].copy()
        for name, weight in weights.items()
        if name in diagonals and len(diagonals[name]) == weight.shape[1] and diagonals[name].any()
    }
