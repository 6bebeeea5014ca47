"""Records `gangline demo` as an SVG image that plays the session: docs/images/demo.svg.

python tools/record_demo.py [--output FILE] [COMMAND ...]

The command runs in a terminal of its own (`pty`). Each line of the image appears when it was
printed; pauses are shortened to LONGEST_PAUSE_S. Viewers without animations, and readers who
prefer reduced motion, see the complete session. `rich` draws the image; it needs no other file.
"""

import argparse
import io
import os
import pty
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

COLUMNS = 104
LONGEST_PAUSE_S = 1.5
OUTPUT = Path(__file__).parents[1] / "docs/images/demo.svg"

_CONTROL = re.compile(r"\x1b\[(\??\d*(?:;\d+)*)([A-Za-z])|\r\n|[\r\n]|\x1b[=>]")
_THEME = TerminalTheme(
    (27, 31, 38),
    (220, 223, 228),
    [(27, 31, 38), (240, 113, 120), (152, 195, 121), (229, 192, 123), (97, 175, 239),
     (198, 120, 221), (86, 182, 194), (220, 223, 228)],
    [(128, 136, 150), (240, 113, 120), (152, 195, 121), (229, 192, 123), (97, 175, 239),
     (198, 120, 221), (86, 182, 194), (255, 255, 255)],
)  # fmt: skip
# rich's own template loads a font from the network.
_SVG = """<svg role="img" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<title>TITLE</title>
<desc>DESCRIPTION</desc>
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: arial, sans-serif; }}
@keyframes appear {{ from {{ opacity: 0; }} to {{ opacity: 1; }} }}
@media (prefers-reduced-motion: no-preference) {{
DELAYS}}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


@dataclass(slots=True)
class Line:
    """A line of the session, with its escape sequences of colours."""

    text: str = ""
    appeared_s: float = 0
    """Seconds from the start of the command."""


class Terminal:
    """Follows what rich's live display writes: lines, colours, cursor up, erase line."""

    def __init__(self) -> None:
        self.lines = [Line()]
        self._row = 0
        self._style = ""

    def feed(self, text: str, time_s: float) -> None:
        """Apply output that was written at a time."""
        position = 0
        for found in _CONTROL.finditer(text):
            self._write(text[position : found.start()], time_s)
            position = found.end()
            self._control(found, time_s)
        self._write(text[position:], time_s)

    def _control(self, found: re.Match[str], time_s: float) -> None:
        match found[2], found[0]:
            case "m", sequence:
                self.lines[self._row].text += sequence
            case "A", _:
                self._row = max(0, self._row - int(found[1] or 1))
            case "K", _:
                self.lines[self._row] = Line()
            case None, "\n" | "\r\n":
                self._row += 1
                if self._row == len(self.lines):
                    self.lines.append(Line(appeared_s=time_s))

    def _write(self, text: str, time_s: float) -> None:
        if not text:
            return
        line = self.lines[self._row]
        if not Text.from_ansi(line.text).plain:
            line.appeared_s = time_s
        line.text += text


def record(command: Sequence[str]) -> list[Line]:
    """Run a command in a terminal; return its lines.

    Raises:
        CalledProcessError: the command has failed.
    """
    ours, theirs = pty.openpty()
    size = f"stty rows 50 cols {COLUMNS} && exec {shlex.join(command)}"
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    started, terminal = time.monotonic(), Terminal()
    with subprocess.Popen(["sh", "-c", size], stdin=theirs, stdout=theirs, stderr=theirs,
                          env=environment, start_new_session=True) as process:  # fmt: skip
        os.close(theirs)
        for text in _chunks(ours):
            terminal.feed(text, time.monotonic() - started)
    os.close(ours)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, list(command))
    return terminal.lines


def _chunks(descriptor: int) -> Iterable[str]:
    """Yield what is written to a terminal, cut at ends of escape sequences, until it is closed."""
    rest = b""
    while True:
        try:
            data = os.read(descriptor, 65_536)
        except OSError:  # EIO: the other side is closed
            return
        rest += data
        end = max(rest.rfind(b"\n"), rest.rfind(b"m"), rest.rfind(b"K"), rest.rfind(b"A")) + 1
        if end:
            yield rest[:end].decode(errors="replace")
            rest = rest[end:]


def draw(lines: Sequence[Line], title: str) -> str:
    """Return the session as an SVG image."""
    lines = _without_blank_end(lines)
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), color_system="truecolor")
    rows = [Text.from_ansi(line.text.rstrip()) for line in lines]
    delays: list[float] = []
    for row, delay in zip(rows, _shortened(line.appeared_s for line in lines), strict=True):
        shown = row.wrap(console, COLUMNS)
        delays += [delay] * max(1, len(shown))
        console.print(row, soft_wrap=False)
    console.print()  # rich defines no clip path for the last line
    rules = "".join(
        f'[clip-path="url(#demo-line-{number})"] '
        f"{{{{ animation: appear 0.01s {delay:.2f}s backwards; }}}}\n"
        for number, delay in enumerate(delays)
        if delay
    )
    text = "\n".join(row.plain for row in rows)
    template = (
        _SVG.replace("TITLE", escape(title))
        .replace("DELAYS", rules)
        .replace("DESCRIPTION", escape(text).replace("{", "{{").replace("}", "}}"))
    )
    return console.export_svg(title=title, theme=_THEME, code_format=template, unique_id="demo")


def _without_blank_end(lines: Sequence[Line]) -> Sequence[Line]:
    end = len(lines)
    while end and not Text.from_ansi(lines[end - 1].text).plain.strip():
        end -= 1
    return lines[:end]


def _shortened(times_s: Iterable[float]) -> Iterable[float]:
    """Yield times whose differences are at most the longest pause."""
    before = shown = 0.0
    for each in times_s:
        shown += min(max(0.0, each - before), LONGEST_PAUSE_S)
        before = max(before, each)
        yield shown


def main() -> None:
    """Record the command of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("command", nargs="*", default=["gangline", "demo"])
    arguments = parser.parse_args()
    command = arguments.command
    prompt = Line(f"\x1b[32m$\x1b[0m {shlex.join(command)}")
    image = draw([prompt, *record(command)], f"A recording of {shlex.join(command)}")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(image, encoding="utf-8")
    sys.stdout.write(f"{arguments.output}: {len(image) // 1024} KiB\n")


if __name__ == "__main__":
    main()
