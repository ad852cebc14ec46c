"""Train the digits network and write digits.safetensors: `python benches/digits/train.py`.

Seconds on one core, numpy and scikit-learn only. Every source of chance is seeded and BLAS is held
to one thread, so the same machine and versions give the same bytes; elsewhere the last bits of the
weights, and so an image or two, may differ.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import struct
from pathlib import Path

import network
import numpy as np
import sklearn
from threadpoolctl import threadpool_limits  # of scikit-learn

SEED = 20
EPOCHS = 40
BATCH = 32
STEP = 1e-3
WEIGHT_DECAY = 1e-4
SAFETENSORS_CODES = {"float32": "F32", "int64": "I64"}


def initial(rng: np.random.Generator, images: network.Floats) -> network.Model:
    """He initialization; the scaler is that of the training images (constant pixels keep std 1)."""
    std = images.std(axis=0)
    model: network.Model = {
        "input.mean": images.mean(axis=0),
        "input.std": np.where(std > 0, std, 1).astype(np.float32),
        "classes": np.arange(network.WIDTHS[-1], dtype=np.int64),
    }
    for weight, bias in network.layer_names():
        shape = network.shapes()[weight]
        drawn = rng.standard_normal(shape) * np.sqrt(2 / shape[0])
        model[weight] = drawn.astype(np.float32)
        model[bias] = np.zeros(shape[1], np.float32)
    return model


def gradients(
    model: network.Model, images: network.Floats, labels: network.Labels
) -> network.Model:
    """Gradients of the mean cross entropy, by hand: forward keeping activations, then backward."""
    layers = network.layer_names()
    activations = [(images - model["input.mean"]) / model["input.std"]]
    for weight, bias in layers[:-1]:
        activations.append(np.maximum(activations[-1] @ model[weight] + model[bias], 0))
    scores = activations[-1] @ model[layers[-1][0]] + model[layers[-1][1]]
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    delta = scores / scores.sum(axis=1, keepdims=True)
    delta[np.arange(len(labels)), labels] -= 1
    delta /= len(labels)
    found: network.Model = {}
    for (weight, bias), active in zip(reversed(layers), reversed(activations), strict=True):
        found[weight] = active.T @ delta
        found[bias] = delta.sum(axis=0)
        delta = (delta @ model[weight].T) * (active > 0)
    return found


def train(images: network.Floats, labels: network.Labels) -> network.Model:
    """Adam with decoupled weight decay, step size falling linearly to zero."""
    rng = np.random.default_rng(SEED)
    model = initial(rng, images)
    names = [name for pair in network.layer_names() for name in pair]
    first = {name: np.zeros_like(model[name]) for name in names}
    second = {name: np.zeros_like(model[name]) for name in names}
    batches = -(-len(labels) // BATCH)
    for step in range(EPOCHS * batches):
        if step % batches == 0:
            order = rng.permutation(len(labels))
        chosen = order[(step % batches) * BATCH :][:BATCH]
        size = np.float32(STEP * (1 - step / (EPOCHS * batches)))
        for name, gradient in gradients(model, images[chosen], labels[chosen]).items():
            first[name] += np.float32(0.1) * (gradient - first[name])
            second[name] += np.float32(0.001) * (gradient * gradient - second[name])
            mean = first[name] / np.float32(1 - 0.9 ** (step + 1))
            spread = np.sqrt(second[name] / np.float32(1 - 0.999 ** (step + 1)))
            decay = np.float32(WEIGHT_DECAY) * model[name]
            model[name] -= size * (mean / (spread + np.float32(1e-8)) + decay)
    return model


def safetensors(model: network.Model, metadata: dict[str, str]) -> bytes:
    """Encode the model as a safetensors file; written here: training needs no castwise."""
    header: dict[str, object] = {"__metadata__": metadata}
    offset = 0
    # Widest elements first keeps every tensor aligned, as the reference writer does.
    ordered = sorted(model.items(), key=lambda item: (-item[1].itemsize, item[0]))
    for name, tensor in ordered:
        header[name] = {
            "dtype": SAFETENSORS_CODES[tensor.dtype.name],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    little = (tensor.astype(tensor.dtype.newbyteorder("<")).tobytes() for _, tensor in ordered)
    return struct.pack("<Q", len(text)) + text + b"".join(little)


def main() -> None:
    """Train, score on the test images, write the file and print its digest."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).with_name("digits.safetensors")
    )
    arguments = parser.parse_args()
    train_images, train_labels, test_images, test_labels = network.split()
    with threadpool_limits(limits=1):
        model = train(train_images, train_labels)
        right = network.correct(model, test_images, test_labels)
    widths = "-".join(map(str, network.WIDTHS))
    metadata = {
        # As in the file that was made.
        "architecture": f"mlp {widths}, relu, standardised input",  # codespell:ignore
        "data_set": f"scikit-learn digits, {len(train_labels)} train / {len(test_labels)} test",
        "split_seed": str(network.SPLIT_SEED),
        "training_seed": str(SEED),
        "made_with": f"numpy {np.__version__}, scikit-learn {sklearn.__version__}",
        "test_accuracy": f"{right / len(test_labels):.4f}",
    }
    content = safetensors(model, metadata)
    arguments.output.write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    print(f"{arguments.output}: {len(content):,} bytes, sha256 {digest}")
    print(f"test accuracy {right}/{len(test_labels)} = {right / len(test_labels):.2%}")


if __name__ == "__main__":
    main()
