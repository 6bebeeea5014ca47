"""XGBoostJob: the environment of its replicas, and how a job ends."""

import pytest

from gangline.operator.frameworks.xgboost import XGBoostFramework
from gangline.operator.model.job import CleanPodPolicy, NormalizedJob, RestartPolicy
from unit.operator.builders import a_pod
from unit.operator.kubeflow_jobs import gang_of, job_manifest, pod_of, read_job, variables


def a_job(**roles: int | None) -> NormalizedJob:
    return read_job(XGBoostFramework(), job_manifest("XGBoostJob", roles))


@pytest.mark.parametrize(
    ("name", "rank"), [("master-0", "0"), ("worker-0", "1"), ("worker-1", "2")]
)
def test_each_replica_learns_of_the_tracker_and_of_the_workers(name, rank):
    assert variables(pod_of(a_job(Master=1, Worker=2), name)) == [
        ("MASTER_PORT", "9999"),
        ("MASTER_ADDR", "train-master-0"),
        ("WORLD_SIZE", "3"),
        ("RANK", rank),
        ("PYTHONUNBUFFERED", "1"),
        ("WORKER_PORT", "9999"),
        ("WORKER_ADDRS", "train-worker-0,train-worker-1"),
    ]


def test_master_alone_gets_no_workers():
    for job in (a_job(Master=1), a_job(Master=1, Worker=0)):
        assert variables(pod_of(job, "master-0")) == [
            ("MASTER_PORT", "9999"),
            ("MASTER_ADDR", "train-master-0"),
            ("WORLD_SIZE", "1"),
            ("RANK", "0"),
            ("PYTHONUNBUFFERED", "1"),
        ]


def test_each_role_is_found_at_its_own_port():
    written = job_manifest("XGBoostJob", {"Master": 1, "Worker": 1})
    for role, port in (("Master", 1111), ("Worker", 2222)):
        spec = written["spec"]["xgbReplicaSpecs"][role]["template"]["spec"]
        spec["containers"][0]["ports"] = [{"name": "xgboostjob-port", "containerPort": port}]
    reported = dict(variables(pod_of(read_job(XGBoostFramework(), written), "worker-0")))
    assert (reported["MASTER_PORT"], reported["WORKER_PORT"]) == ("1111", "2222")


def test_defaults_equal_upstreams():
    job = a_job(Master=None, Worker=None)
    assert [(role.replicas, role.restart) for role in job.roles] == [(1, RestartPolicy.NEVER)] * 2
    assert job.policy.clean_pods is CleanPodPolicy.NONE
    assert pod_of(job, "worker-0")["spec"]["containers"][0]["ports"] == [
        {"name": "xgboostjob-port", "containerPort": 9999}
    ]


def test_the_master_leads():
    label = "training.kubeflow.org/job-role"
    job = a_job(Master=1, Worker=1)
    assert label in pod_of(job, "master-0")["metadata"]["labels"]
    assert label not in pod_of(job, "worker-0")["metadata"]["labels"]


@pytest.mark.parametrize(
    ("pods", "succeeded", "running"),
    [
        ({"master-0": "Succeeded", "worker-0": "Running"}, True, False),
        ({"master-0": "Running", "worker-0": "Succeeded"}, False, True),
        ({"master-0": "Pending", "worker-0": "Running"}, False, False),
    ],
)
def test_the_master_decides(pods, succeeded, running):
    job = a_job(Master=1, Worker=1)
    gang = gang_of(job, *(a_pod(name, phase) for name, phase in pods.items()))
    assert job.rules.has_succeeded(job, gang) is succeeded
    assert job.rules.is_running(job, gang) is running
