"""What type checkers are to say of public functions; `.ci/run` asks mypy and basedpyright.

`test_public_types.py` runs the same lines, where `assert_type` compares the classes of the values.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import castwise
import numpy as np
from castwise import DTypePolicyMap, checkpoint, loss_scale
from castwise.compat import jmp
from castwise.quantization import QuantizedArray, dequantize, pack, quantize, unpack
from numpy.typing import NDArray

if TYPE_CHECKING:
    from typing import assert_type
else:
    from checked_types import assert_type

F32: NDArray[np.float32] = np.ones(2, np.float32)
BLOCK: NDArray[np.float32] = np.ones((2, 32), np.float32)


if TYPE_CHECKING:
    # What must be refused: both report a comment that is not needed.
    castwise.cast(F32, "float16", overflow="clip")  # type: ignore[call-overload]
    castwise.cast(F32, "float16", nan="ignore")  # type: ignore[call-overload]
    castwise.caster("float32", "float16", seed=1)  # type: ignore[call-overload]
    castwise.cast_tree([F32], "float16", copy=False)  # type: ignore[call-overload]
    castwise.cast_tree([F32], "float16", role="output")  # type: ignore[call-overload]
    DTypePolicyMap("float32", match="prefix")  # type: ignore[arg-type]
    loss_scale.DynamicLossScale(preset="pytorch")  # type: ignore[arg-type]
    castwise.cast(F32, "bfloat16", rounding="up-ish")  # type: ignore[call-overload]
    castwise.cast(F32, "bfloat16", order="R")  # type: ignore[call-overload]
    castwise.explain_cast(F32, "bfloat16", overflow="clip")  # type: ignore[arg-type]

    quantize(F32, "nvfp5")  # type: ignore[arg-type]
    quantize(F32, "nvfp4", recipe="modelop")  # type: ignore[arg-type]
    quantize(F32, "nvfp4", rounding="up-ish")  # type: ignore[arg-type]
    quantize(F32, "mxfp4", scale_rule="round")  # type: ignore[arg-type]
    quantize(F32, "nvfp4", nonfinite="zero")  # type: ignore[arg-type]
    quantize(F32, "nvfp4", scales="max")  # type: ignore[arg-type]
    Q = quantize(F32, "nvfp4")
    dequantize(Q, arithmetic="fast")  # type: ignore[arg-type]
    Q.report(F32, arithmetic="fast")  # type: ignore[arg-type]
    Q.parts("modelop")  # type: ignore[arg-type]
    QuantizedArray("nvfp5", F32, F32)  # type: ignore[arg-type]
    QuantizedArray("nvfp4", F32, F32, recipe="modelop")  # type: ignore[arg-type]
    QuantizedArray("int4_group", F32, F32, variant="gptq_v3")  # type: ignore[arg-type]
    QuantizedArray.from_parts({}, "modelop")  # type: ignore[arg-type]
    QuantizedArray.from_parts({}, "modelopt", scheme="nvfp5")  # type: ignore[arg-type]
    pack(F32, 4, layout="sparse")  # type: ignore[arg-type]
    unpack(F32, 4, layout="sparse")  # type: ignore[arg-type]

    checkpoint.cast_file("a", "b", "float16", overflow="clip")  # type: ignore[call-overload]
    checkpoint.cast_file("a", "b", "float16", nan="ignore")  # type: ignore[call-overload]
    checkpoint.cast_file("a", "b", "float16", rounding="up-ish")  # type: ignore[call-overload]
    checkpoint.cast_file("a", "b", policy="float16", role="output")  # type: ignore[call-overload]
    checkpoint.cast_file("a", "b", "float16", fail_on=["infinite"])  # type: ignore[list-item]
    checkpoint.cast_file("a", "b", "float16", fail_on="infinite")  # type: ignore[arg-type]
    checkpoint.quantize_file("a", "b", "nvfp5")  # type: ignore[call-overload]
    checkpoint.quantize_file("a", "b", "nvfp4", recipe="gptq")  # type: ignore[call-overload]
    checkpoint.dequantize_file("a", "b", arithmetic="fast")  # type: ignore[call-overload]
    checkpoint.transcode_file("a", "b", "modelop")  # type: ignore[call-overload]
    checkpoint.transcode_file("a", "b", "gguf", scheme="mxfp4")  # type: ignore[call-overload]
    checkpoint.finish("a", fail_on=("infinite",))  # type: ignore[arg-type]
    checkpoint.verify("a", "b", arithmetic="fast")  # type: ignore[arg-type]
    checkpoint.diff("a", "b", arithmetic="fast")  # type: ignore[arg-type]
    assert_type(checkpoint.diff("a", "b", rename={"x": "y"}), checkpoint.Diff)
    print(checkpoint.cast_file("a", "b", "float16").free_bytes)  # type: ignore[attr-defined]


def arrays() -> None:
    for x in (F32, F32[0], 1.5, [1.0, 2.0], memoryview(b"12")):
        assert_type(castwise.cast(x, "float16"), NDArray[Any])
    found = castwise.cast(F32, "bfloat16", overflow="saturate", report=True)
    assert_type(found, tuple[NDArray[Any], castwise.CastReport])
    assert_type(castwise.cast(F32, out=np.empty(2)), NDArray[Any])
    caster = castwise.caster("float32", "bfloat16", overflow="saturate")
    assert_type(caster(F32), NDArray[Any])
    assert_type(caster(F32, out=caster(F32)), NDArray[Any])
    reporting = castwise.caster("float32", "bfloat16", report=True)
    assert_type(reporting(F32), tuple[NDArray[Any], castwise.CastReport])
    assert_type(castwise.finfo("bfloat16"), castwise.FormatInfo)
    assert_type(castwise.explain_cast(F32, "bfloat16"), str)
    assert_type(castwise.compare(F32, [1.0, 2.0]), castwise.Comparison)


def trees() -> None:
    assert_type(castwise.cast_tree(F32, "bfloat16"), NDArray[Any])
    assert_type(castwise.cast_tree({"a": F32}, "bfloat16"), dict[str, NDArray[Any]])
    assert_type(castwise.cast_tree([F32], "bfloat16", rounding="towards-zero"), list[NDArray[Any]])
    assert_type(castwise.cast_tree((F32, F32), "bfloat16"), tuple[NDArray[Any], ...])
    nested = {"a": [F32], "b": [F32]}
    assert_type(castwise.cast_tree(nested, "mixed_float16"), dict[str, list[NDArray[np.float32]]])


def policies() -> None:
    policies = DTypePolicyMap("float32", {"a": "mixed_float16"}, on_overlap="first")
    assert_type(policies["a"], castwise.DTypePolicy)
    assert_type(policies["a"].compute_dtype, str)
    assert_type(castwise.dtype_policies.get("float16"), castwise.DTypePolicy)
    with castwise.config.dtype_policy_scope("mixed_bfloat16") as policy:
        assert_type(policy, castwise.DTypePolicy)
    assert_type(jmp.get_policy("half"), jmp.Policy)


def gradients() -> None:
    grads = {"a": F32}
    assert_type(loss_scale.unscale(grads, 8.0), tuple[dict[str, NDArray[np.float32]], bool])
    found = loss_scale.unscale(grads, 8.0, norm=True)
    assert_type(found, tuple[dict[str, NDArray[np.float32]], bool, float])
    scale = loss_scale.DynamicLossScale(8.0, preset="torch")
    assert_type(scale.next(True), tuple[loss_scale.DynamicLossScale, bool])
    assert_type(loss_scale.LossScaler(scale).update(True), bool)


def quantized() -> None:
    q = quantize(BLOCK, "mxfp4", recipe="modelopt", scale_rule="even")
    assert_type(q, QuantizedArray)
    assert_type(q.parts("modelopt"), dict[str, NDArray[Any]])
    assert_type(QuantizedArray.from_parts(q.parts(), "modelopt"), QuantizedArray)
    assert_type(dequantize(q, "float32", arithmetic="exact"), NDArray[Any])


def conversions(folder: Path) -> None:
    source, target = folder / "source.safetensors", folder / "target"
    checkpoint.save(source, {"a.weight": np.ones((32, 32), np.float32)})
    plan = checkpoint.cast_file(source, f"{target}.npz", "bfloat16", dry_run=True)
    assert_type(plan, checkpoint.CastPlan)
    summary = checkpoint.cast_file(source, f"{target}.npz", "bfloat16", fail_on="overflow")
    assert_type(summary, checkpoint.CastSummary)
    packed = f"{target}.safetensors"
    assert_type(
        checkpoint.quantize_file(source, packed, "nvfp4", dry_run=True), checkpoint.CastPlan
    )
    assert_type(checkpoint.quantize_file(source, packed, "nvfp4"), checkpoint.CastSummary)
    other, plain = f"{target}-2.safetensors", f"{target}.npz"
    assert_type(
        checkpoint.transcode_file(packed, other, "modelopt", dry_run=True), checkpoint.CastPlan
    )
    assert_type(checkpoint.transcode_file(packed, other, "modelopt"), checkpoint.CastSummary)
    assert_type(
        checkpoint.dequantize_file(other, plain, dry_run=True, overwrite=True), checkpoint.CastPlan
    )
    assert_type(
        checkpoint.dequantize_file(other, plain, overwrite=True, arithmetic="exact"),
        checkpoint.CastSummary,
    )


def tensors() -> None:
    import torch  # noqa: PLC0415
    from castwise.adapters import torch as adapter  # noqa: PLC0415

    tensor = torch.ones(2)
    assert_type(castwise.cast(tensor, torch.bfloat16), torch.Tensor)
    assert_type(castwise.cast(tensor, "float16", report=True)[0], torch.Tensor)
    assert_type(castwise.cast_tree(tensor, "float16"), torch.Tensor)
    assert_type(castwise.cast_tree({"a": tensor}, "float16"), dict[str, torch.Tensor])
    assert_type(adapter.cast(tensor, "float16", overflow="raise"), torch.Tensor)
    assert_type(adapter.cast(tensor, "float16", report=True)[1], castwise.CastReport)
    assert_type(adapter.to_numpy(tensor), NDArray[Any])
    assert_type(adapter.from_numpy(F32), torch.Tensor)
    assert_type(adapter.cast_state_dict({"a": tensor}, "float16"), dict[str, torch.Tensor])


def jax_arrays() -> None:
    import jax  # noqa: PLC0415
    from castwise.adapters import jax as adapter  # noqa: PLC0415

    array = jax.numpy.ones(2)
    assert_type(castwise.cast(array, "bfloat16"), jax.Array)
    assert_type(castwise.cast_tree([array], "bfloat16"), list[jax.Array])
    assert_type(adapter.cast(array, "float16", report=True)[0], jax.Array)
    assert_type(adapter.cast_tree({"a": array}, "float16"), dict[str, jax.Array])
    assert_type(adapter.unscale({"a": array}, 8.0), tuple[dict[str, jax.Array], jax.Array])
