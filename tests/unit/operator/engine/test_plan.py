"""The engine's plans for a job from its creation to its end and its clean-up."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from gangline.api.jobs.kubeflow import JobStatus, RankBackoff
from gangline.operator.engine.plan import MAX_CREATIONS
from gangline.operator.engine.status import transition_events
from gangline.operator.frameworks.pytorch import PyTorchFramework
from gangline.operator.model.plan import ReconcilePlan, TargetKind
from unit.operator.builders import (
    NOW,
    a_job,
    a_pod,
    a_service,
    at,
    conditions,
    created,
    deleted,
    has_writes,
    look,
    manifest,
    message,
    read,
    restarts,
    stored,
)

SERVICE = TargetKind.SERVICE
MASTER = a_pod("master-0")
SERVICES = [a_service("master-0"), a_service("worker-0")]
WORKERS = (a_pod("worker-0"), a_pod("worker-1"))


def counts(decision: ReconcilePlan, role: str) -> tuple[int, int, int]:
    reported = decision.status.replica_statuses[role]
    return reported.active, reported.succeeded, reported.failed


def test_a_new_job_gets_a_service_and_a_pod_for_each_replica():
    decision = look(a_job(1, 2)).decide()
    assert created(decision) == ["master-0", "worker-0", "worker-1"]
    assert created(decision, SERVICE) == ["master-0", "worker-0", "worker-1"]
    assert conditions(decision.status) == ["Created"]
    assert decision.status.start_time == NOW
    assert not decision.deletions


def test_a_huge_job_is_made_in_several_passes():
    decision = look(a_job(1, 999)).decide()
    assert len(decision.creations) == MAX_CREATIONS
    assert decision.requeue_after == timedelta(0)


def test_only_what_is_missing_is_made():
    decision = look(a_job(1, 2), MASTER, WORKERS[1], services=[a_service("worker-0")]).decide()
    assert created(decision) == ["worker-0"]
    assert created(decision, SERVICE) == ["master-0", "worker-1"]


@pytest.mark.parametrize("roles", [(1, 0), (None, 0), (0, 0)])
def test_no_replicas_make_no_pod(roles):
    assert [name for name in created(look(a_job(*roles)).decide()) if "worker" in name] == []


def test_a_job_without_any_replica_never_ends_by_itself():
    decision = look(a_job(0, 0)).decide()
    assert conditions(decision.status) == ["Created"]
    assert not has_writes(decision)


def test_succeeded_replica_is_not_recreated_when_its_pod_is_deleted():
    done = a_pod("worker-0", "Succeeded", code=0)
    first = look(a_job(None, 2), done, WORKERS[1])
    assert first.decide().status.replica_statuses["Worker"].completed_indexes == "0"
    second = first.later(5, WORKERS[1])
    assert not created(second.decide())
    assert counts(second.decide(), "Worker") == (1, 1, 0)
    third = second.later(9, a_pod("worker-1", "Succeeded", code=0))
    assert conditions(third.decide().status)[-1] == "Succeeded"


def test_deleted_pod_that_exits_with_zero_has_not_succeeded():
    leaving = a_pod("master-0", "Succeeded", code=0, deleted=at(30))
    first = look(a_job(1, 0), leaving)
    assert "Succeeded" not in conditions(first.decide().status)
    assert created(first.later(1).decide()) == ["master-0"]


def test_a_replica_known_to_be_done_stays_done_while_its_pod_is_being_removed():
    done = a_pod("worker-0", "Succeeded", code=0)
    leaving = a_pod("worker-0", "Succeeded", code=0, deleted=at(30))
    second = look(a_job(None, 2), done, WORKERS[1]).later(1, leaving, WORKERS[1])
    assert counts(second.decide(), "Worker") == (1, 1, 0)


def test_a_pod_on_its_way_out_is_waited_for():
    leaving = a_pod("worker-0", deleted=at(30))
    decision = look(a_job(1, 1), MASTER, leaving).decide()
    assert not has_writes(decision)


def test_a_name_that_a_former_job_still_holds_is_waited_for():
    taken = frozenset({(TargetKind.POD, "train-worker-0"), (SERVICE, "train-master-0")})
    decision = look(a_job(1, 1), services=[], occupied=taken).decide()
    assert created(decision) == ["master-0"]
    assert created(decision, SERVICE) == ["worker-0"]


@pytest.mark.parametrize(
    ("pods", "reported"),
    [
        ((a_pod("master-0", "Pending"),), ["Created"]),
        ((MASTER,), ["Created", "Running"]),
        (WORKERS, ["Created"]),
        ((a_pod("master-0", deleted=NOW), *WORKERS), ["Created"]),
    ],
    ids=["pending", "the master runs", "only workers run", "the master is leaving"],
)
def test_a_job_runs_when_its_master_does(pods, reported):
    assert conditions(look(a_job(1, 2), *pods).decide().status) == reported


def test_a_job_without_a_master_runs_when_a_worker_does():
    assert conditions(look(a_job(None, 2), WORKERS[0]).decide().status) == ["Created", "Running"]


def test_pods_are_counted_by_role():
    decision = look(
        a_job(1, 4),
        a_pod("master-0"),
        a_pod("worker-0"),
        a_pod("worker-1", "Succeeded", code=0),
        a_pod("worker-2", "Failed", code=1),
        a_pod("worker-3", "Pending"),
    ).decide()
    assert counts(decision, "Master") == (1, 0, 0)
    assert counts(decision, "Worker") == (1, 1, 1)
    assert decision.status.replica_statuses["Worker"].selector == (
        "training.kubeflow.org/job-name=train,"
        "training.kubeflow.org/operator-name=pytorchjob-controller,"
        "training.kubeflow.org/replica-type=worker"
    )


def test_failed_pod_is_counted_then_deleted_then_recreated():
    failed = a_pod("worker-0", "Failed", code=1)
    first = look(a_job(1, 1), MASTER, failed)
    assert not has_writes(first.decide())
    assert conditions(first.decide().status) == ["Created", "Restarting"]
    assert first.decide().status.restarts.total == 1
    reported = message(first.decide().status, "Restarting")
    assert "1 Worker replica(s) failed: train-worker-0: Error (exit code 1)" in reported

    second = first.later(0, MASTER, failed)
    assert deleted(second.decide()) == ["worker-0"]
    assert second.decide().status == first.decide().status

    third = second.later(1, MASTER)
    assert created(third.decide()) == ["worker-0"]
    assert conditions(third.decide().status) == ["Created", "Restarting"]

    fourth = third.later(2, MASTER, a_pod("worker-0", uid="new"))
    assert conditions(fourth.decide().status) == ["Created", "Running"]
    assert fourth.decide().status.restarts.total == 1


def test_second_failure_of_a_rank_delays_its_replacement_and_no_other():
    status = restarts(3)
    ranks = {"worker-0": RankBackoff(failures=2, since=NOW)}
    status = replace(status, restarts=replace(status.restarts, ranks=ranks))
    case = look(a_job(1, 2), status=status, now=at(4))
    assert created(case.decide()) == ["master-0", "worker-1"]
    case = look(a_job(1, 1), MASTER, status=status, now=at(4), services=SERVICES)
    assert not case.decide().creations
    assert case.decide().requeue_after == timedelta(seconds=6)
    assert created(look(a_job(1, 1), MASTER, status=status, now=at(10)).decide()) == ["worker-0"]


@pytest.mark.parametrize(
    "reason",
    ["OutOfnvidia.com/gpu", "UnexpectedAdmissionError", "NodeAffinity", "TopologyAffinityError"],
)
@pytest.mark.parametrize("policy", ["Never", "OnFailure", "ExitCode"])
def test_pod_that_its_node_refuses_is_replaced_after_a_delay_and_counts_nothing(reason, policy):
    job = a_job(1, 1, restart=policy, backoffLimit=0)
    refused = a_pod("worker-0", "Failed", reason=reason)
    first = look(job, MASTER, refused)
    assert not deleted(first.decide()), "the status that counts the refusal is stored first"
    assert conditions(first.decide().status) == ["Created", "Stalled", "Running"]
    assert "train-worker-0: " in message(first.decide().status, "Stalled")
    assert f"Message: {reason}." in message(first.decide().status, "Stalled")
    second = first.later(0, MASTER, refused)
    assert deleted(second.decide()) == ["worker-0"]
    third = second.later(0.5, MASTER)
    assert not created(third.decide())
    assert third.decide().requeue_after == timedelta(seconds=0.5)
    assert "Stalled" in conditions(third.decide().status)
    fourth = third.later(1, MASTER)
    assert created(fourth.decide()) == ["worker-0"]
    assert fourth.decide().status.restarts.total == 0


@pytest.mark.parametrize(
    ("policy", "code", "reported"),
    [("Never", 137, "exit code 137"), ("ExitCode", 2, "exit code 2")],
)
def test_fatal_failure_ends_the_job_immediately(policy, code, reported):
    failed = a_pod("worker-0", "Failed", code=code)
    decision = look(a_job(1, 2, restart=policy), MASTER, failed).decide()
    assert conditions(decision.status) == ["(Running)", "Created", "Failed"]
    assert reported in message(decision.status, "Failed")
    assert decision.status.completion_time == NOW
    assert not has_writes(decision)


@pytest.mark.parametrize("policy", ["Never", "ExitCode", "OnFailure"])
def test_deleted_pod_has_not_failed(policy):
    killed = a_pod("worker-0", "Failed", code=143, deleted=at(30))
    decision = look(a_job(1, 1, restart=policy), MASTER, killed).decide()
    assert conditions(decision.status) == ["Created", "Running"]
    assert decision.status.restarts.total == 0


def test_suspending_removes_pods_and_services_and_resets_the_clock():
    running = look(a_job(1, 2), MASTER, *WORKERS)
    case = look(a_job(1, 2, suspend=True), *running.pods, status=running.decide().status, now=at(9))
    decision = case.decide()
    assert deleted(decision) == ["master-0", "worker-0", "worker-1"]
    assert deleted(decision, SERVICE) == ["master-0", "worker-0", "worker-1"]
    assert conditions(decision.status) == ["(Running)", "Created", "Suspended"]
    assert decision.status.start_time is None
    assert counts(decision, "Worker") == (0, 0, 0)


def test_resuming_resets_the_start_time():
    held = look(a_job(1, 0, suspend=True, activeDeadlineSeconds=60)).decide().status
    case = look(a_job(1, 0, activeDeadlineSeconds=60), status=held, now=at(1000))
    decision = case.decide()
    assert created(decision) == ["master-0"]
    assert decision.status.start_time == at(1000)
    assert conditions(decision.status) == ["(Suspended)", "Created"]
    assert decision.requeue_after == timedelta(seconds=60)


def test_suspended_job_whose_deciding_replica_succeeded_is_succeeded():
    running = look(a_job(1, 1), MASTER, WORKERS[0])
    done = a_pod("master-0", "Succeeded")
    case = look(a_job(1, 1, suspend=True), done, WORKERS[0], status=running.decide().status)
    decision = case.decide()
    assert conditions(decision.status) == ["(Running)", "Created", "Succeeded"]
    assert not has_writes(decision)


@pytest.mark.parametrize("restart", [{}, {"gangline.dev/restart": "gang"}])
def test_resumed_job_waits_until_its_former_pods_have_ended(restart):
    def job(**policy):
        written = manifest(1, 1, **policy)
        written["metadata"]["annotations"] = restart
        return read(written)

    held = look(job(suspend=True), status=look(job()).decide().status, now=at(5)).decide().status
    former = a_pod("worker-0", "Failed", code=143, deleted=at(30))
    decision = look(job(), former, status=held, now=at(9)).decide()
    assert not has_writes(decision)
    assert conditions(decision.status) == ["Created", "Suspended"]
    assert "resumes when its former pods have ended" in message(decision.status, "Suspended")
    resumed = look(job(), status=decision.status, now=at(40)).decide()
    assert created(resumed) == ["master-0", "worker-0"]
    assert conditions(resumed.status) == ["(Suspended)", "Created"]
    assert (resumed.status.restarts.total, resumed.status.restarts.generation) == (0, 0)


def test_scaling_down_removes_the_last_replicas_and_their_services():
    decision = look(a_job(1, 1), MASTER, *WORKERS, a_pod("worker-2", "Failed", code=1)).decide()
    assert deleted(decision) == ["worker-1", "worker-2"]
    assert deleted(decision, SERVICE) == ["worker-1", "worker-2"]
    assert conditions(decision.status) == ["Created", "Running"]


def test_pods_of_a_removed_role_are_deleted():
    assert deleted(look(a_job(1, None), MASTER, *WORKERS).decide()) == ["worker-0", "worker-1"]


def test_of_two_pods_with_one_index_the_elder_stays():
    younger = a_pod("worker-0", uid="zz")
    meta = replace(younger.metadata, name="train-twin-0", creation_timestamp=at(1))
    decision = look(a_job(1, 1), replace(younger, metadata=meta), MASTER, WORKERS[0]).decide()
    assert [d.uid for d in decision.deletions if d.target is TargetKind.POD] == ["zz"]


@pytest.mark.parametrize("manager", ["kueue.x-k8s.io/multikueue", ""])
def test_a_job_that_another_controller_runs_is_left_alone(manager):
    assert look(a_job(1, 1, managedBy=manager)).decide() == ReconcilePlan(JobStatus())


def test_a_job_that_names_this_controller_is_run():
    assert created(look(a_job(1, 0, managedBy="kubeflow.org/training-operator")).decide())


def test_invalid_job_reports_its_errors_and_is_not_changed():
    case = look(a_job(1, 1), MASTER, spec_errors="spec.x: is wrong")
    decision = case.decide()
    assert not has_writes(decision)
    assert conditions(decision.status) == ["Created", "InvalidSpec"]
    assert message(decision.status, "InvalidSpec") == "spec.x: is wrong"


def test_a_job_whose_mistakes_are_mended_runs():
    wrong = look(a_job(1, 1), spec_errors="spec.x: is wrong").decide().status
    decision = look(a_job(1, 1), status=wrong).decide()
    assert conditions(decision.status) == ["Created"]
    assert created(decision)


@pytest.mark.parametrize(
    ("lost", "now", "forced"),
    [
        (set(), 3600, []),
        ({"node-1"}, 39, []),
        ({"node-1"}, 40, ["worker-0!"]),
        ({"node-2"}, 3600, []),
    ],
    ids=["the node answers", "not overdue", "overdue", "another node is lost"],
)
def test_a_pod_stuck_on_a_lost_node_is_deleted_by_force(lost, now, forced):
    leaving = a_pod("worker-0", deleted=at(30))
    decision = look(a_job(1, 1), MASTER, leaving, lost_nodes=frozenset(lost), now=at(now)).decide()
    assert deleted(decision) == forced
    if now == 39:
        assert decision.requeue_after == timedelta(seconds=1)


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [({}, {"suspend": True}, "PyTorchJobSuspended"), ({"suspend": True}, {}, "PyTorchJobResumed")],
)
def test_suspending_and_resuming_emit_events(before, after, reason):
    first = look(a_job(1, 0, **before)).decide().status
    second = look(a_job(1, 0, **after), status=first).decide().status
    assert [event.reason for event in transition_events(first, second)] == [reason]


JOB = TargetKind.JOB


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
