"""Display of the demo: phases, the lines of the replicas with coloured prefixes, a final report.

The status of the job is shown as by all commands that follow one (``render.live_view``). Of the
steps only every fiftieth is printed. ``DemoTimeline`` derives step and report from the lines.
"""

import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.text import Text

from gangline.api.failure import SIGNAL_BASE
from gangline.cli.render.live_view import LiveView, PlainView
from gangline.sdk.goodput import Goodput
from gangline.sdk.restarts import LastRestart

STEP = re.compile(r"step (\d+)/\d+ loss (\S+)")
STARTS_AT = re.compile(r"rank \d+ of \d+ .* starts at step (\d+)")
LOST_IN = re.compile(r"rank \d+ lost another rank in step (\d+)")
ACCURACY = re.compile(r"test accuracy (\d\.\d+)")
GOOD_ENOUGH = 0.95
KILL_AFTER = 0.4
"""Fraction of the training steps after which the worker is killed."""


@dataclass(slots=True)
class DemoTimeline:
    """Milestones of the demo. Times are seconds of ``clock``; -1 means "not yet"."""

    steps: int
    kill_planned: bool = True
    """True if a worker is to be killed; the job must then recover."""
    clock: Callable[[], float] = time.monotonic
    started_at: float = field(init=False)
    cluster_start_s: float = -1
    submitted_at: float = -1
    first_step_s: float = -1
    killed_at: float = -1
    victim: str = ""
    recovery_s: float = -1
    last_step: int = 0
    last_before_kill: int = 0
    """The last step that was complete before the other ranks noticed the kill."""
    resumed_at: int = -1
    accuracy: float = -1
    total_s: float = -1
    restarts: int = 0
    state: str = ""
    """State of the job as in job lists, such as ``SUCCEEDED``."""
    loss: float | None = None
    _recovering: bool = False
    _rate_from: tuple[float, int] = (0.0, 0)
    """Time and number of the first step since the last start of the ranks."""

    def __post_init__(self) -> None:
        self.started_at = self.clock()

    @property
    def was_killed(self) -> bool:
        return self.killed_at >= 0

    @property
    def kill_is_due(self) -> bool:
        return (
            self.kill_planned and not self.was_killed and self.last_step >= KILL_AFTER * self.steps
        )

    @property
    def lost_steps(self) -> int:
        """Number of steps that were repeated after the kill."""
        return max(0, self.last_before_kill - self.resumed_at) if self.resumed_at >= 0 else 0

    @property
    def succeeded(self) -> bool:
        """True if the accuracy is sufficient, and the job recovered if a worker was killed."""
        recovered = self.recovery_s >= 0 or not (self.was_killed or self.kill_planned)
        return self.state == "SUCCEEDED" and self.accuracy >= GOOD_ENOUGH and recovered

    def mark_cluster_ready(self) -> None:
        self.cluster_start_s = self.clock() - self.started_at

    def mark_submitted(self) -> None:
        self.submitted_at = self.clock()

    def mark_killed(self, victim: str) -> None:
        self.killed_at, self.victim = self.clock(), victim
        self.last_before_kill, self._recovering = self.last_step, True

    def observe_line(self, replica: str, text: str) -> None:
        if match := LOST_IN.search(text):
            self.last_before_kill = max(self.last_before_kill, int(match[1]) - 1)
        elif match := STARTS_AT.search(text):
            if self.was_killed and self._recovering:
                self.resumed_at = int(match[1])
        elif match := ACCURACY.search(text):
            self.accuracy = float(match[1])
        elif match := STEP.match(text):
            self._step(int(match[1]), float(match[2]))

    def mark_ended(self, state: str, restarts: int) -> None:
        self.state, self.restarts = state, restarts
        self.total_s = self.clock() - self.started_at

    def progress(self) -> Goodput | None:
        """Return the steps as the master of an elastic job would report them; None before."""
        if self.first_step_s < 0:
            return None
        started_at, first = self._rate_from
        passed_s = self.clock() - started_at
        restart = None
        if self.recovery_s >= 0:
            killed = SIGNAL_BASE + signal.SIGKILL
            restart = LastRestart(
                self.victim, "Killed", killed, self.resumed_at, self.recovery_s, number=1
            )
        return Goodput(
            share=0.0,
            wall_s=0.0,
            productive_s=0.0,
            step=self.last_step,
            steps_per_s=(self.last_step - first) / passed_s if passed_s else 0.0,
            total_steps=self.steps,
            loss=self.loss,
            last_restart=restart,
        )

    def _step(self, number: int, loss: float) -> None:
        if self.first_step_s < 0 or self._recovering:
            self._rate_from = self.clock(), number
        if self.first_step_s < 0:
            self.first_step_s = self.clock() - self.submitted_at
        if self._recovering and self.resumed_at >= 0:
            self.recovery_s = self.clock() - self.killed_at
            self._recovering = False
        self.last_step, self.loss = number, loss


def summary_headline(timeline: DemoTimeline) -> str:
    """Return the result of the job in one sentence."""
    if timeline.accuracy < 0:
        return f"The job {timeline.state.lower()} without a test accuracy: this is a defect."
    text = f"The job {timeline.state.lower()}: test accuracy {timeline.accuracy:.4f}"
    if timeline.accuracy < GOOD_ENOUGH:
        return f"{text}, below the expected {GOOD_ENOUGH}."
    if timeline.was_killed and timeline.recovery_s < 0:
        return f"{text}, but no recovery was observed."
    if timeline.kill_planned and not timeline.was_killed:
        return f"{text}, but no worker was found to kill."
    return text


def summary_rows(timeline: DemoTimeline) -> Iterator[tuple[str, str]]:
    """Yield what was lost and the duration of each phase, as label and value."""
    yield "test accuracy", _number(timeline.accuracy, ".4f")
    if timeline.was_killed:
        yield (
            "killed",
            f"{timeline.victim}, after step {timeline.last_before_kill} of {timeline.steps}",
        )
        yield "lost", _lost(timeline)
    yield "cluster start, to the first answer", _seconds(timeline.cluster_start_s)
    yield "submission to the first step", _seconds(timeline.first_step_s)
    if timeline.was_killed:
        yield "recovery, kill to the next step", _seconds(timeline.recovery_s)
    yield "total", _seconds(timeline.total_s)


def _lost(timeline: DemoTimeline) -> str:
    if timeline.resumed_at < 0:
        return "unknown: no rank started again"
    restarts = "1 restart" if timeline.restarts == 1 else f"{timeline.restarts} restarts"
    steps = "1 step" if timeline.lost_steps == 1 else f"{timeline.lost_steps} steps"
    return f"{steps} since the checkpoint of step {timeline.resumed_at}; {restarts} in total"


def _seconds(time_s: float) -> str:
    return _number(time_s, ".1f", " s")


def _number(value: float, form: str, unit: str = "") -> str:
    return f"{value:{form}}{unit}" if value >= 0 else "never"


COLOURS = ("cyan", "magenta", "green", "yellow", "blue")
SHOWN_EVERY = 50
LONGEST_LINE = 90
LABEL_WIDTH = 36


class DemoView:
    """Prints to standard output, or to the given console."""

    def __init__(self, replicas: Sequence[str], console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, soft_wrap=True)
        self._colours = dict(zip(replicas, COLOURS, strict=False))

    @contextmanager
    def job_status(self, job: str) -> Iterator[PlainView]:
        """Show the status of the job for the duration of the block, if the terminal can."""
        if not self._console.is_interactive:
            yield _DemoMessages(job, self)
            return
        view = LiveView(job, self._console)
        with view.live:
            yield view

    def print_phase(self, text: str) -> None:
        self._console.print(Text.assemble(("==> ", "blue"), (text, "bold")))

    def print_note(self, text: str) -> None:
        self._console.print(Text(f"    {text}"))

    def print_kill(self, replica: str) -> None:
        self.print_phase(f"Killed the process of {replica} with SIGKILL")

    def print_line(self, replica: str, text: str) -> None:
        """Print a line of a replica, unless it is one of many steps."""
        match = STEP.match(text)
        if not match or int(match[1]) % SHOWN_EVERY == 0:
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


class _DemoMessages(PlainView):
    """Prints what happens to the job among the lines of the demo."""

    def __init__(self, job: str, view: DemoView) -> None:
        super().__init__(job)
        self._view = view

    def message(self, text: str) -> None:
        self._view.print_note(text)
