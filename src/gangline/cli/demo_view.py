"""How the demo shows itself: the replicas' lines with coloured prefixes, and how far each one is.

On a terminal a bar for each replica stays below the lines; elsewhere there are only lines, and of
the steps just every fiftieth.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

STEP = re.compile(r"step (\d+)/\d+ ")
COLOURS = ("cyan", "magenta", "green", "yellow", "blue")
SHOWN_EVERY = 50


class View:
    """Prints to standard output."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._console = Console(highlight=False, soft_wrap=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps"),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._replicas: dict[str, tuple[str, TaskID]] = {}

    @contextmanager
    def progress(self) -> Iterator[None]:
        """Show the bars for the time of the block."""
        with self._progress:
            yield

    def say(self, text: str) -> None:
        """Print a line of the demo's own."""
        self._console.print(Text(text, style="bold"))

    def line(self, replica: str, text: str) -> None:
        """Print a replica's line, or move its bar."""
        colour, task = self._known(replica)
        found = STEP.match(text)
        if found:
            self._progress.update(task, completed=int(found[1]))
        if not found or int(found[1]) % SHOWN_EVERY == 0:
            self._console.print(Text.assemble((f"{replica:>8} | ", colour), text))

    def _known(self, replica: str) -> tuple[str, TaskID]:
        if replica not in self._replicas:
            colour = COLOURS[len(self._replicas) % len(COLOURS)]
            task = self._progress.add_task(f"[{colour}]{replica}", total=self._steps)
            self._replicas[replica] = (colour, task)
        return self._replicas[replica]
