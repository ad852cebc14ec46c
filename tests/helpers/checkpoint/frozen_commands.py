"""Whole commands over small models of every kind, and a digest of all that each of them leaves.

`python frozen_commands.py record FILE` writes the digests, and `check FILE` names each command
whose files, words or exit code differ from those. A change of design records before it and checks
after it. The file is not committed, as every rewording on purpose changes it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from castwise import checkpoint, quantization
from castwise.cli import main as castwise
from checkpoint_samples import write_sharded
from numpy.typing import NDArray

WIDTHS = (128, 256)
FORMATS = ("bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "int8")
OPTIONS = (
    ("--rounding", "towards-zero"),
    ("--rounding", "stochastic", "--seed", "7"),
    ("--overflow", "saturate"),
    ("--overflow", "raise"),
    ("--nan", "zero"),
    ("--like", "torch"),
)
SCHEMES = tuple(scheme.name for scheme in quantization.schemes())
RECIPES = ("deepseek", "transformers", "compressed-tensors", "modelopt", "gpt-oss", "comfy", "mlx")
PRODUCERS = ("compressed-tensors", "modelopt", "comfy", "gpt-oss", "gguf", "deepseek-v4")
CONSUMERS = ("transformers", "vllm", "sglang", "llama.cpp", "mlx-lm")
KINDS = ("llama", "stacks", "unknown", "file")
"""The models that every scheme of every recipe is made of; a scheme costs fifty commands."""


def weights(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, NDArray[Any]]:
    """Normally distributed bfloat16, with rows of other widths."""
    draw = np.random.default_rng(seed)
    arrays = {}
    for name, shape in shapes.items():
        values = draw.normal(size=shape) * np.exp(
            draw.normal(size=(shape[0],) + (1,) * (len(shape) - 1))
        )
        arrays[name] = (values * 0.02).astype(ml_dtypes.bfloat16)
    return arrays


def llama(layers: int = 2) -> dict[str, tuple[int, ...]]:
    narrow, wide = WIDTHS
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (512, narrow),
        "lm_head.weight": (512, narrow),
    }
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        shapes |= {f"{prefix}self_attn.{part}_proj.weight": (narrow, narrow) for part in "qkvo"}
        shapes |= {f"{prefix}mlp.{part}_proj.weight": (wide, narrow) for part in ("gate", "up")}
        shapes |= {
            f"{prefix}mlp.down_proj.weight": (narrow, wide),
            f"{prefix}input_layernorm.weight": (narrow,),
        }
        shapes |= {f"{prefix}post_attention_layernorm.weight": (narrow,)}
    return shapes | {"model.norm.weight": (narrow,)}


def stacks() -> dict[str, tuple[int, ...]]:
    """Experts in stacks, (experts, in, out), as of gpt-oss."""
    narrow, _ = WIDTHS
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (512, narrow),
        "lm_head.weight": (512, narrow),
    }
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        shapes |= {f"{prefix}self_attn.{part}_proj.weight": (narrow, narrow) for part in "qkvo"}
        shapes |= {f"{prefix}self_attn.{part}_proj.bias": (narrow,) for part in "qkvo"}
        shapes |= {f"{prefix}self_attn.sinks": (4,), f"{prefix}input_layernorm.weight": (narrow,)}
        shapes |= {f"{prefix}post_attention_layernorm.weight": (narrow,)}
        shapes |= {f"{prefix}mlp.router.weight": (4, narrow), f"{prefix}mlp.router.bias": (4,)}
        shapes |= {f"{prefix}mlp.experts.gate_up_proj": (4, narrow, 2 * narrow)}
        shapes |= {f"{prefix}mlp.experts.gate_up_proj_bias": (4, 2 * narrow)}
        shapes |= {f"{prefix}mlp.experts.down_proj": (4, narrow, narrow)}
        shapes |= {f"{prefix}mlp.experts.down_proj_bias": (4, narrow)}
    return shapes | {"model.norm.weight": (narrow,)}


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 512,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
GPT_OSS = LLAMA | {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "intermediate_size": 128,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 128,
}


def make_models(folder: Path) -> None:
    """Write the models, each under its name."""
    for name, shapes, config in (
        ("llama", llama(), LLAMA),
        ("stacks", stacks(), GPT_OSS),
        ("unknown", llama(), {"model_type": "nobody", "hidden_size": 128}),
    ):
        arrays = weights(shapes, len(name))
        items = list(arrays.items())
        halves = items[: len(items) // 2], items[len(items) // 2 :]
        shards = {
            f"model-{number}-of-2.safetensors": dict(half) for number, half in enumerate(halves, 1)
        }
        write_sharded(folder / name, shards)
        (folder / name / "config.json").write_text(json.dumps(config, indent=2))
        (folder / name / "notes.txt").write_text("of the model\n")
    arrays = weights(llama(1), 3)
    checkpoint.save(folder / "file.safetensors", arrays)
    wide = {name: array.astype(np.float32) * np.float32(3e4) for name, array in arrays.items()}
    wide["model.norm.weight"][:3] = np.nan, np.inf, -0.0
    np.savez(folder / "wide.npz", **{name.replace(".", "_"): array for name, array in wide.items()})
    np.save(folder / "array.npy", wide["model.norm.weight"])


def commands(folder: Path) -> Iterator[tuple[str, ...]]:
    """Give the arguments of every command; later sources are destinations of earlier commands."""
    sources = ("llama", "stacks", "unknown", "file.safetensors", "wide.npz", "array.npy")
    for source in sources:
        yield "inspect", source
        yield "survey", source
        yield "advise", source, "--bits", "6"
        for dtype in FORMATS:
            yield "cast", source, f"cast/{dtype}/{source}", "--dtype", dtype
        for number, options in enumerate(OPTIONS):
            yield "cast", source, f"cast/{number}/{source}", "--dtype", "float8_e4m3fn", *options
        yield "diff", source, f"cast/float16/{source}"
        yield "diff", source, f"cast/float8_e4m3fn/{source}", "--json"
        yield "verify", source, f"cast/float32/{source}"
        yield "cast", f"cast/0/{source}", f"cast/again/{source}", "--dtype", "nothing"
    for kind in KINDS:
        source = "file.safetensors" if kind == "file" else kind
        for consumer in CONSUMERS:
            yield "verify", source, "--for", consumer
            yield "advise", source, "--bits", "7", "--for", consumer
        for recipe in RECIPES:
            for scheme in SCHEMES:
                made = f"{recipe}/{scheme}/{source}"
                yield "quantize", source, made, "--scheme", scheme, "--recipe", recipe
                if not (folder / made).exists():
                    continue
                yield "inspect", made
                yield "dequantize", made, f"plain/{made}"
                yield (
                    "dequantize",
                    made,
                    f"exact/{made}",
                    "--arithmetic",
                    "exact",
                    "--dtype",
                    "float32",
                )
                yield "verify", made, f"plain/{made}"
                yield "diff", source, made, "--json"
                yield "verify", made, "--for", "vllm"
                for producer in PRODUCERS:
                    yield "transcode", made, f"to/{producer}/{made}", "--to", producer


def digest(path: Path) -> str:
    """One digest of a file, or of all files of a folder with their names."""
    summary = hashlib.sha256()
    for file in (
        [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    ):
        summary.update(f"{file.relative_to(path.parent)}\0{file.stat().st_size}\0".encode())
        summary.update(file.read_bytes())
    return summary.hexdigest()[:16]


def run(arguments: tuple[str, ...]) -> dict[str, object]:
    """Run a command: exit code, words without times, and the digest of the destination."""
    words = io.StringIO()
    with contextlib.redirect_stdout(words), contextlib.redirect_stderr(words):
        try:
            code: object = castwise(list(arguments))
        except SystemExit as exit_:
            code = exit_.code
    text = re.sub(r"\d+(\.\d+)? (ms|s|[kMG]?B/s)\b", "_", words.getvalue())
    left: dict[str, object] = {"code": code, "words": text}
    if len(arguments) > 2 and not arguments[2].startswith("-") and Path(arguments[2]).exists():
        left["files"] = digest(Path(arguments[2]))
    return left


def main(task: str, path: str) -> int:
    """Record, or name what differs: the exit code is 1 if anything does."""
    record = Path(path).absolute()
    os.environ["NO_COLOR"] = "1"
    folder = Path(tempfile.mkdtemp(prefix="frozen"))
    left: dict[str, dict[str, object]] = {}
    try:
        os.chdir(folder)
        make_models(folder)
        for arguments in commands(folder):
            if len(arguments) > 2 and not arguments[2].startswith("-"):
                Path(arguments[2]).parent.mkdir(parents=True, exist_ok=True)
            left[" ".join(arguments)] = run(arguments)
    finally:
        os.chdir("/")
        shutil.rmtree(folder)
    if task == "record":
        record.write_text(json.dumps(left, indent=1))
        print(
            len(left),
            "commands recorded;",
            sum("files" in entry for entry in left.values()),
            "left files",
        )
        return 0
    old = json.loads(record.read_text())
    differ = 0
    for command in sorted(old.keys() | left.keys()):
        before, after = old.get(command), left.get(command)
        if before != after:
            differ += 1
            print("---", command)
            for key in ("code", "files", "words"):
                if before is None or after is None or before.get(key) != after.get(key):
                    print(
                        f"  {key}: {(before or {}).get(key)!r}\n  now : {(after or {}).get(key)!r}"
                    )
    print(f"{differ} of {len(left)} commands differ")
    return min(differ, 1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
