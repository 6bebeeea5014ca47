"""What waiting commands report about a job: its state, its steps, its restarts with their cause.

Steps and restarts of an ElasticJob are those that its master reports. Other kinds have no master:
of them the restarts of their containers are known, and their steps are in their logs only.
"""

import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gangline.api.figures import format_figure

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
    from gangline.sdk.goodput import format_clock

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

    def steps(self, name: str, account: "Goodput | None") -> Iterator[str]:
        """Yield the first step, and then each tenth of the total if that is known."""
        if account is None or not account.step:
            return
        tenth = account.step * 10 // account.total_steps if account.total_steps else 0
        if tenth > self._tenth:
            self._tenth = tenth
            yield f"{name} trains: {format_steps(account)}"

    def restarts(self, restart: "LastRestart | None") -> Iterator[str]:
        """Yield a restart that is complete; not one from before the first call."""
        is_news = restart is not None and restart != self._restart and not self._is_first
        self._restart, self._is_first = restart, False
        if restart is not None and is_news:
            yield format_restart(restart)
