"""The report of a launcher is what the verdict about its pod reads."""

import pytest

from gangline.api.agent_report import AgentReport, read_agent_report
from gangline.api.failure import Blame, Failure, Remedy, failure_of_exit
from gangline.elastic.agent.agent import AgentResult
from gangline.elastic.agent.failures import (
    AgentAction,
    RestartDecision,
    WorkerError,
    WorkerFailure,
)
from gangline.elastic.agent.settings import AgentSettings, WorkerCommand
from gangline.elastic.launcher.main import failure_report

SETTINGS = AgentSettings(WorkerCommand(("train.py",), True, "train.py"), 2, node_name="n1")
HANG = Failure("Hang", Blame.CODE, Remedy.RETRY, "No progress.", None, "rank 1 is at train.py:6")
EARLY = Failure("EndedEarly", Blame.CODE, Remedy.RETRY, "It ended.", 1, "rank 0 (pid 7) on n1")


def worker(rank: int, code: int, message: str = "") -> WorkerFailure:
    failure = failure_of_exit(code, message=message)
    assert failure is not None
    error = WorkerError(message, "Traceback\nValueError: a") if message else None
    return WorkerFailure(rank, rank, 7, code, float(rank), failure, error)


@pytest.mark.parametrize(
    ("failure", "workers", "expected"),
    [
        (HANG, (), ("Hang", Blame.CODE, "No progress.", "rank 1 is at train.py:6", None)),
        (EARLY, (worker(1, 1),), ("EndedEarly", Blame.CODE, "It ended.", EARLY.message, None)),
        (None, (worker(0, 1, "ValueError: a\nb"), worker(1, -9)), ("Error", "ValueError: a\nb", 0)),
        (None, (worker(1, -9),), ("Killed", "", 1)),
    ],
    ids=["hang", "ended early", "exception", "signal"],
)
@pytest.mark.parametrize("before", ["", "a line of the program\n"])
def test_report_is_read_as_it_was_written(
    failure: Failure | None,
    workers: tuple[WorkerFailure, ...],
    expected: tuple[object, ...],
    before: str,
) -> None:
    decision = RestartDecision(AgentAction.STOP, "all 1 restarts are used up")
    result = AgentResult(workers, failure or workers[0].failure, decision)
    report = read_agent_report(before + failure_report(SETTINGS, result))
    assert report is not None
    shown = (report.cause, report.message, report.rank)
    assert shown == expected if len(expected) == 3 else report == AgentReport(*expected)
