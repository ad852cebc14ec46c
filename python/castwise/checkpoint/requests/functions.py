"""Make the public functions of the fields of requests and runs: signature and documentation."""

import inspect
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field
from typing import Any, ForwardRef, get_args

from castwise.checkpoint.requests.conversion import finish_conversion, run_conversion
from castwise.checkpoint.requests.options import Request, Run, description_of, fields_of
from castwise.checkpoint.results.summary import CastSummary
from castwise.text.spelling import suggestion

_FINISH = ("destination", "overwrite", "fail_on", "max_zeros")
# Letters of a line of a paragraph, beside its indentation.
_WIDTH = 92

Convert = Callable[..., CastSummary]


def options_of(request_type: type[Request]) -> list[Field[Any]]:
    """Return the fields that a function takes, in its order: by position, its own, all others."""
    of_run = {field.name: field for field in fields_of(Run)}
    names_of_all = {field.name for field in fields_of(Request)}
    every = {field.name: field for field in fields_of(request_type)}
    own = [field for name, field in every.items() if name not in names_of_all]
    positional = [every["source"], of_run["destination"]]
    positional += [field for field in own if description_of(field).is_positional]
    others = [*own, *every.values(), *of_run.values()]
    names = {field.name: field for field in [*positional, *others]}
    return list(names.values())


def finish_options() -> list[Field[Any]]:
    """Return the fields that `finish` takes."""
    every = {field.name: field for field in [*fields_of(Request), *fields_of(Run)]}
    return [every[name] for name in _FINISH]


def is_positional(field: Field[Any]) -> bool:
    """Return True for what functions take without its name."""
    return field.name in ("source", "destination") or description_of(field).is_positional


def comment_of(field: Field[Any]) -> str:
    """Return the paragraph of an option in the documentation."""
    words = [f'"{word}"' for word in get_args(description_of(field).choices)]
    choices = " or ".join([", ".join(words[:-1]), *words[-1:]])
    return description_of(field).comment.replace("{choices}", choices)


def conversion(request_type: type[Request]) -> Convert:
    """Return the public function that makes a request of its arguments and carries it out."""
    names = {field.name for field in fields_of(request_type)}

    def convert(options: dict[str, Any]) -> CastSummary:
        request = {name: options.pop(name) for name in names & options.keys()}
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
    options: Iterable[Field[Any]],
    convert: Callable[[dict[str, Any]], CastSummary],
) -> Convert:
    """Return a function with a signature and a documentation made of fields."""
    signature = inspect.Signature(
        [
            inspect.Parameter(
                field.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD
                if is_positional(field)
                else inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.default is MISSING else field.default,
                annotation=field.type,
            )
            for field in options
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
        f"{field.name}\n{textwrap.indent(textwrap.fill(comment_of(field), _WIDTH), '    ')}\n"
        for field in options
    )
    function.__doc__ = f"{head}\nParameters\n----------\n{parameters}{section}{tail}"
    function.__name__ = function.__qualname__ = name
    function.__module__ = "castwise.checkpoint.conversions"
    function.__signature__ = signature  # type: ignore[attr-defined]
    types = {field.name: ForwardRef(str(field.type), module=Run.__module__) for field in options}
    function.__annotations__ = {**types, "return": CastSummary}
    return function
