# ruff: noqa: PLC0415 - each library is imported by what needs it
"""A small Llama of transformers, quantized by it or by others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


def llama(folder: Path | None = None, **options: Any) -> Any:
    """Make a small Llama, or load one."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    if folder is not None:
        return LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, **options)
    config = LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=64,
    )
    return LlamaForCausalLM(config).to(torch.bfloat16)


def by_transformers(quantizer: Callable[[], Any]) -> Callable[[Path, Path], None]:
    def make(plain: Path, out: Path) -> None:
        llama(plain, quantization_config=quantizer(), device_map="cpu").save_pretrained(out)

    return make
