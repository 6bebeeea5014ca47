"""The recording of a terminal session: its lines, when they appeared, and the image."""

import re
from types import ModuleType
from xml.etree import ElementTree

import pytest
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from unit.tool_modules import load_tool


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_tool("record_demo")


def plain(terminal: object) -> list[str]:
    return [Text.from_ansi(line.text).plain.rstrip() for line in terminal.lines]  # type: ignore[attr-defined]


def test_lines_above_a_live_display_remain_and_the_display_does_not(tool: ModuleType) -> None:
    """rich is the reference: a transient display leaves only the printed lines."""
    terminal = tool.Terminal()

    class Output:
        def write(self, text: str) -> None:
            terminal.feed(text, 1.0)

        def flush(self) -> None: ...

        def isatty(self) -> bool:
            return True

    console = Console(file=Output(), width=60, force_terminal=True)  # type: ignore[arg-type]
    with Progress(console=console, transient=True, auto_refresh=False) as progress:
        task = progress.add_task("worker-0", total=3)
        for step in range(3):
            progress.update(task, completed=step, refresh=True)
            console.print(f"step {step}")
    console.print("done")
    assert [line for line in plain(terminal) if line] == ["step 0", "step 1", "step 2", "done"]


def test_a_line_appears_when_its_first_character_was_written(tool: ModuleType) -> None:
    terminal = tool.Terminal()
    terminal.feed("one ", 1.0)
    terminal.feed("\x1b[31mred\x1b[0m\r\n", 2.0)
    terminal.feed("two\r\n", 3.0)
    assert plain(terminal)[:2] == ["one red", "two"]
    assert [line.appeared_s for line in terminal.lines[:2]] == [1.0, 3.0]


def test_image_has_the_lines_and_shortens_pauses(tool: ModuleType) -> None:
    lines = [tool.Line("$ gangline demo"), tool.Line("a <b> {c}", 0.5), tool.Line("\x1b[1mend", 60)]
    image = tool.draw(lines, "A session")
    ElementTree.fromstring(image)
    shown = re.sub(r"<[^>]+>", "", image).replace("&#160;", " ")
    assert shown.index("$ gangline demo") < shown.index("a &lt;b&gt; {c}") < shown.index("end")
    delays = [float(each) for each in re.findall(r"0\.01s ([\d.]+)s backwards", image)]
    assert delays == [0.5, 0.5 + tool.LONGEST_PAUSE_S]


def test_command_runs_in_a_terminal(tool: ModuleType) -> None:
    lines = tool.record(["sh", "-c", "test -t 1 && printf 'a terminal\\n'"])
    assert Text.from_ansi(lines[0].text).plain == "a terminal"
