"""Make the public functions of the options of requests and runs: signature and documentation."""

import inspect
import textwrap
from collections.abc import Callable, Iterable
from typing import Any, ForwardRef, get_args

from castwise.checkpoint.requests.conversion import finish_conversion, run_conversion
from castwise.checkpoint.requests.options import ConversionOption, Request, Run
from castwise.checkpoint.results.summary import CastSummary
from castwise.text.spelling import suggestion

_FINISH = ("destination", "overwrite", "fail_on", "max_zeros")
# Letters of a line of a paragraph, beside its indentation.
_WIDTH = 92

Convert = Callable[..., CastSummary]


def options_of(request_type: type[Request]) -> list[ConversionOption]:
    """Return the options that a function takes, in its order: by position, its own, all others."""
    every = request_type.options | Run.options
    own = [name for name in request_type.options if name not in Request.options]
    positional = [name for name in own if every[name].is_positional]
    names = dict.fromkeys(["source", "destination", *positional, *own, *every])
    return [every[name] for name in names]


def finish_options() -> list[ConversionOption]:
    """Return the options that `finish` takes."""
    every = Request.options | Run.options
    return [every[name] for name in _FINISH]


def is_positional(option: ConversionOption) -> bool:
    """Return True for what functions take without its name."""
    return option.name in ("source", "destination") or option.is_positional


def comment_of(option: ConversionOption) -> str:
    """Return the paragraph of an option in the documentation."""
    words = [f'"{word}"' for word in get_args(option.choices)]
    choices = " or ".join([", ".join(words[:-1]), *words[-1:]])
    return option.comment.replace("{choices}", choices)


def conversion(request_type: type[Request]) -> Convert:
    """Return the public function that makes a request of its arguments and carries it out."""

    def convert(options: dict[str, Any]) -> CastSummary:
        request = {name: options.pop(name) for name in request_type.options.keys() & options}
        return run_conversion(request_type(**request), Run(**options))

    name = f"{request_type.command}_file"
    return _function(name, str(request_type.__doc__), options_of(request_type), convert)


def finishing(documentation: str) -> Convert:
    """Return the public function that makes a checkpoint of its parts."""

    def finish(options: dict[str, Any]) -> CastSummary:
        overwrite = options.pop("overwrite", False)
        return finish_conversion(Run(**options), overwrite=overwrite)

    return _function("finish", documentation, finish_options(), finish)


def _function(
    name: str,
    documentation: str,
    options: Iterable[ConversionOption],
    convert: Callable[[dict[str, Any]], CastSummary],
) -> Convert:
    signature = inspect.Signature(
        [
            inspect.Parameter(
                option.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD
                if is_positional(option)
                else inspect.Parameter.KEYWORD_ONLY,
                default=option.default,
                annotation=option.type,
            )
            for option in options
        ],
        return_annotation="CastSummary",
    )

    def function(*values: Any, **keywords: Any) -> CastSummary:  # noqa: ANN401  (of the fields)
        for wrong in (name for name in keywords if name not in signature.parameters):
            meaning = suggestion(wrong, signature.parameters).strip()
            hint = f"; {meaning}" if meaning else ""
            raise TypeError(f"{name}() got an unexpected keyword argument {wrong!r}{hint}")
        try:
            arguments = signature.bind(*values, **keywords)
        except TypeError as error:
            got = "got " if str(error).startswith("multiple") else ""
            raise TypeError(f"{name}() {got}{error}") from None
        return convert(dict(arguments.arguments))

    head, section, tail = inspect.cleandoc(documentation).partition("\nReturns\n")
    parameters = "".join(
        f"{option.name}\n{textwrap.indent(textwrap.fill(comment_of(option), _WIDTH), '    ')}\n"
        for option in options
    )
    function.__doc__ = f"{head}\nParameters\n----------\n{parameters}{section}{tail}"
    function.__name__ = function.__qualname__ = name
    function.__module__ = "castwise.checkpoint.conversions"
    function.__signature__ = signature  # type: ignore[attr-defined]
    types = {option.name: ForwardRef(option.type, module=Run.__module__) for option in options}
    function.__annotations__ = {**types, "return": CastSummary}
    return function
