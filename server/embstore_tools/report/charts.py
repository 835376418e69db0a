"""Charts as inline SVG: lines over steps, stacked parts, and a line over a logarithmic axis.

A chart is WIDTH by HEIGHT units, and is scaled to the width of its column. Colours are classes of
the page's style, by the index of a series, so that a light or dark theme can set them. Each point
has a tooltip (`title`), without a script.

A first step takes ten times as long as other steps, because programs are compiled and pages are
mapped during it. Therefore the other steps determine the scale; larger values are drawn at the end
of the scale.
"""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from math import log, log10

WIDTH, HEIGHT = 640.0, 220.0
_LEFT, _BOTTOM, _TOP, _RIGHT = 64.0, 24.0, 8.0, 8.0
_TICKS = 4

Format = Callable[[float], str]
Series = Mapping[str, Sequence[float]]


def lines(
    xs: Sequence[float], series: Series, text: Format, *, most: float | None = None, base: int = 10
) -> str:
    """Return a chart with a line for each series, up to `most`, or up to the largest value if
    `most` is None. `base` is the base of round numbers: 10, or 1024."""
    top = (
        most
        if most is not None
        else _top([max(at) for at in zip(*series.values(), strict=True)], base)
    )
    place = _place(xs, top)
    drawn = [
        _line(place(xs, ys), f"s{index}", name, [text(y) for y in ys])
        for index, (name, ys) in enumerate(series.items())
    ]
    return _chart(_axes(xs, top, text) + "".join(drawn), list(series))


def stacked(xs: Sequence[float], series: Series, text: Format, *, base: int = 10) -> str:
    """Return a chart of stacked parts; `base` as in `lines`."""
    heights = [sum(parts) for parts in zip(*series.values(), strict=True)]
    top = _top(heights, base)
    place, below, drawn = _place(xs, top), [0.0] * len(xs), []
    for index, (name, ys) in enumerate(series.items()):
        above = [low + y for low, y in zip(below, ys, strict=True)]
        outline = place(xs, above) + place(xs, below)[::-1]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in outline)
        title = f"<title>{escape(name)}</title>"
        drawn.append(f'<polygon class="a{index}" points="{points}">{title}</polygon>')
        below = above
    return _chart(_axes(xs, top, text) + "".join(drawn), list(series))


def curve(xs: Sequence[float], ys: Sequence[float], text: Format, now: float) -> str:
    """Return a chart of shares over a logarithmic axis, with a mark at `now`."""
    logs = [log10(x) for x in xs]
    place = _place(logs, 1.0)
    labels = [f"{text(x)}: {100 * y:.1f} %" for x, y in zip(xs, ys, strict=True)]
    drawn = _line(place(logs, ys), "s0", "share of accesses", labels)
    if xs[0] <= now <= xs[-1]:
        ((x, _),) = place([log10(now)], [0.0])
        drawn += (
            f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>'
        )
        drawn += f'<text class="tick" x="{x + 4:.1f}" y="{_TOP + 10}">today</text>'
    ends = f"{_label(_LEFT, text(xs[0]), 'start')}{_label(WIDTH - _RIGHT, text(xs[-1]), 'end')}"
    return _chart(_grid(1.0, lambda y: f"{100 * y:.0f} %") + ends + drawn, [])


def _top(heights: Sequence[float], base: int) -> float:
    """Return a round number that is not below any height; if there are several heights, the first
    is ignored."""
    value = max(heights[1:] or heights, default=0)
    if value <= 0:
        return 1.0
    power = float(base) ** int(log(value, base) // 1)
    steps = [*(step for step in _ROUND if step < base), base]
    return next(power * step for step in steps if power * step >= value * 0.999)


_ROUND = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Round numbers. With a base, those below the base are used."""


def _place(
    of: Sequence[float], top: float
) -> Callable[[Sequence[float], Sequence[float]], list[tuple[float, float]]]:
    low, span = of[0], (of[-1] - of[0]) or 1.0

    def place(xs: Sequence[float], ys: Sequence[float]) -> list[tuple[float, float]]:
        wide, high = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
        return [
            (_LEFT + wide * (x - low) / span, _TOP + high * (1 - min(y / top, 1.0)))
            for x, y in zip(xs, ys, strict=True)
        ]

    return place


def _line(
    points: Sequence[tuple[float, float]], style: str, name: str, labels: Sequence[str]
) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(
        f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="2.5">'
        f"<title>{escape(f'{name}: {label}')}</title></circle>"
        for (x, y), label in zip(points, labels, strict=True)
    )
    return f'<polyline class="{style}" points="{path}"/>{dots}'


def _grid(top: float, text: Format) -> str:
    drawn = ""
    for tick in range(_TICKS + 1):
        y = HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * tick / _TICKS
        drawn += (
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        label = escape(text(top * tick / _TICKS))
        drawn += (
            f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
        )
    return drawn


def _axes(xs: Sequence[float], top: float, text: Format) -> str:
    first, last = f"step {xs[0]:,.0f}", f"{xs[-1]:,.0f}"
    ends = _label(_LEFT, first, "start") + _label(WIDTH - _RIGHT, last, "end")
    return _grid(top, text) + ends


def _label(x: float, text: str, anchor: str) -> str:
    y = HEIGHT - 6
    return f'<text class="tick" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def _chart(drawn: str, names: Sequence[str]) -> str:
    legend = "".join(
        f'<span><i class="k{index}"></i>{escape(name)}</span>' for index, name in enumerate(names)
    )
    view = f"0 0 {WIDTH:g} {HEIGHT:g}"
    return f'<svg viewBox="{view}" role="img">{drawn}</svg><p class="legend">{legend}</p>'
