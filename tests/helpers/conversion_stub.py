"""Write `conversions.pyi` of the options: what type checkers know of the functions that convert.

`python tests/helpers/conversion_stub.py` writes it; `tests/test_types.py` compares it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from inspect import Parameter
from pathlib import Path

import castwise
from castwise import _options
from castwise.checkpoint.requests import functions as functions_module
from castwise.checkpoint.requests.options import REQUESTS, ConversionOption

STUB = Path(castwise.__file__).parent / "checkpoint" / "conversions.pyi"

_HEAD = '''"""The functions that convert checkpoints, as type checkers see them.

Made of `requests/options.py` by `tests/helpers/conversion_stub.py`; do not edit.
"""

'''
_STANDARD = ("Any", "Literal", "Mapping", "annotations")
_HOMES = {
    "collections.abc": ("Callable", "Iterable", "Mapping", "Sequence"),
    "concurrent.futures": ("Executor",),
    "typing": ("Any", "Literal", "overload"),
    "castwise._options": tuple(name for name in vars(_options) if name not in _STANDARD),
    "castwise.arrays.dtype_map": ("DtypeMap",),
    "castwise.checkpoint.results.report": ("Progress",),
    "castwise.checkpoint.results.summary": ("CastPlan", "CastSummary"),
}
"""Where the names of types are from."""


def stub_text() -> str:
    """Return the text of the stub."""
    functions = []
    for request in REQUESTS:
        options = functions_module.options_of(request)
        name = f"{request.command}_file"
        for dry_run, result in (
            ("Literal[True]", "CastPlan"),
            ("bool = False", "CastSummary"),
        ):
            functions.append("@overload\n" + _function(name, options, dry_run, result))
    functions.append(_function("finish", functions_module.finish_options(), "", "CastSummary"))
    text = "".join(functions)
    return _HEAD + "".join(_imports(text)) + "\n" + text


def _function(name: str, options: list[ConversionOption], dry_run: str, result: str) -> str:
    """Return the declaration of a function, in the layout of `ruff format`."""
    lines = []
    star = False
    for option in options:
        if not star and not functions_module.is_positional(option):
            star = True
            lines.append("*")
        if option.name == "dry_run":
            lines.append(f"dry_run: {dry_run}")
        else:
            text = isinstance(option.default, str)
            value = json.dumps(option.default) if text else repr(option.default)
            value = "..." if isinstance(option.default, tuple) else value
            default = "" if option.default is Parameter.empty else f" = {value}"
            lines.append(f"{option.name}: {option.type}{default}")
    parameters = "".join(f"    {line},\n" for line in lines)
    return f"def {name}(\n{parameters}) -> {result}: ...\n"


def _imports(text: str) -> Iterator[str]:
    """Return the lines that import what a text names."""
    words = set(re.findall(r"\w+", text))
    last = ""
    for module, names in _HOMES.items():
        used = sorted({name for name in names if name in words})
        if used and last and module.startswith("castwise") != last.startswith("castwise"):
            yield "\n"
        if used:
            last = module
            line = f"from {module} import {', '.join(used)}\n"
            if len(line) > 101:
                line = f"from {module} import (\n" + "".join(f"    {n},\n" for n in used) + ")\n"
            yield line


if __name__ == "__main__":
    STUB.write_text(stub_text(), "utf-8")
