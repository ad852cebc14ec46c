"""`castwise cast`: cast a checkpoint and print what that lost."""

import argparse
from collections.abc import Callable
from typing import Any

from castwise._core import format_name
from castwise.arrays.dtype_map import DtypeMap
from castwise.checkpoint import CastSummary
from castwise.checkpoint.requests.options import Cast
from castwise.cli._conversion import ConversionCommand, warn_of_unused
from castwise.cli._output import say

_CAST = """\
Cast a checkpoint: .safetensors, .npz, .npy, .h5, .keras, a file of torch (.pt, .pth,
.bin, .ckpt: only read), or a folder of safetensors shards, in itself or in its folders,
such as a pipeline of diffusers. In a folder without safetensors, pytorch_model.bin or
its shards become safetensors. Packages can add other suffixes. Files (except HDF5) and
folders may be on an object store: s3://bucket/name.

DST appears, or with --overwrite is replaced, when it is complete; a folder on a store
is replaced file by file. DST may be SRC itself, unless SRC is a folder on a store; a
loss then leaves SRC unchanged. castwise processes tensors in pieces of about a mebibyte.
Metadata does not change, nor do the bytes of integer, bool and complex tensors that no
key of a map names. castwise does not cast codes and scales of quantized weights as if
they were plain numbers.
"""
_FINDINGS = """\
  1  DST was written, but values were lost (--fail-on chooses the kinds): numbers became
     infinite or NaN, integers wrapped, NaN became numbers without --nan zero, or more
     nonzero values of a tensor became zero than --max-zeros allows; standard error
     lists the losses
"""
_ERROR = """\
  2  an error; DST is unchanged, unless the message reports that it was written
"""

_EXAMPLES = (
    "cast model.safetensors small.safetensors --dtype bfloat16",
    "cast model small --map map.toml --dry-run",
    "cast model small --dtype fp8 --overflow saturate --html losses.html",
    "cast model parted --dtype bfloat16 --part 1/2",
)


def _check(options: argparse.Namespace) -> None:
    """Refuse nothing to cast to, and a policy beside a format or a map."""
    if (options.policy is None) == (options.dtype is None and options.dtype_map is None):
        options.refuse("give --dtype, --map or --policy; only the first two go together")


def _warn(summary: CastSummary, options: argparse.Namespace) -> None:
    """Report what of a map or policy had no effect."""
    warn_of_unused(summary, options)
    if summary.changed:
        return
    if options.policy is not None:
        _say_nothing_changed(DtypeMap.from_policy_argument, options.policy, options.role)
    elif options.dtype is not None and format_name(options.dtype) is None:  # that of a policy
        _say_nothing_changed(DtypeMap.of, options.dtype, options.role)
    elif options.dtype is None and all(row.target is None for row in summary.rows):
        say(f"warning: nothing changed: {options.dtype_map} gives no tensor here a format")


def _say_nothing_changed(read: Callable[[Any, str], DtypeMap], policy: str, role: str) -> None:
    """Say why a policy changed no tensor, and which role would."""
    remedy, dtype_map = "", read(policy, "compute")
    if role != "compute" and dtype_map != read(policy, "variable"):
        dtype_text = f", {dtype_map.default}" if dtype_map.default is not None else ""
        remedy = f"; for what it computes in{dtype_text}: --policy {policy} --role compute"
    say(
        f"warning: nothing changed: the floating tensors already have what policy {policy} gives "
        f"to role {role}{remedy}"
    )


define = ConversionCommand(
    request=Cast,
    description=_CAST,
    findings=_FINDINGS,
    error=_ERROR,
    examples=_EXAMPLES,
    check=_check,
    warn=_warn,
).define
