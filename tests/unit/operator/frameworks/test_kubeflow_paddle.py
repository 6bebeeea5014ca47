"""Kubeflow's PaddleJob: the environment of its replicas, and how a job ends."""

from typing import Any

import pytest

from gangline.operator.frameworks.kubeflow_paddle import KubeflowPaddleFramework
from gangline.operator.model.job import CleanPodPolicy, NormalizedJob, OwnsObjects, RestartPolicy
from gangline.operator.model.replicas import ReplicaGang
from unit.operator.builders import a_pod, stored
from unit.operator.kubeflow_jobs import gang_of, job_manifest, pod_of, read_job

MASTER_LABEL = "training.kubeflow.org/job-role"


def a_job(spec: dict[str, Any] | None = None, **roles: int | None) -> NormalizedJob:
    return read_job(KubeflowPaddleFramework(), job_manifest("PaddleJob", roles, **(spec or {})))


def environment(job: NormalizedJob, name: str) -> list[tuple[str, str]]:
    """The variables of a replica, a reference to the pod by its path."""
    return [
        (variable["name"], variable.get("value") or variable["valueFrom"]["fieldRef"]["fieldPath"])
        for variable in pod_of(job, name)["spec"]["containers"][0]["env"]
    ]


def test_workers_meet_at_the_first_of_them() -> None:
    job = a_job(Worker=2)
    common = [("PYTHONUNBUFFERED", "1"), ("PADDLE_JOB_ID", "train"), ("PADDLE_NNODES", "2")]
    assert environment(job, "worker-0") == [
        *common,
        ("POD_IP_DUMMY", "status.podIP"),
        ("PADDLE_MASTER", "$(POD_IP_DUMMY):36543"),
    ]
    assert environment(job, "worker-1") == [*common, ("PADDLE_MASTER", "train-worker-0:36543")]


def test_with_servers_all_meet_at_the_first_server() -> None:
    job = a_job(Master=2, Worker=1)
    common = [("PYTHONUNBUFFERED", "1"), ("PADDLE_JOB_ID", "train"), ("PADDLE_NNODES", "3")]
    assert environment(job, "master-0")[3:] == [
        ("POD_IP_DUMMY", "status.podIP"),
        ("PADDLE_MASTER", "$(POD_IP_DUMMY):36543"),
        ("PADDLE_SERVER_NUM", "1"),
    ]
    remote = ("PADDLE_MASTER", "train-master-0:36543")
    assert environment(job, "master-1") == [*common, remote, ("PADDLE_SERVER_NUM", "1")]
    assert environment(job, "worker-0") == [*common, remote, ("PADDLE_TRAINER_NUM", "1")]


def test_the_rendezvous_has_the_port_of_its_own_role() -> None:
    written = job_manifest("PaddleJob", {"Master": 1, "Worker": 1})
    container = written["spec"]["paddleReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]
    container["ports"] = [{"name": "master", "containerPort": 7777}]
    job = read_job(KubeflowPaddleFramework(), written)
    assert ("PADDLE_MASTER", "train-master-0:7777") in environment(job, "worker-0")


def test_defaults_equal_upstreams() -> None:
    job = a_job(Master=None, Worker=None)
    assert [(role.replicas, role.restart) for role in job.roles] == [
        (1, RestartPolicy.ON_FAILURE)
    ] * 2
    assert job.policy.clean_pods is CleanPodPolicy.NONE
    assert pod_of(job, "worker-0")["spec"]["containers"][0]["ports"] == [
        {"name": "master", "containerPort": 36543}
    ]
    assert MASTER_LABEL in pod_of(job, "master-0")["metadata"]["labels"]
    assert MASTER_LABEL not in pod_of(job, "worker-0")["metadata"]["labels"]


@pytest.mark.parametrize(
    ("pods", "succeeded", "running"),
    [
        ({"master-0": "Succeeded", "worker-0": "Running"}, True, False),
        ({"master-0": "Running", "worker-0": "Succeeded"}, False, True),
        ({"worker-0": "Succeeded", "worker-1": "Running"}, False, True),
        ({"worker-0": "Succeeded", "worker-1": "Succeeded"}, True, False),
    ],
)
def test_servers_decide_or_else_all_workers(
    pods: dict[str, str], succeeded: bool, running: bool
) -> None:
    roles = [name.partition("-")[0].capitalize() for name in pods]
    job = a_job(**{role: roles.count(role) for role in roles})
    gang = gang_of(job, *(a_pod(name, phase) for name, phase in pods.items()))
    assert job.rules.has_succeeded(job, gang) is succeeded
    assert job.rules.is_running(job, gang) is running


def test_an_elastic_job_restarts_when_its_size_changes_and_is_scaled_by_its_metrics() -> None:
    metric = {"type": "Resource", "resource": {"name": "cpu"}}
    policy = {"minReplicas": 1, "maxReplicas": 4, "maxRestarts": 2, "metrics": [metric]}
    job = a_job({"elasticPolicy": policy}, Worker=2)
    assert job.restart_on_resize
    assert environment(job, "worker-1")[-1] == ("PADDLE_MAX_RESTART", "2")
    assert isinstance(job.rules, OwnsObjects)
    (scaler,) = job.rules.owned_objects(job, ReplicaGang({}, (), {}))
    assert scaler["spec"] == {
        "scaleTargetRef": {"apiVersion": "kubeflow.org/v1", "kind": "PaddleJob", "name": "train"},
        "minReplicas": 1,
        "maxReplicas": 4,
        "metrics": [metric],
    }
    rigid = a_job(Worker=2)
    assert not rigid.restart_on_resize
    assert isinstance(rigid.rules, OwnsObjects)
    assert not rigid.rules.owned_objects(rigid, ReplicaGang({}, (), {}))


@pytest.mark.parametrize(
    ("roles", "spec", "reported"),
    [
        ({"Worker": 1, "PS": 1}, {}, "is not a role"),
        ({"Worker": 0}, {}, "without pods"),
        ({"Master": 1}, {"elasticPolicy": {}}, "no workers to add"),
        ({"Worker": 1}, {"elasticPolicy": {"minReplicas": 2}}, "less than minReplicas 2"),
        ({"Worker": 1}, {"runPolicy": {"managedBy": "me"}}, "managedBy"),
        ({}, {}, "Pods by role"),
    ],
)
def test_mistakes_are_reported(
    roles: dict[str, int | None], spec: dict[str, Any], reported: str
) -> None:
    reading = KubeflowPaddleFramework().read(stored(job_manifest("PaddleJob", roles, **spec)))
    assert reported in reading.spec_errors
