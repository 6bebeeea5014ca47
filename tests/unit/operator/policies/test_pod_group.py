"""The pod group of a job."""

from datetime import timedelta

import msgspec
import pytest
from msgspec.structs import replace

from gangline.api.cluster.workload import KubernetesPodGroup, KubernetesPodGroupStatus
from gangline.api.meta.objects import Condition, ObjectMeta
from gangline.api.volcano.scheduling import (
    PodGroup,
    PodGroupCondition,
    PodGroupSpec,
    PodGroupStatus,
)
from gangline.operator.model.plan import EngineSettings, ReconcilePlan, TargetKind
from gangline.operator.policies.pod_group import pending_reason
from unit.operator.builders import (
    a_job,
    a_pod,
    conditions,
    deleted,
    look,
    manifest,
    manifests_of,
    message,
    read,
    template,
)

GROUP = TargetKind.POD_GROUP
MASTER = a_pod("master-0")
WITH_GROUP = EngineSettings(gang_scheduling=True)


def group(decision: ReconcilePlan) -> dict:
    (made,) = manifests_of(decision, GROUP).values()
    return made["spec"]


def test_a_gang_gets_its_group_first():
    decision = look(a_job(1, 2), settings=WITH_GROUP).decide()
    assert decision.creations[0].target is GROUP
    assert group(decision) == {"minMember": 3, "minTaskMember": {"master": 1, "worker": 2}}


def test_users_own_group_of_the_jobs_name_is_used_as_it_is():
    given = PodGroup(metadata=ObjectMeta(name="train"), spec=PodGroupSpec(min_member=1))
    running = look(a_job(1, 2), settings=WITH_GROUP, given_group=given).decide()
    assert not [c for c in running.creations if c.target is GROUP]
    assert not running.patches
    held = look(a_job(1, 2, suspend=True), MASTER, settings=WITH_GROUP, given_group=given)
    assert deleted(held.decide(), GROUP) == []


def test_group_that_a_user_applies_later_is_not_changed_back():
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
    meta = ObjectMeta(name="train", annotations=annotations)
    applied = PodGroup(metadata=meta, spec=PodGroupSpec(min_member=1))
    assert not look(a_job(1, 2), settings=WITH_GROUP, pod_group=applied).decide().patches


def test_a_group_counts_init_containers_sidecars_and_overhead():
    def ask(cpu: str) -> dict:
        return {"resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}

    written = manifest(1, 2)
    spec = {
        "containers": [{"name": "pytorch", "image": "x", **ask("1")}],
        "initContainers": [
            {"name": "side", "image": "x", "restartPolicy": "Always", **ask("250m")},
            {"name": "init", "image": "x", **ask("2")},
        ],
        "overhead": {"cpu": "50m"},
    }
    for role in written["spec"]["pytorchReplicaSpecs"].values():
        role["template"] = {"spec": spec}
    job = read(written)
    asked = group(look(job, settings=WITH_GROUP).decide())["minResources"]
    assert asked == {"cpu": "6900m", "memory": "6Gi"}


def test_scheduling_policy_of_the_user_is_passed_on():
    policy = {
        "minAvailable": 2,
        "queue": "research",
        "priorityClass": "high",
        "minResources": {"cpu": "1"},
    }
    decision = look(a_job(1, 2, schedulingPolicy=policy), settings=WITH_GROUP).decide()
    assert group(decision) == {
        "minMember": 2,
        "queue": "research",
        "priorityClassName": "high",
        "minResources": {"cpu": "1"},
    }
    pod = next(iter(manifests_of(decision).values()))
    assert pod["spec"]["priorityClassName"] == "high"
    assert pod["spec"]["schedulerName"] == "gangline"
    assert pod["metadata"]["annotations"] == {
        "scheduling.k8s.io/group-name": "train",
        "volcano.sh/task-spec": "master",
    }


def test_an_elastic_gang_starts_with_its_least_size():
    written = manifest(None, 4)
    written["spec"]["elasticPolicy"] = {"minReplicas": 2, "maxReplicas": 8}
    job = read(written)
    asked = group(look(job, settings=WITH_GROUP).decide())
    assert (asked["minMember"], asked["minTaskMember"]) == (2, {"worker": 2})


def a_group(**spec: object) -> PodGroup:
    meta = ObjectMeta(name="train", namespace="team", uid="group")
    return PodGroup(metadata=meta, spec=PodGroupSpec(**spec))


def test_a_group_follows_the_number_of_replicas_and_keeps_its_queue():
    have = a_group(min_member=2, min_task_member={"master": 1, "worker": 1}, queue="theirs")
    job = a_job(1, 2, schedulingPolicy={"queue": "ours"})
    (patch,) = look(job, settings=WITH_GROUP, pod_group=have).decide().patches
    assert patch.operations == [
        {"op": "add", "path": "/spec/minMember", "value": 3},
        {"op": "add", "path": "/spec/minTaskMember", "value": {"master": 1, "worker": 2}},
    ]


@pytest.mark.parametrize("how", ["finished", "suspended"])
def test_group_is_deleted_when_the_job_needs_no_nodes(how):
    have = a_group(min_member=1)
    if how == "suspended":
        case = look(a_job(1, 0, suspend=True), settings=WITH_GROUP, pod_group=have)
    else:
        done = look(a_job(1, 0), a_pod("master-0", "Succeeded", code=0)).decide().status
        case = look(a_job(1, 0), status=done, settings=WITH_GROUP, pod_group=have)
    assert deleted(case.decide(), GROUP)


def test_a_gang_that_cannot_be_placed_in_time_fails_with_the_reason():
    why = PodGroupCondition(type="Unschedulable", status="True", message="2 more GPUs needed")
    have = replace(a_group(min_member=1), status=PodGroupStatus(conditions=[why]))
    job = a_job(1, 0, schedulingPolicy={"scheduleTimeoutSeconds": 60})
    waiting = a_pod("master-0", "Pending", node="")
    first = look(job, waiting, settings=WITH_GROUP, pod_group=have)
    assert first.decide().requeue_after == timedelta(seconds=60)
    last = first.later(60, waiting).decide()
    assert "2 more GPUs needed" in message(last.status, "Failed")
    placed = first.later(60, a_pod("master-0", "Pending", node="node-1")).decide()
    assert "Failed" not in conditions(placed.status)


def test_without_groups_no_scheduler_is_set():
    decision = look(a_job(1, 0), settings=EngineSettings(gang_scheduling=False)).decide()
    pod = next(iter(manifests_of(decision).values()))
    assert "schedulerName" not in pod["spec"]
    assert "annotations" not in pod["metadata"]


def test_a_scheduler_that_the_user_chose_stays():
    written = manifest(1, None)
    written["spec"]["pytorchReplicaSpecs"]["Master"]["template"] = template(schedulerName="mine")
    job = read(written)
    decision = look(job, settings=WITH_GROUP).decide()
    pod = next(iter(manifests_of(decision).values()))
    assert pod["spec"]["schedulerName"] == "mine"


RUN_TIME = "gangline.dev/run-time-seconds"


def test_deadline_of_a_job_is_set_on_the_group():
    made = look(a_job(1, activeDeadlineSeconds=90), settings=WITH_GROUP).decide().creations[0]
    assert made.manifest["metadata"]["annotations"] == {RUN_TIME: "90"}


@pytest.mark.parametrize(
    ("deadline", "noted", "operation"),
    [
        pytest.param(90, {RUN_TIME: "90"}, None, id="as it is"),
        pytest.param(None, {"a": "b"}, None, id="none and none noted"),
        pytest.param(90, {RUN_TIME: "30"}, ("add", "90"), id="another"),
        pytest.param(None, {RUN_TIME: "30"}, ("remove", None), id="lifted"),
        pytest.param(90, {}, ("add", {RUN_TIME: "90"}), id="nothing noted at all"),
    ],
)
def test_changed_deadline_is_patched_on_the_group(deadline, noted, operation):
    job = a_job(1, 1, **({"activeDeadlineSeconds": deadline} if deadline else {}))
    metadata = ObjectMeta(name="train", namespace="d", annotations=noted)
    spec = PodGroupSpec(min_member=2, min_task_member={"master": 1, "worker": 1})
    decision = look(
        job,
        MASTER,
        settings=WITH_GROUP,
        pod_group=PodGroup(metadata=metadata, spec=spec),
    ).decide()
    reported = [operation for patch in decision.patches for operation in patch.operations]
    assert [(operation["op"], operation.get("value")) for operation in reported] == (
        [operation] if operation else []
    )


KUBERNETES = EngineSettings(gang_scheduling=True, kubernetes_groups=True)


def test_group_of_kubernetes_has_what_its_kind_can_say() -> None:
    policy = {"queue": "research", "priorityClass": "high"}
    job = a_job(1, 2, schedulingPolicy=policy)
    decision = look(job, settings=KUBERNETES).decide()
    manifest_ = decision.creations[0].manifest
    assert manifest_["apiVersion"] == "scheduling.k8s.io/v1beta1"
    assert manifest_["metadata"]["annotations"] == {"scheduling.volcano.sh/queue-name": "research"}
    assert group(decision) == {
        "schedulingPolicy": {"gang": {"minCount": 3}},
        "disruptionMode": {"all": {}},
        "priorityClassName": "high",
    }
    pod = next(iter(manifests_of(decision).values()))
    assert pod["spec"]["schedulingGroup"] == {"podGroupName": "train"}
    assert pod["metadata"]["annotations"] == {"volcano.sh/task-spec": "master"}
    stored_group = msgspec.convert(manifest_, KubernetesPodGroup)
    again = look(job, settings=KUBERNETES, pod_group=stored_group).decide()
    assert not again.patches
    assert not [c for c in again.creations if c.target is GROUP]
    (patch,) = look(a_job(1, 4), settings=KUBERNETES, pod_group=stored_group).decide().patches
    path = "/spec/schedulingPolicy/gang/minCount"
    assert patch.operations == [{"op": "replace", "path": path, "value": 5}]


def test_reason_of_a_pending_group_of_kubernetes_is_that_of_the_job() -> None:
    condition = Condition("PodGroupInitiallyScheduled", "False", "Unschedulable", "no GPU")
    status = KubernetesPodGroupStatus(conditions=[condition])
    assert pending_reason(KubernetesPodGroup(status=status)) == "no GPU"
    placed = KubernetesPodGroupStatus(conditions=[replace(condition, status="True")])
    assert pending_reason(KubernetesPodGroup(status=placed)) == ""
