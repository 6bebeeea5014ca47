"""What the launcher prints and returns after a failed run; the traceback comes last."""

import signal

from gangline.api.failure import NODE_FAULT_EXIT_CODE
from gangline.elastic.agent.agent import AgentResult
from gangline.elastic.agent.failures import Action, WorkerFailure, root_cause
from gangline.elastic.agent.settings import AgentSettings

_SIGNAL_BASE = 128


def launcher_exit_code(result: AgentResult) -> int:
    """Return the exit code of the launcher: that of the failed worker, 128 and more for signals.

    The operator looks it up in the same table of failures that the agent uses.
    """
    if result.received_signal:
        return _SIGNAL_BASE + result.received_signal
    if result.notice and result.notice.stops:
        return 1
    if result.failure is None:
        return 0 if result.is_success else 1
    if result.decision and result.decision.action is Action.MOVE:
        return NODE_FAULT_EXIT_CODE
    code = result.failure.exit_code
    if not code:
        code = _SIGNAL_BASE + signal.SIGABRT  # a hang: as when collectives give up
    return code


def failure_report(settings: AgentSettings, result: AgentResult) -> str:
    """Return the text to print; empty for success."""
    if result.received_signal:
        return f"{settings.command.name}: ended by {result.received_signal.name}"
    if result.notice:
        return f"{settings.command.name}: stopped: {result.notice.reason}"
    if result.failure is None:
        return ""
    lines = [f"{settings.command.name} FAILED on {settings.node_name}: {result.failure.cause}"]
    first = root_cause(result.failures) if result.failures else None
    if first is None or first.failure is not result.failure:
        lines.append(f"  {result.failure}")
    if first:
        lines.append(_failure_line(first, "first to fail: "))
    lines += [
        _failure_line(failure, "then: ") for failure in result.failures if failure is not first
    ]
    if result.decision:
        lines.append(f"  not restarted: {result.decision.reason}")
    if first and first.error and first.error.traceback:
        lines += [f"Traceback of rank {first.rank} on {settings.node_name}:"]
        lines.append(first.error.traceback.rstrip())
    return "\n".join(lines)


def _failure_line(worker: WorkerFailure, role: str) -> str:
    process = f"rank {worker.rank} (local rank {worker.local_rank}, pid {worker.pid})"
    return f"  {role}{process}: {worker.failure}"
