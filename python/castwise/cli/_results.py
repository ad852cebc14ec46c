"""Show what a command that writes no checkpoint has found: a table, JSON, a page."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from castwise.cli._arguments import check_top
from castwise.cli._output import json_text, show, show_sheet
from castwise.cli._written_files import page_of, pending_file, show_and_check
from castwise.rendering.sheet import Sheet


class _Value(Protocol):
    def __sheet__(self) -> Sheet: ...
    def to_dict(self) -> dict[str, Any]: ...


_Result = TypeVar("_Result", bound=_Value)


def show_result(
    # Of these --json, --quiet, --top, --color and --html, as far as the command has them.
    options: argparse.Namespace,
    # Does the work.
    find: Callable[[], _Result],
    # Returns what is printed; by default the sheet of the value.
    sheet_of: Callable[[_Result], Sheet] | None = None,
    # Returns what is printed as JSON, of the rows that --top asks for; by default its `to_dict`,
    # and --top is refused.
    values_of: Callable[[_Result], dict[str, Any]] | None = None,
    # Returns what is written for --output, which the command then has.
    map_of: Callable[[_Result], str] | None = None,
) -> _Result:
    """Find a result and show it; returns it."""
    if values_of is None:
        check_top(options)
    failures: list[str] = []
    map_name = None if map_of is None else "output"
    with (
        pending_file(options, map_name, failures) as output,
        pending_file(options, "html", failures) as page,
    ):
        if map_of is not None:
            output.make_lines = lambda: [map_of(result)]
        page.make_lines = lambda: page_of(options, result.__sheet__())
        result = find()

    def show_found() -> None:
        if options.json:
            show([json_text(lambda: (values_of or type(result).to_dict)(result))])
        elif not getattr(options, "quiet", False):
            show_sheet((sheet_of or type(result).__sheet__)(result), options)

    show_and_check(show_found, failures, None)
    return result
