"""The recording of a command: its lines, when they appear, and the image."""

import re
from types import ModuleType
from xml.etree import ElementTree

import pytest
from rich.text import Text

from unit.tool_modules import load_tool


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_tool("record_demo")


def test_image_has_the_lines_and_shortens_pauses(tool: ModuleType) -> None:
    lines = [(0.0, Text("$ gangline demo")), (0.5, Text("a <b> {c}")), (60, Text("end"))]
    image = tool.draw(lines, "A session")
    ElementTree.fromstring(image)
    shown = re.sub(r"<[^>]+>", "", image).replace("&#160;", " ")
    assert shown.index("$ gangline demo") < shown.index("a &lt;b&gt; {c}") < shown.index("end")
    delays = [float(delay) for delay in re.findall(r"0\.01s ([\d.]+)s backwards", image)]
    assert delays == [0.5, 0.5 + tool.LONGEST_PAUSE_S]


def test_lines_are_recorded_with_their_colours(tool: ModuleType) -> None:
    (_, line), *_ = tool.record(["printf", "\x1b[31mred\x1b[0m text\n"])
    assert line.plain == "red text"
    assert line.spans[0].style.color.number == 1


def test_first_frame_shows_all_lines_dimmed(tool: ModuleType) -> None:
    drawn = tool.draw([(0.0, Text("$ a")), (1.0, Text("b"))], "A session")
    for image in (drawn, tool.OUTPUT.read_text(encoding="utf-8")):
        (opacity,) = re.findall(r"from \{ opacity: ([\d.]+)", image)
        assert 0.4 <= float(opacity) < 1
