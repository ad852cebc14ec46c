"""The commands, and the parser of their arguments: suggestions, and usage in one line."""

import argparse
import importlib
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import castwise
from castwise.rendering.text import printable
from castwise.text.spelling import suggestion

# What the commands do, each of a module of its name that is imported if the command is given.
COMMANDS = {
    "survey": "count the magnitudes of a checkpoint, and predict what formats would lose",
    "advise": "choose a format or scheme for each weight within a budget",
    "cast": "cast a checkpoint, and print the losses",
    "quantize": "quantize the weights of a checkpoint",
    "dequantize": "decode the quantized weights of a checkpoint",
    "transcode": "convert a quantized checkpoint to another producer's layout",
    "finish": "make a checkpoint from the parts of runs with --part",
    "inspect": "list the tensors of a checkpoint, from its headers",
    "verify": "compare the values of two checkpoints, quantized or not",
    "diff": "show what differs between two checkpoints, and explain it",
    "formats": "list the formats that castwise knows",
    "completion": "print a script with which a shell completes commands and options",
    "help": "print the help of a command",
}

# What other programs call a command or an option that castwise has.
_OTHER_WORDS = {
    **dict.fromkeys(("--force", "-f", "--replace"), "--overwrite"),
    **dict.fromkeys(("--jobs", "-j"), "--threads"),
    "convert": "cast",
    "compare": "diff",
    **dict.fromkeys(("info", "show", "list"), "inspect"),
}

_EPILOG = """\
castwise help COMMAND shows the options of a command, its exit codes, and examples.

examples, of a file or folder MODEL:
  castwise cast MODEL OUT --dtype bfloat16
  castwise quantize MODEL OUT --scheme nvfp4
  castwise advise MODEL --budget 24GB -o map.toml
"""
_REQUIRED = "the following arguments are required: "
"""How argparse begins to say what is missing."""
# A negative number is the value of an option, and no option: `-1`, `-.5`.
_NUMBER = r"-\.?\d"


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors have one line of usage, and say what a wrong word may mean."""

    def __init__(self, **arguments: Any) -> None:  # noqa: ANN401  (as argparse takes them)
        """Take no options that are cut short: what is short today may be two options tomorrow."""
        super().__init__(allow_abbrev=False, **arguments)

    def error(self, message: str) -> NoReturn:
        """Print the usage and what is wrong, and exit with code 2."""
        if message.startswith(_REQUIRED):
            *names, last = message.removeprefix(_REQUIRED).split(", ")
            missing = f"{', '.join(names)} and {last} are" if names else f"{last} is"
            message = f"{missing} missing; {self.prog} --help shows examples"
        super().error(printable(message))

    def shorten_usage(self) -> None:
        """Let the usage be one line: all that must be given, and the word OPTIONS."""
        group_actions = [
            action for group in self._mutually_exclusive_groups for action in group._group_actions
        ]
        words = [
            usage_word(action)
            for action in self._actions
            if (action.required or not action.option_strings) and action not in group_actions
        ]
        words += [
            f"({' | '.join(map(usage_word, group._group_actions))})"
            for group in self._mutually_exclusive_groups
            if group.required
        ]
        self.usage = " ".join(["%(prog)s", *words, "[OPTIONS]"])

    def check_options(self, arguments: Iterable[str]) -> None:
        """Refuse an option that is not known, before what else is wrong or missing."""
        option_names = [name for action in self._actions for name in action.option_strings]
        if "-h" in arguments or "--help" in arguments:
            return
        for text in arguments:
            if text == "--":
                return
            name = text.partition("=")[0]
            if not name.startswith("-") or name == "-" or " " in text or re.match(_NUMBER, name):
                continue
            if (name if name.startswith("--") else name[:2]) in option_names:
                continue
            commands = ", ".join(f"castwise {command}" for command in _commands_with(name))
            hint = _hint(name, option_names).strip()
            if commands and not any(option.startswith(name) for option in option_names):
                hint = f"it is one of {commands}"
            hint = hint or f"{self.prog} --help lists them"
            self.error(f"{name} is not an option of {self.prog}; {hint}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:  # noqa: ANN401
        """Refuse a value that is not a choice, with the choices that it may mean."""
        choices: Sequence[str] = list(action.choices or ())
        if not choices or value in choices:
            return
        hint = _hint(value, choices)
        if isinstance(action, argparse._SubParsersAction):
            choices_text = f"the commands are {', '.join(choices)}"
            raise argparse.ArgumentError(None, f"{value!r} is not a command; {hint}{choices_text}")
        choices_text = f"choose from {', '.join(choices)}"
        raise argparse.ArgumentError(action, f"{value!r} is not a choice; {hint}{choices_text}")


def _commands_with(option: str) -> list[str]:
    return [
        name
        for name, parser in command_parsers(make_parser(COMMANDS)).items()
        if any(option in action.option_strings for action in parser._actions)
    ]


def _hint(word: str, names: Sequence[str]) -> str:
    """Return what a word may mean, as `suggestion` does, by what other programs call it first."""
    return suggestion(meaning if (meaning := _OTHER_WORDS.get(word)) in names else word, names)


def usage_word(action: argparse.Action) -> str:
    """Return an argument as the usage has it."""
    choices = f"{{{','.join(action.choices)}}}" if action.choices else action.dest.upper()
    value = "" if action.nargs == 0 else str(action.metavar or choices)
    if not action.option_strings:
        return f"[{value}]" if action.nargs == "?" else value
    return f"{action.option_strings[-1]} {value}".strip()


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Writes the words of an option into its help where that is shown: a run needs none of them."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text, words = super()._get_help_string(action), getattr(action, "words", None)
        return text if text is None or words is None else text.format_map(words)


def describe(
    parser: argparse.ArgumentParser, description: str, *texts: str, examples: Sequence[str]
) -> None:
    """Give a command its texts, whose lines stay as they are, and examples at their end."""
    lines = "".join(f"  castwise {example}\n" for example in examples)
    parser.description = description
    parser.epilog = "\n".join([*texts, f"examples:\n{lines}"])
    parser.formatter_class = HelpFormatter


def make_parser(names: Iterable[str]) -> CommandParser:
    """Return the parser, which knows the arguments of no other commands than those named."""
    parser = CommandParser(
        prog="castwise",
        usage="%(prog)s COMMAND [OPTIONS]",
        description="Cast, quantize and compare whole checkpoints, and see what they lose.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = f"castwise {castwise.__version__}"
    parser.add_argument("-V", "--version", action="version", version=version)
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, prog=parser.prog
    )
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text)
        if name in names:
            importlib.import_module(f"castwise.cli.{name}").define(command)
            command.shorten_usage()
    return parser


def command_parsers(parser: CommandParser) -> dict[str, CommandParser]:
    (commands,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    return dict(commands.choices)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse what is given on the command line; what is wrong ends the process with code 2."""
    parser = make_parser(arguments)
    if [*arguments] in ([], ["--"]):
        parser.print_help(sys.stderr)
        parser.exit(2)
    place = next((i for i, text in enumerate(arguments) if not text.startswith("-")), None)
    parser.check_options(arguments[:place])
    command = parser if place is None else command_parsers(parser).get(arguments[place], parser)
    if command is not parser and place is not None:
        command.check_options(arguments[place + 1 :])
    options, others = parser.parse_known_args(arguments)
    if others:
        command.error(f"too many arguments: {' '.join(others)}{_option_hint(command, others)}")
    return options


def _option_hint(command: CommandParser, values: Sequence[str]) -> str:
    """Return the option that takes the only value, if that names a format or scheme."""
    # Functions of numpy and of castwise take a dtype or scheme without a keyword. The imports stand
    # here because only wrong arguments need them.
    from castwise import quantization  # noqa: PLC0415
    from castwise.checkpoint.planning.written_schemes import scheme_names  # noqa: PLC0415
    from castwise.quantization.producers.block_types import MIXES  # noqa: PLC0415

    options = command._option_string_actions
    if len(values) != 1:
        return ""
    written = {*scheme_names(), *MIXES}
    scheme_values = written.union(scheme.name for scheme in quantization.schemes())
    if "--scheme" in options and values[0] in scheme_values:
        return f"; did you mean --scheme {values[0]}?"
    if "--dtype" in options:
        with suppress(TypeError, ValueError):
            castwise.caster("float32", values[0])
            return f"; did you mean --dtype {values[0]}?"
    if command.prog.endswith(" cast") and values[0] in written:
        return f"; did you mean castwise quantize --scheme {values[0]}?"
    return ""
