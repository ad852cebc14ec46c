"""Twelve small models of torch, of the kinds whose parts an autocast must leave as torch does."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import real_frameworks

torch = real_frameworks.torch()
nn = torch.nn


class LayerNorm(nn.LayerNorm):
    """CLIP's, which computes in float32."""

    def forward(self, x: Any) -> Any:
        return super().forward(x.type(torch.float32)).type(x.dtype)


class RMSNorm(nn.Module):
    """LLaMA's, which computes in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, width))

    def forward(self, x: Any) -> Any:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class Normalized(nn.Module):
    """Layers between the norms of CLIP, LLaMA and torch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(8, 8), LayerNorm(8), nn.Linear(8, 8), RMSNorm(8), nn.LayerNorm(8)
        )

    def forward(self, x: Any) -> Any:
        return self.layers(x)


class Attention(nn.Module):
    """Attention with rotary positions, of which the angles are computed without autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8, bias=False) for _ in range(3))
        self.register_buffer("frequencies", 1.0 / 10000 ** (torch.arange(4) / 4), persistent=False)

    def forward(self, x: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            positions = torch.arange(1000, 1000 + x.shape[-2], dtype=torch.float32)
            angles = torch.outer(positions, self.frequencies).repeat(1, 2)
        q, k = (self.rotated(layer(x), angles) for layer in (self.query, self.key))
        # Not by scaled_dot_product_attention, whose bits vary where two threads run it.
        return (q @ k.mT / 8**0.5).softmax(-1) @ self.value(x)

    def rotated(self, x: Any, angles: Any) -> Any:
        half = torch.cat([-x[..., 4:], x[..., :4]], -1)
        return x * angles.cos().to(x.dtype) + half * angles.sin().to(x.dtype)


class Average(nn.Module):
    """A layer whose output's mean is averaged in a buffer, and counted in another."""

    def __init__(self, lerp: bool) -> None:
        super().__init__()
        self.linear, self.lerp = nn.Linear(8, 8), lerp
        self.register_buffer("mean", torch.full((8,), 0.3))
        self.register_buffer("steps", torch.tensor(2048.0))

    def forward(self, x: Any) -> Any:
        y = self.linear(x)
        if self.training:
            mean = y.detach().float().mean(0)
            if self.lerp:
                self.mean.lerp_(mean, 0.001)
            else:
                self.mean.mul_(0.999).add_(mean, alpha=0.001)
            self.steps += 1
        return y - self.mean


class TimeSteps(nn.Module):
    """The embedding of a diffusion model's time steps."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 8))

    def forward(self, x: Any, time: Any) -> Any:
        angles = time[:, None] * torch.exp(-torch.arange(4) * 2.0)
        return x + self.layers(torch.cat([angles.cos(), angles.sin()], -1))


class Trained(nn.Module):
    """A model with its criterion, which takes float32."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.criterion = nn.Linear(8, 8), nn.CrossEntropyLoss(label_smoothing=0.1)

    def forward(self, x: Any) -> Any:
        return self.criterion(self.linear(x).float(), torch.arange(len(x)) % 8)


class Masked(nn.Module):
    """Scores with a mask of -1e9 in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("mask", torch.full((16, 8), -1e9).triu(1))

    def forward(self, x: Any) -> Any:
        return (self.linear(x) + self.mask).softmax(-1)


class Recurrent(nn.Module):
    """A LSTM with a layer after it."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.linear = nn.LSTM(8, 8, 2, batch_first=True), nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        return self.linear(self.lstm(x[:, None])[0])


class Tied(nn.Module):
    """A weight that embeds, and that projects back; a second layer has it as well."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.inner = nn.Embedding(8, 8), nn.Linear(8, 8, bias=False)
        self.head = nn.Linear(8, 8, bias=False)
        self.inner.weight = self.head.weight = self.embedding.weight

    def forward(self, x: Any) -> Any:
        codes = self.embedding(x.argmax(-1))
        return self.head(torch.tanh(self.inner(codes + x)))


def _normed(*layers: Any) -> Any:
    parametrized = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
    return nn.Sequential(parametrized, nn.Tanh(), nn.utils.weight_norm(nn.Linear(8, 8)))


def _convolutional() -> Any:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8)),
        nn.Conv1d(1, 4, 3, padding=1),
        nn.BatchNorm1d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32, 8),
    )


MODELS: dict[str, Callable[[], Any]] = {
    "mlp": lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)),
    "cnn": _convolutional,
    "lstm": Recurrent,
    "norms": Normalized,
    "rotary": Attention,
    "average": lambda: Average(lerp=False),
    "lerp": lambda: Average(lerp=True),
    "time steps": TimeSteps,
    "criterion": Trained,
    "mask": Masked,
    "weight norm": _normed,
    "tied": Tied,
}


def made(name: str) -> Any:
    """Make a model, the same each time."""
    torch.manual_seed(0)
    return MODELS[name]()


def inputs_of(name: str, seed: int = 1) -> tuple[Any, ...]:
    """Make the inputs of a model; the first requires a gradient."""
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(seed)).requires_grad_()
    return (x, torch.arange(16) * 61.7 + 500) if name == "time steps" else (x,)


@cache
def _has_lstm() -> bool:
    model, inputs = made("lstm"), inputs_of("lstm")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model(*inputs)
    except RuntimeError:
        return False
    return True


def need_model(name: str) -> None:
    """Skip a test of LSTMs where torch's autocast has none: torch 2.15 on AVX2 alone."""
    if name == "lstm" and not _has_lstm():
        pytest.skip("torch.autocast makes no LSTM of bfloat16 on this CPU")
