"""What the launcher prints and returns after a failed run; the traceback comes last."""

import signal

from gangline.api.failure import NODE_FAULT
from gangline.elastic.agent.agent import Outcome
from gangline.elastic.agent.decide import Action
from gangline.elastic.agent.diagnosis import WorkerFailure, root_cause
from gangline.elastic.agent.settings import AgentSettings

_SIGNAL_BASE = 128


def exit_code(outcome: Outcome) -> int:
    """Return the exit code of the launcher: that of the failed worker, 128 and more for signals.

    The operator looks it up in the same table of failures that the agent uses.
    """
    if outcome.received:
        return _SIGNAL_BASE + outcome.received
    if outcome.notice and outcome.notice.stops:
        return 1
    if outcome.failure is None:
        return 0 if outcome.is_success else 1
    if outcome.verdict and outcome.verdict.action is Action.MOVE:
        return NODE_FAULT
    code = outcome.failure.exit_code
    if not code:
        code = _SIGNAL_BASE + signal.SIGABRT  # a hang: as when collectives give up
    return code


def report(settings: AgentSettings, outcome: Outcome) -> str:
    """Return the text to print; empty for success."""
    if outcome.received:
        return f"{settings.command.name}: ended by {outcome.received.name}"
    if outcome.notice:
        return f"{settings.command.name}: stopped: {outcome.notice.reason}"
    if outcome.failure is None:
        return ""
    lines = [f"{settings.command.name} FAILED on {settings.node_name}: {outcome.failure.cause}"]
    if not outcome.failures:
        lines.append(f"  {outcome.failure}")
    first = root_cause(outcome.failures) if outcome.failures else None
    if first:
        lines.append(_line(first, "first to fail: "))
    lines += [_line(failure, "then: ") for failure in outcome.failures if failure is not first]
    if outcome.verdict:
        lines.append(f"  not restarted: {outcome.verdict.reason}")
    if first and first.words and first.words.traceback:
        lines += [f"Traceback of rank {first.rank} on {settings.node_name}:"]
        lines.append(first.words.traceback.rstrip())
    return "\n".join(lines)


def _line(each: WorkerFailure, role: str) -> str:
    return (
        f"  {role}rank {each.rank} (local rank {each.local_rank}, pid {each.pid}): {each.failure}"
    )
