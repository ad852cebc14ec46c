"""Record what the producers' libraries write.

`PYTHONPATH=quantization python -m producer_libraries`, in tests/helpers. Of each file the headers,
and the configurations beside it. Needs torch, transformers, compressed-tensors 0.20,
nvidia-modelopt 0.47, torchao 0.18, bitsandbytes 0.50, mlx with mlx-cpu 0.32, comfy-kitchen 0.2.40,
keras and h5py, which no other test needs; all of them run on a CPU.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from plain_models import CONFIGS, save

from . import WRITERS
from ._llama import llama

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


def main() -> None:
    """Write the record."""
    found: dict[str, Any] = {"quantized": {}, "plain": {}}
    with tempfile.TemporaryDirectory() as temporary:
        plain = Path(temporary) / "plain"
        llama().save_pretrained(plain)
        for place, (name, make) in enumerate(WRITERS.items()):
            folder = Path(temporary) / str(place)
            make(plain, folder)
            found["quantized"][name] = record(folder)
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
