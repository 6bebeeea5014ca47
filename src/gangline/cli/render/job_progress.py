"""What a waiting command reports about a job: one line for each change, with what would help."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gangline.cli.render.output import print_status

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.sdk.goodput import Goodput
    from gangline.sdk.jobs import Job


def format_progress(job: "Job") -> str:
    """Return what a job does now: why it waits and what helps, or how many replicas run."""
    from gangline.sdk.jobs import JobState

    where = f"{job.name} -n {job.namespace}"
    match job.state:
        case JobState.RUNNING:
            restarts = f", {job.restarts} restarts" if job.restarts else ""
            trouble = f": {job.reason}" if job.reason else ""
            return f"{job.name} runs: {job.running} of {job.desired} replicas{restarts}{trouble}"
        case JobState.RESTARTING:
            return f"{job.name} restarts: {job.reason or 'a replica failed'}"
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


def format_first_step(name: str, account: "Goodput") -> str:
    """Return that the script has made steps; empty while it has not, or does not report them."""
    if not account.step:
        return ""
    rate = f", {account.steps_per_s:.3g} a second" if account.steps_per_s else ""
    return f"{name} trains: step {account.step}{rate}"


def _remedy(job: "Job", where: str) -> str:
    from gangline.api.resource_list import GPU

    gpus = (
        "; 'gangline up --gpus N' gives nodes of a local cluster GPUs" if GPU in job.reason else ""
    )
    return f"\n  'gangline explain {where}' shows the figures{gpus}"


class ProgressReport:
    """Prints a line when what ``format_progress`` says has changed."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, job: "Job") -> None:
        text = format_progress(job)
        if text != self._last and not job.state.finished:
            print_status(text)
        self._last = text


@contextmanager
def progress_display(name: str) -> "Iterator[Callable[[Job], None]]":
    """Give a callback for changes of a job: a spinner on a terminal, lines otherwise."""
    if not sys.stderr.isatty():
        yield ProgressReport()
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status(f"Waiting for {escape(name)}") as spinner:

        def show(job: "Job") -> None:
            spinner.update(escape(format_progress(job)))

        yield show
