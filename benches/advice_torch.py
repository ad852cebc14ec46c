"""The networks of `advise.py` that torch trains: convolutions on digits, a transformer on bytes.

The text is the documentation strings of the standard library, which are read from its source files:
no module is imported. Weights are drawn and trained with fixed seeds; on one CPU and one version of
torch and Python a run gives the same networks again.
"""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from advice_networks import BATCH, CALIBRATION, CLASSES, Examples, Floats, Network, Weights, digits
from numpy.typing import NDArray
from torch.nn.functional import (
    conv2d,
    cross_entropy,
    log_softmax,
    max_pool2d,
    relu,
    rms_norm,
    scaled_dot_product_attention,
    silu,
)

CHANNELS = (1, 32, 64, 64, 128)
POOLED = (1, 2)
"""The convolutions after which the image is halved."""

HIDDEN = 128
LAYERS, WIDTH, MLP, HEADS = 5, 128, 352, 4
WINDOW = 128
"""Bytes that the transformer sees."""
BYTES = 256
SKIPPED = frozenset(("site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3"))

torch.set_num_threads(1)
Tensors = dict[str, torch.Tensor]
Forward = Callable[[Tensors, torch.Tensor], torch.Tensor]


def convolutional_networks(
    seeds: int, steps: int, images: int, kept: Path | None
) -> Iterator[Network]:
    """Train networks of four convolutions and two layers, whose kernels are stored as matrices.

    They are judged on this many of the held-out images.
    """
    split = digits()
    held_out = Examples(*(part[:images] for part in split.held_out))
    inputs, labels = (torch.from_numpy(part) for part in split.training)
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        columns = [before * 9 for before in CHANNELS[:-1]] + [CHANNELS[-1] * 4, HIDDEN]
        rows = [*CHANNELS[1:], HIDDEN, CLASSES]
        weights = {
            f"layers.{layer}.weight": torch.randn(after, before, generator=generator)
            * (2 / before) ** 0.5
            for layer, (before, after) in enumerate(zip(columns, rows, strict=True))
        }

        def batch(
            generator: torch.Generator = generator,
        ) -> tuple[torch.Tensor, torch.Tensor]:
            places = torch.randint(len(inputs), (BATCH // 2,), generator=generator)
            return inputs[places], labels[places]

        _train(weights, _convolve, batch, steps, _file(kept, "convolutions", seed, steps))
        calibration = Examples(*(part[:CALIBRATION] for part in split.training))
        shape = "-".join(map(str, (*CHANNELS, HIDDEN, CLASSES)))
        yield _network(
            ("digits, convolutions", shape, seed), weights, _convolve, calibration, held_out
        )


def _convolve(weights: Tensors, images: torch.Tensor) -> torch.Tensor:
    """The logits of images, of shape (images, 1, classes)."""
    *kernels, hidden, last = weights.values()
    x = images.reshape(-1, 1, 8, 8)
    for layer, kernel in enumerate(kernels):
        x = relu(conv2d(x, kernel.reshape(len(kernel), -1, 3, 3), padding=1))
        if layer in POOLED:
            x = max_pool2d(x, 2)
    return (relu(x.flatten(1) @ hidden.T) @ last.T)[:, None]


def transformers(seeds: int, steps: int, windows: int, kept: Path | None) -> Iterator[Network]:
    """Train transformers of a million parameters on bytes, named as Llama's.

    They are calibrated and judged on this many windows of text each.
    """
    text, held_out_text = documentation()
    data = torch.from_numpy(text.astype(np.int64))
    calibration, held_out = _windows(text, windows), _windows(held_out_text, windows)
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        weights = _drawn(generator)

        def batch(
            generator: torch.Generator = generator,
        ) -> tuple[torch.Tensor, torch.Tensor]:
            starts = torch.randint(len(data) - WINDOW, (BATCH // 8, 1), generator=generator)
            bytes_shown = data[starts + torch.arange(WINDOW + 1)]
            return bytes_shown[:, :-1], bytes_shown[:, 1:]

        _train(weights, _transform, batch, steps, _file(kept, "transformer", seed, steps))
        size = sum(weight.numel() for weight in weights.values())
        shape = f"{LAYERS} layers of {WIDTH}: {size:,} parameters"
        yield _network(
            ("bytes, transformer", shape, seed), weights, _transform, calibration, held_out
        )


def _drawn(generator: torch.Generator) -> Tensors:
    """The weights before training."""
    shapes = {"model.embed_tokens": (BYTES, WIDTH), "model.embed_positions": (WINDOW, WIDTH)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        shapes |= {f"{prefix}.self_attn.{name}_proj": (WIDTH, WIDTH) for name in "qkvo"}
        shapes |= {f"{prefix}.mlp.{name}_proj": (MLP, WIDTH) for name in ("gate", "up")}
        shapes[f"{prefix}.mlp.down_proj"] = (WIDTH, MLP)
    shapes["lm_head"] = (BYTES, WIDTH)
    weights = {
        f"{name}.weight": torch.randn(shape, generator=generator)
        * (0.02 if "embed" in name else shape[1] ** -0.5)
        for name, shape in shapes.items()
    }
    for layer in range(LAYERS):
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"model.layers.{layer}.{name}.weight"] = torch.ones(WIDTH)
    weights["model.norm.weight"] = torch.ones(WIDTH)
    return weights


def _transform(weights: Tensors, tokens: torch.Tensor) -> torch.Tensor:
    """The logits of the byte after each, of shape (windows, bytes, 256)."""
    x = weights["model.embed_tokens.weight"][tokens]
    x = x + weights["model.embed_positions.weight"][: tokens.shape[1]]
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        y = rms_norm(x, (WIDTH,), weights[f"{prefix}.input_layernorm.weight"])
        query, key, value = (
            (y @ weights[f"{prefix}.self_attn.{name}_proj.weight"].T)
            .unflatten(-1, (HEADS, -1))
            .transpose(1, 2)
            for name in "qkv"
        )
        y = (
            scaled_dot_product_attention(query, key, value, is_causal=True)
            .transpose(1, 2)
            .flatten(2)
        )
        x = x + y @ weights[f"{prefix}.self_attn.o_proj.weight"].T
        y = rms_norm(x, (WIDTH,), weights[f"{prefix}.post_attention_layernorm.weight"])
        gate, up = (y @ weights[f"{prefix}.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (silu(gate) * up) @ weights[f"{prefix}.mlp.down_proj.weight"].T
    return rms_norm(x, (WIDTH,), weights["model.norm.weight"]) @ weights["lm_head.weight"].T


def documentation() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The documentation strings of the standard library: for training, and of a tenth of its files.

    Files of Python are parsed, not imported.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    parts: list[list[str]] = [[], []]
    paths = [
        path
        for path in sorted(folder.rglob("*.py"))
        if SKIPPED.isdisjoint(path.relative_to(folder).parts)
    ]
    for number, path in enumerate(paths):
        try:
            nodes = ast.walk(ast.parse(path.read_bytes()))
        except (SyntaxError, ValueError):
            continue  # a template of code, not code
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        texts = [ast.get_docstring(node) for node in nodes if isinstance(node, kinds)]
        parts[number % 10 == 9] += [text for text in texts if text]
    training, held_out = (
        np.frombuffer("\n\n".join(texts).encode(errors="replace"), np.uint8) for texts in parts
    )
    return training, held_out


def _windows(text: NDArray[np.uint8], count: int) -> Examples:
    """Windows at equal distances, which do not overlap, and the bytes that follow each byte."""
    step = len(text) // count
    if step <= WINDOW:
        raise ValueError(f"the standard library has only {len(text):,} bytes of text to hold out")
    starts = np.arange(count)[:, None] * step
    windows = text[starts + np.arange(WINDOW + 1)].astype(np.int64)
    return Examples(windows[:, :-1], windows[:, 1:])


def _train(
    weights: Tensors,
    forward: Forward,
    batch: Callable[[], tuple[torch.Tensor, torch.Tensor]],
    steps: int,
    file: Path | None,
) -> None:
    """Train by Adam, with a rate that rises over 50 steps and falls to nothing.

    What a file keeps of an earlier run is taken from it, and kept in it otherwise.
    """
    if file is not None and file.exists():
        with np.load(file) as arrays:
            weights.update({name: torch.from_numpy(arrays[name]) for name in weights})
        return
    parameters = [weight.requires_grad_() for weight in weights.values()]
    optimizer = torch.optim.AdamW(parameters, lr=2e-3, betas=(0.9, 0.99), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 50, 1.0) * (1 - step / steps)
    )
    for _ in range(steps):
        inputs, labels = batch()
        loss = cross_entropy(forward(weights, inputs).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
    if file is not None:
        np.savez(file, **{name: weight.detach().numpy() for name, weight in weights.items()})


def _file(kept: Path | None, kind: str, seed: int, steps: int) -> Path | None:
    """The file of a trained network, in the folder that keeps them."""
    return None if kept is None else kept / f"{kind}-{seed}-{steps}.npz"


def _network(
    identity: tuple[str, str, int],
    weights: Tensors,
    forward: Forward,
    calibration: Examples,
    held_out: Examples,
) -> Network:
    trained = {name: weight.detach() for name, weight in weights.items()}

    def log_probabilities(arrays: Weights, inputs: NDArray[Any]) -> Floats:
        tensors = {name: torch.from_numpy(np.ascontiguousarray(arrays[name])) for name in trained}
        with torch.no_grad():
            parts = torch.from_numpy(inputs).split(32)
            logits = torch.cat([log_softmax(forward(tensors, part), dim=-1) for part in parts])
        result: Floats = logits.numpy()
        return result

    def fisher(inputs: NDArray[Any], rng: np.random.Generator) -> dict[str, float]:
        generator = torch.Generator().manual_seed(int(rng.integers(1 << 31)))
        tensors = {name: weight.clone().requires_grad_() for name, weight in trained.items()}
        sums = dict.fromkeys(trained, 0.0)
        for example in torch.from_numpy(inputs).split(1):
            logits = forward(tensors, example)[0]
            labels = torch.multinomial(logits.detach().softmax(-1), 1, generator=generator)[:, 0]
            # Of one example; its predictions' gradients are independent, so their squares add up.
            loss = cross_entropy(logits, labels, reduction="sum") / len(labels) ** 0.5
            for name, slope in zip(
                tensors, torch.autograd.grad(loss, list(tensors.values())), strict=True
            ):
                sums[name] += float((slope**2).sum())
        return {name: total / len(inputs) for name, total in sums.items()}

    arrays = {name: weight.numpy() for name, weight in trained.items()}
    return Network(*identity, arrays, log_probabilities, fisher, calibration, held_out)
