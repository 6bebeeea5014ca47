"""Draws bar charts of the published benchmarks as SVG.

A chart has groups of horizontal bars: one group for each measured figure, one bar for each system.
Its description has all numbers, so that nothing is lost without sight. Charts have the colours and
fonts of the diagrams, load nothing, and follow the reader's dark mode.
"""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple

WIDTH, LEFT, RIGHT = 760, 120, 160
"""Pixels: of the image, of the names before the bars, of the numbers behind them."""
BAR, BAR_STEP, GROUP_GAP, HEAD = 18, 24, 34, 40
OURS = "Gangline"
_STYLE = """
text { font-family: system-ui, "Segoe UI", "DejaVu Sans", Arial, sans-serif; fill: #1f2430; }
.title { font-size: 16px; font-weight: 600; } .group { font-size: 13px; font-weight: 600; }
.bar { font-size: 12.5px; } .ours { font-weight: 600; }
rect { fill: #b6bdcc; } rect.ours { fill: #4051b5; } rect.rest { opacity: 0.45; }
@media (prefers-color-scheme: dark) {
text { fill: #e3e6ee; } rect { fill: #5a6274; } rect.ours { fill: #8c9eff; }
}
"""


class Bar(NamedTuple):
    """The value of one system; a range if ``high`` is above ``low``."""

    low: float
    high: float
    label: str


class Chart(NamedTuple):
    """One image."""

    title: str
    note: str
    """What is better, and where the numbers are from."""
    groups: Sequence[tuple[str, Mapping[str, Bar]]]


def draw(chart: Chart) -> str:
    """Return a chart as SVG. The longest bar has the length of the largest value."""
    most = max(bar.high for _, bars in chart.groups for bar in bars.values())
    scale = (WIDTH - LEFT - RIGHT) / most
    shapes, y = list[str](), HEAD
    for name, bars in chart.groups:
        y += GROUP_GAP
        shapes.append(_text("group", 0, y - 10, name))
        for system, bar in bars.items():
            shapes.extend(_bar(system, bar, y, scale))
            y += BAR_STEP
    height = y + 8
    return "\n".join((
        f'<svg role="img" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        'xmlns="http://www.w3.org/2000/svg">',
        f"<title>{escape(chart.title)}</title>",
        f"<desc>{escape(describe(chart))}</desc>",
        f"<style>{_STYLE}</style>",
        _text("title", 0, 18, chart.title),
        _text("bar", 0, 38, chart.note),
        *shapes,
        "</svg>",
        "",
    ))  # fmt: skip


def describe(chart: Chart) -> str:
    """Return a chart in sentences, one for each group."""
    groups = (
        f"{name}: {', '.join(f'{system} {bar.label}' for system, bar in bars.items())}."
        for name, bars in chart.groups
    )
    return f"{chart.note}. {' '.join(groups)}"


def _bar(system: str, bar: Bar, y: int, scale: float) -> Iterator[str]:
    ours = " ours" if system == OURS else ""
    low, high = max(bar.low * scale, 1.5), max(bar.high * scale, 1.5)
    yield _text(f"bar{ours}", LEFT - 8, y + 13, system, "end")
    yield f'<rect class="{ours.strip()}" x="{LEFT}" y="{y}" width="{low:.1f}" height="{BAR}"/>'
    if high > low:
        yield (
            f'<rect class="rest{ours}" x="{LEFT + low:.1f}" y="{y}" width="{high - low:.1f}" '
            f'height="{BAR}"/>'
        )
    yield _text(f"bar{ours}", LEFT + high + 6, y + 13, bar.label)


def _text(kind: str, x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" text-anchor="{anchor}" x="{x:g}" y="{y:g}">{escape(text)}</text>'
