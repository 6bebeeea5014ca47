"""Restart policy: whether a failure leads to a restart in place, to another node, or to the end.

The budget of restarts is for the entire run, as torchrun's, or for a window of time. In a window
restarts expire, and progress of the job renews the budget: a job that fails at the same step again
and again ends, and one that trains for weeks does not end because of a few failures each week.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from gangline.api.failure import Blame, Failure, Remedy
from gangline.elastic.agent.settings import AgentSettings


class Action(StrEnum):
    """What an agent does after a failure."""

    RESTART = "restart"
    """Start all workers of this node again."""
    MOVE = "move"
    """End, so that the operator replaces this node."""
    STOP = "stop"
    """End: the job has failed."""


@dataclass(frozen=True, slots=True)
class RestartDecision:
    """The action after a failure, and its reason."""

    action: Action
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
    """Choose the action after a failure.

    Args:
        settings: restart limit, and whether another node is available.
        failure: the root cause.
        restarts: restarts of the job that count (``RestartBudget``).
    """
    if failure.remedy is Remedy.STOP:
        if failure.blame is Blame.USER or failure.cause == "CannotImport":
            return RestartDecision(Action.STOP, "a restart would fail in the same way")
        if settings.max_restarts is None:
            return RestartDecision(
                Action.STOP, "the program failed; --max-restarts allows restarts"
            )
    if failure.remedy is Remedy.MOVE and settings.has_other_nodes:
        return RestartDecision(Action.MOVE, "another node may succeed")
    limit, window_s = settings.restart_limit, settings.restart_window_s
    within = "" if window_s is None else f" within {window_s:g} s"
    if restarts >= limit:
        return RestartDecision(
            Action.STOP, f"all {limit} restarts{within} are used up" if limit else _NO_RESTARTS
        )
    return RestartDecision(Action.RESTART, f"restart {restarts + 1} of {limit}{within}")


_NO_RESTARTS = "--max-restarts 0 allows no restart"
