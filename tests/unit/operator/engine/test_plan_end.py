"""How a job ends: success, failure, limits, and what is cleaned up."""

from datetime import timedelta

import pytest

from gangline.operator.frameworks.pytorch import PyTorchFramework
from gangline.operator.model.plan import ReconcilePlan, TargetKind
from unit.operator.builders import (
    a_job,
    a_pod,
    a_service,
    conditions,
    deleted,
    has_writes,
    look,
    manifest,
    message,
    restarts,
    stored,
)

SERVICE = TargetKind.SERVICE
JOB = TargetKind.JOB
MASTER = a_pod("master-0")
WORKERS = (a_pod("worker-0"), a_pod("worker-1"))


def counts(decision: ReconcilePlan, role: str) -> tuple[int, int, int]:
    reported = decision.status.replica_statuses[role]
    return reported.active, reported.succeeded, reported.failed


@pytest.mark.parametrize(
    ("roles", "pods", "succeeds"),
    [
        ((1, 2), [a_pod("master-0", "Succeeded", code=0), *WORKERS], True),
        ((1, 2), [MASTER, a_pod("worker-0", "Succeeded", code=0)], False),
        ((None, 2), [a_pod("worker-0", "Succeeded", code=0), WORKERS[1]], False),
        ((None, 1), [a_pod("worker-0", "Succeeded", code=0)], True),
        ((0, 1), [a_pod("worker-0", "Succeeded", code=0)], True),
    ],
    ids=["master", "worker only", "one of two", "all workers", "a master without replicas"],
)
def test_what_makes_a_job_a_success(roles, pods, succeeds):
    decision = look(a_job(*roles), *pods).decide()
    assert ("Succeeded" in conditions(decision.status)) is succeeds
    assert (decision.status.completion_time is not None) is succeeds


def test_one_worker_is_enough_for_an_elastic_job():
    written = manifest(None, 3)
    written["spec"]["elasticPolicy"] = {"minReplicas": 1, "maxReplicas": 3}
    job = PyTorchFramework().read(stored(written)).job
    decision = look(job, a_pod("worker-0", "Succeeded", code=0), a_pod("worker-2", "Pending"))
    assert "Succeeded" in conditions(decision.decide().status)


def test_the_masters_success_outweighs_a_workers_failure_in_the_same_look():
    pods = [a_pod("master-0", "Succeeded", code=0), a_pod("worker-0", "Failed", code=1)]
    for order in (pods, pods[::-1]):
        decision = look(a_job(1, 1, restart="Never"), *order).decide()
        assert conditions(decision.status) == ["Created", "Succeeded"]


def test_what_still_runs_counts_as_succeeded_in_a_success():
    decision = look(a_job(1, 2), a_pod("master-0", "Succeeded", code=0), *WORKERS).decide()
    assert counts(decision, "Worker") == (0, 2, 0)


def test_an_end_makes_running_false_and_stands_last():
    running = look(a_job(1, 0), MASTER)
    ended = running.later(9, a_pod("master-0", "Succeeded", code=0)).decide().status
    assert conditions(ended) == ["(Running)", "Created", "Succeeded"]


@pytest.mark.parametrize(
    ("policy", "pods", "services"),
    [
        ("All", ["master-0", "worker-0", "worker-1"], ["master-0", "worker-0", "worker-1"]),
        ("Running", ["worker-0"], ["worker-0"]),
        ("None", [], []),
        (None, [], []),
    ],
)
@pytest.mark.parametrize("end", ["Succeeded", "Failed"])
def test_pods_are_cleaned_up_once_the_end_is_stored(policy, pods, services, end):
    leader = (
        a_pod("master-0", "Succeeded", code=0)
        if end == "Succeeded"
        else a_pod("master-0", "Failed", code=1)
    )
    seen = (leader, a_pod("worker-0"), a_pod("worker-1", "Succeeded", code=0))
    first = look(a_job(1, 2, restart="Never", cleanPodPolicy=policy), *seen)
    assert conditions(first.decide().status)[-1] == end
    assert not has_writes(first.decide())
    second = first.later(1, *seen).decide()
    assert sorted(deleted(second)) == pods
    assert sorted(deleted(second, SERVICE)) == services
    assert second.status == first.decide().status


@pytest.mark.parametrize(("policy", "left"), [("All", []), ("Running", []), ("None", ["worker-0"])])
def test_service_of_an_externally_deleted_pod_is_deleted(policy, left):
    first = look(a_job(1, 1, cleanPodPolicy=policy), a_pod("master-0", "Succeeded", code=0))
    case = look(
        first.job,
        *first.pods,
        status=first.decide().status,
        services=[a_service("master-0"), a_service("worker-0")],
    )
    assert ("worker-0" not in deleted(case.decide(), SERVICE)) == bool(left)


def test_a_finished_job_never_makes_a_pod_again():
    first = look(a_job(1, 2), a_pod("master-0", "Succeeded", code=0))
    assert not first.later(5).decide().creations


def test_a_finished_job_ignores_suspend_and_mistakes():
    done = look(a_job(1, 0), a_pod("master-0", "Succeeded", code=0)).decide().status
    suspended = look(a_job(1, 0, suspend=True), status=done).decide()
    wrong = look(a_job(1, 0), status=done, spec_errors="wrong").decide()
    assert suspended.status == wrong.status == done


@pytest.mark.parametrize("policy", ["OnFailure", "Always", "ExitCode"])
@pytest.mark.parametrize(
    ("limit", "before", "fails"), [(0, 0, True), (1, 0, False), (3, 2, False), (3, 3, True)]
)
def test_backoff_limit_counts_replaced_pods(policy, limit, before, fails):
    failed = a_pod("worker-0", "Failed", code=137)
    job = a_job(1, 1, restart=policy, backoffLimit=limit)
    decision = look(job, MASTER, failed, status=restarts(before)).decide()
    assert ("Failed" in conditions(decision.status)) is fails
    assert decision.status.restarts.total == before + 1


@pytest.mark.parametrize(("count", "fails"), [(1, False), (2, True)])
def test_backoff_limit_counts_restarts_in_place_over_all_pods(count, fails):
    pods = [a_pod("master-0", restarts=1), a_pod("worker-0", restarts=count)]
    decision = look(a_job(1, 1, backoffLimit=2), *pods).decide()
    assert ("Failed" in conditions(decision.status)) is fails
    if fails:
        assert "failed 3 times: its backoff limit allows 2 restarts" in message(
            decision.status, "Failed"
        )


@pytest.mark.parametrize(("elapsed", "fails"), [(0, False), (59, False), (60, True), (3600, True)])
def test_the_deadline_ends_the_job(elapsed, fails):
    case = look(a_job(1, 0, activeDeadlineSeconds=60), MASTER).later(elapsed, MASTER)
    decision = case.decide()
    assert ("Failed" in conditions(decision.status)) is fails
    if not fails:
        assert decision.requeue_after == timedelta(seconds=60 - elapsed)


@pytest.mark.parametrize(("elapsed", "removed"), [(0, False), (29, False), (30, True), (99, True)])
def test_the_time_to_live_removes_a_finished_job(elapsed, removed):
    job = a_job(1, 0, ttlSecondsAfterFinished=30)
    done = look(job, a_pod("master-0", "Succeeded", code=0))
    decision = done.later(elapsed, *done.pods).decide()
    assert bool(deleted(decision, JOB)) is removed
    if not removed:
        assert decision.requeue_after == timedelta(seconds=30 - elapsed)


def test_a_permanent_exit_code_sets_the_time_that_the_time_to_live_counts_from():
    job = a_job(1, 1, restart="ExitCode", ttlSecondsAfterFinished=0)
    failed = look(job, MASTER, a_pod("worker-0", "Failed", code=1))
    assert deleted(failed.later(0, MASTER).decide(), JOB)
