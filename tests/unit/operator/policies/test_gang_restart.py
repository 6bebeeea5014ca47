"""Restarting all replicas together: each failure restarts once, and the nodes stay reserved."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from gangline.api.meta.objects import ObjectMeta
from gangline.api.volcano.scheduling import (
    PREVIOUS_NODES_ANNOTATION,
    PodGroup,
    PreviousNodesAnnotation,
)
from gangline.operator.model.job import NormalizedJob
from gangline.operator.model.plan import EngineSettings, ReconcilePlan, TargetKind
from gangline.operator.policies import pod_group
from gangline.operator.policies.gang_restart import GENERATION_ANNOTATION, REPLICAS_ANNOTATION
from unit.operator.builders import (
    NOW,
    Case,
    a_pod,
    at,
    conditions,
    created,
    deleted,
    look,
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
    return [c.manifest for c in case.decide().creations if c.target is TargetKind.POD]


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


def test_failures_of_several_ranks_are_one_restart():
    fallen = [a_pod(f"worker-{index}", "Failed", code=1) for index in range(2)]
    first = look(a_gang(backoffLimit=1), *running("master-0"), *fallen)
    assert restarts(first.decide()) == (1, 1)
    later = first.later(1, *(a_pod(r, "Failed", code=1) for r in ("master-0", "worker-0")))
    assert restarts(later.decide()) == (1, 1), "former ranks that fall in turn are not news"


def test_more_restarts_than_the_limit_end_the_job():
    job = a_gang(backoffLimit=1)
    first = look(job, *running("master-0"), a_pod("worker-0", "Failed", code=1))
    again = [*running("master-0", generation=1), aged(a_pod("worker-0", "Failed", code=1), 1)]
    decision = first.later(60, *again).decide()
    assert conditions(decision.status)[-1] == "Failed"
    assert "backoff" in message(decision.status, "Failed")


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


def test_without_the_annotation_a_resize_adds_and_removes_replicas():
    plain = read(KINDS["PyTorchJob"].job(3))
    decision = look(plain, *running("master-0", "worker-0", "worker-1")).decide()
    assert created(decision) == ["worker-2"]
    assert restarts(decision) == (0, 0)


def test_restarts_slow_down_when_they_do_not_help():
    job = a_gang()
    case = look(job, *running("master-0"), a_pod("worker-0", "Failed", code=1))
    for generation in range(1, 4):
        failed = aged(a_pod("worker-0", "Failed", code=1), generation)
        case = case.later(15 * generation, *running("master-0", generation=generation), failed)
    waiting = case.later(46)
    assert created(waiting.decide()) == []
    assert waiting.decide().requeue_after > timedelta(0)


@pytest.mark.parametrize("key", ["restart", "resize"])
def test_typo_in_the_annotation_is_reported(key: str):
    written = KINDS["PyTorchJob"].job(1, annotations={f"gangline.dev/{key}": "yes"})
    mistakes = KINDS["PyTorchJob"].framework.read(stored(written)).spec_errors
    assert f"gangline.dev/{key}" in mistakes
    assert "give" in mistakes
