"""What commands that write a checkpoint share: SRC, DST, what is replaced, copied, and divided."""

from __future__ import annotations

import argparse
from typing import Any

from castwise.cli._output import say
from castwise.cli._paths import path_argument

_NAMES = (
    "overwrite",
    "resumable",
    "resume",
    "include",
    "exclude",
    "max_shard_size",
    "dry_run",
    "part",
)


def add_paths(parser: argparse.ArgumentParser) -> None:
    """Add SRC and DST."""
    parser.add_argument("source", metavar="SRC", type=path_argument, help="the checkpoint to read")
    parser.add_argument(
        "destination", metavar="DST", type=path_argument, help="the checkpoint to write"
    )


def folder_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options as arguments of the functions of `castwise.checkpoint`."""
    return {name: getattr(options, name) for name in _NAMES} | loss_options(options)


def loss_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return what leaves a source as it was that the result would replace."""
    kinds = () if options.exit_zero else options.fail_on
    return {"fail_on": kinds, "max_zeros": options.max_zeros}


def add_overwrite(parser: argparse.ArgumentParser) -> None:
    """Add the option to replace what is there."""
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace DST if it is there: a file, or a folder with a checkpoint; also SRC itself, "
        "unless that loses what --fail-on names",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_overwrite(parser)
    parser.add_argument(
        "--resumable",
        action="store_true",
        help="if the conversion of a folder is interrupted, keep its complete shards beside DST",
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with what --resumable kept; the same result"
    )
    parser.add_argument(
        "--include",
        metavar="GLOB",
        action="append",
        default=[],
        help="copy files of a folder that are otherwise left out: .git and .cache, states of "
        "optimizers and trainers, the same weights in other formats and variants; as often as "
        "needed",
    )
    parser.add_argument(
        "--exclude",
        metavar="GLOB",
        action="append",
        default=[],
        help="leave files of a folder out, also those with tensors; as often as needed",
    )
    parser.add_argument(
        "--max-shard-size",
        metavar="SIZE",
        help="divide the tensors into shards of at most that size, such as 5GB or 2GiB; a file "
        "then becomes a folder if DST is the name of one",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="write nothing; print what would become of each tensor, and the room for it",
    )
    parser.add_argument(
        "--part",
        metavar="K/N",
        help="convert only this part of the bytes, such as 3/16, in a run of its own; castwise "
        "finish makes DST of all parts",
    )


def say_part(options: argparse.Namespace) -> bool:
    """Say what is to follow a part; returns True if it was one."""
    if options.part is not None:
        say(f"part {options.part} is done; when all are: castwise finish {options.destination}")
    return options.part is not None
