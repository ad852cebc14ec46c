"""The arguments of commands: options of requests and runs, and what is shown."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from inspect import Parameter
from pathlib import Path
from typing import Any, get_args

from castwise._core import finfo
from castwise._options import Arithmetic, Inputs
from castwise.checkpoint import CheckpointError
from castwise.checkpoint.files.paths import checked_path
from castwise.checkpoint.files.remote import is_remote
from castwise.checkpoint.maps import is_map_name
from castwise.checkpoint.requests.options import Cast, ConversionOption, Run
from castwise.checkpoint.results.report import FINDINGS as KINDS
from castwise.cli._output import COLOR_OPTION
from castwise.text.spelling import suggestion, typed_format

# What `--fail-on` takes for no kind of loss.
NO_KINDS = "none"

_PERCENT = 100


# Of a count; one of so many digits fits 64 bits.
_MOST_DIGITS = 18


def is_count(text: str) -> bool:
    """Return True for decimal digits that are a number of rows or elements."""
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


def _count_argument(text: str) -> int:
    """Parse a number of rows."""
    if not is_count(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rows, such as 10")
    return int(text)


def kinds_argument(names: Sequence[str], text: str) -> tuple[str, ...]:
    """Parse kinds of losses, separated by commas."""
    kinds = tuple(part.strip() for part in text.split(","))
    if kinds == (NO_KINDS,):
        return ()
    if NO_KINDS in kinds:
        raise argparse.ArgumentTypeError(f"{NO_KINDS} stands alone; leave it or the others out")
    for kind in kinds:
        if kind not in names:
            hint = suggestion(kind, (NO_KINDS, *names))
            raise argparse.ArgumentTypeError(
                f"{kind!r} is not a kind of loss; {hint}use {NO_KINDS}, or of {', '.join(names)}"
            )
    return kinds


def share_argument(text: str) -> float:
    """Parse a share between 0 and 1, written as a number or with a percent sign."""
    try:
        share = float(text.removesuffix("%")) / (_PERCENT if text.endswith("%") else 1)
    except ValueError:
        share = -1
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share, such as 0.01 or 1%")
    return share


def yes_argument(text: str) -> bool:
    """Parse "yes" or "no"."""
    if text not in ("yes", "no"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither yes nor no")
    return text == "yes"


def block_argument(text: str) -> int | tuple[int, int]:
    """Parse the columns, or rows x columns, of a block."""
    numbers = text.lower().split("x")
    if len(numbers) > 2 or not all(map(is_count, numbers)):  # noqa: PLR2004
        raise argparse.ArgumentTypeError(f"{text!r} is not a block, such as 64 or 128x128")
    columns = int(numbers[-1])
    return columns if len(numbers) == 1 else (int(numbers[0]), columns)


def inputs_argument(text: str) -> str | float:
    """Parse what is stated of inputs: a word, or a scale."""
    if text in get_args(Inputs):
        return text
    try:
        return float(text)
    except ValueError:
        words = ", ".join(get_args(Inputs))
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither {words} nor a scale, such as 1.0"
        ) from None


def path_argument(text: str) -> Path:
    """Return a path given on the command line."""
    try:
        return checked_path(text)
    except CheckpointError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def map_argument(text: str) -> str | Path:
    """Return the name of a map, or the path of one, given on the command line."""
    return text if is_map_name(text) else local_path_argument(text)


def local_path_argument(text: str) -> Path:
    """Return a path of this machine given on the command line."""
    path = path_argument(text)
    if is_remote(path):
        raise argparse.ArgumentTypeError(f"{text} is on a store; name a file of this machine")
    return path


# What argparse is told of arguments that say what is shown, of more than one command.
_SHOWN: Mapping[str, Mapping[str, Any]] = {
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
        "help": "print only the N worst rows, or the first N of a table without a ranking",
    },
    "--all": {
        "action": "store_true",
        "help": "a row for every tensor, not one for all layers (layers.*.weight)",
    },
    "--summary": {"action": "store_true", "help": "a row for each pair of formats, and the total"},
    "--color": COLOR_OPTION,
    "--quiet": {
        "action": "store_true",
        "help": "no table and no progress; losses are still reported",
    },
    "--exit-zero": {
        "action": "store_true",
        "help": "exit code 0 in spite of losses; errors still give 2",
    },
}

# What reads the text of an option, by its `parse`.
PARSERS: Mapping[str, Callable[[str], Any]] = {
    "block": block_argument,
    "inputs": inputs_argument,
    "int": int,
    "kinds": partial(kinds_argument, KINDS),
    "local path": local_path_argument,
    "map": map_argument,
    "path": path_argument,
    "share": share_argument,
    "yes or no": yes_argument,
}

_SCHEMES = "castwise.checkpoint.planning.written_schemes"
# The lists in the help of options, each with its module, which is imported for it.
_WORDS: Mapping[str, tuple[str, str]] = {
    "consumers": ("castwise.quantization", "consumers"),
    "formats": ("castwise.checkpoint.planning.decode.options", "FORMATS"),
    "forms": (_SCHEMES, "form_names"),
    "maps": ("castwise.checkpoint.maps", "map_names"),
    "recipes": (_SCHEMES, "recipes"),
    "schemes": (_SCHEMES, "scheme_names"),
}


class _Words(dict[str, str]):
    def __missing__(self, name: str) -> str:
        module, attribute = _WORDS[name]
        words = getattr(import_module(module), attribute)
        words = words() if callable(words) else words
        return ", ".join(getattr(word, "name", word) for word in words)


def add_option(
    parser: argparse._ActionsContainer, option: ConversionOption, kinds: Sequence[str] = KINDS
) -> None:
    """Add an option; `kinds` are the losses that the command counts."""
    words = _Words(kinds=", ".join(kinds), fp8=finfo("fp8").name)
    words["choices"] = " or ".join(get_args(option.choices))
    values: dict[str, Any] = {
        "help": str(option.help).replace("%", "%%"),
        "metavar": option.metavar,
    }
    if option.parse is not None:
        is_kinds = option.parse == "kinds"
        values["type"] = partial(kinds_argument, kinds) if is_kinds else PARSERS[option.parse]
    if option.metavar in ("SRC", "DST"):
        parser.add_argument(option.name, **values).words = words  # type: ignore[attr-defined]
        return
    if option.default is False and option.parse is None:
        values = {"help": values["help"], "action": "store_true"}
    elif option.default == ():
        values |= {"action": "append", "default": []}
    elif option.default is Parameter.empty:
        values["required"] = True
    else:
        values["default"] = option.default
    if option.metavar is None and option.choices is not None:
        values["choices"] = get_args(option.choices)
    action = parser.add_argument(flag_of(option), dest=option.name, **values)
    action.words = words  # type: ignore[attr-defined]


def flag_of(option: ConversionOption) -> str:
    """Return the name of an option on the command line."""
    return option.flag or f"--{option.name.replace('_', '-')}"


# Options by their names in Python, as which paths are given, and on the command line.
_OPTIONS = {
    name: option
    for option in (Cast.options | Run.options).values()
    for name in (option.name, flag_of(option))
}


def add_arguments(parser: argparse._ActionsContainer, *names: str) -> None:
    for name in names:
        if name in _SHOWN:
            parser.add_argument(name, **_SHOWN[name])
        else:
            add_option(parser, _OPTIONS[name])


def add_output(parser: argparse.ArgumentParser, *names: str, formats: Sequence[str]) -> None:
    """Add arguments of the table that say what is shown; of `formats`, one may be given."""
    output = parser.add_argument_group("output")
    add_arguments(output, *names)
    add_arguments(output.add_mutually_exclusive_group(), *formats)
    add_arguments(output, "--color")


def check_top(options: argparse.Namespace) -> None:
    """Refuse --top where JSON, which has every row, is shown."""
    if options.json and getattr(options, "top", None) is not None:
        raise CheckpointError("--top is for the table, and --json prints every row; leave one out")


PLACES = "a file, a folder, a URL of a store, or org/name of the Hugging Face Hub"


def add_compared(
    parser: argparse.ArgumentParser, map_help: str, *, one: bool = False
) -> argparse._ArgumentGroup:
    """Add two checkpoints, and what is made of them before they are compared; returns the group."""
    # `one` says that the second may be left out.
    parser.add_argument("first", metavar="A", type=path_argument, help=f"a checkpoint: {PLACES}")
    number = "?" if one else None
    parser.add_argument(
        "second", metavar="B", nargs=number, type=path_argument, help="the other checkpoint"
    )
    formats = _Words()["formats"]
    comparison = parser.add_argument_group("comparison")
    comparison.add_argument("--map", metavar="M", dest="dtype_map", help=map_help)
    comparison.add_argument(
        "--dtype",
        metavar="D",
        help=f"the format of decoded weights: {formats} (default: the format of the other "
        f"checkpoint if that is plain, else {formats.partition(',')[0]}); with --map its default",
    )
    comparison.add_argument(
        "--arithmetic",
        choices=get_args(Arithmetic),
        default=get_args(Arithmetic)[0],
        help="as for castwise dequantize (peer, the default), or the exact values of the stored "
        "codes and scales (exact)",
    )
    return comparison


def compared_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return what `add_compared` added, but for the checkpoints, as `verify` and `diff` take it."""
    return {
        "dtype_map": options.dtype_map,
        "dtype": typed_format(options.dtype, "--dtype"),
        "arithmetic": options.arithmetic,
    }


def names_argument(text: str) -> list[str]:
    """Take apart names that commas separate."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list such as nvfp4,fp8_block")
    return names
