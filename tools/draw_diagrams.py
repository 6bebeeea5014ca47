"""Draws the diagrams of the documentation: docs/images/*.svg from tools/diagrams.toml.

python tools/draw_diagrams.py [--check]

SVG and not Mermaid: Mermaid needs a script of several megabytes in each reader's browser, and the
site loads nothing from other servers. A file that is drawn here is the same on the site, on a code
host and in print; its text can be searched, and screen readers read its title and description.
``--check`` exits with 1 if a file is not current.

A diagram is a grid of boxes. ``at`` is the column and row of a box, which may cover several
columns. An arrow is a straight line between boxes of one row or one column.
"""

import sys
import tomllib
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

import msgspec

HERE = Path(__file__).parent
IMAGES = HERE.parent / "docs/images"
WIDTH, HEIGHT = 200, 72
"""Size of a box in pixels."""
COLUMN, ROW = 296, 122
"""Distance of columns and rows."""
MARGIN = 14
_LINE = 17
_STYLE = """
text { font-family: system-ui, "Segoe UI", "DejaVu Sans", Arial, sans-serif; fill: #1f2430; }
.name { font-size: 16px; font-weight: 600; } .note { font-size: 14px; }
.label { font-size: 13px; font-style: italic; }
rect { fill: #eef1fb; stroke: #4051b5; stroke-width: 1.5; }
.good { fill: #e6f4e8; stroke: #2e7d32; } .bad { fill: #fdeaea; stroke: #c62828; }
path { fill: none; stroke: #4b5263; stroke-width: 1.5; }
marker path { fill: #4b5263; stroke: none; }
.dashed { stroke-dasharray: 5 4; }
@media (prefers-color-scheme: dark) {
text { fill: #e3e6ee; } rect { fill: #23283a; stroke: #8c9eff; }
.good { fill: #1d3322; stroke: #81c784; } .bad { fill: #3a2226; stroke: #ef9a9a; }
path { stroke: #aeb4c4; } marker path { fill: #aeb4c4; }
}
"""


class Box(msgspec.Struct, forbid_unknown_fields=True):
    """A part or a state."""

    name: str
    at: tuple[int, int]
    notes: list[str] = []
    style: str = ""
    """``good``, ``bad`` or empty."""
    columns: int = 1
    """Columns that it covers, from its place to the right."""

    @property
    def width(self) -> int:
        """Width in pixels."""
        return WIDTH + (self.columns - 1) * COLUMN

    @property
    def middle(self) -> "Point":
        """Its centre."""
        x, y = MARGIN + self.at[0] * COLUMN, MARGIN + self.at[1] * ROW
        return Point(x + self.width / 2, y + HEIGHT / 2)

    def covers(self, column: int) -> bool:
        """Return whether the box is in a column."""
        return self.at[0] <= column < self.at[0] + self.columns


class Arrow(msgspec.Struct, forbid_unknown_fields=True, rename={"source": "from"}):
    """A step from one box to another."""

    source: str
    to: str
    label: str = ""
    dashed: bool = False


class Diagram(msgspec.Struct, forbid_unknown_fields=True):
    """One image."""

    title: str
    boxes: list[Box]
    arrows: list[Arrow]


class Point(NamedTuple):
    """A place in the image, in pixels from its upper left corner."""

    x: float
    y: float


def read_diagrams() -> dict[str, Diagram]:
    """Return the diagrams by the names of their files."""
    return msgspec.convert(
        tomllib.loads((HERE / "diagrams.toml").read_text(encoding="utf-8")), dict[str, Diagram]
    )


def draw(diagram: Diagram) -> str:
    """Return a diagram as SVG."""
    boxes = {box.name: box for box in diagram.boxes}
    width = MARGIN * 2 + max(box.at[0] * COLUMN + box.width for box in diagram.boxes)
    height = MARGIN * 2 + max(box.at[1] for box in diagram.boxes) * ROW + HEIGHT
    arrows = [each for arrow in diagram.arrows for each in _arrow(arrow, boxes)]
    shapes = [each for box in diagram.boxes for each in _box(box)]
    return "\n".join((
        f'<svg role="img" viewBox="0 0 {width} {height}" width="{width}" '
        'xmlns="http://www.w3.org/2000/svg">',
        f"<title>{escape(diagram.title)}</title>",
        f"<desc>{escape(description(diagram))}</desc>",
        f"<style>{_STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto"><path d="M0,0 L8,4 L0,8 z"/></marker></defs>',
        *arrows,
        *shapes,
        "</svg>",
        "",
    ))  # fmt: skip


def description(diagram: Diagram) -> str:
    """Return a diagram in sentences, one for each arrow."""
    return " ".join(
        f"{arrow.source} → {arrow.to}{f': {arrow.label}' if arrow.label else ''}."
        for arrow in diagram.arrows
    )


def _box(box: Box) -> Iterator[str]:
    corner = Point(MARGIN + box.at[0] * COLUMN, MARGIN + box.at[1] * ROW)
    style = f' class="{box.style}"' if box.style else ""
    yield (
        f'<rect{style} x="{corner.x}" y="{corner.y}" width="{box.width}" height="{HEIGHT}" rx="6"/>'
    )
    texts = [("name", box.name), *(("note", note) for note in box.notes)]
    first = corner.y + HEIGHT / 2 - (len(texts) - 1) * _LINE / 2 + 5
    for number, (kind, text) in enumerate(texts):
        yield _text(kind, text, Point(corner.x + box.width / 2, first + number * _LINE))


def _text(kind: str, text: str, at: Point, anchor: str = "middle") -> str:
    return (
        f'<text class="{kind}" text-anchor="{anchor}" x="{at.x:g}" y="{at.y:g}">'
        f"{escape(text)}</text>"
    )


def _arrow(arrow: Arrow, boxes: dict[str, Box]) -> Iterator[str]:
    source, target = boxes[arrow.source], boxes[arrow.to]
    start, end = source.at, target.at
    # Of two arrows between the same boxes, each keeps to its own side.
    side = 9 if end > start else -9
    first, last = source.middle, target.middle
    if start[1] == end[1]:
        sign = 1 if end > start else -1
        points = [
            Point(first.x + sign * source.width / 2, first.y - side),
            Point(last.x - sign * target.width / 2, last.y - side),
        ]
    elif source.covers(end[0]) or target.covers(start[0]):
        x = min(source, target, key=lambda box: box.columns).middle.x + side
        shift = HEIGHT / 2 * (1 if end[1] > start[1] else -1)
        points = [Point(x, first.y + shift), Point(x, last.y - shift)]
    else:
        raise ValueError(f"{arrow.source} → {arrow.to}: neither in one row nor in one column")
    line = " L".join(f"{point.x:g},{point.y:g}" for point in points)
    dashed = ' class="dashed"' if arrow.dashed else ""
    yield f'<path{dashed} d="M{line}" marker-end="url(#tip)"/>'
    if arrow.label:
        yield _label(arrow.label, points[0], points[1])


def _label(label: str, start: Point, end: Point) -> str:
    middle = Point((start.x + end.x) / 2, (start.y + end.y) / 2)
    if start.y == end.y:
        below = start.x > end.x
        return _text("label", label, Point(middle.x, middle.y + (15 if below else -6)))
    left = start.y > end.y
    anchor = "end" if left else "start"
    return _text("label", label, Point(middle.x + (-8 if left else 8), middle.y + 4), anchor)


def main(arguments: list[str]) -> int:
    """Draw all diagrams, or check them; return the exit code."""
    stale = []
    for name, diagram in read_diagrams().items():
        path, image = IMAGES / f"{name}.svg", draw(diagram)
        if path.exists() and path.read_text(encoding="utf-8") == image:
            continue
        stale.append(path.name)
        if "--check" not in arguments:
            path.parent.mkdir(exist_ok=True)
            path.write_text(image, encoding="utf-8")
    if stale:
        sys.stdout.write(f"{'not current' if '--check' in arguments else 'drawn'}: {stale}\n")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
