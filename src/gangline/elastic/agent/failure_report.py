"""What the launcher prints and returns after a failed run; the traceback comes last."""

import signal

from gangline.api.failure import NODE_FAULT_EXIT_CODE
from gangline.elastic.agent.agent import AgentResult
from gangline.elastic.agent.restart_policy import Action
from gangline.elastic.agent.settings import AgentSettings
from gangline.elastic.agent.workers.failure_diagnosis import WorkerFailure, root_cause

_SIGNAL_BASE = 128


def launcher_exit_code(outcome: AgentResult) -> int:
    """Return the exit code of the launcher: that of the failed worker, 128 and more for signals.

    The operator looks it up in the same table of failures that the agent uses.
    """
    if outcome.received_signal:
        return _SIGNAL_BASE + outcome.received_signal
    if outcome.notice and outcome.notice.stops:
        return 1
    if outcome.failure is None:
        return 0 if outcome.is_success else 1
    if outcome.decision and outcome.decision.action is Action.MOVE:
        return NODE_FAULT_EXIT_CODE
    code = outcome.failure.exit_code
    if not code:
        code = _SIGNAL_BASE + signal.SIGABRT  # a hang: as when collectives give up
    return code


def failure_report(settings: AgentSettings, outcome: AgentResult) -> str:
    """Return the text to print; empty for success."""
    if outcome.received_signal:
        return f"{settings.command.name}: ended by {outcome.received_signal.name}"
    if outcome.notice:
        return f"{settings.command.name}: stopped: {outcome.notice.reason}"
    if outcome.failure is None:
        return ""
    lines = [f"{settings.command.name} FAILED on {settings.node_name}: {outcome.failure.cause}"]
    if not outcome.failures:
        lines.append(f"  {outcome.failure}")
    first = root_cause(outcome.failures) if outcome.failures else None
    if first:
        lines.append(_failure_line(first, "first to fail: "))
    lines += [
        _failure_line(failure, "then: ") for failure in outcome.failures if failure is not first
    ]
    if outcome.decision:
        lines.append(f"  not restarted: {outcome.decision.reason}")
    if first and first.error and first.error.traceback:
        lines += [f"Traceback of rank {first.rank} on {settings.node_name}:"]
        lines.append(first.error.traceback.rstrip())
    return "\n".join(lines)


def _failure_line(each: WorkerFailure, role: str) -> str:
    return (
        f"  {role}rank {each.rank} (local rank {each.local_rank}, pid {each.pid}): {each.failure}"
    )
