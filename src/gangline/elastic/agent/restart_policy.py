"""Restart policy: whether a failure leads to a restart in place, to another node, or to the end."""

from dataclasses import dataclass
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


def decide_restart(settings: AgentSettings, failure: Failure, restarts: int) -> RestartDecision:
    """Choose the action after a failure.

    Args:
        settings: restart limit, and whether another node is available.
        failure: the root cause.
        restarts: restarts of the job so far.
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
    limit = settings.restart_limit
    if restarts >= limit:
        return RestartDecision(
            Action.STOP, f"all {limit} restarts are used up" if limit else _NO_RESTARTS
        )
    return RestartDecision(Action.RESTART, f"restart {restarts + 1} of {limit}")


_NO_RESTARTS = "--max-restarts 0 allows no restart"
