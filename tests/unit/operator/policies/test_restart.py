"""Whether a failed pod is replaced, how restarts are counted, and how replacements are delayed."""

from datetime import timedelta

import pytest

from gangline.api.jobs.kubeflow import RankBackoff, RestartRecord
from gangline.operator.model.job import RestartPolicy
from gangline.operator.policies import backoff
from gangline.operator.policies.restart import (
    FailureAction,
    describe_pod_failure,
    failure_action,
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
    ("pod", "reported"),
    [
        (a_pod(phase="Failed", code=3), "train-worker-0: Error (exit code 3): The program failed"),
        (a_pod(phase="Failed", code=137), "train-worker-0: Killed (exit code 137)"),
        (a_pod(phase="Failed", reason="Evicted"), "train-worker-0: Evicted: The node ran short"),
        (a_pod(phase="Failed"), "train-worker-0: Unknown: How it ended"),
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
    after = backoff.count_restarts(before, pods, frozenset(replaced), {})
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
    assert bool(backoff.find_exceeded_limit(RestartRecord(total=total), limit, ())) is exceeded


def rank(record: RestartRecord, seconds: float = 0, key: str = "worker-0") -> timedelta:
    """The remaining delay of a rank after so many seconds."""
    return backoff.time_to_rank_replacement(record, key, at(seconds))


def failed(record: RestartRecord, seconds: float = 0, *keys: str) -> RestartRecord:
    return backoff.record_rank_failures(record, keys or ("worker-0",), {}, at(seconds))


def refused(record: RestartRecord, seconds: float = 0, uid: str = "a") -> RestartRecord:
    return backoff.record_rank_failures(record, (), {"worker-0": uid}, at(seconds))


def test_first_failure_of_each_rank_is_replaced_immediately():
    record = failed(RestartRecord(), 0, "worker-0")
    record = failed(record, 3, "worker-1")
    assert rank(record, 3) <= timedelta(0)
    assert rank(record, 3, "worker-1") <= timedelta(0)


def test_second_failure_of_a_rank_waits_however_soon_it_follows():
    record = failed(failed(RestartRecord()), 0.5)
    assert rank(record, 0.5) == timedelta(seconds=10)
    assert rank(record, 0.5, "worker-1") <= timedelta(0), "other ranks do not wait"


@pytest.mark.parametrize(
    ("failures", "seconds"),
    [(1, 0), (2, 10), (3, 20), (4, 40), (5, 80), (6, 160), (7, 300), (99, 300)],
)
def test_later_failures_wait_as_long_as_the_kubelet_would(failures, seconds):
    assert backoff.failure_delay(failures) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("refusals", "seconds"), [(1, 1), (2, 2), (3, 4), (8, 128), (9, 256), (10, 300), (99, 300)]
)
def test_refusals_wait_from_the_first_one_on(refusals, seconds):
    assert backoff.refusal_delay(refusals) == timedelta(seconds=seconds)


def test_a_failure_after_refusals_means_that_the_node_started_the_pod():
    record = refused(refused(failed(RestartRecord())), 1, "b")
    assert rank(record, 1) == timedelta(seconds=2)
    record = failed(record, 3)
    assert (record.ranks["worker-0"].failures, record.ranks["worker-0"].refusals) == (2, 0)
    assert rank(record, 3) == timedelta(seconds=10)


def test_ten_quiet_minutes_forgive():
    record = RestartRecord(ranks={"worker-0": RankBackoff(failures=7, since=NOW)})
    assert failed(record, 900).ranks["worker-0"].failures == 8
    assert failed(record, 300 + 601).ranks["worker-0"].failures == 1
    assert failed(record, 300 + 601, "worker-1").ranks.keys() == {"worker-1"}, "others are dropped"


def test_a_clock_that_is_set_back_never_makes_a_wait_longer_than_the_delay():
    record = RestartRecord(ranks={"worker-0": RankBackoff(failures=3, since=at(3600))})
    assert rank(record) == timedelta(seconds=20)
    assert failed(record).ranks == {"worker-0": RankBackoff(failures=1, since=NOW)}
    record = RestartRecord(bursts=3, burst_start=at(3600))
    assert backoff.time_to_gang_restart(record, NOW) == timedelta(seconds=20)
    assert backoff.record_gang_restart(record, NOW) == RestartRecord(bursts=1, burst_start=NOW)


def test_restarts_of_all_replicas_back_off_from_the_second_on():
    record = backoff.record_gang_restart(RestartRecord(), NOW)
    assert backoff.time_to_gang_restart(record, NOW) <= timedelta(0)
    record = backoff.record_gang_restart(record, at(1))
    assert backoff.time_to_gang_restart(record, at(1)) == timedelta(seconds=10)
