"""Failures of workers: what an exit means, which failure is the cause, and what follows.

The budget of restarts (N per time) is renewed by progress: a job that fails at the same step again
and again ends, and one that trains for weeks does not end because of a few failures each week.
"""

import json
import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from gangline.api.failure import (
    DEVICE_OUT_OF_MEMORY,
    Blame,
    Failure,
    Remedy,
    failure_of_exit,
)
from gangline.api.figures import plain_number
from gangline.elastic.agent.settings import AgentSettings

_CODE, _USER, _NODE, _PLATFORM = Blame.CODE, Blame.USER, Blame.NODE, Blame.PLATFORM
_RETRY, _MOVE, _STOP = Remedy.RETRY, Remedy.MOVE, Remedy.STOP

_PATTERNS: tuple[tuple[re.Pattern[str], str, Blame, Remedy, str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), cause, blame, remedy, explanation)
    for pattern, cause, blame, remedy, explanation in (
        (
            r"uncorrectable ECC|fallen off the bus|GPU is lost|\bXid\b|hardware error"
            r"|no CUDA-capable device is detected|driver/library version mismatch",
            "DeviceBroken",
            _NODE,
            _MOVE,
            "The accelerator or its driver failed.",
        ),
        (
            r"(CUDA|HIP|NPU|XPU) out of memory|torch\.(cuda\.)?OutOfMemoryError"
            r"|(CUDA|HIP) error: out of memory|RESOURCE_EXHAUSTED.*(GPU|HBM)",
            DEVICE_OUT_OF_MEMORY,
            _USER,
            _RETRY,
            "The accelerator's memory is too small; use smaller batches or more devices.",
        ),
        (
            r"EADDRINUSE|address already in use",
            "PortInUse",
            _PLATFORM,
            _RETRY,
            "Another process took the port of the workers' store before rank 0 opened it.",
        ),
        (
            r"connection (was )?(reset|closed|refused|aborted)|broken pipe|socket timeout"
            r"|remote process (exited|has terminated)|NCCL.*(remote|peer)|heartbeat.*timed out"
            r"|^InterruptedStepError\b",
            "PeerLost",
            _PLATFORM,
            _RETRY,
            "The connection to another worker broke; that worker, or its node, ended first.",
        ),
        (
            r"No space left on device|ENOSPC",
            "DiskFull",
            _NODE,
            _RETRY,
            "A disk is full: that of the worker's output, of its temporary files or of its data.",
        ),
        (
            r"^(SyntaxError|IndentationError|TabError|ImportError|ModuleNotFoundError)\b",
            "CannotImport",
            _CODE,
            _STOP,
            "The program, or a module that it imports, cannot be loaded; a restart does not help.",
        ),
    )
)
CONSEQUENCE_CAUSE = "PeerLost"
"""Cause of a failure that is a consequence of another worker's failure."""
_MAX_LISTED = 8
_NO_RESTARTS = "--max-restarts 0 allows no restart"


@dataclass(frozen=True, slots=True)
class WorkerError:
    """The exception that ended a worker, from its error file."""

    message: str
    """Type and text of the exception."""
    traceback: str


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    rank: int
    local_rank: int
    pid: int
    exit_code: int
    """Exit code as Python reports it: negative for a signal."""
    failed_at: float
    """Time of the exit, in seconds since 1970."""
    failure: Failure
    error: WorkerError | None = None


def read_error_file(path: Path) -> WorkerError | None:
    """Read the error file that torch's ``record`` or the worker hook wrote; None if invalid."""
    try:
        content = json.loads(path.read_bytes())["message"]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # a killed worker writes no file, or an incomplete one
    if not isinstance(content, dict):
        return WorkerError(str(content), "")
    extra = content.get("extraInfo") or {}
    return WorkerError(str(content.get("message", "")), str(extra.get("py_callstack", "")))


def diagnose_exit(
    exit_code: int, error: WorkerError | None, *, out_of_memory: bool
) -> Failure | None:
    """Classify an exit; None for success.

    Args:
        out_of_memory: the kernel killed a process here for lack of memory during the attempt.
    """
    reason = "OOMKilled" if out_of_memory and exit_code == -9 else ""
    message = error.message if error else ""
    failure = failure_of_exit(exit_code, reason, message)
    if failure is None or not message:
        return failure
    if exit_code < 0 and exit_code != -signal.SIGABRT:
        return failure
    # After an exception, threads of gloo may abort the interpreter while it ends, because they hold
    # tensors (pytorch#179291). The exception came first, so it is the reason.
    for pattern, cause, blame, remedy, explanation in _PATTERNS:
        if pattern.search(message):
            return Failure(cause, blame, remedy, explanation, failure.exit_code, message)
    return failure


@dataclass(frozen=True, slots=True)
class RankExit:
    """A worker of any node that had ended when an attempt ended on its node."""

    rank: int
    pid: int
    node: str
    cause: str = ""
    """Cause of its failure; empty for exit code 0."""


def early_exit_failure(exits: Iterable[RankExit], consequence: WorkerFailure) -> Failure | None:
    """Name the ranks that ended with exit code 0 while another one still communicated with them.

    Args:
        consequence: the failure of the worker that lost its connection.

    Returns:
        None if no rank ended with exit code 0, or if another one failed for a reason of its own.
    """
    by_rank = sorted(exits, key=lambda rank_exit: rank_exit.rank)
    early = [rank_exit for rank_exit in by_rank if not rank_exit.cause]
    if not early or any(rank_exit.cause not in ("", CONSEQUENCE_CAUSE) for rank_exit in by_rank):
        return None
    named = ", ".join(
        f"rank {rank_exit.rank} (pid {rank_exit.pid}) on {rank_exit.node}"
        for rank_exit in early[:_MAX_LISTED]
    )
    if len(early) > _MAX_LISTED:
        named += f" and {len(early) - _MAX_LISTED} more"
    message = f"{named}; rank {consequence.rank} lost its connection"
    return Failure(
        "EndedEarly",
        _CODE,
        _RETRY,
        "A worker ended with exit code 0 while others still communicated with it.",
        consequence.failure.exit_code,
        message,
    )


def root_cause(failures: Iterable[WorkerFailure]) -> WorkerFailure:
    """Return the failure that caused the others: the earliest one that is no consequence."""
    return min(
        failures,
        key=lambda failure: (failure.failure.cause == CONSEQUENCE_CAUSE, failure.failed_at),
    )


class AgentAction(StrEnum):
    """What an agent does after a failure."""

    RESTART = "restart"
    """Start all workers of this node again."""
    MOVE = "move"
    """End, so that the operator replaces this node."""
    STOP = "stop"
    """End: the job has failed."""


@dataclass(frozen=True, slots=True)
class RestartDecision:
    action: AgentAction
    reason: str


@dataclass(slots=True)
class RestartBudget:
    """Counts restarts of the job, as one of its agents sees them."""

    window_s: float | None = None
    """Time for which a restart counts; None: for the entire run."""
    _attempt: int | None = None
    _restarted_at: list[float] = field(default_factory=list)
    _progress: int | None = None
    """The farthest progress of all attempts that have ended."""

    def record_start(self, attempt: int, now: float) -> None:
        """Record that an attempt starts; a world without a restart has the same number again."""
        if self._attempt is not None and attempt > self._attempt:
            self._restarted_at += [now] * (attempt - self._attempt)
        self._attempt = attempt

    def record_end(self, progress: int | None) -> None:
        """Record that an attempt has ended; renew the budget if it got farther than all others.

        Args:
            progress: its last step in a checkpoint, else its last step; None if it is unknown.
        """
        if progress is not None and (self._progress is None or progress > self._progress):
            self._progress = progress
            self._restarted_at.clear()

    def restarts(self, now: float) -> int:
        """Return the number of restarts that count."""
        if self.window_s is None:
            return self._attempt or 0
        self._restarted_at = [at for at in self._restarted_at if now - at < self.window_s]
        return len(self._restarted_at)


def decide_restart(settings: AgentSettings, failure: Failure, restarts: int) -> RestartDecision:
    if failure.remedy is Remedy.STOP:
        if failure.blame is Blame.USER or failure.cause == "CannotImport":
            return RestartDecision(AgentAction.STOP, "a restart would fail in the same way")
        if settings.max_restarts is None:
            return RestartDecision(
                AgentAction.STOP, "the program failed; --max-restarts allows restarts"
            )
    if failure.remedy is Remedy.MOVE and settings.has_other_nodes:
        return RestartDecision(AgentAction.MOVE, "another node may succeed")
    limit, window_s = settings.restart_limit, settings.restart_window_s
    within = "" if window_s is None else f" within {plain_number(window_s)} s"
    if restarts >= limit:
        return RestartDecision(
            AgentAction.STOP, f"all {limit} restarts{within} are used up" if limit else _NO_RESTARTS
        )
    return RestartDecision(AgentAction.RESTART, f"restart {restarts + 1} of {limit}{within}")
