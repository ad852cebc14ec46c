"""The arguments that commands share: one table of them, and their groups."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from castwise._spelling import suggestion, typed_format
from castwise.checkpoint import CheckpointError
from castwise.checkpoint.planning import ARITHMETIC, FORMATS
from castwise.checkpoint.report import FINDINGS as KINDS
from castwise.checkpoint.report import LOSSES, MAX_ZEROS
from castwise.cli._output import COLOUR_OPTION
from castwise.cli._parser import describe
from castwise.cli._paths import local_path_argument, path_argument

NO_KINDS = "none"
"""What `--fail-on` takes for no kind of loss."""

_PERCENT = 100


_MOST_DIGITS = 18
"""Of a count; one of so many digits fits 64 bits."""


def is_count(text: str) -> bool:
    """Return True for decimal digits that are a number of rows or elements."""
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


def _count_argument(text: str) -> int:
    """Parse a number of rows."""
    if not is_count(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rows, such as 10")
    return int(text)


_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "source": {
        "metavar": "SRC",
        "type": path_argument,
        "help": "the checkpoint to read: a file, "
        "a folder, a URL of a store, or org/name of the Hugging Face Hub",
    },
    "destination": {
        "metavar": "DST",
        "type": path_argument,
        "help": "the checkpoint to write: the same, or hf://org/name to push it to the Hub",
    },
    "--threads": {"metavar": "N", "type": int, "help": "default: all cores"},
    "--architecture": {
        "metavar": "FILE",
        "type": local_path_argument,
        "help": "what the parameters are of a model that castwise does not know: a file in the "
        "format of its table of architectures",
    },
    "--assume": {
        "metavar": "D",
        "help": "the format of arrays that numpy saved as raw bytes (|V2)",
    },
    "--report": {
        "metavar": "FILE",
        "type": local_path_argument,
        "help": "write the report as JSON",
    },
    "--json": {"action": "store_true", "help": "print the report as JSON"},
    "--html": {
        "metavar": "FILE",
        "type": local_path_argument,
        "help": "write the report as a page with pictures, which needs no other file",
    },
    "--top": {
        "metavar": "N",
        "type": _count_argument,
        "help": "print the worst N rows alone, or the first N where nothing is ranked",
    },
    "--all": {
        "action": "store_true",
        "help": "a row for every tensor, not one for all layers (layers.*.weight)",
    },
    "--summary": {
        "action": "store_true",
        "help": "a row for each pair of formats, and the total",
    },
    "--color": COLOUR_OPTION,
    "--quiet": {
        "action": "store_true",
        "help": "no table and no progress; losses are still said",
    },
    "--exit-zero": {
        "action": "store_true",
        "help": "exit code 0 whatever was lost; errors stay 2",
    },
    "--overwrite": {
        "action": "store_true",
        "help": "replace DST if it is there: a file, or a folder with a checkpoint; also SRC "
        "itself, unless that loses what --fail-on names",
    },
    "--resumable": {
        "action": "store_true",
        "help": "if the conversion of a folder is interrupted, keep its complete shards beside DST",
    },
    "--resume": {
        "action": "store_true",
        "help": "go on with what --resumable kept; the same result",
    },
    "--include": {
        "metavar": "GLOB",
        "action": "append",
        "default": [],
        "help": "copy files of a folder that are otherwise left out: .git and .cache, states of "
        "optimizers and trainers, the same weights in other formats and variants; as often as "
        "needed",
    },
    "--exclude": {
        "metavar": "GLOB",
        "action": "append",
        "default": [],
        "help": "leave files of a folder out, also those with tensors; as often as needed",
    },
    "--max-shard-size": {
        "metavar": "SIZE",
        "help": "divide the tensors into shards of at most that size, such as 5GB or 2GiB; a file "
        "then becomes a folder if DST is the name of one",
    },
    "--dry-run": {
        "action": "store_true",
        "help": "write nothing; print what would become of each tensor, and the room for it",
    },
    "--measure": {
        "action": "store_true",
        "help": "with --dry-run: convert everything, write nothing, and print what would be lost",
    },
    "--part": {
        "metavar": "K/N",
        "help": "convert only this part of the bytes, such as 3/16, in a run of its own; castwise "
        "finish makes DST of all parts",
    },
}
"""What argparse is told of each argument that more than one command has."""

PATHS = ("source", "destination")
_FILES = ("--overwrite", "--include", "--exclude", "--max-shard-size")
_STEPS = ("--dry-run", "--measure", "--resumable", "--resume", "--part")

_EXIT_CODES = """\
exit codes:
  0  the checkpoint was written, or a part of it, or it is a dry run
{findings}{error}  129, 130, 143  hung up, interrupted, terminated; DST is as it was, or complete
  141  it was written, but whoever read standard output had gone
"""


def describe_conversion(
    parser: argparse.ArgumentParser,
    description: str,
    *,
    findings: str,
    error: str,
    examples: Sequence[str],
) -> None:
    """Give a command that writes a checkpoint its texts: what its exit codes 1 and 2 say."""
    codes = _EXIT_CODES.format(findings=findings, error=error)
    describe(parser, description, codes, examples=examples)


def add_arguments(parser: argparse._ActionsContainer, *names: str) -> None:
    """Add arguments of the table to a command, or to a group of its arguments."""
    for name in names:
        parser.add_argument(name, **_ARGUMENTS[name])


def add_output(parser: argparse.ArgumentParser, *names: str, shown: Sequence[str]) -> None:
    """Add arguments of the table that say what is shown; of `shown`, one may be given."""
    output = parser.add_argument_group("output")
    add_arguments(output, *names)
    add_arguments(output.add_mutually_exclusive_group(), *shown)
    add_arguments(output, "--color")


def check_top(options: argparse.Namespace) -> None:
    """Refuse --top where JSON, which has every row, is shown."""
    if options.json and getattr(options, "top", None) is not None:
        raise CheckpointError("--top is for the table, and --json prints every row; leave one out")


def add_conversion_output(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say what is shown of a conversion."""
    shown = ("--json", "--all", "--summary", "--quiet")
    add_output(parser, "--report", "--html", "--top", shown=shown)


def add_compared(
    parser: argparse.ArgumentParser, map_help: str, *, one: bool = False
) -> argparse._ArgumentGroup:
    """Add two checkpoints, and what is made of them before they are compared; returns the group.

    `one` says that the second may be left out.
    """
    parser.add_argument("first", metavar="A", type=path_argument, help="a file or a folder")
    number = "?" if one else None
    parser.add_argument("second", metavar="B", nargs=number, type=path_argument, help="another")
    comparison = parser.add_argument_group("comparison")
    comparison.add_argument("--map", metavar="M", dest="dtype_map", help=map_help)
    comparison.add_argument(
        "--dtype",
        metavar="D",
        help=f"what quantised weights are decoded to: {', '.join(FORMATS)} (default: the format "
        f"of the other one if that is plain, else {FORMATS[0]}); with --map its default",
    )
    comparison.add_argument(
        "--arithmetic",
        choices=ARITHMETIC,
        default=ARITHMETIC[0],
        help="as for castwise dequantize (peer, the default), or what both store, whoever decodes "
        "it (exact)",
    )
    return comparison


def compared_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return what `add_compared` added, but for the checkpoints, as `verify` and `diff` take it."""
    return {
        "dtype_map": options.dtype_map,
        "dtype": typed_format(options.dtype, "--dtype"),
        "arithmetic": options.arithmetic,
    }


def add_losses(parser: argparse.ArgumentParser, *, kinds: Sequence[str] = KINDS) -> None:
    """Add the arguments that say which losses are findings, of the kinds that a command counts."""
    losses = parser.add_argument_group("losses")
    losses.add_argument(
        "--fail-on",
        metavar="KINDS",
        type=partial(_kinds_argument, kinds),
        default=LOSSES,
        help=f"which losses give exit code 1: {NO_KINDS}, or of {', '.join(kinds)}, separated by "
        f"commas (default: {','.join(LOSSES)})",
    )
    losses.add_argument(
        "--max-zeros",
        metavar="SHARE",
        type=_share_argument,
        help="the share of a tensor's nonzero values that may become zero before that is an "
        f"underflow: 0.05 or 5%% (default: {MAX_ZEROS:.0%}%, or of weights that are quantised "
        "what so few bits give: 3%% for 8, 50%% for 4)",
    )
    add_arguments(losses, "--exit-zero")


def add_files(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for what is replaced, copied, divided and resumed."""
    add_arguments(parser.add_argument_group("files"), *_FILES)
    add_arguments(parser.add_argument_group("run"), *_STEPS, "--threads")


def file_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return what `add_files` and `add_losses` added, as functions of `castwise.checkpoint` do."""
    names = (name.removeprefix("--").replace("-", "_") for name in (*_FILES, *_STEPS, "--threads"))
    return {name: getattr(options, name) for name in names} | loss_options(options)


def loss_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return what leaves a source as it was that the result would replace."""
    kinds = () if options.exit_zero else options.fail_on
    return {"fail_on": kinds, "max_zeros": options.max_zeros}


def _kinds_argument(known: Sequence[str], text: str) -> tuple[str, ...]:
    """Parse kinds of losses, separated by commas."""
    kinds = tuple(part.strip() for part in text.split(","))
    if kinds == (NO_KINDS,):
        return ()
    if NO_KINDS in kinds:
        raise argparse.ArgumentTypeError(f"{NO_KINDS} stands alone; leave it or the others out")
    for kind in kinds:
        if kind not in known:
            meant = suggestion(kind, (NO_KINDS, *known))
            raise argparse.ArgumentTypeError(
                f"{kind!r} is not a kind of loss; {meant}use {NO_KINDS}, or of {', '.join(known)}"
            )
    return kinds


def _share_argument(text: str) -> float:
    """Parse a share between 0 and 1, written as a number or with a percent sign."""
    try:
        share = float(text.removesuffix("%")) / (_PERCENT if text.endswith("%") else 1)
    except ValueError:
        share = -1
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share, such as 0.01 or 1%")
    return share


def names_argument(text: str) -> list[str]:
    """Take apart names that commas separate."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list such as nvfp4,fp8_block")
    return names
