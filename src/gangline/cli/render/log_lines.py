"""Prints log lines with their replica in front, each replica in its own colour."""

import re
from typing import TYPE_CHECKING

import click

from gangline.cli.render.live_view import PlainView

if TYPE_CHECKING:
    from gangline.sdk.logs import LogLine

COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "bright_red", "bright_cyan", "white")


class LogLineWriter:
    """Prints log lines, or only those that match a pattern."""

    def __init__(
        self,
        *,
        marked: bool,
        timestamps: bool = False,
        pattern: "re.Pattern[str] | None" = None,
    ) -> None:
        self.view = PlainView("")
        """Where lines are printed."""
        self.lines = 0
        """Number of received lines, printed or not."""
        self._marked, self._timestamps, self._pattern = marked, timestamps, pattern
        self._marks: dict[str, str] = {}

    def write(self, *lines: "LogLine") -> None:
        """Print lines with one write, because many short writes cost more than the lines
        themselves.
        """
        self.lines += len(lines)
        text = "".join(map(self._row, lines))
        if text:
            self.view.print_lines(text)

    def _row(self, line: "LogLine") -> str:
        is_shown = self._pattern is None or self._pattern.search(line.text)
        bar = line.text if line.is_bar and is_shown else ""
        self.view.set_bar(line.replica, self._mark(line.replica), bar)
        if line.is_bar or not is_shown:
            return ""
        time = f"{line.time} " if self._timestamps else ""
        return f"{self._mark(line.replica)}{time}{line.text}\n"

    def _mark(self, replica: str) -> str:
        if not self._marked:
            return ""
        if (mark := self._marks.get(replica)) is not None:
            return mark
        colour = COLOURS[len(self._marks) % len(COLOURS)]
        return self._marks.setdefault(replica, click.style(f"[{replica}] ", fg=colour))
