"""TrainJobs: pods, phases of the gang, objects, and the status that upstream's clients read."""

import dataclasses
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from gangline.operator.engine.plan import plan_reconcile
from gangline.operator.engine.stored_status import decode_status, encode_status, kind_fields
from gangline.operator.frameworks.train.framework import KIND, TrainFramework
from gangline.operator.model.plan import ObservedJob, ReconcilePlan, TargetKind
from unit.api.trainer.jobs import SHIPPED, train_job
from unit.operator.builders import NOW, stored
from unit.operator.kinds import KINDS
from unit.operator.train_jobs import runtime_copy
from unit.operator.world import SETTINGS, World

COPY = (TargetKind.CONFIG_MAP, "digits-runtime-snapshot")


def observe(written: dict[str, Any], *, copied: bool = True, **found: Any) -> ObservedJob:
    runtime = SHIPPED[written["spec"]["runtimeRef"]["name"]]
    copy = runtime_copy(runtime, stored=copied)
    parsed = TrainFramework().read_with_runtime(stored(written), copy, is_known=True)
    status = decode_status(KIND, msgspec.Raw(b"{}"))
    return ObservedJob(parsed.job, status, spec_errors=parsed.spec_errors, **found)


def plan(observed: ObservedJob, seconds: float = 0) -> ReconcilePlan:
    return plan_reconcile(observed, NOW + timedelta(seconds=seconds), SETTINGS)


def created(found: ReconcilePlan) -> dict[tuple[TargetKind, str], dict[str, Any]]:
    return {(each.target, each.name): each.manifest for each in found.creations}


def test_pods_have_the_names_and_labels_of_a_job_set() -> None:
    found = created(plan(observe(train_job(trainer={"numNodes": 2}))))
    pod = found[TargetKind.POD, "digits-node-0-1"]
    assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("digits-node-0-1", "digits")
    expected = {
        "jobset.sigs.k8s.io/jobset-name": "digits",
        "jobset.sigs.k8s.io/jobset-uid": "job-uid",
        "jobset.sigs.k8s.io/replicatedjob-name": "node",
        "jobset.sigs.k8s.io/replicatedjob-replicas": "1",
        "jobset.sigs.k8s.io/global-replicas": "1",
        "jobset.sigs.k8s.io/restart-attempt": "0",
        "jobset.sigs.k8s.io/job-index": "0",
        "jobset.sigs.k8s.io/job-global-index": "0",
        "jobset.sigs.k8s.io/group-name": "default",
        "batch.kubernetes.io/job-completion-index": "1",
        "batch.kubernetes.io/job-name": "digits-node-0",
        "job-name": "digits-node-0",
    }
    for field in ("labels", "annotations"):
        assert expected.items() <= pod["metadata"][field].items()


def test_one_headless_service_names_all_pods() -> None:
    found = created(plan(observe(train_job(trainer={"numNodes": 3}))))
    services = [name for target, name in found if target is TargetKind.SERVICE]
    assert services == ["digits"]
    assert found[TargetKind.SERVICE, "digits"]["spec"] == {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"jobset.sigs.k8s.io/jobset-name": "digits"},
    }


def test_no_pod_exists_before_the_copy_of_its_runtime() -> None:
    found = created(plan(observe(train_job(), copied=False)))
    assert COPY in found
    assert not any(target is TargetKind.POD for target, _ in found)
    copy = found[COPY]
    assert copy["immutable"] is True
    assert msgspec.json.decode(copy["data"]["runtime"]) == SHIPPED["torch-distributed"]


def test_a_suspended_job_has_the_copy_of_its_runtime_and_nothing_else() -> None:
    found = created(plan(observe(train_job(suspend=True), copied=False)))
    assert list(found) == [COPY]


def test_resuming_keeps_the_copy() -> None:
    world = World(KINDS["TrainJob"].job(2))
    world.settle()
    world.suspend(True)
    world.settle()
    assert (TargetKind.CONFIG_MAP, "train-runtime-snapshot") in world.extras


def test_claims_keys_and_host_file_are_the_jobs_own() -> None:
    tune = created(plan(observe(train_job("torchtune-llama3.2-1b"))))
    claim = tune[TargetKind.CLAIM, "initializer-digits"]
    assert claim["spec"]["resources"] == {"requests": {"storage": "20Gi"}}
    mpi = created(plan(observe(train_job("deepspeed-distributed", trainer={"numNodes": 3}))))
    assert mpi[TargetKind.CONFIG_MAP, "digits-mpi-hostfile"]["data"] == {
        "hostfile": "digits-launcher-0-0.digits slots=1\n"
        "digits-node-0-0.digits slots=1\n"
        "digits-node-0-1.digits slots=1\n"
    }
    (secret,) = [each for (target, _), each in mpi.items() if target is TargetKind.SECRET]
    assert secret["type"] == "kubernetes.io/ssh-auth"
    node = mpi[TargetKind.POD, "digits-node-0-0"]["spec"]
    mounts = node["containers"][0]["volumeMounts"]
    assert [each["mountPath"] for each in mounts] == ["/home/mpiuser/.ssh"]


def test_gang_consists_of_one_phase_at_a_time() -> None:
    world = World(KINDS["TrainJob"].job(3))
    world.settle()
    assert world.group
    assert (world.group.spec.min_member, world.group.spec.min_task_member) == (1, {"prepare": 1})
    assert set(world.pods) == {"train-prepare-0-0"}
    world.start_all()
    world.succeed(world.pods["train-prepare-0-0"])
    world.settle()
    assert (world.group.spec.min_member, world.group.spec.min_task_member) == (3, {"node": 3})
    assert len(world.pods) == 4


def test_launcher_waits_until_its_nodes_are_ready_and_the_gang_starts_without_it() -> None:
    found = created(plan(observe(train_job("deepspeed-distributed", trainer={"numNodes": 3}))))
    pods = sorted(name for target, name in found if target is TargetKind.POD)
    assert pods == ["digits-node-0-0", "digits-node-0-1"]
    assert found[TargetKind.POD_GROUP, "digits"]["spec"]["minTaskMember"] == {"node": 2}


@pytest.mark.parametrize(
    ("managed", "ignored"), [("kueue.x-k8s.io/multikueue", True), (None, False)]
)
def test_a_job_of_another_controller_is_left_alone(managed: str | None, ignored: bool) -> None:
    observed = observe(train_job(managedBy=managed) if managed else train_job())
    found = plan(observed)
    untouched = not found.creations and found.status == observed.status
    assert (untouched, found.kind_status is None) == (ignored, ignored)


def fields(observed: ObservedJob, seconds: float = 0) -> dict[str, Any]:
    found = plan(observed, seconds)
    written: dict[str, Any] = msgspec.to_builtins(
        encode_status(KIND, found.status, found.kind_status or {})
    )
    return written


def test_a_running_job_has_no_condition() -> None:
    world = World(KINDS["TrainJob"].job(1))
    world.settle()
    world.start_all()
    world.succeed(world.pods["train-prepare-0-0"])
    world.settle()
    world.start_all()
    found = world.settle()
    assert found.kind_status is not None
    assert "conditions" not in found.kind_status
    assert found.kind_status["gangline"]["phase"] == "Running"
    assert [each["name"] for each in found.kind_status["jobsStatus"]] == ["prepare", "node"]


def test_suspended_is_reported_when_the_pods_are_gone_and_removed_on_resume() -> None:
    world = World(KINDS["TrainJob"].job(1))
    world.settle()
    world.start_all()
    world.suspend(True)
    first = world.decide().kind_status
    assert first is not None
    assert (first["gangline"]["phase"], first.get("conditions")) == ("Suspending", None)
    world.settle()
    world.finish_terminating()
    gone = world.decide().kind_status
    assert gone is not None
    assert [(each["type"], each["status"]) for each in gone["conditions"]] == [
        ("Suspended", "True")
    ]
    world.suspend(False)
    resumed = world.decide().kind_status
    assert resumed is not None
    assert "conditions" not in resumed


def test_ends_have_upstreams_conditions() -> None:
    world = World(KINDS["TrainJob"].job(1))
    world.calm()
    found = world.decide().kind_status
    assert found is not None
    assert [(each["type"], each["reason"]) for each in found["conditions"]] == [
        ("Complete", "AllJobsCompleted")
    ]
    assert [each["succeeded"] for each in found["jobsStatus"]] == [1, 1]


def test_deadline_is_the_reason_of_a_failure() -> None:
    world = World(KINDS["TrainJob"].job(1, activeDeadlineSeconds=5))
    world.settle()
    world.wait(6)
    world.settle()
    found = world.decide().kind_status
    assert found is not None
    assert [(each["type"], each["reason"]) for each in found["conditions"]] == [
        ("Failed", "DeadlineExceeded")
    ]


def without_runtime(*, is_known: bool) -> ObservedJob:
    written = stored(train_job("mine"))
    job = TrainFramework().read_with_runtime(written, None, is_known=is_known).job
    job = dataclasses.replace(job, meta=msgspec.structs.replace(job.meta, creation_timestamp=NOW))
    return ObservedJob(job, decode_status(KIND, msgspec.Raw(b"{}")))


def test_a_job_waits_for_its_runtime_and_then_fails() -> None:
    observed = without_runtime(is_known=True)
    early = plan(observed, 1)
    assert "conditions" not in (early.kind_status or {})
    assert early.requeue_after == timedelta(seconds=9)
    late = plan(observed, 11).kind_status
    assert late is not None
    (condition,) = late["conditions"]
    assert (condition["type"], condition["reason"]) == ("Failed", "TrainingRuntimeNotSupported")
    assert "mine does not exist" in condition["message"]


def test_a_job_does_not_fail_before_runtimes_are_read() -> None:
    late = plan(without_runtime(is_known=False), 1000)
    assert "conditions" not in (late.kind_status or {})


def test_errors_of_the_runtime_are_errors_of_the_job() -> None:
    job = train_job(trainer={"env": [{"name": "PET_NNODES", "value": "2"}], "numNodes": 0})
    errors = observe(job).spec_errors
    assert "spec.trainer.env[0].name" in errors
    assert "spec.trainer.numNodes" in errors


@pytest.mark.parametrize(("annotation", "seconds"), [(None, 30), ("5", 5)])
def test_time_to_live_of_the_job_replaces_that_of_the_runtime(
    annotation: str | None, seconds: int
) -> None:
    written = train_job()
    if annotation:
        written["metadata"]["annotations"] = {"gangline.dev/ttl-seconds-after-finished": annotation}
    runtime = SHIPPED["torch-distributed"]
    job_set = {**runtime["spec"]["template"]["spec"], "ttlSecondsAfterFinished": 30}
    spec = {**runtime["spec"], "template": {"spec": job_set}}
    copy = runtime_copy({**runtime, "spec": spec})
    job = TrainFramework().read_with_runtime(stored(written), copy, is_known=True).job
    assert job.policy.ttl == timedelta(seconds=seconds)


def test_stored_status_is_read_back() -> None:
    observed = observe(train_job())
    found = plan(observed)
    written = msgspec.json.encode(encode_status(KIND, found.status, found.kind_status or {}))
    assert decode_status(KIND, msgspec.Raw(written)) == found.status
    assert kind_fields(KIND, msgspec.Raw(written)) == found.kind_status
