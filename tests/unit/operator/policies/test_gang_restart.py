"""Restarts of single replicas and of all of them together."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from gangline.api.jobs.kubeflow import RankBackoff, RestartRecord
from gangline.api.meta.objects import ObjectMeta
from gangline.api.volcano.scheduling import (
    PREVIOUS_NODES_ANNOTATION,
    PodGroup,
    PreviousNodesAnnotation,
)
from gangline.operator.model.job import NormalizedJob, RestartPolicy
from gangline.operator.model.plan import EngineSettings, ReconcilePlan
from gangline.operator.policies import backoff, pod_group
from gangline.operator.policies.gang_restart import GENERATION_ANNOTATION, REPLICAS_ANNOTATION
from gangline.operator.policies.restart import (
    FailureAction,
    describe_pod_failure,
    failure_action,
)
from unit.operator.builders import (
    NOW,
    Case,
    a_pod,
    at,
    conditions,
    created,
    deleted,
    look,
    manifests_of,
    message,
    read,
    stored,
)
from unit.operator.kinds import KINDS

GANG = {"gangline.dev/restart": "gang"}
RESIZE = {"gangline.dev/resize": "restart"}


def a_gang(
    workers: int = 2, annotations: dict[str, str] | None = None, **options: Any
) -> NormalizedJob:
    chosen = GANG if annotations is None else annotations
    return read(KINDS["PyTorchJob"].job(workers, annotations=chosen, **options))


def pods(case: Case) -> list[dict[str, Any]]:
    return list(manifests_of(case.decide()).values())


def running(*replicas: str, generation: int = 0) -> list[Any]:
    return [aged(a_pod(replica), generation) for replica in replicas]


def aged(pod: Any, generation: int) -> Any:
    notes = {GENERATION_ANNOTATION: str(generation)}
    meta = msgspec.structs.replace(pod.metadata, annotations=notes)
    return msgspec.structs.replace(pod, metadata=meta)


def restarts(decision: ReconcilePlan) -> tuple[int, int]:
    return decision.status.restarts.total, decision.status.restarts.generation


def test_the_kubelet_restarts_nothing_in_a_gang_that_restarts_together():
    policies = {pod["spec"]["restartPolicy"] for pod in pods(look(a_gang(restart="Always")))}
    assert policies == {"Never"}


def test_pods_carry_the_generation_that_they_were_made_for():
    assert {p["metadata"]["annotations"][GENERATION_ANNOTATION] for p in pods(look(a_gang()))} == {
        "0"
    }
    plain = look(read(KINDS["PyTorchJob"].job(1)))
    assert all(
        GENERATION_ANNOTATION not in p["metadata"].get("annotations", {}) for p in pods(plain)
    )


def test_one_failure_restarts_all_replicas_once_the_count_is_stored():
    failed = a_pod("worker-0", "Failed", code=1)
    first = look(a_gang(), *running("master-0", "worker-1"), failed)
    decision = first.decide()
    assert restarts(decision) == (1, 1)
    assert deleted(decision) == [], "the count is stored before the pods that prove it go"
    assert conditions(decision.status)[-1] == "Restarting"
    assert "worker-0" in message(decision.status, "Restarting")
    then = first.later(1, *running("master-0", "worker-1"), failed)
    assert deleted(then.decide()) == ["master-0", "worker-0", "worker-1"]
    assert restarts(then.decide()) == (1, 1)


def test_new_replicas_wait_for_the_deletion_of_the_previous_generation():
    failed = a_pod("worker-0", "Failed", code=1)
    going = a_pod("master-0", deleted=at(30))
    restarted = look(a_gang(), *running("master-0", "worker-1"), failed).later(1, going)
    assert created(restarted.decide()) == []
    gone = restarted.later(2)
    assert created(gone.decide()) == ["master-0", "worker-0", "worker-1"]
    assert {p["metadata"]["annotations"][GENERATION_ANNOTATION] for p in pods(gone)} == {"1"}


def test_replicas_that_had_ended_well_run_again():
    done, failed = a_pod("worker-1", "Succeeded", code=0), a_pod("worker-0", "Failed", code=1)
    restarted = look(a_gang(), *running("master-0"), done, failed).later(1, done)
    assert deleted(restarted.decide()) == ["worker-1"]
    assert created(restarted.later(2).decide()) == ["master-0", "worker-0", "worker-1"]


@pytest.mark.parametrize("policy", ["Never", "OnFailure", "Always", None])
def test_gang_restart_applies_with_every_restart_policy(policy: str | None):
    failed = a_pod("worker-0", "Failed", code=1)
    decision = look(a_gang(restart=policy), *running("master-0"), failed).decide()
    assert restarts(decision) == (1, 1)


def test_an_exit_code_that_promises_to_come_again_ends_the_job():
    decision = look(a_gang(restart="ExitCode"), a_pod("worker-0", "Failed", code=1)).decide()
    assert conditions(decision.status)[-1] == "Failed"
    killed = look(a_gang(restart="ExitCode"), a_pod("worker-0", "Failed", code=137)).decide()
    assert restarts(killed) == (1, 1)


def test_externally_deleted_replica_restarts_all_and_is_no_failure():
    taken = a_pod("worker-1", deleted=at(30))
    decision = look(a_gang(), *running("master-0", "worker-0"), taken).decide()
    assert restarts(decision) == (0, 1)
    assert "worker-1 was deleted" in message(decision.status, "Restarting")


def test_a_replica_that_had_ended_well_may_be_taken_away():
    done = a_pod("worker-1", "Succeeded", code=0)
    first = look(a_gang(), *running("master-0", "worker-0"), done)
    going = a_pod("worker-1", "Succeeded", code=0, deleted=at(30))
    decision = first.later(1, *running("master-0", "worker-0"), going).decide()
    assert restarts(decision) == (0, 0)
    assert deleted(decision) == created(decision) == []


def test_previous_nodes_are_recorded_on_the_group():
    metadata = ObjectMeta(
        name="train", namespace="team", uid="uid-group", annotations={"other": "kept"}
    )
    group = PodGroup(metadata=metadata)
    settings = EngineSettings(gang_scheduling=True)
    nodes = [a_pod("master-0", node="node-1"), a_pod("worker-1", node="node-2")]
    failed = a_pod("worker-0", "Failed", code=1, node="node-2")
    case = look(a_gang(), *nodes, failed, settings=settings, pod_group=group)
    (written,) = [
        operation["value"]
        for patch in case.decide().patches
        for operation in patch.operations
        if operation["path"] == "/metadata/annotations"
    ]
    assert written.keys() == {"gangline.dev/previous-nodes", "other"}
    kept = msgspec.json.decode(written[PREVIOUS_NODES_ANNOTATION], type=PreviousNodesAnnotation)
    assert kept.nodes == {
        "train-master-0": "node-1",
        "train-worker-0": "node-2",
        "train-worker-1": "node-2",
    }
    assert kept.until == NOW + pod_group.PREVIOUS_NODES_TTL


def test_a_changed_number_of_replicas_restarts_all_where_the_user_asks_for_it():
    small, large = a_gang(2, RESIZE), a_gang(3, RESIZE)
    made = [
        msgspec.structs.replace(
            pod,
            metadata=msgspec.structs.replace(
                pod.metadata, annotations=built["metadata"]["annotations"]
            ),
        )
        for pod, built in zip(
            running("master-0", "worker-0", "worker-1"), pods(look(small)), strict=True
        )
    ]
    assert {pod.metadata.annotations[REPLICAS_ANNOTATION] for pod in made} == {"Master=1,Worker=2"}
    assert restarts(look(small, *made).decide()) == (0, 0)
    resized = look(large, *made).decide()
    assert restarts(resized) == (0, 1)
    assert "Worker=3" in message(resized.status, "Restarting")
    assert created(resized) == []


@pytest.mark.parametrize("key", ["restart", "resize"])
def test_typo_in_the_annotation_is_reported(key: str):
    written = KINDS["PyTorchJob"].job(1, annotations={f"gangline.dev/{key}": "yes"})
    mistakes = KINDS["PyTorchJob"].framework.read(stored(written)).spec_errors
    assert f"gangline.dev/{key}" in mistakes
    assert "give" in mistakes


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


CRASHES = a_pod(uid="a", restarts=1, waiting="CrashLoopBackOff")


@pytest.mark.parametrize(
    ("record", "pods", "replaced", "total", "remembered"),
    [
        ({"a": 2}, [a_pod(uid="b")], set(), 2, {}),
        ({"a": 1}, [a_pod(uid="a", phase="Failed", code=1)], {"a"}, 1, {"a": 1}),
        ({}, [CRASHES], set(), 2, {"a": 2}),
        ({"a": 2}, [a_pod(uid="a", restarts=2)], set(), 2, {"a": 2}),
        ({}, [a_pod(uid="a", restarts=5, deleted=NOW)], set(), 0, {}),
    ],
    ids=[
        "under a new pod",
        "counted already",
        "certain to come",
        "has come",
        "while it is deleted",
    ],
)
def test_every_restart_is_counted_once(record, pods, replaced, total, remembered):
    """Properties of the plan cover failed pods and restarts in place."""
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


def test_restarts_slow_down_when_they_do_not_help():
    job = a_gang()
    case = look(job, *running("master-0"), a_pod("worker-0", "Failed", code=1))
    for generation in range(1, 4):
        failed = aged(a_pod("worker-0", "Failed", code=1), generation)
        case = case.later(15 * generation, *running("master-0", generation=generation), failed)
    waiting = case.later(46)
    assert created(waiting.decide()) == []
    assert waiting.decide().requeue_after > timedelta(0)
