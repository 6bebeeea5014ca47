"""The kinds with replica specs: defaults, who leads and who decides.

The environments are those of JAXJob, XGBoostJob and Kubeflow's PaddleJob.
"""

from typing import Any

import pytest

from gangline.operator.engine import manifests
from gangline.operator.frameworks.jax import JaxFramework
from gangline.operator.frameworks.kubeflow_paddle import KubeflowPaddleFramework
from gangline.operator.frameworks.mindspore import MindSporeFramework
from gangline.operator.frameworks.mpi.framework import MPIFramework
from gangline.operator.frameworks.tensorflow import TensorFlowFramework
from gangline.operator.frameworks.xgboost import XGBoostFramework
from gangline.operator.model.framework import Framework
from gangline.operator.model.job import CleanPodPolicy, NormalizedJob, OwnsObjects, RestartPolicy
from gangline.operator.model.replicas import ReplicaGang
from unit.operator.builders import a_pod, stored
from unit.operator.kubeflow_jobs import SPECS, gang_of, job_manifest, pod_of, read_job, variables

FRAMEWORKS: dict[str, Framework] = {
    "JAXJob": JaxFramework(),
    "XGBoostJob": XGBoostFramework(),
    "PaddleJob": KubeflowPaddleFramework(),
    "TFJob": TensorFlowFramework(),
    "MSJob": MindSporeFramework(),
    "MPIJob": MPIFramework(),
}


def a_job(kind: str, spec: dict[str, Any] | None = None, **roles: int | None) -> NormalizedJob:
    return read_job(FRAMEWORKS[kind], job_manifest(kind, roles, **(spec or {})))


def with_ports(kind: str, **ports: tuple[str, int]) -> NormalizedJob:
    """A job with a master, if ``ports`` has one, and a worker; their containers name ports."""
    written = job_manifest(kind, {role: 1 for role in ("Master", "Worker") if role in ports})
    for role, (name, port) in ports.items():
        (container,) = written["spec"][SPECS[kind][0]][role]["template"]["spec"]["containers"]
        container["ports"] = [{"name": name, "containerPort": port}] if port else []
    return read_job(FRAMEWORKS[kind], written)


def environment(job: NormalizedJob, name: str) -> list[tuple[str, str]]:
    return variables(pod_of(job, name))


# What each replica learns


@pytest.mark.parametrize("index", [0, 2])
def test_each_process_of_jax_learns_where_they_meet_and_which_it_is(index: int) -> None:
    assert environment(a_job("JAXJob", Worker=3), f"worker-{index}") == [
        ("PYTHONUNBUFFERED", "1"),
        ("COORDINATOR_PORT", "6666"),
        ("COORDINATOR_ADDRESS", "train-worker-0"),
        ("NUM_PROCESSES", "3"),
        ("PROCESS_ID", str(index)),
    ]


@pytest.mark.parametrize("workers", [0, None, 2])
def test_replicas_of_xgboost_learn_of_the_tracker_and_of_the_workers(workers: int | None) -> None:
    job = a_job("XGBoostJob", Master=1, **({} if workers is None else {"Worker": workers}))
    names = ["master-0", *(f"worker-{index}" for index in range(workers or 0))]
    others = [("WORKER_PORT", "9999"), ("WORKER_ADDRS", "train-worker-0,train-worker-1")]
    for rank, name in enumerate(names):
        assert environment(job, name) == [
            ("MASTER_PORT", "9999"),
            ("MASTER_ADDR", "train-master-0"),
            ("WORLD_SIZE", str(len(names))),
            ("RANK", str(rank)),
            ("PYTHONUNBUFFERED", "1"),
            *(others if workers else []),
        ]


OWN_IP = [("POD_IP_DUMMY", "=status.podIP"), ("PADDLE_MASTER", "$(POD_IP_DUMMY):36543")]


def test_replicas_of_paddle_meet_at_the_first_server_or_else_worker() -> None:
    job = a_job("PaddleJob", Worker=2)
    common = [("PYTHONUNBUFFERED", "1"), ("PADDLE_JOB_ID", "train"), ("PADDLE_NNODES", "2")]
    assert environment(job, "worker-0") == [*common, *OWN_IP]
    assert environment(job, "worker-1") == [*common, ("PADDLE_MASTER", "train-worker-0:36543")]
    job = a_job("PaddleJob", Master=2, Worker=1)
    common[2] = ("PADDLE_NNODES", "3")
    assert environment(job, "master-0") == [*common, *OWN_IP, ("PADDLE_SERVER_NUM", "1")]
    remote = ("PADDLE_MASTER", "train-master-0:36543")
    assert environment(job, "master-1") == [*common, remote, ("PADDLE_SERVER_NUM", "1")]
    assert environment(job, "worker-0") == [*common, remote, ("PADDLE_TRAINER_NUM", "1")]


def test_each_role_is_found_at_its_own_port() -> None:
    job = with_ports("JAXJob", Worker=("jaxjob-port", 1234))
    assert ("COORDINATOR_PORT", "1234") in environment(job, "worker-0")
    service = manifests.build_service(job, job.roles[0], 0).manifest
    assert service["spec"]["ports"][0]["port"] == 1234
    name = "xgboostjob-port"
    job = with_ports("XGBoostJob", Master=(name, 1111), Worker=(name, 2222))
    reported = dict(environment(job, "worker-0"))
    assert (reported["MASTER_PORT"], reported["WORKER_PORT"]) == ("1111", "2222")
    job = with_ports("PaddleJob", Master=("master", 7777), Worker=("", 0))
    assert ("PADDLE_MASTER", "train-master-0:7777") in environment(job, "worker-0")


def test_every_container_of_jax_gets_the_environment() -> None:
    written = job_manifest("JAXJob", {"Worker": 1})
    pod = written["spec"]["jaxReplicaSpecs"]["Worker"]["template"]["spec"]
    pod["containers"].append({"name": "sidecar", "image": "x"})
    pod = pod_of(read_job(JaxFramework(), written), "worker-0")
    assert variables(pod, 0) == variables(pod, 1)


# Defaults, and who leads and decides


@pytest.mark.parametrize(
    ("kind", "roles", "port"),
    [
        ("JAXJob", ["Worker"], ("jaxjob-port", 6666)),
        ("XGBoostJob", ["Master", "Worker"], ("xgboostjob-port", 9999)),
        ("PaddleJob", ["Master", "Worker"], ("master", 36543)),
        ("TFJob", ["PS", "Worker"], ("tfjob-port", 2222)),
        ("MSJob", ["Worker"], ("msjob-port", 2222)),
    ],
)
def test_defaults_equal_upstreams(kind: str, roles: list[str], port: tuple[str, int]) -> None:
    job = a_job(kind, **dict.fromkeys(roles))
    restart = RestartPolicy.ON_FAILURE if kind == "PaddleJob" else RestartPolicy.NEVER
    assert [(role.replicas, role.restart) for role in job.roles] == [(1, restart)] * len(roles)
    clean = CleanPodPolicy.RUNNING if kind == "MSJob" else CleanPodPolicy.NONE
    assert job.policy.clean_pods is clean
    name, number = port
    (container,) = pod_of(job, "worker-0")["spec"]["containers"]
    assert container["ports"] == [{"name": name, "containerPort": number}]


@pytest.mark.parametrize(
    ("kind", "roles", "leads"),
    [
        ("JAXJob", {"Worker": 3}, "worker-0"),
        ("XGBoostJob", {"Master": 1, "Worker": 1}, "master-0"),
        ("PaddleJob", {"Master": 1, "Worker": 1}, "master-0"),
        ("MPIJob", {"Launcher": 1, "Worker": 1}, "launcher-0"),
        ("TFJob", {"Chief": 1, "Worker": 2, "PS": 1}, "chief-0"),
        ("TFJob", {"Master": 1, "Worker": 2}, "master-0"),
        ("TFJob", {"Worker": 2, "PS": 1}, "worker-0"),
        ("TFJob", {"Chief": 0, "Worker": 2}, "worker-0"),
    ],
)
def test_one_replica_leads(kind: str, roles: dict[str, int | None], leads: str) -> None:
    job = a_job(kind, **roles)
    named = [f"{role.label}-{index}" for role in job.roles for index in range(role.replicas)]
    label = "training.kubeflow.org/job-role"
    assert [n for n in named if label in pod_of(job, n)["metadata"]["labels"]] == [leads]


DONE, RUNS, PENDING = "Succeeded", "Running", "Pending"
ALL_WORKERS = {"successPolicy": "AllWorkers"}


@pytest.mark.parametrize(
    ("kind", "phases", "succeeded", "running"),
    [
        ("JAXJob", {"Worker": [DONE, DONE, DONE]}, True, False),
        ("JAXJob", {"Worker": [DONE, RUNS, DONE]}, False, True),
        ("JAXJob", {"Worker": [PENDING, RUNS, ""]}, False, True),
        ("JAXJob", {"Worker": [PENDING, PENDING, ""]}, False, False),
        ("JAXJob", {"Worker": ["", "", ""]}, False, False),
        ("XGBoostJob", {"Master": [DONE], "Worker": [RUNS]}, True, False),
        ("XGBoostJob", {"Master": [RUNS], "Worker": [DONE]}, False, True),
        ("XGBoostJob", {"Master": [PENDING], "Worker": [RUNS]}, False, False),
        ("PaddleJob", {"Master": [DONE], "Worker": [RUNS]}, True, False),
        ("PaddleJob", {"Master": [RUNS], "Worker": [DONE]}, False, True),
        ("PaddleJob", {"Worker": [DONE, RUNS]}, False, True),
        ("PaddleJob", {"Worker": [DONE, DONE]}, True, False),
        ("TFJob", {"Chief": [DONE], "Worker": [RUNS]}, True, False),
        ("TFJob", {"Master": [DONE], "Worker": [RUNS]}, True, False),
        ("TFJob", {"Chief": [RUNS], "Worker": [DONE, DONE]}, False, True),
        ("TFJob", {"Chief": [], "Worker": [DONE]}, True, False),
        ("TFJob", {"Worker": [DONE, RUNS], "PS": [RUNS]}, True, True),
        ("TFJob", {"Worker": [RUNS, DONE]}, False, True),
        ("TFJob", {"Worker": [""], "PS": [DONE]}, False, False),
        ("TFJob", {"Chief": [RUNS], "Worker": [""]}, False, True),
        ("TFJob", {"Chief": [PENDING], "Worker": [RUNS]}, False, False),
        ("TFJob", {"Worker": ["", RUNS], "PS": [""]}, False, True),
        ("TFJob", {"Worker": ["", ""], "PS": [RUNS]}, False, False),
        ("MPIJob", {"Launcher": [""], "Worker": [RUNS, RUNS]}, False, False),
        ("MPIJob", {"Launcher": [PENDING], "Worker": [RUNS, ""]}, False, False),
        ("MPIJob", {"Launcher": [RUNS], "Worker": [RUNS, ""]}, False, True),
        ("MPIJob", {"Launcher": [DONE], "Worker": [RUNS, ""]}, True, False),
        ("MPIJob", {"Launcher": [""], "Worker": [DONE, DONE]}, False, False),
        ("MSJob", {"Scheduler": [RUNS], "Worker": [DONE, RUNS]}, True, True),
        ("MSJob", {"Scheduler": [RUNS], "Worker": [RUNS, DONE]}, False, True),
        ("MSJob", {"Scheduler": [RUNS], "Worker": [PENDING, ""]}, False, False),
    ],
)
def test_leaders_decide_or_else_workers(
    kind: str, phases: dict[str, list[str]], succeeded: bool, running: bool
) -> None:
    job = a_job(kind, **{role: len(listed) for role, listed in phases.items()})
    pods = [
        a_pod(f"{role.lower()}-{index}", phase)
        for role, listed in phases.items()
        for index, phase in enumerate(listed)
        if phase
    ]
    gang = gang_of(job, *pods)
    assert job.rules.has_succeeded(job, gang) is succeeded
    assert job.rules.is_running(job, gang) is running


@pytest.mark.parametrize(("kind", "server"), [("MSJob", "Scheduler"), ("TFJob", "PS")])
@pytest.mark.parametrize("last", [RUNS, DONE])
def test_all_workers_decide_with_the_success_policy(kind: str, server: str, last: str) -> None:
    job = a_job(kind, ALL_WORKERS, **{server: 1, "Worker": 2})
    running = a_pod(f"{server.lower()}-0")
    gang = gang_of(job, running, a_pod("worker-0", DONE), a_pod("worker-1", last))
    assert job.rules.has_succeeded(job, gang) is (last == DONE)


def test_a_chief_decides_under_any_success_policy() -> None:
    job = a_job("TFJob", ALL_WORKERS, Chief=1, Worker=1)
    gang = gang_of(job, a_pod("chief-0", DONE), a_pod("worker-0", RUNS))
    assert job.rules.has_succeeded(job, gang)


# Elastic PaddleJobs


def test_an_elastic_job_restarts_when_its_size_changes_and_is_scaled_by_its_metrics() -> None:
    metric = {"type": "Resource", "resource": {"name": "cpu"}}
    policy = {"minReplicas": 1, "maxReplicas": 4, "maxRestarts": 2, "metrics": [metric]}
    job = a_job("PaddleJob", {"elasticPolicy": policy}, Worker=2)
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
    rigid = a_job("PaddleJob", Worker=2)
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
