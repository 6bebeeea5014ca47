"""What a failure is, what follows from it, and how it is reported."""

import signal
from pathlib import Path

import pytest

from gangline.api.agent_report import AgentReport, read_agent_report
from gangline.api.failure import Blame, Failure, Remedy, failure_of_exit
from gangline.elastic.agent.agent import AgentResult
from gangline.elastic.agent.failures import (
    AgentAction,
    RestartBudget,
    RestartDecision,
    WorkerError,
    WorkerFailure,
    decide_restart,
    diagnose_exit,
    root_cause,
)
from gangline.elastic.agent.settings import AgentSettings, WorkerCommand
from gangline.elastic.agent.termination_message import (
    MAX_MESSAGE_BYTES,
    write_termination_message,
)
from gangline.elastic.launcher.main import failure_report

KILLED = -signal.SIGKILL


def settings(max_restarts: int | None = None, *, other_nodes: bool = False) -> AgentSettings:
    command = WorkerCommand(("python", "train.py"), is_python=True, name="train.py")
    return AgentSettings(command, 2, max_restarts=max_restarts, has_other_nodes=other_nodes)


def failure(code: int, message: str = "", *, out_of_memory: bool = False) -> Failure:
    error = WorkerError(message, "") if message else None
    diagnosed = diagnose_exit(code, error, out_of_memory=out_of_memory)
    assert diagnosed is not None
    return diagnosed


def test_success_is_no_failure():
    assert diagnose_exit(0, None, out_of_memory=True) is None


@pytest.mark.parametrize(
    ("code", "message", "out_of_memory", "cause"),
    [
        pytest.param(KILLED, "", False, "Killed", id="killed"),
        pytest.param(KILLED, "", True, "OutOfMemory", id="by the kernel for memory"),
        pytest.param(-signal.SIGSEGV, "", True, "SegmentationFault", id="not by the kernel"),
        pytest.param(1, "ValueError: x", False, "Error", id="an exception"),
        pytest.param(1, "ImportError: no x", False, "CannotImport", id="an import"),
        pytest.param(
            1, "RuntimeError: CUDA error: uncorrectable ECC error", False, "DeviceBroken", id="ecc"
        ),
        pytest.param(
            1, "RuntimeError: Connection closed by peer [::1]:2", False, "PeerLost", id="an echo"
        ),
        pytest.param(
            -signal.SIGABRT,
            "RuntimeError: Connection reset by peer",
            False,
            "PeerLost",
            id="an echo, and an abort while the interpreter ended",
        ),
        pytest.param(
            KILLED, "RuntimeError: Connection reset by peer", False, "Killed", id="killed later"
        ),
        pytest.param(
            1, "InterruptedStepError: a rank was lost in this step", False, "PeerLost", id="step"
        ),
        pytest.param(
            1, "torch.OutOfMemoryError: CUDA out of memory.", False, "DeviceOutOfMemory", id="gpu"
        ),
        pytest.param(1, "RuntimeError: NPU out of memory.", False, "DeviceOutOfMemory", id="npu"),
        pytest.param(1, "java.lang.OutOfMemoryError: heap", False, "Error", id="not the device"),
        pytest.param(
            1, "DistNetworkError: EADDRINUSE, address already in use", False, "PortInUse", id="port"
        ),
    ],
)
def test_diagnosis_finds_cause(code, message, out_of_memory, cause):
    assert failure(code, message, out_of_memory=out_of_memory).cause == cause


def test_the_cause_is_the_earliest_failure_that_follows_from_no_other():
    echo = failure(1, "RuntimeError: Connection reset by peer")
    first, second = (
        WorkerFailure(0, 0, 10, 1, 1.0, echo),
        WorkerFailure(1, 1, 11, KILLED, 1.1, failure(KILLED)),
    )
    assert root_cause([first, second]) is second
    assert root_cause([first]) is first


@pytest.mark.parametrize(
    ("code", "message", "max_restarts", "restarts", "action"),
    [
        pytest.param(KILLED, "", None, 0, AgentAction.RESTART, id="killed, by default"),
        pytest.param(KILLED, "", None, 2, AgentAction.RESTART, id="the last by default"),
        pytest.param(KILLED, "", None, 3, AgentAction.STOP, id="the default is used up"),
        pytest.param(KILLED, "", 0, 0, AgentAction.STOP, id="none allowed"),
        pytest.param(1, "ValueError", None, 0, AgentAction.STOP, id="the program, by default"),
        pytest.param(1, "ValueError", 1, 0, AgentAction.RESTART, id="the program, when asked"),
        pytest.param(1, "ImportError: x", 9, 0, AgentAction.STOP, id="what cannot heal"),
        pytest.param(2, "", 9, 0, AgentAction.STOP, id="wrong arguments"),
        pytest.param(-signal.SIGILL, "", 1, 0, AgentAction.RESTART, id="no other node"),
    ],
)
def test_action_follows_from_blame_and_restart_limit(code, message, max_restarts, restarts, action):
    verdict = decide_restart(settings(max_restarts), failure(code, message), restarts)
    assert verdict.action is action
    assert verdict.reason


def test_node_fault_moves_if_another_node_is_available():
    broken = failure(1, "CUDA error: uncorrectable ECC error")
    assert decide_restart(settings(3, other_nodes=True), broken, 0).action is AgentAction.MOVE
    assert decide_restart(settings(3), broken, 0).action is AgentAction.RESTART


def test_budget_without_window_counts_all_restarts_of_the_job():
    budget = RestartBudget()
    for attempt in (4, 5, 5, 7):
        budget.record_start(attempt, 0.0)
    budget.record_end(100)
    assert budget.restarts(1e9) == 7


def test_budget_with_window_forgets_old_restarts_and_those_before_progress():
    budget = RestartBudget(60.0)
    budget.record_start(4, 0.0)  # a node that joins knows no earlier restart
    assert budget.restarts(0.0) == 0
    budget.record_end(10)
    budget.record_start(5, 0.0)
    budget.record_start(5, 10.0)  # another world, without a restart
    budget.record_end(10)
    budget.record_start(7, 50.0)
    assert budget.restarts(50.0) == 3
    assert budget.restarts(60.0) == 2
    budget.record_end(None)
    assert budget.restarts(60.0) == 2
    budget.record_end(11)
    assert budget.restarts(60.0) == 0


def test_report_replaces_the_content_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "termination-log"
    file.write_text("of the run before, which was longer")
    write_termination_message("train.py FAILED on n1: PeerLost", file)
    assert file.read_text() == "train.py FAILED on n1: PeerLost"


def test_long_report_keeps_its_beginning_and_its_end(tmp_path: Path) -> None:
    file = tmp_path / "termination-log"
    file.touch()
    write_termination_message("cause" + "x" * 10_000 + "ValueError: bad", file)
    text = file.read_text()
    assert len(text) == MAX_MESSAGE_BYTES
    assert text.startswith("cause")
    assert text.endswith("ValueError: bad")


def test_file_that_the_kubelet_did_not_mount_is_not_created(tmp_path: Path) -> None:
    write_termination_message("report", tmp_path / "missing")
    (tmp_path / "link").symlink_to(tmp_path / "missing")
    write_termination_message("report", tmp_path / "link")
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


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
