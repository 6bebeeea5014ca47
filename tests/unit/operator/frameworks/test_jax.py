"""JAXJob: the environment of its processes, and how a job ends."""

import pytest

from gangline.operator.engine import manifests
from gangline.operator.frameworks.jax import JaxFramework
from gangline.operator.model.job import CleanPodPolicy, NormalizedJob, RestartPolicy
from unit.operator.builders import a_pod
from unit.operator.kubeflow_jobs import gang_of, job_manifest, pod_of, read_job, variables


def a_job(workers: int | None = 3) -> NormalizedJob:
    return read_job(JaxFramework(), job_manifest("JAXJob", {"Worker": workers}))


@pytest.mark.parametrize("index", [0, 2])
def test_each_process_learns_where_they_meet_and_which_it_is(index):
    assert variables(pod_of(a_job(), f"worker-{index}")) == [
        ("PYTHONUNBUFFERED", "1"),
        ("COORDINATOR_PORT", "6666"),
        ("COORDINATOR_ADDRESS", "train-worker-0"),
        ("NUM_PROCESSES", "3"),
        ("PROCESS_ID", str(index)),
    ]


def test_a_port_of_the_kinds_name_is_where_they_meet():
    written = job_manifest("JAXJob", {"Worker": 2})
    container = written["spec"]["jaxReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    container["ports"] = [{"name": "jaxjob-port", "containerPort": 1234}]
    job = read_job(JaxFramework(), written)
    assert ("COORDINATOR_PORT", "1234") in variables(pod_of(job, "worker-1"))
    assert (
        manifests.build_service(job, job.roles[0], 0).manifest["spec"]["ports"][0]["port"] == 1234
    )


def test_a_missing_port_is_added():
    assert pod_of(a_job(), "worker-0")["spec"]["containers"][0]["ports"] == [
        {"name": "jaxjob-port", "containerPort": 6666}
    ]


def test_every_container_gets_the_environment():
    written = job_manifest("JAXJob", {"Worker": 1})
    pod = written["spec"]["jaxReplicaSpecs"]["Worker"]["template"]["spec"]
    pod["containers"].append({"name": "sidecar", "image": "x"})
    pod = pod_of(read_job(JaxFramework(), written), "worker-0")
    assert variables(pod, 0) == variables(pod, 1)


def test_defaults_equal_upstreams():
    (role,) = a_job(None).roles
    assert (role.replicas, role.restart) == (1, RestartPolicy.NEVER)
    assert a_job().policy.clean_pods is CleanPodPolicy.NONE


def test_the_first_process_leads():
    label = "training.kubeflow.org/job-role"
    labelled = [label in pod_of(a_job(), f"worker-{i}")["metadata"]["labels"] for i in range(3)]
    assert labelled == [True, False, False]


@pytest.mark.parametrize(
    ("phases", "succeeded", "running"),
    [
        (["Succeeded", "Succeeded", "Succeeded"], True, False),
        (["Succeeded", "Running", "Succeeded"], False, True),
        (["Pending", "Running"], False, True),
        (["Pending", "Pending"], False, False),
        ([], False, False),
    ],
)
def test_all_processes_have_to_succeed(phases, succeeded, running):
    job = a_job()
    gang = gang_of(job, *(a_pod(f"worker-{i}", phase) for i, phase in enumerate(phases)))
    assert job.rules.has_succeeded(job, gang) is succeeded
    assert job.rules.is_running(job, gang) is running
