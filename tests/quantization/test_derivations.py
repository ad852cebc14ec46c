"""A reader of shards whose tensors are derived says how they are: decoded, encoded, transcoded."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint.planning.derived_reader import DerivedReader, RemoteShard
from castwise.checkpoint.requests.conversion import open_planned
from castwise.checkpoint.requests.options import Dequantize, Quantize, Request, Run, Transcode
from child_processes import in_a_child
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


def derivations(request: Request, destination: Path) -> set[str]:
    with open_planned(request, Run(destination=destination), destination) as conversion:
        readers = conversion.writer.sources.values()
        assert all(isinstance(reader, DerivedReader) for reader in readers)
        return {reader.derivation for reader in readers if isinstance(reader, DerivedReader)}


def test_each_command_names_its_derivation(tmp_path: Path, model: Path) -> None:
    quantized, other = tmp_path / "quantized", tmp_path / "new"
    encode = Quantize(source=model, scheme="nvfp4", recipe="modelopt")
    assert derivations(encode, quantized) == {"encode"}
    checkpoint.quantize_file(model, quantized, "nvfp4", recipe="modelopt")
    assert derivations(Dequantize(source=quantized, dtype="float32"), other) == {"decode"}
    transcode = Transcode(source=quantized, recipe="compressed-tensors")
    assert derivations(transcode, other) == {"transcode"}


def test_a_process_forked_while_a_thread_plans_can_plan(tmp_path: Path, model: Path) -> None:
    need("os.fork")
    request, target = Quantize(source=model, scheme="nvfp4"), tmp_path / "new"
    with open_planned(request, Run(destination=target), target) as conversion:
        (source,) = conversion.writer.sources.values()
        assert isinstance(source, DerivedReader)
        assert source.replan is not None
        path, state, (_, replan) = source.path, source.state, source.replan
        plans, go_on = threading.Event(), threading.Event()

        def replan_late() -> Any:
            plans.set()
            assert go_on.wait(60)
            return replan()

        def shard(plan: Callable[[], Any]) -> RemoteShard:
            return RemoteShard((uuid4(), plan), path, state)

        def derive(remote: RemoteShard) -> str:
            with remote.beside_others() as copy:
                return copy.derivation

        with ThreadPoolExecutor(1) as executor:
            late = executor.submit(derive, shard(replan_late))
            assert plans.wait(60)
            answer = in_a_child(lambda: derive(shard(replan)).encode())
            go_on.set()
            assert (answer, late.result()) == (b"encode", "encode")
