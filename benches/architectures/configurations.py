"""The configurations that a class is built from: its default, and what changes its parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from transformers import PreTrainedConfig, PreTrainedModel


def configurations(kind: type[PreTrainedModel]) -> Iterator[Callable[[], PreTrainedConfig]]:
    """Yield makers of configurations, the default first."""
    yield kind.config_class
