"""Whether a failed pod is replaced, how restarts are counted, and how replacements are delayed."""

from datetime import timedelta

import pytest

from gangline.api.jobs.kubeflow import RestartRecord
from gangline.operator.model.job import RestartPolicy
from gangline.operator.policies import backoff
from gangline.operator.policies.restart import (
    FailureAction,
    describe_pod_failure,
    failure_action,
    pod_policy,
)
from unit.operator.builders import NOW, a_pod, at

REPLACE, FATAL = FailureAction.REPLACE, FailureAction.FATAL


@pytest.mark.parametrize(
    ("policy", "code", "judgement"),
    [
        ("Always", 1, REPLACE),
        ("Always", None, REPLACE),
        ("OnFailure", 1, REPLACE),
        ("OnFailure", 137, REPLACE),
        ("OnFailure", None, REPLACE),
        ("Never", 1, FATAL),
        ("Never", 137, FATAL),
        ("Never", None, FATAL),
        ("ExitCode", 1, FATAL),
        ("ExitCode", 127, FATAL),
        ("ExitCode", 128, REPLACE),
        ("ExitCode", 130, REPLACE),
        ("ExitCode", 143, REPLACE),
        ("ExitCode", 255, REPLACE),
        pytest.param("ExitCode", None, REPLACE, id="ExitCode-evicted"),
    ],
)
def test_restart_of_a_failed_pod_depends_on_policy_and_exit_code(policy, code, judgement):
    pod = a_pod(phase="Failed", code=code, reason="" if code else "Evicted")
    assert failure_action(RestartPolicy(policy), pod, "pytorch") is judgement


@pytest.mark.parametrize(
    ("policy", "written"),
    [("Always", "Always"), ("OnFailure", "OnFailure"), ("Never", "Never"), ("ExitCode", "Never")],
)
def test_the_kubelet_gets_a_policy_that_it_knows(policy, written):
    assert pod_policy(RestartPolicy(policy)) == written


@pytest.mark.parametrize(
    ("pod", "reported"),
    [
        (a_pod(phase="Failed", code=3), "train-worker-0: Error (exit code 3): The program failed"),
        (a_pod(phase="Failed", code=137), "train-worker-0: Killed (exit code 137)"),
        (a_pod(phase="Failed", reason="Evicted"), "train-worker-0: Evicted."),
        (a_pod(phase="Failed"), "train-worker-0 failed without a reason."),
    ],
)
def test_a_failure_is_described(pod, reported):
    assert describe_pod_failure(pod, "pytorch").startswith(reported)


@pytest.mark.parametrize(
    ("record", "pods", "replaced", "total", "remembered"),
    [
        pytest.param({}, [a_pod(uid="a")], set(), 0, {}, id="nothing happened"),
        pytest.param({}, [a_pod(uid="a", restarts=2)], set(), 2, {"a": 2}, id="in place"),
        pytest.param({"a": 2}, [a_pod(uid="a", restarts=2)], set(), 2, {"a": 2}, id="seen before"),
        pytest.param({"a": 2}, [a_pod(uid="a", restarts=3)], set(), 3, {"a": 3}, id="once more"),
        pytest.param({"a": 2}, [], set(), 2, {}, id="a pod that is gone still counts"),
        pytest.param({"a": 2}, [a_pod(uid="b")], set(), 2, {}, id="so under a new pod"),
        pytest.param(
            {}, [a_pod(uid="a", phase="Failed", code=1)], {"a"}, 1, {"a": 1}, id="a replacement"
        ),
        pytest.param(
            {"a": 1},
            [a_pod(uid="a", phase="Failed", code=1)],
            {"a"},
            1,
            {"a": 1},
            id="a replacement that was counted",
        ),
        pytest.param(
            {},
            [a_pod(uid="a", restarts=1, waiting="CrashLoopBackOff")],
            set(),
            2,
            {"a": 2},
            id="a restart that is certain to come",
        ),
        pytest.param({"a": 2}, [a_pod(uid="a", restarts=2)], set(), 2, {"a": 2}, id="and has come"),
        pytest.param(
            {},
            [a_pod(uid="a", restarts=5, deleted=NOW)],
            set(),
            0,
            {},
            id="what a pod does while it is being deleted",
        ),
    ],
)
def test_every_restart_is_counted_once(record, pods, replaced, total, remembered):
    before = RestartRecord(total=sum(record.values()), pods=record)
    after = backoff.count_restarts(before, pods, frozenset(replaced))
    assert (after.total, after.pods) == (total, remembered)


@pytest.mark.parametrize(
    ("limit", "total", "exceeded"),
    [
        (None, 1000, False),
        (0, 0, False),
        (0, 1, True),
        (1, 1, False),
        (1, 2, True),
        (3, 3, False),
        (3, 4, True),
    ],
)
def test_the_limit_is_the_number_of_restarts_that_are_allowed(limit, total, exceeded):
    assert backoff.is_limit_exceeded(RestartRecord(total=total), limit) is exceeded


def test_first_burst_of_failures_is_replaced_immediately():
    record = backoff.record_failure(RestartRecord(), NOW)
    record = backoff.record_failure(record, at(3))
    assert record.bursts == 1
    assert backoff.time_to_replacement(record, at(3)) <= timedelta(0)


@pytest.mark.parametrize(
    ("burst", "seconds"),
    [(1, 0), (2, 10), (3, 20), (4, 40), (5, 80), (6, 160), (7, 300), (99, 300)],
)
def test_later_bursts_wait_as_long_as_the_kubelet_would(burst, seconds):
    record = RestartRecord(bursts=burst, burst_start=NOW)
    assert backoff.replacement_delay(record) == timedelta(seconds=seconds)


def test_ten_quiet_minutes_forgive():
    record = backoff.record_failure(RestartRecord(bursts=7, burst_start=NOW), at(300 + 601))
    assert record.bursts == 1


def test_a_clock_that_is_set_back_never_makes_a_wait_longer_than_the_delay():
    record = RestartRecord(bursts=3, burst_start=at(3600))
    assert backoff.time_to_replacement(record, NOW) == timedelta(seconds=20)
    assert backoff.record_failure(record, NOW) == RestartRecord(bursts=1, burst_start=NOW)
