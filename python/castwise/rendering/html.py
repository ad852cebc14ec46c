"""Sheets as HTML: a fragment for notebooks, and a page that needs nothing beside it."""

from collections.abc import Iterator, Sequence
from html import escape
from itertools import islice

from castwise.rendering._pictures import draw_exponents, draw_front
from castwise.rendering.sheet import PAGE_START, Exponents, Front, Lines, Section, Sheet, Table
from castwise.rendering.text import is_lost, printable
from castwise.text.brief import counted

# Rows of a table in a notebook, whose file keeps them.
_ROWS_OF_FRAGMENT = 100

# Borders belong to cells, as those of rows stay behind where a cell is sticky. Blue and orange
# are told apart by all who see colors, and differ in print. A fragment has its own paper: a
# notebook may be light on a dark system, where light ink would be invisible on its page.
_STYLE = """\
.castwise{--ink:#1b1b1b;--paper:#fff;--faint:#d9d9d9;--bar:#0b61a4;--mark:#b34700;
color:var(--ink);background:var(--paper);font:14px/1.45 system-ui,sans-serif}
@media(prefers-color-scheme:dark){.castwise{--ink:#e8e8e8;--paper:#161616;--faint:#444;
--bar:#6cb6f5;--mark:#ff9d57}}
.castwise .wide{overflow:auto;max-height:90vh}
.castwise table{border-collapse:separate;border-spacing:0;font-size:13px;
font-variant-numeric:tabular-nums;margin:.6em 0}
.castwise th,.castwise td{padding:.15em .5em;text-align:right;white-space:pre}
.castwise thead th{position:sticky;top:0;background:var(--paper)}
.castwise :is(th,td):first-child{position:sticky;left:0;background:var(--paper);padding-left:0}
.castwise thead th:first-child{z-index:1}
.castwise tr{background:none}
.castwise tbody tr+tr>*{border-top:1px solid var(--faint)}
.castwise thead th{border-bottom:1px solid var(--ink)}
.castwise tfoot tr>*{border-top:1px solid var(--ink);font-weight:600}
.castwise b{color:var(--mark)}
.castwise p{margin:.2em 0}
.castwise details{margin:.2em 0}
.castwise summary{cursor:pointer;font-family:ui-monospace,monospace;overflow-wrap:anywhere}
.castwise figure{margin:.8em 0}
.castwise figcaption{max-width:60em;margin:.2em 0}
.castwise svg{min-width:44em;max-width:100%;height:auto;display:block}
.castwise svg text{fill:var(--ink);font:12px system-ui,sans-serif}
@media(max-width:40em){.castwise :is(th,td):first-child{min-width:40vw;white-space:normal;
overflow-wrap:anywhere}}
"""
_PAGE_STYLE = """\
:root{color-scheme:light dark}
body{margin:2em auto;max-width:90em;padding:0 1em}
h1{font:600 20px/1.3 system-ui,sans-serif;overflow-wrap:anywhere;margin:0 0 .3em}
@media(prefers-color-scheme:dark){body{background:#161616}}
@page{size:landscape;margin:1cm}
@media print{body{background:#fff;margin:0;padding:0}
main.castwise{--ink:#000;--paper:#fff;--faint:#bbb;--bar:#0b61a4;--mark:#b34700;font-size:9px}
main.castwise .wide{overflow:visible;max-height:none}
main.castwise table{font-size:inherit}
main.castwise :is(th,td){position:static}
main.castwise svg{min-width:0}
main.castwise :is(th,td){padding:.1em .5em}
details::details-content{content-visibility:visible;height:auto}}
"""
_LEFT = """\
.castwise .t{0} :is(th,td):nth-child(-n+{0}){{text-align:left}}
.castwise .t{0} td:nth-child(-n+{0}){{font-family:ui-monospace,monospace}}
"""
_LAST = """\
.castwise .last :is(th,td):last-child{text-align:left}
.castwise .last td:last-child{font-family:ui-monospace,monospace}
"""


def html_of(sheet: Sheet) -> str:
    """Return a sheet as a fragment of HTML, of tables the first rows."""
    return f'<div class="castwise">{"".join(_parts(sheet, _ROWS_OF_FRAGMENT))}</div>'


def page_lines(title: str, sheet: Sheet) -> Iterator[str]:
    """Make the lines of a page, which has no script and needs no other file."""
    yield (
        f'{PAGE_START}<html lang="en"><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width">'
        f"<title>{_text(title)}</title><style>{_PAGE_STYLE}</style>"
        f'<main class="castwise"><h1>{_text(title)}</h1>'
    )
    yield from _parts(sheet, None)
    yield "</main></html>"


def _parts(sheet: Sheet, most: int | None) -> Iterator[str]:
    """Make the HTML of parts; a style before the first."""
    lefts = "".join(_LEFT.format(count) for count in sorted(_text_columns(sheet)))
    yield f"<style>{_STYLE}{lefts}{_LAST}</style>"
    yield from _bodies(sheet, most)


def _bodies(sheet: Sheet, most: int | None) -> Iterator[str]:
    for part in sheet:
        if isinstance(part, Table):
            yield from _table(part, most)
        elif isinstance(part, Lines):
            yield "".join(f"<p>{_text(text)}</p>" for text in part)
        elif isinstance(part, Section):
            yield f"<details><summary>{_text(part.title)}</summary>"
            yield from _bodies(part.parts, most)
            yield "</details>"
        elif isinstance(part, Front):
            yield draw_front(part)
        else:
            assert isinstance(part, Exponents), "the last kind of part"  # noqa: S101
            yield draw_exponents(part)


def _text_columns(sheet: Sheet) -> set[int]:
    """Return how many columns of the tables are texts, of all tables together."""
    counts: set[int] = set()
    for part in sheet:
        if isinstance(part, Table):
            counts.add(_text_columns_of(part))
        elif isinstance(part, Section):
            counts |= _text_columns(part.parts)
    return counts


def _text_columns_of(table: Table) -> int:
    return 99 if table.text_columns is None else table.text_columns


def _table(table: Table, most: int | None) -> Iterator[str]:
    """Make the HTML of a table; end tags that may be left out are, of as many rows."""
    last = " last" if table.has_last_text else ""
    yield f'<div class="wide"><table class="t{_text_columns_of(table)}{last}">'
    if table.header:
        yield f"<thead>{_row(table.header, (), 'th', ' scope=col')}</thead>"
    losses = [name in table.losses for name in table.header]
    yield "<tbody>"
    for row in islice(table.make_rows(), most):
        yield _row(row, losses)
    yield "</tbody>"
    if table.total is not None:
        yield f"<tfoot>{_row(table.total, ())}</tfoot>"
    yield "</table></div>"
    if most is not None and (left_out := sum(1 for _ in islice(table.make_rows(), most, None))):
        yield f"<p>and {counted(left_out, 'other row')}</p>"


def _row(cells: Sequence[str], losses: Sequence[bool], tag: str = "td", attribute: str = "") -> str:
    texts = [_text(cell) for cell in cells]
    for column, is_loss in enumerate(losses):
        if is_loss and is_lost(cells[column]):
            texts[column] = f"<b>{texts[column]}</b>"
    return "<tr>" + "".join(f"<{tag}{attribute}>{text}" for text in texts) + "\n"


def _text(text: str) -> str:
    return escape(printable(text), quote=True)
