"""Display of the demo: phases, the lines of the replicas with coloured prefixes, a final table.

On a terminal, a progress bar for each replica stays below the lines. Elsewhere only lines are
printed, and only every fiftieth step.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from gangline.cli.demo.timeline import (
    ACCURACY,
    LOST_IN,
    STARTS_AT,
    STEP,
    DemoTimeline,
    summary_headline,
    summary_rows,
)

COLOURS = ("cyan", "magenta", "green", "yellow", "blue")
SHOWN_EVERY = 50
LONGEST_LINE = 90
LABEL_WIDTH = 36


class DemoView:
    """Prints to standard output, or to the given console."""

    def __init__(self, steps: int, replicas: Sequence[str], console: Console | None = None) -> None:
        self._steps = steps
        self._console = console or Console(highlight=False, soft_wrap=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("[dim]{task.fields[doing]}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._colours = dict(zip(replicas, COLOURS, strict=False))
        self._killed: set[str] = set()
        """Killed replicas; lines that they wrote before may still arrive."""
        self._tasks = {
            name: self._progress.add_task(
                f"[{colour}]{name:>9}", total=steps, doing="starting", start=False
            )
            for name, colour in self._colours.items()
        }

    @contextmanager
    def progress(self) -> Iterator[None]:
        """Show the progress bars for the duration of the block."""
        for task in self._tasks.values():
            self._progress.start_task(task)
        with self._progress:
            yield

    def print_phase(self, text: str) -> None:
        self._console.print(Text.assemble(("==> ", "blue"), (text, "bold")))

    def print_note(self, text: str) -> None:
        self._console.print(Text(f"    {text}"))

    def print_kill(self, replica: str) -> None:
        self.print_phase(f"Killed the process of {replica} with SIGKILL")
        self._set_activity(replica, "killed, restarting")
        self._killed.add(replica)

    def print_line(self, replica: str, text: str) -> None:
        """Print a line of a replica, and update its progress bar."""
        found = STEP.match(text)
        if found and replica not in self._killed:
            self._set_activity(replica, f"loss {found[2]}", int(found[1]))
        elif found_start := STARTS_AT.search(text):
            self._killed.discard(replica)
            self._set_activity(replica, "training", int(found_start[1]))
        elif LOST_IN.search(text):
            self._set_activity(replica, "lost a rank, restarting")
        if not found or int(found[1]) % SHOWN_EVERY == 0:
            colour = self._colours.get(replica, "white")
            style = "bold" if ACCURACY.search(text) else ""
            shown = text if len(text) <= LONGEST_LINE else f"{text[:LONGEST_LINE]}…"
            self._console.print(Text.assemble((f"{replica:>9} | ", colour), (shown, style)))

    def print_summary(self, timeline: DemoTimeline) -> None:
        good = timeline.succeeded
        self._console.print()
        self._console.print(
            Text(summary_headline(timeline), style="bold green" if good else "bold red")
        )
        for label, value in summary_rows(timeline):
            self._console.print(Text.assemble(f"  {label:<{LABEL_WIDTH}}", (value, "bold")))

    def _set_activity(self, replica: str, doing: str, step: int | None = None) -> None:
        if replica in self._tasks:
            self._progress.update(self._tasks[replica], completed=step, doing=doing)
