"""Record what the producers of quantised models write: `python peer_models.py`.

Of each file the headers, and the configurations beside it. Needs torch, transformers,
compressed-tensors 0.20, nvidia-modelopt 0.47, torchao 0.18, bitsandbytes 0.50, mlx with mlx-cpu
0.32, comfy-kitchen 0.2.40, keras and h5py, which no other test needs; all of them run on a CPU.
"""

# ruff: noqa: PLC0415 - each library is imported by what needs it

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from plain_models import CONFIGS, save

RECORD = Path(__file__).parents[2] / "recorded" / "quantization" / "models.json"
_FILES = ("config.json", "hf_quant_config.json", "quantize_config.json")


def headers(path: Path) -> dict[str, Any]:
    """Return the metadata and, of each tensor, code and shape."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    entries = json.loads(data[8 : 8 + length])
    metadata = entries.pop("__metadata__", {})
    tensors = {name: [one["dtype"], one["shape"]] for name, one in sorted(entries.items())}
    return {"metadata": metadata, "tensors": tensors}


def record(folder: Path) -> dict[str, Any]:
    """Return what is recorded of a model."""
    (path,) = folder.glob("*.safetensors")
    configs = {
        name: json.loads((folder / name).read_text())
        for name in _FILES
        if (folder / name).is_file()
    }
    for config in configs.values():
        for key in set(config) - {"quantization_config", "quantization", "producer", "model_type"}:
            del config[key]
    return {"configs": configs, **headers(path)}


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


def fine_grained_fp8() -> Any:
    from transformers import FineGrainedFP8Config
    from transformers.quantizers import quantizer_finegrained_fp8 as module

    # It refuses a machine without a GPU; quantising needs none.
    module.FineGrainedFP8HfQuantizer.validate_environment = lambda *_, **__: None
    return FineGrainedFP8Config()


def bits_and_bytes(**options: Any) -> Callable[[], Any]:
    def make() -> Any:
        from transformers import BitsAndBytesConfig

        return BitsAndBytesConfig(**options)

    return make


def torchao(name: str, **options: Any) -> Callable[[], Any]:
    def call() -> Any:
        import torchao.prototype.mx_formats as mx
        import torchao.quantization as ao
        from transformers import TorchAoConfig

        return TorchAoConfig((getattr(ao, name, None) or getattr(mx, name))(**options))

    return call


def compressed_tensors(preset: str) -> Callable[[Path, Path], None]:
    def make(plain: Path, out: Path) -> None:
        from compressed_tensors.compressors import ModelCompressor
        from compressed_tensors.quantization import (
            QuantizationConfig,
            QuantizationStatus,
            apply_quantization_config,
            preset_name_to_scheme,
        )

        model = llama(plain)
        groups = {"group_0": preset_name_to_scheme(preset, ["Linear"])}
        apply_quantization_config(
            model, QuantizationConfig(config_groups=groups, ignore=["lm_head"])
        )
        for module in model.modules():
            if getattr(module, "quantization_scheme", None) is not None:
                for name, parameter in module.named_parameters(recurse=False):
                    if name.endswith(("scale", "zero_point")):
                        parameter.data.fill_(name.endswith("scale"))
                module.quantization_status = QuantizationStatus.FROZEN
        compressor = ModelCompressor.from_pretrained_model(model)
        compressor.compress_model(model)
        model.save_pretrained(out)
        compressor.update_config(out)

    return make


def modelopt(config: str) -> Callable[[Path, Path], None]:
    def make(plain: Path, out: Path) -> None:
        import modelopt.torch.quantization as mtq
        import torch
        from modelopt.torch.export import export_hf_checkpoint

        tokens = torch.arange(16).reshape(1, 16)
        model = mtq.quantize(llama(plain), getattr(mtq, config), lambda one: one(tokens))
        export_hf_checkpoint(model, export_dir=out)

    return make


def mlx(**options: Any) -> Callable[[Path, Path], None]:
    def make(plain: Path, out: Path) -> None:
        del plain
        import mlx.core as mx
        from mlx import nn
        from mlx.utils import tree_flatten

        model = nn.Sequential(nn.Linear(128, 64), nn.LayerNorm(64), nn.Linear(64, 64))
        nn.quantize(model, **options)
        out.mkdir()
        weights = dict(tree_flatten(model.parameters()))
        mx.save_safetensors(str(out / "model.safetensors"), weights, metadata={"format": "mlx"})
        section = {"mode": "affine", **options}  # as mlx_lm writes both
        text = json.dumps({"quantization": section, "quantization_config": section})
        (out / "config.json").write_text(text)

    return make


def comfy(form: str, where: str) -> Callable[[Path, Path], None]:
    def make(plain: Path, out: Path) -> None:
        del plain
        import comfy_kitchen as ck
        import torch
        from safetensors.torch import save_file

        weight = torch.randn(100, 64, dtype=torch.bfloat16)
        scale = (weight.abs().max() / 448).float()
        with ck.registry.use_backend("eager"):
            if form == "nvfp4":
                second = (weight.abs().max() / 2688).float()
                codes, scales = ck.quantize_nvfp4(weight, second, pad_16x=True)
                parts = {"weight_scale": scales, "weight_scale_2": second}
            elif form == "mxfp8":
                codes, scales = ck.quantize_mxfp8(weight, pad_32x=True)
                parts = {"weight_scale": scales}
            else:
                codes, parts = ck.quantize_per_tensor_fp8(weight, scale), {"weight_scale": scale}
        layer = "model.diffusion_model.blocks.0.q"
        tensors = {f"{layer}.{name}": tensor for name, tensor in parts.items()}
        tensors |= {f"{layer}.weight": codes, f"{layer}.bias": weight[0].clone()}
        metadata = {}
        if where == "marker":
            text = json.dumps({"format": form}).encode()
            tensors[f"{layer}.comfy_quant"] = torch.tensor(list(text), dtype=torch.uint8)
        else:
            layers = {"format_version": "1.0", "layers": {layer: {"format": form}}}
            metadata["_quantization_metadata"] = json.dumps(layers)
        out.mkdir()
        plain_view = {
            name: tensor.view(torch.uint8) if tensor.dtype == torch.float8_e8m0fnu else tensor
            for name, tensor in tensors.items()
        }
        save_file(plain_view, out / "model.safetensors", metadata)

    return make


def keras(mode: str) -> Callable[[Path, Path], None]:
    def make(plain: Path, out: Path) -> None:
        del plain
        import h5py
        import keras
        import numpy as np
        from safetensors.numpy import save_file

        layers = [keras.Input((16,)), keras.layers.Dense(8), keras.layers.Dense(4, use_bias=False)]
        model = keras.Sequential(layers)
        model.quantize(mode)
        out.mkdir()
        model.save_weights(out / "model.weights.h5")
        tensors = {}
        with h5py.File(out / "model.weights.h5") as file:
            file.visititems(
                lambda name, item: (
                    tensors.update({name: np.asarray(item)})
                    if isinstance(item, h5py.Dataset)
                    else None
                )
            )
        save_file(tensors, out / "model.safetensors")  # the names of the file, as they are

    return make


PEERS: dict[str, Callable[[Path, Path], None]] = {
    "transformers fp8": by_transformers(fine_grained_fp8),
    "bitsandbytes nf4": by_transformers(
        bits_and_bytes(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
    ),
    "bitsandbytes fp4": by_transformers(bits_and_bytes(load_in_4bit=True)),
    "bitsandbytes int8": by_transformers(bits_and_bytes(load_in_8bit=True)),
    "torchao int8": by_transformers(torchao("Int8WeightOnlyConfig")),
    "torchao float8": by_transformers(torchao("Float8WeightOnlyConfig")),
    "torchao nvfp4": by_transformers(torchao("NVFP4WeightOnlyConfig")),
    **{
        f"compressed-tensors {preset}": compressed_tensors(preset)
        for preset in (
            "W4A16_ASYM",
            "W8A8",
            "W4AFP8",
            "FP8",
            "FP8_DYNAMIC",
            "FP8_BLOCK",
            "NVFP4",
            "MXFP4",
            "MXFP6A16",
            "MXFP8",
            "W3A16",
            "W8A16",
        )
    },
    **{
        f"modelopt {name}": modelopt(f"{name}_CFG")
        for name in (
            "FP8_DEFAULT",
            "FP8_PER_CHANNEL_PER_TOKEN",
            "FP8_2D_BLOCKWISE_WEIGHT_ONLY",
            "NVFP4_DEFAULT",
            "W4A8_NVFP4_FP8",
            "MXFP8_DEFAULT",
            "INT4_AWQ",
            "W4A8_AWQ_BETA",
            "INT8_SMOOTHQUANT",
            "W4A8_MXFP4_FP8",
        )
    },
    "mlx affine": mlx(group_size=64, bits=4),
    "mlx mxfp4": mlx(group_size=32, bits=4, mode="mxfp4"),
    "mlx nvfp4": mlx(group_size=16, bits=4, mode="nvfp4"),
    "comfy nvfp4, marker": comfy("nvfp4", "marker"),
    "comfy nvfp4, metadata": comfy("nvfp4", "metadata"),
    "comfy mxfp8, marker": comfy("mxfp8", "marker"),
    "comfy float8_e4m3fn, metadata": comfy("float8_e4m3fn", "metadata"),
    "keras int8": keras("int8"),
    "keras int4": keras("int4"),
}


def main() -> None:
    """Write the record."""
    found: dict[str, Any] = {"quantised": {}, "plain": {}}
    with tempfile.TemporaryDirectory() as temporary:
        plain = Path(temporary) / "plain"
        llama().save_pretrained(plain)
        for place, (name, make) in enumerate(PEERS.items()):
            folder = Path(temporary) / str(place)
            make(plain, folder)
            found["quantised"][name] = record(folder)
        for name in CONFIGS:
            folder = Path(temporary) / name
            save(name, folder)
            found["plain"][name] = headers(folder / "model.safetensors")["tensors"]
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        f"{json.dumps(kind)}: {{\n"
        + ",\n".join(
            f"{json.dumps(name)}: {json.dumps(one, separators=(',', ':'))}"
            for name, one in models.items()
        )
        + "\n}"
        for kind, models in found.items()
    ]
    RECORD.write_text("{" + ",\n".join(rows) + "}\n")


if __name__ == "__main__":
    main()
