"""A reader of shards whose tensors are derived says how they are: decoded, encoded, transcoded."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint.dequantizing import DequantizeRequest
from castwise.checkpoint.planning import _derived_reader
from castwise.checkpoint.planning._derived_reader import DerivedReader
from castwise.checkpoint.quantizing import QuantizeRequest
from castwise.checkpoint.requests._derive_request import DeriveRequest
from castwise.checkpoint.transcoding import TranscodeRequest
from system_parts import need

LAYER = "model.layers.0.mlp.up_proj.weight"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    tensors = {LAYER: np.ones((32, 32), np.float32), "model.norm.weight": np.ones(32, np.float32)}
    checkpoint.save(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder


def derivations(request: DeriveRequest, destination: Path) -> set[str]:
    with request.planned(destination) as planned:
        readers = planned.run.sources.values()
        assert all(isinstance(reader, DerivedReader) for reader in readers)
        return {reader.derivation for reader in readers if isinstance(reader, DerivedReader)}


def test_each_command_names_its_derivation(tmp_path: Path, model: Path) -> None:
    common = {"overwrite": False, "include": (), "exclude": (), "max_shard_size": None}
    quantised = tmp_path / "quantised"
    encode = QuantizeRequest(
        source=model,
        scheme="nvfp4",
        recipe="modelopt",
        consumer=None,
        block=None,
        dtype_map=None,
        ignore=(),
        architecture=None,
        **common,  # type: ignore[arg-type]
    )
    assert derivations(encode, quantised) == {"encode"}
    checkpoint.quantize_file(model, quantised, "nvfp4", recipe="modelopt")
    decode = DequantizeRequest(
        source=quantised,
        dtype="float32",
        arithmetic="peer",
        only=None,
        **common,  # type: ignore[arg-type]
    )
    assert derivations(decode, tmp_path / "new") == {"decode"}
    transcode = TranscodeRequest(
        source=quantised,
        recipe="compressed-tensors",
        scheme=None,
        architecture=None,
        **common,  # type: ignore[arg-type]
    )
    assert derivations(transcode, tmp_path / "new") == {"transcode"}


def test_a_process_forked_while_a_thread_plans_can_plan() -> None:
    need("os.fork")
    with _derived_reader._PLANNING:
        child = os.fork()
        if child == 0:
            os._exit(0 if _derived_reader._PLANNING.acquire(timeout=5) else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert _derived_reader._PLANNING.acquire(timeout=0)
    _derived_reader._PLANNING.release()
