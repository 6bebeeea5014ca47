"""Failures: cause, blame and remedy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.api.core.pod import Pod
from gangline.api.core.pod_status import (
    ContainerState,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    PodStatus,
)
from gangline.api.failure import (
    Blame,
    Remedy,
    failure_of_container,
    failure_of_exit,
    failure_of_pod,
    is_retryable_exit_code,
)
from gangline.api.meta.objects import Condition


def ended(code, reason="Error", name="pytorch", signal=0):
    state = ContainerStateTerminated(exit_code=code, reason=reason, signal=signal)
    return ContainerStatus(name=name, state=ContainerState(terminated=state))


def waiting(reason, last=None):
    return ContainerStatus(
        name="pytorch",
        state=ContainerState(waiting=ContainerStateWaiting(reason=reason, message="because")),
        last_state=last.state if last else ContainerState(),
    )


def a_pod(*statuses, phase="Failed", reason="", disrupted=""):
    conditions = [Condition(type="DisruptionTarget", status="True", reason=disrupted)]
    status = PodStatus(
        phase=phase,
        reason=reason,
        container_statuses=list(statuses),
        conditions=conditions if disrupted else [],
    )
    return Pod(status=status)


@pytest.mark.parametrize(
    ("code", "reason", "cause", "blame", "remedy"),
    [
        (1, "Error", "Error", Blame.CODE, Remedy.STOP),
        (2, "Error", "UsageError", Blame.USER, Remedy.STOP),
        (42, "Error", "Error", Blame.CODE, Remedy.STOP),
        (126, "Error", "NotExecutable", Blame.USER, Remedy.STOP),
        (127, "Error", "CommandNotFound", Blame.USER, Remedy.STOP),
        (128, "ContainerCannotRun", "CannotStart", Blame.USER, Remedy.STOP),
        (128, "StartError", "CannotStart", Blame.USER, Remedy.STOP),
        (128, "Error", "Error", Blame.CODE, Remedy.RETRY),
        (130, "Error", "Interrupted", Blame.PLATFORM, Remedy.RETRY),
        (134, "Error", "Aborted", Blame.CODE, Remedy.RETRY),
        (135, "Error", "BusError", Blame.USER, Remedy.RETRY),
        (137, "Error", "Killed", Blame.PLATFORM, Remedy.RETRY),
        (137, "OOMKilled", "OutOfMemory", Blame.USER, Remedy.RETRY),
        (0, "OOMKilled", "OutOfMemory", Blame.USER, Remedy.RETRY),
        (-9, "", "Killed", Blame.PLATFORM, Remedy.RETRY),
        (139, "Error", "SegmentationFault", Blame.CODE, Remedy.RETRY),
        (138, "Error", "Signalled", Blame.CODE, Remedy.RETRY),
        (143, "Error", "Terminated", Blame.PLATFORM, Remedy.RETRY),
        (250, "Error", "Error", Blame.CODE, Remedy.RETRY),
        (255, "Error", "Error", Blame.CODE, Remedy.RETRY),
    ],
)
def test_an_exit_has_a_cause_a_blame_and_a_remedy(code, reason, cause, blame, remedy):
    failure = failure_of_exit(code, reason)
    assert (failure.cause, failure.blame, failure.remedy) == (cause, blame, remedy)


def test_a_good_end_is_no_failure():
    assert failure_of_exit(0) is None
    assert failure_of_exit(0, "Completed") is None
    assert failure_of_pod(a_pod(ended(0, "Completed"), phase="Succeeded")) is None


@pytest.mark.parametrize(
    ("pod", "cause", "remedy"),
    [
        pytest.param(a_pod(reason="Evicted"), "Evicted", Remedy.MOVE, id="evicted"),
        pytest.param(a_pod(ended(137), reason="NodeLost"), "NodeLost", Remedy.MOVE, id="node lost"),
        pytest.param(a_pod(reason="OutOfcpu"), "NodeFull", Remedy.MOVE, id="node full"),
        pytest.param(a_pod(reason="OutOfnvidia.com/gpu"), "NodeFull", Remedy.MOVE, id="no devices"),
        pytest.param(
            a_pod(reason="DeadlineExceeded"), "DeadlineExceeded", Remedy.STOP, id="deadline"
        ),
        pytest.param(
            a_pod(ended(143), disrupted="PreemptionByScheduler"),
            "Preempted",
            Remedy.MOVE,
            id="preempted",
        ),
        pytest.param(
            a_pod(ended(1), disrupted="SomethingNew"), "Error", Remedy.STOP, id="new disruption"
        ),
        pytest.param(a_pod(ended(1)), "Error", Remedy.STOP, id="exit"),
        pytest.param(a_pod(), "Unknown", Remedy.MOVE, id="nothing known"),
        pytest.param(
            a_pod(waiting("ImagePullBackOff"), phase="Pending"),
            "ImagePullFailed",
            Remedy.RETRY,
            id="image",
        ),
        pytest.param(
            a_pod(waiting("InvalidImageName"), phase="Pending"),
            "InvalidImageName",
            Remedy.STOP,
            id="name of the image",
        ),
    ],
)
def test_a_pod_fails_for_a_cause(pod, cause, remedy):
    failure = failure_of_pod(pod)
    assert (failure.cause, failure.remedy) == (cause, remedy)


def test_a_pod_that_runs_or_waits_for_its_start_has_not_failed():
    assert failure_of_pod(a_pod(waiting("ContainerCreating"), phase="Pending")) is None
    assert failure_of_pod(a_pod(phase="Running", disrupted="EvictionByEvictionAPI")) is None


def test_failure_of_the_main_container_comes_first():
    pod = a_pod(ended(1, name="sidecar"), ended(139))
    assert failure_of_pod(pod, "pytorch").cause == "SegmentationFault"
    assert failure_of_pod(pod).cause == "Error"


def test_crash_loop_reports_the_end_of_the_last_run():
    failure = failure_of_container(waiting("CrashLoopBackOff", last=ended(127)))
    assert failure.cause == "CommandNotFound"
    assert "again and again" in failure.explanation
    assert failure_of_container(waiting("CrashLoopBackOff")).cause == "CrashLoop"


def test_a_failure_reads_as_one_line():
    assert str(failure_of_exit(127, message="no such file\n")) == (
        "CommandNotFound (exit code 127): The command does not exist in the image. "
        "Message: no such file"
    )


@pytest.mark.parametrize(
    ("code", "retryable"), [(1, False), (127, False), (128, True), (137, True), (None, True)]
)
def test_exit_codes_are_retryable_from_128(code, retryable):
    assert is_retryable_exit_code(code) == retryable


@given(st.integers(-(2**31), 2**31), st.text(max_size=5), st.text(max_size=5))
def test_every_bad_end_is_classified(code, reason, message):
    failure = failure_of_exit(code, reason, message)
    assert (failure is None) == (code == 0)
