"""Pictures of sheets, as SVG that takes its colors from the page."""

import math
from collections.abc import Callable, Iterable
from html import escape

from castwise.rendering.sheet import Exponents, FormatRange, Front, Histogram, joint_axis
from castwise.rendering.text import printable

_WIDTH = 960
# Width of what is written to the left of a picture.
_LABEL = 330

# Letters that have room there.
_LETTERS = 46

_END = 20
_ROW = 46
_BAND = 20
_AXIS = 34
# Binades beside the histograms that ranges of formats are drawn for, at most.
_CUT = 16

# Of a bar: one decimal is written, in which less is 0.
_LEAST_HEIGHT = 0.05
_LEGEND = (
    "Blue: the elements of each binade, relative to the tallest bar of the row. Orange: the normal "
    "numbers of a format; dashed: its subnormal numbers; an arrow: the range goes on."
)

# From an exponent to where it is across the picture.
_Place = Callable[[float], float]

# The picture of a front, and the room left for numbers beside and below it.
_FRONT_HEIGHT = 300
_FRONT_LEFT, _FRONT_BELOW = 70, 44
_TICKS = 12
_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))


def draw_exponents(picture: Exponents) -> str:
    """Draw histograms of exponents, and below them the range of each format."""
    histograms = [(name, rows) for name, rows in picture.histograms if len(rows.counts)]
    if not histograms:
        return ""
    low, high = joint_axis(rows for _, rows in histograms)
    begin = min([low, *(max(band.smallest, low - _CUT) for band in picture.ranges)])
    end = max([high, *(min(band.largest, high + _CUT) for band in picture.ranges)]) + 1
    unit = (_WIDTH - _LABEL - _END) / (end - begin)

    def place(exponent: float) -> float:
        return round(_LABEL + (min(max(exponent, begin), end) - begin) * unit, 1)

    top = 0
    shapes: list[str] = []
    for name, rows in histograms:
        shapes.append(_name(name, top + _ROW - 6))
        shapes.append(_bars(rows, place, top + _ROW - 4))
        top += _ROW
    for band in picture.ranges:
        shapes += _band(band, place, top, (begin, end))
        top += _BAND
    grid = []
    for exponent in range(begin, end + 1, max(math.ceil((end - begin) / _TICKS), 1)):
        grid.append(f'<path d="M{place(exponent)} 0V{top + 4}" stroke="var(--faint)"/>')
        shapes.append(
            f'<text x="{place(exponent)}" y="{top + 18}" text-anchor="middle">2^{exponent}</text>'
        )
    names = ", ".join(band.name for band in picture.ranges)
    title = f"Elements by exponent, from 2^{low} to 2^{high}, and the ranges of {names}"
    return _picture(top + _AXIS, title, [*grid, *shapes], _LEGEND)


def _bars(rows: Histogram, place: _Place, base: int) -> str:
    """Draw a bar for each exponent, the tallest as high as the row."""
    tallest = float(rows.counts.max())
    bars = [
        f"M{place(exponent)} {base}v-{height:.1f}H{place(exponent + 1)}V{base}z"
        for exponent, count in enumerate(rows.counts, rows.lowest)
        if (height := (_ROW - 10) * float(count) / tallest) >= _LEAST_HEIGHT
    ]
    return f'<path d="{"".join(bars)}" fill="var(--bar)"/>'


def _band(band: FormatRange, place: _Place, top: int, axis: tuple[int, int]) -> list[str]:
    """Draw the range of a format: thick where it is normal, dashed where subnormal."""
    middle = top + _BAND // 2
    beyond = (
        " \N{LEFTWARDS ARROW}" if band.smallest < axis[0] else "",
        " \N{RIGHTWARDS ARROW}" if band.largest >= axis[1] else "",
    )
    return [
        _name(f"{band.name}{''.join(beyond)}", middle + 4),
        f'<path d="M{place(band.smallest)} {middle}H{place(band.normal)}" '
        'stroke="var(--mark)" stroke-width="2" stroke-dasharray="3 3"/>',
        f'<path d="M{place(band.normal)} {middle}H{place(band.largest + 1)}" '
        'stroke="var(--mark)" stroke-width="7"/>',
    ]


def draw_front(picture: Front) -> str:
    """Draw error against bytes, the error in powers of ten, and the chosen point."""
    points = [(nbytes, error) for nbytes, error in picture.points if error > 0]
    if len(points) < 2:  # noqa: PLR2004  (a line has two ends)
        return ""
    least, most = points[0][0], max(points[-1][0], picture.choice[0])
    bottom = math.floor(math.log10(min(error for _, error in points)))
    ceiling = max(math.ceil(math.log10(max(error for _, error in points))), bottom + 1)
    width, height = _WIDTH - _FRONT_LEFT - _END, _FRONT_HEIGHT - _FRONT_BELOW

    def across(nbytes: float) -> float:
        return round(_FRONT_LEFT + width * (nbytes - least) / max(most - least, 1), 1)

    def down(error: float) -> float:
        exponent = math.log10(error) if error > 0 else bottom
        return round(22 + (height - 22) * (ceiling - exponent) / (ceiling - bottom), 1)

    shapes = [
        f'<path d="M{_FRONT_LEFT} {down(10.0**exponent)}H{_WIDTH - _END}" stroke="var(--faint)"/>'
        f'<text x="{_FRONT_LEFT - 8}" y="{down(10.0**exponent) + 4}" text-anchor="end">'
        f"1e{exponent}</text>"
        for exponent in range(bottom, ceiling + 1, max((ceiling - bottom) // 6, 1))
    ]
    for step in range(5):
        nbytes = least + (most - least) * step / 4
        anchor = "start" if step == 0 else "end" if step == 4 else "middle"  # noqa: PLR2004
        shapes.append(
            f'<text x="{across(nbytes)}" y="{height + 20}" text-anchor="{anchor}">'
            f"{_size(nbytes, most)}</text>"
        )
    line = "L".join(f"{across(nbytes)} {down(error)}" for nbytes, error in points)
    x, y = across(picture.choice[0]), down(picture.choice[1])
    shapes += [
        f'<text x="{_FRONT_LEFT}" y="12">mean relative squared error of the weights</text>',
        f'<path d="M{line}" fill="none" stroke="var(--bar)" stroke-width="2"/>',
        f'<circle cx="{x}" cy="{y}" r="6" fill="var(--mark)"/>',
        f'<text x="{x + 10 if x < _WIDTH / 2 else x - 10}" y="{y - 8}" '
        f'text-anchor="{"start" if x < _WIDTH / 2 else "end"}">chosen: '
        f"{_size(picture.choice[0], most)}, {picture.choice[1]:.2e}</text>",
        f'<text x="{_FRONT_LEFT + width / 2:.0f}" y="{height + 38}" text-anchor="middle">bytes of '
        "the checkpoint</text>",
    ]
    title = "The least error for each number of bytes"
    return _picture(_FRONT_HEIGHT, title, shapes, f"{title}, and the choice.")


def _size(nbytes: float, most: float) -> str:
    """Write bytes in the unit of the largest number of the axis."""
    divisor, unit = next(pair for pair in _UNITS if most >= pair[0] or pair[0] == 1)
    return f"{nbytes / divisor:.3g} {unit}"


def _name(name: str, baseline: int) -> str:
    """Write a name to the left of the picture, cut at the left if it is long."""
    label = name if len(name) <= _LETTERS else f"...{name[3 - _LETTERS :]}"
    return (
        f'<text x="{_LABEL - 8}" y="{baseline}" text-anchor="end">{escape(printable(label))}</text>'
    )


def _picture(height: int, title: str, shapes: Iterable[str], caption: str) -> str:
    return (
        f'<figure><div class="wide"><svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'height="{height}" role="img" aria-label="{escape(printable(title))}">{"".join(shapes)}'
        f"</svg></div><figcaption>{escape(caption)}</figcaption></figure>"
    )
