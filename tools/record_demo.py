"""Records a command as an SVG image that plays the session, as docs/images/demo.svg does.

All lines are there from the first moment, dimmed; each lights up when it was printed, and pauses
are shortened to LONGEST_PAUSE_S. So the image tells something also while it loads, in a preview,
and without animations. Readers who prefer reduced motion see the complete session. `rich` prints
the colours of a terminal without live displays, and draws the image; it needs no other file.
"""

import io
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

COLUMNS = 104
LONGEST_PAUSE_S = 1.5
DIMMED = 0.5
"""Opacity of a line that is not printed yet; it can be read on the dark ground."""
OUTPUT = Path(__file__).parents[1] / "docs/images/demo.svg"

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
@keyframes light-up {{ from {{ opacity: DIMMED; }} to {{ opacity: 1; }} }}
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


def record(command: Sequence[str]) -> Iterator[tuple[float, Text]]:
    """Run a command; yield its lines, each with the seconds since the start.

    Raises:
        CalledProcessError: the command has failed.
    """
    environment = os.environ | {
        "TTY_COMPATIBLE": "1",
        "TTY_INTERACTIVE": "0",
        "COLUMNS": str(COLUMNS),
    }
    started = time.monotonic()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        for line in process.stdout or ():
            yield time.monotonic() - started, Text.from_ansi(line.rstrip())
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, list(command))


def draw(lines: Sequence[tuple[float, Text]], title: str) -> str:
    """Return the session as an SVG image."""
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), color_system="truecolor")
    rules, row, before_s, delay_s = "", 0, 0.0, 0.0
    for printed_s, text in lines:
        delay_s += min(printed_s - before_s, LONGEST_PAUSE_S)
        before_s = printed_s
        for _ in text.wrap(console, COLUMNS) or [text]:
            if delay_s:
                rules += f'[clip-path="url(#demo-line-{row})"] '
                rules += f"{{{{ animation: light-up 0.01s {delay_s:.2f}s backwards; }}}}\n"
            row += 1
        console.print(text)
    console.print()  # rich defines no clip path for the last line
    description = "\n".join(text.plain for _, text in lines)
    template = (
        _SVG.replace("TITLE", escape(title))
        .replace("DIMMED", str(DIMMED))
        .replace("DELAYS", rules)
        .replace("DESCRIPTION", escape(description).replace("{", "{{").replace("}", "}}"))
    )
    return console.export_svg(title=title, theme=_THEME, code_format=template, unique_id="demo")


def write(lines: Sequence[tuple[float, Text]], command: str, path: Path = OUTPUT) -> None:
    """Write the image of a recorded command."""
    prompt = 0.0, Text.from_ansi(f"\x1b[32m$\x1b[0m {command}")
    path.write_text(draw([prompt, *lines], f"A recording of {command}"), encoding="utf-8")
