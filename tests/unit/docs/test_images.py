"""Images of the documentation: current, readable without sight, and without foreign servers."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from unit.tool_modules import load_tool

ROOT = Path(__file__).parents[3]
IMAGES = sorted((ROOT / "docs/images").glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"


def test_diagrams_are_current() -> None:
    tool = load_tool("draw_diagrams")
    assert tool.main(["--check"]) == 0


def test_diagram_with_an_arrow_between_neither_row_nor_column_is_refused() -> None:
    tool = load_tool("draw_diagrams")
    boxes = [tool.Box(name="a", at=(0, 0)), tool.Box(name="b", at=(1, 1))]
    with pytest.raises(ValueError, match="a → b"):
        tool.draw(tool.Diagram(title="t", boxes=boxes, arrows=[tool.Arrow(source="a", to="b")]))


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.stem)
def test_image_describes_itself_and_loads_nothing(image: Path) -> None:
    text = image.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title")
    assert len(root.findtext(f"{SVG}desc") or "") > 100
    assert not re.search(r"url\([\"']?(?!#)|href|@import|<script", text)


def test_every_image_is_shown_with_a_text() -> None:
    pages = [*ROOT.glob("README*.md"), *(ROOT / "docs").rglob("*.md")]
    shown = re.findall(
        r"!\[([^\]]+)\]\([^)]*?([\w-]+\.svg)\)",
        "\n".join(page.read_text(encoding="utf-8") for page in pages),
    )
    assert {name for _, name in shown} == {image.name for image in IMAGES}
    assert all(len(text) > 20 for text, _ in shown)
