"""A rank that was restarted after another had ended can never join it: report, restart or fail."""

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from gangline.operator.model.job import MeetsInCollectives, NormalizedJob, implements
from gangline.operator.model.replicas import (
    ObservedContainerState,
    ObservedPod,
    ObservedRunning,
    ObservedTermination,
)
from gangline.operator.policies.lost_rank import GRACE
from unit.operator.builders import (
    Case,
    a_pod,
    at,
    conditions,
    deleted,
    look,
    manifest,
    message,
    read,
    stored,
)
from unit.operator.kinds import KINDS

ENDED = 100.0
"""Seconds after the creation of all pods at which worker-0 ends."""
LONG_AFTER = ENDED + 10 + GRACE.total_seconds()
TEXT = "train-worker-1 waits for train-worker-0, which ended at 2026-11-20T12:01:40Z, before"


def with_state(pod: ObservedPod, **state: Any) -> ObservedPod:
    (status,) = pod.status.container_statuses
    changed = replace(status, state=ObservedContainerState(**state))
    return replace(pod, status=replace(pod.status, container_statuses=(changed,)))


def ended(replica: str, seconds: float = ENDED) -> ObservedPod:
    end = ObservedTermination(0, finished_at=at(seconds))
    return with_state(a_pod(replica, "Succeeded", code=0), terminated=end)


def running(replica: str, since: float, restarts: int = 0) -> ObservedPod:
    pod = a_pod(replica, "Running", restarts=restarts)
    return with_state(pod, running=ObservedRunning(at(since)))


def a_job(policy: str = "", workers: int = 3, **options: Any) -> NormalizedJob:
    written = manifest(None, workers, **options)
    written["metadata"]["annotations"] = {"gangline.dev/stalled": policy} if policy else {}
    return read(written)


def a_stall(policy: str = "", **options: Any) -> Case:
    """worker-1 was restarted ten seconds after worker-0 had ended."""
    pods = (ended("worker-0"), running("worker-1", ENDED + 10, restarts=1), running("worker-2", 0))
    # The pass after the restart counts it.
    return look(a_job(policy, **options), *pods, now=at(ENDED + 11)).later(LONG_AFTER, *pods)


def test_restarted_rank_that_waits_for_an_ended_one_is_reported() -> None:
    plan = a_stall().decide()
    assert conditions(plan.status)[-1] == "Stalled"
    assert message(plan.status, "Stalled").startswith(TEXT)
    assert deleted(plan) == []


def test_report_comes_after_the_grace_period_and_without_another_change() -> None:
    before = look(a_job(), *a_stall().pods, now=at(LONG_AFTER - 15)).decide()
    assert "Stalled" not in conditions(before.status)
    assert before.requeue_after == timedelta(seconds=15)


def test_report_is_withdrawn_when_the_rank_ends() -> None:
    case = a_stall().later(LONG_AFTER + 5, *[ended(f"worker-{i}") for i in (0, 1)],
                           running("worker-2", 0))  # fmt: skip
    assert "Stalled" in conditions(case.status)
    assert "Stalled" not in conditions(case.decide().status)


def test_policy_fail_ends_the_job() -> None:
    plan = a_stall("fail").decide()
    assert "Failed" in conditions(plan.status)
    assert TEXT in message(plan.status, "Failed")


def test_policy_restart_restarts_all_ranks_and_counts_once() -> None:
    case = a_stall("restart")
    plan = case.decide()
    assert (plan.status.restarts.total, plan.status.restarts.generation) == (1 + 1, 1)
    assert TEXT in message(plan.status, "Restarting")
    after = case.later(LONG_AFTER + 1, *case.pods).decide()
    assert deleted(after) == ["worker-0", "worker-1", "worker-2"]


def test_policy_restart_obeys_the_backoff_limit() -> None:
    plan = a_stall("restart", backoffLimit=1).decide()
    assert "Failed" in conditions(plan.status)
    assert "backoff limit" in message(plan.status, "Failed")


@pytest.mark.parametrize(
    "pods",
    [
        pytest.param([ended("worker-0"), running("worker-1", 0)], id="no rank was restarted"),
        pytest.param(
            [ended("worker-0"), running("worker-1", ENDED - 1, 1)], id="restarted before the end"
        ),
        pytest.param(
            [ended("worker-0"), running("worker-1", ENDED + 10)], id="clocks of nodes differ"
        ),
        pytest.param([running("worker-0", 0), running("worker-1", 50, 1)], id="no rank has ended"),
        pytest.param(
            [
                ended("worker-0"),
                a_pod("worker-1", "Running", restarts=1, waiting="CrashLoopBackOff"),
            ],
            id="the rank does not run",
        ),
    ],
)
def test_job_whose_ranks_may_still_meet_is_not_stalled(pods: list[ObservedPod]) -> None:
    job = a_job(workers=2)
    assert "Stalled" not in conditions(look(job, *pods, now=at(LONG_AFTER)).decide().status)


def test_replaced_pod_counts_as_restarted() -> None:
    pod = running("worker-1", ENDED + 10)
    later = replace(pod, metadata=replace(pod.metadata, creation_timestamp=at(ENDED + 5)))
    plan = look(a_job(workers=2), ended("worker-0"), later, now=at(LONG_AFTER)).decide()
    assert "Stalled" in conditions(plan.status)


@pytest.mark.parametrize(
    ("kind", "collective"), [("PyTorchJob", True), ("JAXJob", True), ("TFJob", False)]
)
def test_only_kinds_with_collectives_need_all_ranks(kind: str, collective: bool) -> None:
    sort = KINDS[kind]
    job = sort.framework.read(stored(sort.job(2))).job
    assert implements(job.rules, MeetsInCollectives) == collective
