"""`castwise cast`: cast a checkpoint and print what that lost."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, get_args

from castwise import checkpoint
from castwise._core import finfo, format_name
from castwise._dtype_map import DtypeMap
from castwise._options import Like, Rounding
from castwise._spelling import typed_format
from castwise.checkpoint import CastSummary
from castwise.cli import _arguments
from castwise.cli._conversion import run_conversion
from castwise.cli._output import say
from castwise.cli._paths import map_argument
from castwise.rendering import unused_lines

_CAST = """\
Cast a checkpoint: .safetensors, .npz, .npy, .h5, .keras, a file of torch (.pt, .pth,
.bin, .ckpt: only read), or a folder of safetensors shards, in itself or in folders
of it, such as a pipeline of diffusers. Where a folder has pytorch_model.bin or its
shards and no safetensors, these become safetensors. Packages can add other suffixes.
Files, but of HDF5, and folders may be on an object store: s3://bucket/name.

DST appears, or with --overwrite is replaced, when it is complete (a folder on a
store file by file), and may be SRC itself, unless that is a folder on a store; then
a loss leaves SRC as it was. Tensors pass through memory in pieces of about a
mebibyte. Metadata is kept, and so is, byte for byte, every integer, bool and complex
tensor that no key of a map names.
Codes and scales of quantised weights are not cast as if they were plain numbers.
"""
_FINDINGS = """\
  1  it was written, but values were lost as --fail-on says: numbers became infinite or
     NaN, integers wrapped, NaN became numbers without --nan zero, or more nonzero values
     of a tensor became zero than --max-zeros allows; each is said on standard error
"""
_ERROR = """\
  2  an error; DST is as it was, unless the message says that it was written
"""

_EXAMPLES = (
    "cast model.safetensors small.safetensors --dtype bfloat16",
    "cast model small --map map.toml --dry-run",
    "cast model small --dtype fp8 --overflow saturate --html losses.html",
    "cast model parted --dtype bfloat16 --part 1/2",
)


def define(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    _arguments.describe_conversion(
        parser, _CAST, findings=_FINDINGS, error=_ERROR, examples=_EXAMPLES
    )
    _arguments.add_arguments(parser, *_arguments.PATHS)
    target = parser.add_argument_group("target")
    target.add_argument(
        "--dtype",
        metavar="D",
        help="format for all floating tensors, or for those that the --map does not name; fp8 is "
        f"{finfo('fp8').name}",
    )
    target.add_argument(
        "--map",
        metavar="FILE|NAME",
        type=map_argument,
        help='JSON or TOML: {"default": D, REGEX: D or "keep", ...}; a key matches whole names. Or '
        f"what a family of models keeps: {', '.join(checkpoint.map_names())}",
    )
    target.add_argument(
        "--policy",
        metavar="P",
        help="a dtype policy, such as mixed_bfloat16, or a .json file with the config of a policy "
        "or policy map as Keras writes it",
    )
    target.add_argument(
        "--role",
        choices=("variable", "compute"),
        default="variable",
        help="which dtype of the policy: what variables are kept in (default) or computed in",
    )
    target.add_argument(
        "--keep-config",
        action="store_true",
        help="leave config.json as it is: its dtype then need not be that of the tensors",
    )
    target.add_argument(
        "--raw",
        action="store_true",
        help="cast codes and scales of quantised weights as if they were plain numbers, which "
        "otherwise is refused",
    )
    target.add_argument(
        "--as-bytes",
        action="store_true",
        help="let safetensors files hold formats that they have no code for, such as float8_e4m3, "
        "as bytes that castwise reads again",
    )
    _arguments.add_arguments(target, "--assume", "--architecture")
    rounding = parser.add_argument_group("rounding")
    rounding.add_argument(
        "--rounding", choices=get_args(Rounding), help="default: as numpy, nearest-even"
    )
    rounding.add_argument(
        "--overflow",
        choices=("ieee", "saturate", "raise"),
        default="ieee",
        help="beyond the range: inf or NaN (ieee, the default), the largest number, or an error",
    )
    rounding.add_argument(
        "--nan",
        choices=("keep", "zero", "raise"),
        default="keep",
        help="what becomes of NaN (default: keep)",
    )
    rounding.add_argument(
        "--seed", metavar="S", type=int, help="for stochastic rounding (default: a new one)"
    )
    rounding.add_argument(
        "--like",
        choices=get_args(Like),
        help="cast as this library does, which decides the options above; a tensor that it rounds "
        "twice is refused",
    )
    _arguments.add_losses(parser)
    _arguments.add_conversion_output(parser)
    _arguments.add_files(parser)
    parser.set_defaults(run=_cast, refuse=parser.error)


def _cast(options: argparse.Namespace) -> int:
    """Run `castwise cast`, once its arguments agree; returns the exit code."""
    if (options.policy is None) == (options.dtype is None and options.map is None):
        options.refuse("give --dtype, --map or --policy; only the first two go together")
    return run_conversion(options, _cast_file, _warn)


def _warn(summary: CastSummary, options: argparse.Namespace) -> None:
    """Say what of a map or policy had no effect."""
    for line in unused_lines(summary.unused_patterns):
        say(f"warning: {options.map or options.policy}: {line}")
    if summary.changed:
        return
    if options.policy is not None:
        _say_nothing_changed(DtypeMap.from_policy_argument, options.policy, options.role)
    elif options.dtype is not None and format_name(options.dtype) is None:  # that of a policy
        _say_nothing_changed(DtypeMap.of, options.dtype, options.role)
    elif options.dtype is None and all(row.target is None for row in summary.rows):
        say(f"warning: nothing changed: {options.map} gives no tensor here a format")


def _say_nothing_changed(read: Callable[[Any, str], DtypeMap], policy: str, role: str) -> None:
    """Say why a policy changed no tensor, and which role would."""
    remedy, computed = "", read(policy, "compute")
    if role != "compute" and computed != read(policy, "variable"):
        dtype_text = f", {computed.default}" if computed.default is not None else ""
        remedy = f"; for what it computes in{dtype_text}: --policy {policy} --role compute"
    say(
        f"warning: nothing changed: the floating tensors already have what policy {policy} gives "
        f"to role {role}{remedy}"
    )


def _cast_file(options: argparse.Namespace, shared: dict[str, Any]) -> CastSummary:
    """Cast by the arguments of this command and those that commands share."""
    summary: CastSummary = checkpoint.cast_file(
        options.source,
        options.destination,
        typed_format(options.dtype, "--dtype"),
        dtype_map=options.map,
        policy=options.policy,
        role=options.role,
        rounding=options.rounding,
        overflow=options.overflow,
        nan=options.nan,
        seed=options.seed,
        like=options.like,
        assume=typed_format(options.assume, "--assume"),
        architecture=options.architecture,
        keep_config=options.keep_config,
        raw=options.raw,
        as_bytes=options.as_bytes,
        **shared,
    )
    return summary
