"""`castwise completion`: the script with which a shell completes commands and options."""

import argparse
from collections.abc import Callable, Iterable, Mapping

import castwise
from castwise.checkpoint import CheckpointError
from castwise.checkpoint.planning.decode.options import FORMATS
from castwise.checkpoint.planning.written_schemes import form_names, recipes, scheme_names
from castwise.cli._arguments import local_path_argument, map_argument, path_argument
from castwise.cli._output import OK
from castwise.cli._parser import COMMANDS, command_parsers, describe, make_parser
from castwise.quantization import consumers

_COMPLETION = """\
Print a script with which a shell completes the commands, options, choices and files of
castwise. It needs the package shtab: pip install 'castwise[completion]'.
"""
# Those that shtab writes for.
_SHELLS = ("bash", "zsh", "tcsh")
_INSTALLATION = """\
where the script goes:
  bash  castwise completion bash > ~/.local/share/bash-completion/completions/castwise
  zsh   castwise completion zsh > FOLDER/_castwise, of a FOLDER in $fpath
  tcsh  castwise completion tcsh > ~/.castwise.csh, and in ~/.tcshrc: source ~/.castwise.csh
"""
_EXAMPLES = tuple(f"completion {shell}" for shell in _SHELLS)

# What options can have for values, where argparse does not know it.
_VALUES: Mapping[str, Callable[[], Iterable[str]]] = {
    "--assume": castwise.formats,
    "--dtype": castwise.formats,
    "--for": lambda: (consumer.name for consumer in consumers()),
    "--recipe": recipes,
    "--scheme": scheme_names,
    "--to": form_names,
}
# Of `castwise dequantize`, where it has fewer.
_DECODED: Mapping[str, Callable[[], Iterable[str]]] = {"--dtype": lambda: FORMATS}


def define(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    describe(parser, _COMPLETION, _INSTALLATION, examples=_EXAMPLES)
    parser.add_argument("shell", metavar="SHELL", choices=_SHELLS, help=", ".join(_SHELLS))
    parser.set_defaults(run=_complete)


def _complete(options: argparse.Namespace) -> int:
    """Run `castwise completion`; returns the exit code."""
    try:
        import shtab  # noqa: PLC0415  (optional)
    except ImportError:
        raise CheckpointError(
            "castwise completion needs the package shtab: pip install 'castwise[completion]'"
        ) from None
    parser = make_parser(COMMANDS)
    for command_name, command in command_parsers(parser).items():
        command.description = COMMANDS[command_name]  # zsh shows the first line
        completions = {**_VALUES, **(_DECODED if command_name == "dequantize" else {})}
        for action in command._actions:
            if action.type in {path_argument, local_path_argument, map_argument}:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
            for name in action.option_strings:
                if name in completions:
                    action.choices = list(completions[name]())
    print(shtab.complete(parser, options.shell), end="")
    return OK
