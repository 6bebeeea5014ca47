"""TrainJobs: pods, phases of the gang, objects, and the status that upstream's clients read."""

import copy
import dataclasses
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from gangline.api.jobs.kubeflow import JobStatus, ReplicaStatus
from gangline.api.jobs.train import TrainJob
from gangline.api.meta.conditions import find_condition
from gangline.api.volcano.scheduling import JOINING_PODS_ANNOTATION
from gangline.operator.engine.plan import plan_reconcile
from gangline.operator.engine.status import decode_status, encode_status, kind_fields
from gangline.operator.frameworks.train.framework import KIND, TrainFramework
from gangline.operator.model.plan import ObservedJob, ReconcilePlan, TargetKind
from gangline.operator.model.replicas import ObservedContainerStatus
from gangline.operator.policies.replica_tracker import tracker_of
from unit.api.trainer.jobs import SHIPPED, train_job
from unit.operator.builders import NOW, a_pod, stored
from unit.operator.kinds import KINDS
from unit.operator.train_jobs import runtime_copy
from unit.operator.world import SETTINGS, World

COPY = (TargetKind.CONFIG_MAP, "digits-runtime-snapshot")


def observe(
    written: dict[str, Any],
    *,
    copied: bool = True,
    job_set: dict[str, Any] | None = None,
    policy: dict[str, Any] | None = None,
    jobs: list[dict[str, Any]] | None = None,
    **observed: Any,
) -> ObservedJob:
    """A job of a shipped runtime, with other fields of its JobSet or of the runtime itself."""
    runtime = copy.deepcopy(SHIPPED[written["spec"]["runtimeRef"]["name"]])
    runtime["spec"] |= policy or {}
    runtime["spec"]["template"]["spec"] |= job_set or {}
    if jobs is not None:
        runtime["spec"]["template"]["spec"]["replicatedJobs"] = jobs
    given = runtime_copy(runtime, stored=copied)
    parsed = TrainFramework().read_with_runtime(stored(written), given, is_known=True)
    status = decode_status(KIND, msgspec.Raw(b"{}"))
    return ObservedJob(parsed.job, status, spec_errors=parsed.spec_errors, **observed)


def replicated_jobs(runtime: str) -> list[dict[str, Any]]:
    """A copy of the replicated jobs of a shipped runtime."""
    jobs: list[dict[str, Any]] = SHIPPED[runtime]["spec"]["template"]["spec"]["replicatedJobs"]
    return copy.deepcopy(jobs)


def plan(observed: ObservedJob, seconds: float = 0) -> ReconcilePlan:
    return plan_reconcile(observed, NOW + timedelta(seconds=seconds), SETTINGS)


def created(decision: ReconcilePlan) -> dict[tuple[TargetKind, str], dict[str, Any]]:
    return {(creation.target, creation.name): creation.manifest for creation in decision.creations}


def test_pods_have_the_names_and_labels_of_a_job_set() -> None:
    made = created(plan(observe(train_job(trainer={"numNodes": 2}))))
    pod = made[TargetKind.POD, "digits-node-0-1"]
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


def test_runtime_may_leave_host_names_to_the_pods() -> None:
    made = created(plan(observe(train_job(), job_set={"network": {"enableDNSHostnames": False}})))
    assert "hostname" not in made[TargetKind.POD, "digits-node-0-0"]["spec"]


def test_address_of_the_coordinator_is_a_label_of_all_pods() -> None:
    job_set = {"coordinator": {"replicatedJob": "node", "podIndex": 1}}
    made = created(plan(observe(train_job(trainer={"numNodes": 2}), job_set=job_set)))
    for index in range(2):
        meta = made[TargetKind.POD, f"digits-node-0-{index}"]["metadata"]
        for field in ("labels", "annotations"):
            assert meta[field]["jobset.sigs.k8s.io/coordinator"] == "digits-node-0-1.digits"


def test_each_role_has_its_own_limit_of_restarts() -> None:
    """A limit of the initializer is not used up by the nodes, nor the reverse."""
    jobs = replicated_jobs("torchtune-llama3.2-1b")
    jobs[0]["template"]["spec"]["backoffLimit"] = 0
    observed = observe(train_job("torchtune-llama3.2-1b"), jobs=jobs)
    limits = {role.name: role.backoff_limit for role in observed.job.roles}
    assert limits == {"dataset-initializer": 0, "model-initializer": 6, "node": 6}
    limit = "failed 1 time: its backoff limit allows no restarts"
    for role, reason in (("model-initializer", ""), ("dataset-initializer", limit)):
        failed = a_pod(f"{role}-0", "Failed", code=1, job="digits")
        status = plan(dataclasses.replace(observed, pods=[failed])).status
        condition = find_condition(status.conditions, "Failed")
        assert bool(condition) is bool(reason)
        assert status.restarts.roles == {role: 1}
        if condition:
            assert f"its role {role}" in condition.message
            assert reason in condition.message


def test_limits_of_roles_are_not_used_where_all_pods_restart() -> None:
    observed = observe(train_job(), job_set={"failurePolicy": {"maxRestarts": 2}})
    assert observed.job.restarts_together
    assert observed.job.policy.backoff_limit == 2
    assert [role.backoff_limit for role in observed.job.roles] == [None]


def test_one_headless_service_names_all_pods() -> None:
    made = created(plan(observe(train_job(trainer={"numNodes": 3}))))
    services = [name for target, name in made if target is TargetKind.SERVICE]
    assert services == ["digits"]
    assert made[TargetKind.SERVICE, "digits"]["spec"] == {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"jobset.sigs.k8s.io/jobset-name": "digits"},
    }


def test_no_pod_exists_before_the_copy_of_its_runtime() -> None:
    made = created(plan(observe(train_job(), copied=False)))
    assert COPY in made
    assert not any(target is TargetKind.POD for target, _ in made)
    copy = made[COPY]
    assert copy["immutable"] is True
    assert msgspec.json.decode(copy["data"]["runtime"]) == SHIPPED["torch-distributed"]


def test_a_suspended_job_has_the_copy_of_its_runtime_and_nothing_else() -> None:
    made = created(plan(observe(train_job(suspend=True), copied=False)))
    assert list(made) == [COPY]


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
    (secret,) = [item for (target, _), item in mpi.items() if target is TargetKind.SECRET]
    assert secret["type"] == "kubernetes.io/ssh-auth"
    node = mpi[TargetKind.POD, "digits-node-0-0"]["spec"]
    mounts = node["containers"][0]["volumeMounts"]
    assert [mount["mountPath"] for mount in mounts] == ["/home/mpiuser/.ssh"]


def test_private_key_in_the_folder_of_root_is_readable_by_its_owner_alone() -> None:
    def mode(path: str | None) -> int:
        policy = {"numNodes": 1, "mpi": {"sshAuthMountPath": path} if path else {}}
        job = train_job("deepspeed-distributed", trainer={"numNodes": 2})
        observed = observe(job, policy={"mlPolicy": policy})
        pod = created(plan(observed))[TargetKind.POD, "digits-node-0-0"]
        (volume,) = [mounted for mounted in pod["spec"]["volumes"] if "secret" in mounted]
        items = {item["path"]: item for item in volume["secret"]["items"]}
        return int(items["id_rsa"].get("mode", volume["secret"].get("defaultMode", 0)))

    assert mode(None) == 0o600
    assert mode("/home/mpiuser/.ssh") == 0o640


def test_topology_of_the_runtime_is_that_of_the_gang() -> None:
    policy = {"podGroupPolicy": {"volcano": {"networkTopology": {"mode": "soft"}}}}
    group = created(plan(observe(train_job(), policy=policy)))[TargetKind.POD_GROUP, "digits"]
    assert group["spec"]["networkTopology"] == {"mode": "soft", "highestTierAllowed": 1}


def test_gang_consists_of_one_phase_at_a_time() -> None:
    """trainjob-7"""
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
    made = created(plan(observe(train_job("deepspeed-distributed", trainer={"numNodes": 3}))))
    pods = sorted(name for target, name in made if target is TargetKind.POD)
    assert pods == ["digits-node-0-0", "digits-node-0-1"]
    assert made[TargetKind.POD_GROUP, "digits"]["spec"]["minTaskMember"] == {"node": 2}


def test_mpi_job_of_one_node_is_a_launcher_that_waits_for_no_pod() -> None:
    observed = observe(train_job("deepspeed-distributed"))
    made = created(plan(observed))
    assert [name for target, name in made if target is TargetKind.POD] == ["digits-launcher-0-0"]
    assert made[TargetKind.POD_GROUP, "digits"]["spec"]["minTaskMember"] == {"launcher": 1}
    assert (TargetKind.SERVICE, "digits") in made
    assert made[TargetKind.CONFIG_MAP, "digits-mpi-hostfile"]["data"] == {
        "hostfile": "digits-launcher-0-0.digits slots=1\n"
    }
    # Kueue waits until the counts of ready and succeeded jobs are those of the runtime.
    running = a_pod("launcher-0", job="digits")
    ready = msgspec.structs.replace(
        running.status, container_statuses=(ObservedContainerStatus(ready=True),)
    )
    pods = [msgspec.structs.replace(running, status=ready)]
    status = plan(dataclasses.replace(observed, pods=pods)).kind_status
    assert status is not None
    assert [(step["name"], step["ready"]) for step in status["jobsStatus"]] == [
        ("node", 1), ("launcher", 1),
    ]  # fmt: skip
    ended = dataclasses.replace(observed, pods=[a_pod("launcher-0", "Succeeded", job="digits")])
    assert find_condition(plan(ended).status.conditions, "Succeeded")


def test_launcher_leads_in_labels_and_lists() -> None:
    job = observe(train_job("deepspeed-distributed", trainer={"numNodes": 3})).job
    leads = [role.name for role in job.roles if job.rules.is_master(job, role, 0)]
    assert leads == ["launcher"]
    roles: dict[str, Any] = {"cache": {}, "launcher": {}, "node": {}}
    listed = {**train_job(), "status": {"gangline": {"roles": roles}}}
    assert list(msgspec.convert(listed, TrainJob).replica_specs()) == ["launcher", "node", "cache"]


def test_each_replica_of_a_job_without_step_has_its_batch_job() -> None:
    jobs = replicated_jobs("torch-distributed")
    side = copy.deepcopy(jobs[0])
    side |= {"name": "cache", "replicas": 2}
    side["template"].pop("metadata")
    side["template"]["spec"]["parallelism"] = 2
    side["template"]["spec"]["template"]["spec"]["containers"][0]["name"] = "server"
    observed = observe(train_job(), jobs=[*jobs, side])
    made = created(plan(observed))
    pods = [name for target, name in made if target is TargetKind.POD]
    servers = [f"digits-cache-{job}-{pod}" for job in range(2) for pod in range(2)]
    assert (observed.spec_errors, pods) == ("", ["digits-node-0-0", *servers])
    labels = made[TargetKind.POD, "digits-cache-1-0"]["metadata"]["labels"]
    expected = {
        "jobset.sigs.k8s.io/replicatedjob-replicas": "2",
        "jobset.sigs.k8s.io/global-replicas": "3",
        "jobset.sigs.k8s.io/job-index": "1",
        "jobset.sigs.k8s.io/job-global-index": "2",
        "batch.kubernetes.io/job-name": "digits-cache-1",
        "batch.kubernetes.io/job-completion-index": "0",
    }
    assert expected.items() <= labels.items()
    ended = [a_pod(f"cache-{index}", "Succeeded", job="digits") for index in range(3)]
    status = plan(dataclasses.replace(observed, pods=ended)).kind_status
    assert status is not None
    assert [step["succeeded"] for step in status["jobsStatus"]] == [0, 1]


def test_resources_of_the_launcher_are_reserved_with_those_of_its_nodes() -> None:
    limits = {"limits": {"cpu": "4"}}
    job = train_job(
        "deepspeed-distributed", trainer={"numNodes": 3, "env": [{"name": "A", "value": "long"}],
                                          "resourcesPerNode": limits}
    )  # fmt: skip
    group = created(plan(observe(job)))[TargetKind.POD_GROUP, "digits"]
    assert group["spec"]["minMember"] == 2
    assert group["spec"]["minResources"] == {"cpu": "12"}
    (joining,) = msgspec.json.decode(group["metadata"]["annotations"][JOINING_PODS_ANNOTATION])
    container = {"name": "node", "resources": limits}
    assert joining == {
        "names": ["digits-launcher-0-0"],
        "role": "launcher",
        "spec": {"containers": [container]},
    }


def test_only_a_launcher_of_the_present_phase_is_reserved() -> None:
    jobs = replicated_jobs("deepspeed-distributed")
    jobs.insert(0, replicated_jobs("torchtune-llama3.2-1b")[0])
    jobs[1]["dependsOn"] = [{"name": "dataset-initializer", "status": "Complete"}]
    job = train_job("deepspeed-distributed", trainer={"numNodes": 2})
    parsed = observe(job, jobs=jobs).job

    def joining(status: JobStatus) -> dict[str, tuple[int, bool]]:
        roles = tracker_of(parsed).restore_from_status(parsed, status).roles
        return {role.name: (role.min_replicas, role.joins_later) for role in roles}

    fetched = ReplicaStatus(completed_indexes="0")
    assert joining(JobStatus()) == {
        "dataset-initializer": (1, False), "node": (0, False), "launcher": (0, False),
    }  # fmt: skip
    assert joining(JobStatus(replica_statuses={"dataset-initializer": fetched})) == {
        "dataset-initializer": (0, False), "node": (1, False), "launcher": (0, True),
    }  # fmt: skip


def test_role_that_waits_for_ready_pods_is_not_counted_under_any_policy() -> None:
    jobs = replicated_jobs("torch-distributed")
    cache = copy.deepcopy(jobs[0])
    cache["name"] = "cache"
    del cache["template"]["metadata"]
    jobs.insert(0, cache)
    jobs[1]["dependsOn"] = [{"name": "cache", "status": "Ready"}]
    observed = observe(train_job(trainer={"numNodes": 2}), jobs=jobs)
    group = created(plan(observed))[TargetKind.POD_GROUP, "digits"]
    assert group["spec"]["minTaskMember"] == {"cache": 1}
    (joining,) = msgspec.json.decode(group["metadata"]["annotations"][JOINING_PODS_ANNOTATION])
    assert joining["names"] == ["digits-node-0-0", "digits-node-0-1"]


@pytest.mark.parametrize(
    ("status", "ignored"),
    [
        ({"jobsStatus": [{"name": "node", "active": 1}]}, True),
        ({"jobsStatus": [{"name": "node", "active": 1}], "gangline": {"phase": "Running"}}, False),
        ({}, False),
    ],
)
def test_job_that_upstream_has_started_is_left_to_its_job_set(
    status: dict[str, Any], ignored: bool
) -> None:
    """trainjob-11"""
    raw = msgspec.structs.replace(
        stored(train_job()), status=msgspec.Raw(msgspec.json.encode(status))
    )
    copy = runtime_copy(SHIPPED["torch-distributed"], stored=False)
    parsed = TrainFramework().read_with_runtime(raw, copy, is_known=True)
    observed = ObservedJob(parsed.job, decode_status(KIND, raw.status))
    decision = plan(observed)
    untouched = not decision.creations and decision.status == observed.status
    assert (untouched, decision.kind_status is None) == (ignored, ignored)


def fields(observed: ObservedJob, seconds: float = 0) -> dict[str, Any]:
    decision = plan(observed, seconds)
    written: dict[str, Any] = msgspec.to_builtins(
        encode_status(KIND, decision.status, decision.kind_status or {})
    )
    return written


def test_a_running_job_has_no_condition() -> None:
    world = World(KINDS["TrainJob"].job(1))
    world.settle()
    world.start_all()
    world.succeed(world.pods["train-prepare-0-0"])
    world.settle()
    world.start_all()
    decision = world.settle()
    assert decision.kind_status is not None
    assert "conditions" not in decision.kind_status
    assert decision.kind_status["gangline"]["phase"] == "Running"
    assert [step["name"] for step in decision.kind_status["jobsStatus"]] == ["prepare", "node"]


def test_ends_have_upstreams_conditions() -> None:
    world = World(KINDS["TrainJob"].job(1))
    world.calm()
    shown = world.decide().kind_status
    assert shown is not None
    assert [(condition["type"], condition["reason"]) for condition in shown["conditions"]] == [
        ("Complete", "AllJobsCompleted")
    ]
    assert [step["succeeded"] for step in shown["jobsStatus"]] == [1, 1]


def test_deadline_is_the_reason_of_a_failure() -> None:
    world = World(KINDS["TrainJob"].job(1, activeDeadlineSeconds=5))
    world.settle()
    world.wait(6)
    world.settle()
    shown = world.decide().kind_status
    assert shown is not None
    assert [(condition["type"], condition["reason"]) for condition in shown["conditions"]] == [
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
    job = observe(written, job_set={"ttlSecondsAfterFinished": 30}).job
    assert job.policy.ttl == timedelta(seconds=seconds)


def test_stored_status_is_read_back() -> None:
    observed = observe(train_job())
    decision = plan(observed)
    written = msgspec.json.encode(encode_status(KIND, decision.status, decision.kind_status or {}))
    assert decode_status(KIND, msgspec.Raw(written)) == decision.status
    assert kind_fields(KIND, msgspec.Raw(written)) == decision.kind_status
