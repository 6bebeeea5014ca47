"""MPIJob of v2beta1: keys, host files, and how a job starts and ends."""

import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from gangline.api.meta.objects import ObjectMeta
from gangline.api.volcano.scheduling import JOINING_PODS_ANNOTATION
from gangline.operator.engine import apply
from gangline.operator.frameworks.mpi.framework import MPIFramework
from gangline.operator.frameworks.mpi.ssh import SSHRules
from gangline.operator.model.job import CleanPodPolicy, Manifest, NormalizedJob, RestartPolicy
from gangline.operator.model.labels import parse_replica_labels
from gangline.operator.model.replicas import ObservedContainerStatus, ObservedPod
from gangline.operator.policies import pod_group
from unit.operator import mpi_jobs
from unit.operator.builders import a_pod, created, look, stored
from unit.operator.kubeflow_jobs import gang_of, pod_of, variables
from unit.operator.mpi_jobs import HOSTS, NO_GPUS, files, objects, pod_spec, read

ROLE = ("K_MPI_JOB_ROLE", "launcher")
WAITS = {"launcherCreationPolicy": "WaitForWorkersReady"}


def written(workers: int | None = 2, **spec: Any) -> Manifest:
    return mpi_jobs.written(workers, "v2beta1", **spec)


def a_job(workers: int | None = 2, **spec: Any) -> NormalizedJob:
    return read(written(workers, **spec))


def ready(pod: ObservedPod, *, is_ready: bool = True) -> ObservedPod:
    status = replace(pod.status, container_statuses=(ObservedContainerStatus(ready=is_ready),))
    return replace(pod, status=status)


@pytest.mark.parametrize(
    ("implementation", "expected", "line"),
    [
        (
            "OpenMPI",
            [
                ("OMPI_MCA_orte_keep_fqdn_hostnames", "true"),
                ("OMPI_MCA_orte_default_hostfile", HOSTS),
                ("OMPI_MCA_plm_rsh_args", "-o ConnectionAttempts=10"),
                ("OMPI_MCA_orte_set_default_slots", "4"),
                ("PRTE_MCA_prte_default_hostfile", HOSTS),
                ("PRTE_MCA_plm_ssh_args", "-o ConnectionAttempts=10"),
            ],
            "train-worker-0.team.svc slots=4\n",
        ),
        (
            "Intel",
            [
                ("I_MPI_HYDRA_HOST_FILE", HOSTS),
                ("I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS", "-o ConnectionAttempts=10"),
                ("I_MPI_PERHOST", "4"),
            ],
            "train-worker-0.team.svc:4\n",
        ),
        (
            "MPICH",
            [
                ("HYDRA_HOST_FILE", HOSTS),
                ("HYDRA_LAUNCH_EXTRA_ARGS", "-o ConnectionAttempts=10"),
            ],
            "train-worker-0.team.svc:4\n",
        ),
    ],
)
def test_each_implementation_has_its_variables_and_its_host_file(
    implementation: str, expected: list[tuple[str, str]], line: str
) -> None:
    job = a_job(1, mpiImplementation=implementation, slotsPerWorker=4)
    assert variables(pod_of(job, "launcher-0")) == [ROLE, *expected, *NO_GPUS]
    assert variables(pod_of(job, "worker-0")) == [("K_MPI_JOB_ROLE", "worker")]
    assert files(job)["hostfile"] == line


def test_a_launcher_that_works_is_the_first_host_and_keeps_its_gpus() -> None:
    job = a_job(1, runLauncherAsWorker=True)
    launcher, worker = "train-launcher.team.svc", "train-worker-0.team.svc"
    assert files(job)["hostfile"] == f"{launcher} slots=1\n{worker} slots=1\n"
    assert files(job)["discover_hosts.sh"] == f"#!/bin/sh\necho {launcher}\n"
    assert not set(NO_GPUS) & set(variables(pod_of(job, "launcher-0")))


def test_labels_number_the_workers_behind_a_launcher_that_trains() -> None:
    job = a_job(2, runLauncherAsWorker=True)
    made = [pod_of(job, replica)["metadata"] for replica in ("launcher-0", "worker-0", "worker-1")]
    numbers = [meta["labels"]["training.kubeflow.org/replica-index"] for meta in made]
    assert numbers == ["0", "1", "2"]
    assert [parse_replica_labels(msgspec.convert(meta, ObjectMeta)) for meta in made] == [
        ("launcher", 0), ("worker", 0), ("worker", 1),
    ]  # fmt: skip


def test_elastic_programs_discover_the_running_workers() -> None:
    pods = [a_pod("worker-0"), a_pod("worker-1", "Pending")]
    script = files(a_job(2), *pods)["discover_hosts.sh"]
    assert script == "#!/bin/sh\necho train-worker-0.team.svc\n"


@pytest.mark.parametrize(("path", "mode"), [(None, 0o600), ("/home/mpiuser/.ssh", None)])
def test_all_pods_have_the_keys_of_the_job(path: str | None, mode: int | None) -> None:
    job = a_job(1, **({"sshAuthMountPath": path} if path else {}))
    name = objects(job)["Secret"]["metadata"]["name"]
    for pod in (pod_of(job, "launcher-0")["spec"], pod_of(job, "worker-0")["spec"]):
        (volume,) = [mounted for mounted in pod["volumes"] if mounted["name"] == "ssh-auth"]
        (mount,) = [m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "ssh-auth"]
        assert volume["secret"].get("defaultMode") == mode
        assert volume["secret"]["secretName"] == name
        assert {item["path"]: item["key"] for item in volume["secret"]["items"]} == {
            "id_rsa": "ssh-privatekey",
            "id_rsa.pub": "ssh-publickey",
            "authorized_keys": "ssh-publickey",
        }
        assert mount["mountPath"] == (path or "/root/.ssh")


def test_two_jobs_of_one_name_have_keys_of_different_names() -> None:
    first, second = written(), written()
    second["metadata"] = {**second["metadata"], "uid": "another"}
    names = {objects(read(written))["Secret"]["metadata"]["name"] for written in (first, second)}
    assert len(names) == 2


def test_openssh_reads_the_keys_and_they_are_a_pair(tmp_path: Path) -> None:
    secret = apply.with_values(objects(a_job())["Secret"])
    assert secret["type"] == "kubernetes.io/ssh-auth"
    private = tmp_path / "id_rsa"
    private.write_text(secret["stringData"]["ssh-privatekey"])
    private.chmod(0o600)
    derived = subprocess.run(
        ["ssh-keygen", "-y", "-f", str(private)], capture_output=True, text=True, check=True
    )
    assert derived.stdout.split()[:2] == secret["stringData"]["ssh-publickey"].split()[:2]
    assert derived.stdout.startswith("ecdsa-sha2-nistp521 ")


def test_a_worker_without_a_command_is_an_ssh_server() -> None:
    container = pod_of(a_job(), "worker-0")["spec"]["containers"][0]
    assert container["command"] == ["/usr/sbin/sshd", "-De"]
    for given in ({"command": ["mine"]}, {"args": ["mine"]}):
        manifest = written()
        pod_spec(manifest, "Worker")["containers"][0] |= given
        made = pod_of(read(manifest), "worker-0")["spec"]["containers"][0]
        assert {key: made[key] for key in ("command", "args") if key in made} == given


def test_no_account_and_no_role_is_made() -> None:
    assert set(objects(a_job())) == {"Secret", "ConfigMap"}
    assert "serviceAccountName" not in pod_of(a_job(), "launcher-0")["spec"]


def test_pods_have_the_role_labels_of_the_mpi_operator() -> None:
    for name in ("launcher-0", "worker-0"):
        labels = pod_of(a_job(), name)["metadata"]["labels"]
        assert labels["training.kubeflow.org/job-role"] == name.partition("-")[0]


def test_pods_on_the_network_of_their_node_resolve_names() -> None:
    manifest = written()
    pod_spec(manifest, "Worker")["hostNetwork"] = True
    pod = pod_of(read(manifest), "worker-0")
    assert pod["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"


def test_defaults_equal_upstreams() -> None:
    job = a_job(1)
    assert {role.name: (role.replicas, role.restart) for role in job.roles} == {
        "Launcher": (1, RestartPolicy.ON_FAILURE),
        "Worker": (1, RestartPolicy.NEVER),
    }
    assert job.policy.clean_pods is CleanPodPolicy.NONE
    assert job.policy.backoff_limit == 6


def test_the_launcher_starts_with_the_workers_or_when_they_are_ready() -> None:
    def starts(job: NormalizedJob, *pods: ObservedPod) -> bool:
        assert isinstance(job.rules, SSHRules)
        (launcher,) = [role for role in job.roles if role.name == "Launcher"]
        return job.rules.can_start(job, launcher, 0, gang_of(job, *pods))

    both = [ready(a_pod("worker-0")), ready(a_pod("worker-1"))]
    assert starts(a_job())
    assert starts(a_job(**WAITS), *both)
    assert not starts(a_job(**WAITS))
    assert not starts(a_job(**WAITS), both[0])
    assert not starts(a_job(**WAITS), both[0], ready(a_pod("worker-1"), is_ready=False))


def test_the_gang_contains_a_launcher_that_starts_with_the_workers() -> None:
    assert pod_group.desired_spec(a_job(3)).min_member == 4
    assert pod_group.desired_spec(a_job(3, **WAITS)).min_member == 3


def test_resources_of_a_launcher_that_waits_are_reserved() -> None:
    def joining(job: NormalizedJob) -> str:
        manifest = pod_group.create_pod_group(job).manifest
        return str(manifest["metadata"]["annotations"].get(JOINING_PODS_ANNOTATION, ""))

    assert '"names":["train-launcher"]' in joining(a_job(3, **WAITS))
    assert not joining(a_job(3))


def test_the_launcher_decides_and_a_failed_worker_does_not() -> None:
    job = a_job(1)
    rules = job.rules
    gang = gang_of(job, a_pod("launcher-0"), a_pod("worker-0", "Failed"))
    assert isinstance(rules, SSHRules)
    assert rules.is_running(job, gang)
    assert not rules.failure_reason(job, gang)
    assert [rules.tolerates_failures(job, role) for role in job.roles] == [True, False]
    assert rules.has_succeeded(job, gang_of(job, a_pod("launcher-0", "Succeeded")))
    lost = a_pod("worker-0", "Failed")
    lost = replace(lost, status=replace(lost.status, reason="Evicted"))
    assert "1/1 workers are evicted" in rules.failure_reason(job, gang_of(job, lost))


def test_worker_that_fails_before_its_launcher_exists_fails_the_job() -> None:
    failed = a_pod("worker-1", "Failed", code=255)
    others = ready(a_pod("worker-0", "Running"))
    waiting, at_startup = a_job(2, **WAITS), a_job(2)
    assert isinstance(waiting.rules, SSHRules)
    assert isinstance(at_startup.rules, SSHRules)
    reason = waiting.rules.failure_reason(waiting, gang_of(waiting, others, failed))
    assert reason == "1/2 workers failed before the launcher was created."
    assert not waiting.rules.failure_reason(waiting, gang_of(waiting, others))
    launcher = a_pod("launcher-0", "Running")
    started = gang_of(waiting, others, failed, launcher)
    assert not waiting.rules.failure_reason(waiting, started), "mpirun notices it"
    assert not at_startup.rules.failure_reason(at_startup, gang_of(at_startup, others, failed))


@pytest.mark.parametrize(
    ("managed_by", "runs"),
    [("kubeflow.org/mpi-operator", True), ("kueue.x-k8s.io/multikueue", False)],
)
def test_the_mpi_operators_name_means_this_operator(managed_by: str, runs: bool) -> None:
    job = a_job(1, runPolicy={"managedBy": managed_by})
    assert bool(created(look(job).decide())) is runs


VERSION = "gangline.dev/api-version"
ENTRIES = [
    {"manager": "late", "apiVersion": "kubeflow.org/v1", "time": "2026-01-01T00:00:09Z"},
    {"manager": "first", "apiVersion": "kubeflow.org/v2beta1", "time": "2026-01-01T00:00:01Z"},
]


@pytest.mark.parametrize(
    ("api_version", "meta", "expected"),
    [
        ("v1", {}, "v1"),
        ("v2beta1", {}, "v2beta1"),
        ("v1", {"managedFields": ENTRIES}, "v2beta1"),
        ("v1", {"managedFields": ENTRIES[:1]}, "v1"),
        ("v1", {"managedFields": ENTRIES, "annotations": {VERSION: "kubeflow.org/v1"}}, "v1"),
        ("v1", {"annotations": {VERSION: "kubeflow.org/v2beta1"}}, "v2beta1"),
        ("v1", {"annotations": {VERSION: "nonsense"}, "managedFields": ENTRIES}, "v2beta1"),
        ("v2beta1", {"managedFields": [{"apiVersion": "apps/v1"}]}, "v2beta1"),
    ],
)
def test_the_version_is_the_one_of_the_first_writer(
    api_version: str, meta: dict[str, Any], expected: str
) -> None:
    manifest = written() | {"apiVersion": f"kubeflow.org/{api_version}"}
    manifest["metadata"] = {**manifest["metadata"], **meta}
    reading = MPIFramework().read(stored(manifest))
    assert not reading.spec_errors
    assert reading.job.api_version == f"kubeflow.org/{expected}"
    assert isinstance(reading.job.rules, SSHRules) is (expected == "v2beta1")


@pytest.mark.parametrize("annotations", [{}, {"note": "of a user"}])
def test_the_version_is_stored_once(annotations: dict[str, str]) -> None:
    manifest = written()
    manifest["metadata"] = {**manifest["metadata"], "annotations": annotations}
    (patch,) = look(read(manifest)).decide().patches
    version, stored_version = patch.operations
    assert version["path"] == "/metadata/resourceVersion"
    key = "/gangline.dev~1api-version" if annotations else ""
    value = "kubeflow.org/v2beta1"
    assert stored_version == {
        "op": "add",
        "path": f"/metadata/annotations{key}",
        "value": value if annotations else {VERSION: value},
    }
    manifest["metadata"]["annotations"] = {VERSION: value}
    assert not look(read(manifest)).decide().patches
