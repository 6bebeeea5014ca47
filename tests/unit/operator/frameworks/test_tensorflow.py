"""TFJob: the environment of its replicas, and how a job ends."""

from itertools import product
from typing import Any

import pytest

from gangline.operator.frameworks.tensorflow import TensorFlowFramework
from gangline.operator.model.job import (
    NormalizedJob,
    ToleratesFailures,
)
from unit.operator.builders import a_pod
from unit.operator.kubeflow_jobs import (
    gang_of,
    job_manifest,
    pod_of,
    read_job,
    tf_config,
    variables,
)


def a_job(
    *, domain: str = "", spec: dict[str, Any] | None = None, **roles: int | None
) -> NormalizedJob:
    return read_job(TensorFlowFramework(domain), job_manifest("TFJob", roles, **(spec or {})))


DYNAMIC = {"enableDynamicWorker": True}


def test_the_variable_is_upstreams_to_the_byte():
    job = a_job(Worker=2, PS=1)
    assert variables(pod_of(job, "worker-1")) == [
        (
            "TF_CONFIG",
            '{"cluster":{"ps":["train-ps-0.team.svc:2222"],'
            '"worker":["train-worker-0.team.svc:2222","train-worker-1.team.svc:2222"]},'
            '"task":{"type":"worker","index":1},"environment":"cloud"}',
        )
    ]


def test_dynamic_worker_gets_exactly_itself_and_the_servers():
    job = a_job(Worker=3, PS=2, spec=DYNAMIC)
    assert variables(pod_of(job, "worker-2")) == [
        (
            "TF_CONFIG",
            '{"cluster":{"worker":{"2":"train-worker-2.team.svc:2222"},'
            '"ps":["train-ps-0.team.svc:2222","train-ps-1.team.svc:2222"]},'
            '"task":{"type":"worker","index":2}}',
        )
    ]


@pytest.mark.parametrize(
    ("name", "cluster"),
    [
        ("ps-1", {"worker": {}, "ps": ["train-ps-1.team.svc:2222"]}),
        ("chief-0", {"worker": {}, "ps": []}),
        ("evaluator-0", {"worker": {}, "ps": []}),
    ],
)
def test_other_roles_of_a_dynamic_job_get_a_small_cluster(name, cluster):
    job = a_job(Chief=1, Worker=1, PS=2, Evaluator=1, spec=DYNAMIC)
    role, _, index = name.rpartition("-")
    assert tf_config(job, name) == {
        "cluster": cluster,
        "task": {"type": role, "index": int(index)},
    }


def test_all_five_roles_are_known_and_listed_by_name():
    job = a_job(Worker=1, Chief=1, Evaluator=1, PS=1)
    reported = tf_config(job, "evaluator-0")
    assert list(reported["cluster"]) == ["chief", "evaluator", "ps", "worker"]
    assert reported["task"] == {"type": "evaluator", "index": 0}
    assert list(tf_config(a_job(Worker=1, Master=1), "master-0")["cluster"]) == ["master", "worker"]


@pytest.mark.parametrize("role", ["Worker", "Chief", "Master"])
@pytest.mark.parametrize("domain", ["", "cluster.local"])
def test_job_of_one_replica_gets_no_tf_config(role, domain):
    job = a_job(domain=domain, **{role: 1})
    assert variables(pod_of(job, f"{role.lower()}-0")) == []


def test_a_role_without_replicas_is_not_part_of_the_cluster():
    job = a_job(Worker=2, PS=0)
    assert list(tf_config(job, "worker-0")["cluster"]) == ["worker"]
    assert variables(pod_of(a_job(Worker=1, PS=0), "worker-0")) == []


def test_the_clusters_domain_is_appended_where_it_is_set():
    job = a_job(Worker=1, PS=1, Evaluator=1, domain="cluster.local")
    assert tf_config(job, "worker-0")["cluster"] == {
        "evaluator": ["train-evaluator-0.team.svc.cluster.local:2222"],
        "ps": ["train-ps-0.team.svc.cluster.local:2222"],
        "worker": ["train-worker-0.team.svc.cluster.local:2222"],
    }
    sparse = a_job(Worker=1, PS=1, domain="cluster.local", spec=DYNAMIC)
    assert tf_config(sparse, "worker-0")["cluster"]["ps"] == [
        "train-ps-0.team.svc.cluster.local:2222"
    ]


def test_each_role_is_found_at_its_own_port():
    written = job_manifest("TFJob", {"Worker": 1, "PS": 1})
    container = written["spec"]["tfReplicaSpecs"]["PS"]["template"]["spec"]["containers"][0]
    container["ports"] = [{"name": "tfjob-port", "containerPort": 3333}]
    job = read_job(TensorFlowFramework(), written)
    assert tf_config(job, "worker-0")["cluster"] == {
        "ps": ["train-ps-0.team.svc:3333"],
        "worker": ["train-worker-0.team.svc:2222"],
    }


def test_only_the_main_container_gets_the_environment():
    written = job_manifest("TFJob", {"Worker": 2})
    pod = written["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
    pod["containers"].insert(0, {"name": "sidecar", "image": "x"})
    job = read_job(TensorFlowFramework(), written)
    assert variables(pod_of(job, "worker-0"), 0) == []
    assert [name for name, _ in variables(pod_of(job, "worker-0"), 1)] == ["TF_CONFIG"]


DONE, FAILED, RUNS = "Succeeded", "Failed", "Running"


def rules_of(job: NormalizedJob) -> ToleratesFailures:
    assert isinstance(job.rules, ToleratesFailures)
    return job.rules


@pytest.mark.parametrize(
    ("dynamic", "role", "restart", "tolerated"),
    [
        (True, "Worker", "Never", True),
        (False, "Worker", "Never", False),
        (True, "PS", "Never", False),
        (True, "Chief", "Never", False),
        (True, "Worker", "OnFailure", False),
        (True, "Worker", "ExitCode", False),
    ],
)
def test_a_dynamic_job_does_without_workers_that_are_not_restarted(
    dynamic, role, restart, tolerated
):
    manifest = job_manifest(
        "TFJob", {"Chief": 1, "PS": 1, "Worker": 2}, enableDynamicWorker=dynamic
    )
    manifest["spec"]["tfReplicaSpecs"][role]["restartPolicy"] = restart
    job = read_job(TensorFlowFramework(), manifest)
    declared = job.find_role(role)
    assert declared
    assert rules_of(job).tolerates_failures(job, declared) is tolerated


@pytest.mark.parametrize("policy", ["", "AllWorkers"])
def test_a_dynamic_job_comes_to_one_end_and_not_before_there_is_one(policy):
    job = a_job(Worker=3, PS=1, spec={**DYNAMIC, "successPolicy": policy})
    phases = [None, "Pending", RUNS, DONE, FAILED]
    for workers in product(phases, repeat=3):
        pods = [a_pod(f"worker-{i}", phase) for i, phase in enumerate(workers) if phase]
        gang = gang_of(job, *pods)
        ends = job.rules.has_succeeded(job, gang), bool(rules_of(job).failure_reason(job, gang))
        over = all(phase in (DONE, FAILED) for phase in workers)
        assert sum(ends) <= 1, workers
        assert any(ends) or not over, workers
        assert not ends[1] or over, workers


@pytest.mark.parametrize(
    ("dynamic", "restart"), [(False, "OnFailure"), (False, "Never"), (True, "OnFailure")]
)
def test_a_worker_that_will_be_replaced_can_still_succeed(dynamic, restart):
    manifest = job_manifest("TFJob", {"PS": 1, "Worker": 2}, enableDynamicWorker=dynamic)
    manifest["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] = restart
    job = read_job(TensorFlowFramework(), manifest)
    gang = gang_of(job, a_pod("worker-0", FAILED), a_pod("worker-1", DONE))
    assert rules_of(job).failure_reason(job, gang) == ""


def test_a_dynamic_job_with_a_chief_is_its_chiefs_affair():
    job = a_job(Chief=1, Worker=1, spec=DYNAMIC)
    gang = gang_of(job, a_pod("chief-0", RUNS), a_pod("worker-0", FAILED))
    assert rules_of(job).failure_reason(job, gang) == ""
