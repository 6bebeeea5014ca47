"""The view of a followed job: log lines and messages scroll, its status stays at the bottom.

On a terminal, the last rows show the progress bars of the pods, as they are now, and the status of
the job: step, time left, loss, restarts, and the age of these figures. Elsewhere only lines are
printed: log lines to standard output, and one line to standard error for each change.

Each message and each log line is written completely and ends with a line break, so two of them
never share a line.

Steps and restarts of an ElasticJob are those that its master reports. Other kinds have no master:
of them the restarts of their containers are known, and their steps are in their logs only.
"""

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO

import click

from gangline.api.figures import format_figure
from gangline.cli.render.output import print_status

if TYPE_CHECKING:
    from gangline.sdk.goodput import Goodput
    from gangline.sdk.jobs import Job
    from gangline.sdk.restarts import LastRestart


def format_progress(job: "Job") -> str:
    """Return what a job does now: why it waits and what helps, or how many replicas run."""
    from gangline.sdk.jobs import JobState

    where = f"{job.name} -n {job.namespace}"
    match job.state:
        case JobState.RUNNING:
            restarts = f", {format_restarts(job.restarts)}" if job.restarts else ""
            trouble = f": {job.reason}" if job.reason else ""
            return f"{job.name} runs: {job.running} of {job.desired} replicas{restarts}{trouble}"
        case JobState.RESTARTING:
            return f"{job.name} restarts: {job.reason or job.last_restart or 'a replica failed'}"
        case JobState.SUSPENDED if job.awaits_former_pods:
            return f"{job.name} is resumed, and waits until its former pods have ended"
        case JobState.SUSPENDED:
            return f"{job.name} is suspended; 'gangline resume {where}' resumes it"
        case JobState.QUEUING:
            return f"{job.name} waits for resources: {job.reason}{_remedy(job, where)}"
        case JobState.PENDING if job.reason:
            return f"{job.name} is pending: {job.reason}"
        case JobState.PENDING if job.desired and job.running == job.desired:
            return f"{job.name} starts: all {job.desired} replicas run"
        case JobState.PENDING:
            return f"{job.name} is pending: {job.running} of {job.desired} replicas run"
    return f"{job.name} has {str(job.state).lower()}"


def _remedy(job: "Job", where: str) -> str:
    from gangline.api.resource_list import GPU

    gpus = (
        "; 'gangline up --gpus N' gives nodes of a local cluster GPUs" if GPU in job.reason else ""
    )
    return f"\n  'gangline explain {where}' shows the figures{gpus}"


def format_steps(account: "Goodput") -> str:
    """Return the step with what is known beside it: total, rate, time left, loss."""
    from gangline.sdk.progress import format_clock

    total = f" of {account.total_steps}" if account.total_steps else ""
    parts = [f"step {account.step}{total}"]
    if account.steps_per_s:
        parts.append(f"{format_figure(account.steps_per_s)} a second")
    if account.left_s is not None:
        parts.append(f"{format_clock(account.left_s)} left")
    if account.loss is not None:
        parts.append(f"loss {account.loss:.4g}")
    return ", ".join(parts)


def format_restarts(count: int) -> str:
    return "1 restart" if count == 1 else f"{count} restarts"


def format_restart(restart: "LastRestart") -> str:
    """Return one line about a restart: what failed, and how the training continues."""
    took = "" if restart.seconds is None else f"; {restart.seconds:.1f} s"
    if restart.step is None:
        return f"{format_restart_cause(restart)}, and was started again{took}"
    return f"{format_restart_cause(restart)}; all ranks continue at step {restart.step}{took}"


def format_restart_cause(restart: "LastRestart") -> str:
    return f"{restart.replica} {_end_of_replica(restart)}"


def _end_of_replica(restart: "LastRestart") -> str:
    code = restart.exit_code
    if restart.cause == "OutOfMemory":
        return "exceeded its memory limit"
    if restart.cause in {"NodeLost", "NodeLeft"}:
        return "was lost" if restart.cause == "NodeLost" else "left"
    if code is not None and code - 128 in {number.value for number in signal.Signals}:
        return f"was killed ({signal.Signals(code - 128).name})"
    return f"failed ({restart.cause})" if code is None else f"failed ({restart.cause}, exit {code})"


class ProgressMessages:
    """Derives messages from successive states of a job: each change once."""

    def __init__(self) -> None:
        self._state = ""
        self._tenth = -1
        self._restart: LastRestart | None = None
        self._is_first = True

    def state_changes(self, job: "Job") -> Iterator[str]:
        """Yield the state if it has changed; not the end of the job, which the command reports."""
        text = format_progress(job)
        if text != self._state and not job.state.finished:
            yield text
        self._state = text

    def steps(self, job: "Job", account: "Goodput | None") -> Iterator[str]:
        """Yield the first step, and then each tenth of the total if that is known."""
        if account is None or not account.step:
            done = job.progress.percentage if job.progress else None
            if job.progress and done is not None and done // 10 > self._tenth:
                self._tenth = done // 10
                yield f"{job.name} trains: {job.progress.summary}"
            return
        tenth = account.step * 10 // account.total_steps if account.total_steps else 0
        if tenth > self._tenth:
            self._tenth = tenth
            yield f"{job.name} trains: {format_steps(account)}"

    def restarts(self, restart: "LastRestart | None") -> Iterator[str]:
        """Yield a restart that is complete; not one from before the first call."""
        is_news = restart is not None and restart != self._restart and not self._is_first
        self._restart, self._is_first = restart, False
        if restart is not None and is_news:
            yield format_restart(restart)


if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.live import Live
    from rich.table import Table

    from gangline.sdk.goodput import Goodput
    from gangline.sdk.jobs import Job
    from gangline.sdk.restarts import LastRestart

MAX_BARS = 8
"""Limit of progress bars of pods that are shown at a time."""
REFRESHES_PER_S = 5
_BAR_WIDTH = 24
_CURSOR_CONTROLS = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-ln-~]|\x1b[^\[]|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]"
)
"""What would move the cursor. Colours (``ESC [ ... m``) stay."""


class PlainView:
    """Lines only: for files, pipes and terminals that cannot move the cursor."""

    is_live = False
    """True if the view shows progress bars of pods as they change."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._messages = ProgressMessages()

    def show(
        self,
        job: "Job",
        account: "Goodput | None" = None,
        restart: "LastRestart | None" = None,
    ) -> None:
        """Report what has changed since the last call."""
        for message in (
            *self._messages.state_changes(job),
            *self._messages.restarts(restart),
            *self._messages.steps(job, account),
        ):
            self.message(message)

    def message(self, text: str) -> None:
        """Print a message in lines of its own."""
        print_status(text)

    def print_lines(self, text: str) -> None:
        """Print complete lines of logs."""
        click.echo(text, nl=False)

    def set_bar(self, replica: str, mark: str, text: str) -> None:
        """Ignore the state of a progress bar: its last one is printed when its line ends."""


class LiveView(PlainView):
    """Scrolling lines above the status of a job; used within ``job_view``."""

    is_live = True

    def __init__(self, name: str, console: "Console") -> None:
        from rich.live import Live

        super().__init__(name)
        self.console = console
        self._bars: dict[str, str] = {}
        self._status = StatusLine(name)
        self.live = Live(
            console=console,
            get_renderable=self._render,
            refresh_per_second=REFRESHES_PER_S,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def show(
        self,
        job: "Job",
        account: "Goodput | None" = None,
        restart: "LastRestart | None" = None,
    ) -> None:
        self._status.show(job, account, restart)
        states = self._messages.state_changes(job) if job.state == "RESTARTING" else ()
        for message in (*states, *self._messages.restarts(restart)):
            self.message(message)

    def message(self, text: str) -> None:
        self.print_lines(f"{text}\n")

    def print_lines(self, text: str) -> None:
        if text:
            self.console.print(_Raw(_without_controls(text)), end="", soft_wrap=True)

    def set_bar(self, replica: str, mark: str, text: str) -> None:
        """Show the state of a progress bar below the lines; an empty text removes it."""
        if text:
            self._bars[replica] = f"{mark}{_without_controls(text)}"
        else:
            self._bars.pop(replica, None)

    def _render(self) -> "RenderableType":
        from rich.console import Group
        from rich.text import Text

        rows: list[RenderableType] = [
            Text.from_ansi(bar, no_wrap=True, overflow="ellipsis")
            for bar in list(self._bars.values())[:MAX_BARS]
        ]
        if (more := len(self._bars) - MAX_BARS) > 0:
            rows.append(Text(f"and {more} more progress bars"))
        return Group(*rows, self._status)


class StatusLine:
    """The status of one job, which is drawn again at each refresh."""

    def __init__(self, name: str) -> None:
        from rich.spinner import Spinner

        self._name = name
        self._job: Job | None = None
        self._account: Goodput | None = None
        self._restart: LastRestart | None = None
        self._aged_at, self._age_s = 0.0, 0.0
        """Time of this process's monotonic clock at which the step had this age."""
        self._spinner = Spinner("line")

    def show(
        self, job: "Job", account: "Goodput | None", restart: "LastRestart | None" = None
    ) -> None:
        """Set what is drawn."""
        before = self._account
        reported = (before.step, before.reported_at) if before else None
        if account and (account.step, account.reported_at) != reported:
            # The clock of the master is compared only where its report may be old already.
            age_s = account.age_s(datetime.now(UTC)) if before is None else account.step_age_s
            self._aged_at, self._age_s = time.monotonic(), age_s
        self._job, self._account, self._restart = job, account or before, restart or self._restart

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        job, account = self._job, self._account
        row: list[RenderableType] = [self._spinner]
        if job is None:
            yield self._grid(Table, [*row, Text(f"waiting for {self._name}")])
            return
        if (account is None or account.step is None) and job.progress and job.state == "RUNNING":
            row.append(Text(self._name, style="bold"))
            if job.progress.percentage is not None:
                row.append(ProgressBar(100, job.progress.percentage, width=_BAR_WIDTH))
            row.append(Text(job.progress.summary, no_wrap=True, overflow="ellipsis"))
            yield self._grid(Table, row)
            return
        if account is None or account.step is None or job.state != "RUNNING":
            yield self._grid(Table, [*row, Text(self._text_without_steps(job), overflow="fold")])
            return
        row.append(Text(self._name, style="bold"))
        if account.total_steps:
            bar = ProgressBar(account.total_steps, account.step, width=_BAR_WIDTH)
            row.append(bar)
        row.append(Text(self._text(job, account), no_wrap=True, overflow="ellipsis"))
        yield self._grid(Table, row)

    @staticmethod
    def _grid(table: "type[Table]", row: "list[RenderableType]") -> "Table":
        grid = table.grid(padding=(0, 1, 0, 0))
        grid.add_row(*row)
        return grid

    def _text_without_steps(self, job: "Job") -> str:
        from gangline.sdk.jobs import format_run_time

        run_time = format_run_time(job)
        since = f", {run_time}" if run_time and job.state == "RUNNING" and not job.reason else ""
        last = f"; {format_restart_cause(self._restart)}" if self._restart and since else ""
        return f"{format_progress(job)}{since}{last}"

    def _text(self, job: "Job", account: "Goodput") -> str:
        from gangline.sdk.progress import STALE_AFTER_S, format_time_ago

        parts = [format_steps(account)]
        if job.running != job.desired:
            parts.append(f"{job.running} of {job.desired} replicas")
        if count := max(account.restarts, job.restarts):
            cause = f": {format_restart_cause(self._restart)}" if self._restart else ""
            parts.append(f"{format_restarts(count)}{cause}")
        age_s = self._age_s + time.monotonic() - self._aged_at
        if age_s >= STALE_AFTER_S:
            parts.insert(1, format_time_ago(age_s))
        return ", ".join(parts)


class _Raw:
    """Text that is written as it is: rich need not measure, wrap or highlight log lines."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.segment import Segment

        yield Segment(self._text)


def _without_controls(text: str) -> str:
    shown = _CURSOR_CONTROLS.sub("", text)
    return shown.replace("\n", "\x1b[0m\n") if "\x1b[" in shown else shown


class LivePage:
    """A page that is drawn again at each update, with the status of its job below."""

    def __init__(self, live: "Live") -> None:
        self._live = live

    def show(self, page: str, status: "StatusLine | None" = None) -> None:
        """Replace the page."""
        from rich.console import Group
        from rich.text import Text

        text = Text.from_ansi(page, no_wrap=True, overflow="ellipsis")
        self._live.update(Group(text, status) if status else text, refresh=True)


@contextmanager
def live_page() -> "Iterator[LivePage | None]":
    """Open a page on the terminal; gives None if standard output cannot draw rows again.

    The last page stays on the terminal.
    """
    if not can_update_rows(sys.stdout):
        yield None
        return
    from rich.live import Live

    console = terminal_console(sys.stdout)
    with Live(console=console, refresh_per_second=REFRESHES_PER_S, redirect_stdout=False) as live:
        yield LivePage(live)


def can_update_rows(*streams: TextIO) -> bool:
    """True if these streams are terminals on which rows can be drawn again."""
    return os.environ.get("TERM") not in {"dumb", "unknown"} and all(
        stream.isatty() for stream in streams
    )


@contextmanager
def job_view(name: str, *, has_lines: bool) -> Iterator[PlainView]:
    """Open the view of a job.

    With ``has_lines`` log lines go to standard output. Rows are then drawn only if that is a
    terminal too: the next program of a pipe may write to the same terminal.
    """
    streams = (sys.stderr, sys.stdout) if has_lines else (sys.stderr,)
    if not can_update_rows(*streams):
        yield PlainView(name)
        return
    view = LiveView(name, terminal_console(streams[-1]))
    with view.live:
        yield view


def terminal_console(stream: TextIO) -> "Console":
    from rich.console import Console

    return Console(file=stream, force_terminal=True, highlight=False, markup=False, emoji=False)
