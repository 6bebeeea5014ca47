"""What to do about a failure: start again in place, ask for another node, or stop. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from gangline.api.failure import Blame, Failure, Remedy
from gangline.elastic.agent.settings import AgentSettings


class Action(StrEnum):
    """What an agent does after a failure."""

    RESTART = "restart"
    """Start all workers again, here."""
    MOVE = "move"
    """End, so that the operator puts this node's part elsewhere."""
    STOP = "stop"
    """End: the job has failed."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is done, and why."""

    action: Action
    reason: str


def decide(settings: AgentSettings, failure: Failure, restarts: int) -> Verdict:
    """Decide what follows a failure.

    Args:
        settings: the budget, and whether there is another node to move to.
        failure: the root cause.
        restarts: how many the job has had.
    """
    if failure.remedy is Remedy.STOP:
        if failure.blame is Blame.USER or failure.cause == "CannotImport":
            return Verdict(Action.STOP, "it would fail in the same way again")
        if settings.max_restarts is None:
            return Verdict(
                Action.STOP, "the program failed; --max-restarts allows it to be tried again"
            )
    if failure.remedy is Remedy.MOVE and settings.has_other_nodes:
        return Verdict(Action.MOVE, "another node may do better")
    limit = settings.restart_limit
    if restarts >= limit:
        return Verdict(Action.STOP, f"all {limit} restarts are used up" if limit else _NONE)
    return Verdict(Action.RESTART, f"restart {restarts + 1} of {limit}")


_NONE = "--max-restarts 0 allows no restart"
