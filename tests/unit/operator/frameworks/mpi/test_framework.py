"""MPIJob: the objects of launcher and workers, and how a job runs and ends."""

import os
import signal
import subprocess
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

from gangline.operator.frameworks.mpi.framework import MPIFramework
from gangline.operator.model.job import CleanPodPolicy, NormalizedJob, RestartPolicy
from gangline.operator.model.plan import TargetKind
from gangline.operator.policies import pod_group
from unit.operator.builders import a_pod, created, deleted, look, stored
from unit.operator.kubeflow_jobs import job_manifest, pod_of, variables
from unit.operator.mpi_jobs import HOSTS, NO_GPUS, files, objects, pod_spec, read, written

AGENT = "/etc/mpi/kubexec.sh"
REACH = [
    ("OMPI_MCA_plm_rsh_agent", AGENT),
    ("OMPI_MCA_orte_default_hostfile", HOSTS),
    ("I_MPI_HYDRA_BOOTSTRAP", "rsh"),
    ("I_MPI_HYDRA_BOOTSTRAP_EXEC", AGENT),
    ("OMPI_MCA_plm_rsh_no_tree_spawn", "1"),
    ("PRTE_MCA_plm_ssh_agent", AGENT),
    ("PRTE_MCA_plm_ssh_no_tree_spawn", "1"),
    ("PRTE_MCA_prte_default_hostfile", HOSTS),
    ("HYDRA_LAUNCHER", "rsh"),
    ("HYDRA_LAUNCHER_EXEC", AGENT),
]


def a_job(workers: int | None = 2, *, kubectl: str = "", **spec: Any) -> NormalizedJob:
    return read(written(workers, **spec), kubectl)


def test_a_launcher_learns_how_to_reach_its_workers_in_upstreams_order():
    assert variables(pod_of(a_job(), "launcher-0")) == REACH + NO_GPUS


def test_workers_get_no_variables():
    assert variables(pod_of(a_job(), "worker-0")) == []


@pytest.mark.parametrize("name", [name for name, _ in REACH])
def test_variables_of_the_user_take_precedence(name):
    manifest = written()
    pod_spec(manifest)["containers"][0]["env"] = [{"name": name, "value": "mine"}]
    reported = variables(pod_of(read(manifest), "launcher-0"))
    assert [value for key, value in reported if key == name] == ["mine"]


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "amd.com/gpu"])
def test_a_launcher_with_gpus_keeps_them_and_is_a_host(resource):
    manifest = written(slotsPerWorker=4)
    pod_spec(manifest)["containers"][0]["resources"] = {"limits": {resource: 1}}
    job = read(manifest)
    assert variables(pod_of(job, "launcher-0")) == REACH
    assert files(job)["hostfile"] == (
        "train-launcher slots=4\ntrain-worker-0 slots=4\ntrain-worker-1 slots=4\n"
    )
    assert files(job)["discover_hosts.sh"] == "#!/bin/sh\necho train-launcher:4\n"


def test_hosts_are_the_workers_with_a_slot_each_unless_more_are_given():
    assert files(a_job())["hostfile"] == "train-worker-0 slots=1\ntrain-worker-1 slots=1\n"
    assert files(a_job(slotsPerWorker=8))["hostfile"].splitlines()[1] == "train-worker-1 slots=8"


def test_only_running_workers_are_discovered():
    job = a_job(3)
    pods = [a_pod("worker-0"), a_pod("worker-1", "Pending"), a_pod("worker-2")]
    assert files(job, *pods)["discover_hosts.sh"] == (
        "#!/bin/sh\necho train-worker-0:1\necho train-worker-2:1\n"
    )
    assert files(job)["discover_hosts.sh"] == "#!/bin/sh\n"


def test_without_workers_the_launcher_is_the_only_host_and_may_do_nothing():
    """Upstream's list of names is then empty, which gives access to every pod of the namespace."""
    for workers in (0, None):
        job = a_job(workers)
        assert files(job)["hostfile"] == "train-launcher slots=1\n"
        assert set(objects(job)) == {"ConfigMap", "ServiceAccount"}


def test_everything_that_is_made_is_followed():
    assert set(objects(a_job())) == set(a_job().kind.owned_kinds)


def test_a_launcher_may_run_commands_in_its_own_workers_and_nowhere_else():
    owned = objects(a_job())
    workers = ["train-worker-0", "train-worker-1"]
    assert owned["Role"]["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "resourceNames": workers, "verbs": ["get"]},
        {
            "apiGroups": [""],
            "resources": ["pods/exec"],
            "resourceNames": workers,
            "verbs": ["create", "get"],
        },
    ]
    assert owned["RoleBinding"]["subjects"] == [
        {"kind": "ServiceAccount", "name": "train-launcher", "namespace": "team"}
    ]
    assert owned["RoleBinding"]["roleRef"]["name"] == "train-launcher"
    assert {owned[kind]["metadata"]["name"] for kind in ("Role", "RoleBinding")} == {
        owned["ServiceAccount"]["metadata"]["name"]
    }
    assert pod_of(a_job(), "launcher-0")["spec"]["serviceAccountName"] == "train-launcher"


@pytest.mark.parametrize("field", ["serviceAccountName", "serviceAccount"])
def test_an_account_that_the_user_names_gets_the_right(field):
    manifest = written()
    pod_spec(manifest)[field] = "me"
    job = read(manifest)
    assert "ServiceAccount" not in objects(job)
    assert objects(job)["RoleBinding"]["subjects"][0]["name"] == "me"
    assert pod_of(job, "launcher-0")["spec"][field] == "me"


def test_workers_keep_the_namespaces_own_account():
    assert "serviceAccountName" not in pod_of(a_job(), "worker-0")["spec"]


def test_files_are_where_upstreams_are():
    pod = pod_of(a_job(), "launcher-0")["spec"]
    assert pod["volumes"] == [
        {
            "name": "mpi-job-config",
            "configMap": {
                "name": "train-config",
                "items": [
                    {"key": "kubexec.sh", "path": "kubexec.sh", "mode": 0o555},
                    {"key": "kubexec.py", "path": "kubexec.py", "mode": 0o444},
                    {"key": "hostfile", "path": "hostfile", "mode": 0o444},
                    {"key": "discover_hosts.sh", "path": "discover_hosts.sh", "mode": 0o555},
                ],
            },
        }
    ]
    assert pod["containers"][0]["volumeMounts"] == [
        {"name": "mpi-job-config", "mountPath": "/etc/mpi"}
    ]
    worker = pod_of(a_job(), "worker-0")["spec"]
    assert [item["key"] for item in worker["volumes"][0]["configMap"]["items"]] == ["kubexec.sh"]
    assert worker["containers"][0]["volumeMounts"] == pod["containers"][0]["volumeMounts"]
    assert objects(a_job())["ConfigMap"]["metadata"]["name"] == "train-config"
    assert set(files(a_job())) == {item["key"] for item in pod["volumes"][0]["configMap"]["items"]}


def test_worker_without_command_waits_and_with_command_runs_it():
    waiting = pod_of(a_job(), "worker-0")["spec"]["containers"][0]
    assert "sleep 365d" in waiting["command"][-1]
    assert waiting["args"] == []
    manifest = written()
    pod_spec(manifest, "Worker")["containers"][0]["command"] = ["/usr/sbin/sshd", "-De"]
    own = pod_of(read(manifest), "worker-0")["spec"]["containers"][0]
    assert own["command"] == ["/usr/sbin/sshd", "-De"]


def test_waiting_worker_exits_on_sigterm():
    """As process 1 a plain ``sleep`` ignores SIGTERM, and would occupy its node for 30 s more."""
    command = pod_of(a_job(), "worker-0")["spec"]["containers"][0]["command"]
    with subprocess.Popen(command, start_new_session=True) as waiting:
        waiting.terminate()
        assert waiting.wait(10) in (143, -15)
    with suppress(ProcessLookupError):  # its child, which would end with the container
        os.killpg(waiting.pid, signal.SIGKILL)


def test_processes_are_started_in_the_container_that_is_named_or_else_the_first():
    assert "--container mpi --" in files(a_job())["kubexec.sh"]
    manifest = written(mainContainer="train-it")
    pod_spec(manifest, "Worker")["containers"].append({"name": "train-it", "image": "x"})
    assert "--container train-it --" in files(read(manifest))["kubexec.sh"]


def test_nothing_is_pulled_to_reach_workers_unless_an_image_is_named():
    assert "initContainers" not in pod_of(a_job(), "launcher-0")["spec"]
    job = a_job(kubectl="tools/kubectl:1")
    pod = pod_of(job, "launcher-0")["spec"]
    (delivery,) = pod["initContainers"]
    amounts = {"cpu": "100m", "memory": "512Mi", "ephemeral-storage": "5Gi"}
    assert delivery == {
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "name": "kubectl-delivery",
        "image": "tools/kubectl:1",
        "imagePullPolicy": "IfNotPresent",
        "env": [
            {"name": "TARGET_DIR", "value": "/opt/kube"},
            {"name": "NAMESPACE", "value": "team"},
        ],
        "resources": {"requests": amounts, "limits": amounts},
        "volumeMounts": [
            {"name": "mpi-job-config", "mountPath": "/etc/mpi"},
            {"name": "mpi-job-kubectl", "mountPath": "/opt/kube"},
        ],
    }
    assert [volume["name"] for volume in pod["volumes"]] == ["mpi-job-config", "mpi-job-kubectl"]
    assert {"name": "mpi-job-kubectl", "mountPath": "/opt/kube"} in pod["containers"][0][
        "volumeMounts"
    ]
    assert objects(job)["Role"]["rules"][-1]["verbs"] == ["get", "list", "watch"]


def test_no_port_is_added_and_the_first_container_is_the_one_that_counts():
    manifest = written()
    pod_spec(manifest)["containers"][0]["name"] = "run"
    pod = pod_of(read(manifest), "launcher-0")["spec"]
    assert "ports" not in pod["containers"][0]
    assert pod["containers"][0]["volumeMounts"]


def test_defaults_equal_upstreams():
    job = read(job_manifest("MPIJob", {"Launcher": None, "Worker": None}))
    assert [(role.name, role.replicas, role.restart) for role in job.roles] == [
        ("Worker", 0, RestartPolicy.NEVER),
        ("Launcher", 1, RestartPolicy.NEVER),
    ]
    assert job.policy.clean_pods is CleanPodPolicy.NONE


@pytest.mark.parametrize(
    ("older", "newer", "counts"),
    [
        ("Running", None, CleanPodPolicy.RUNNING),
        ("Running", "All", CleanPodPolicy.ALL),
        (None, "All", CleanPodPolicy.ALL),
        ("All", "None", CleanPodPolicy.NONE),
    ],
)
def test_of_two_places_for_the_clean_up_the_run_policy_wins(older, newer, counts):
    spec: dict[str, Any] = {"runPolicy": {"cleanPodPolicy": newer}} if newer else {}
    spec |= {"cleanPodPolicy": older} if older else {}
    assert a_job(**spec).policy.clean_pods is counts


def test_the_launcher_is_made_when_all_workers_run():
    job = a_job()
    assert created(look(job).decide()) == ["worker-0", "worker-1"]
    assert created(look(job, a_pod("worker-0"), a_pod("worker-1", "Pending")).decide()) == []
    assert created(look(job, a_pod("worker-0"), a_pod("worker-1")).decide()) == ["launcher"]
    assert created(look(a_job(0)).decide()) == ["launcher"]


def test_a_gang_does_not_wait_for_the_launcher_that_waits_for_it():
    desired = pod_group.desired_spec(a_job(3))
    assert (desired.min_member, desired.min_task_member) == (3, {"worker": 3})
    policy = {"schedulingPolicy": {"minAvailable": 4}}
    assert pod_group.desired_spec(a_job(3, runPolicy=policy)).min_member == 3
    policy = {"schedulingPolicy": {"minAvailable": 2}}
    assert pod_group.desired_spec(a_job(3, runPolicy=policy)).min_member == 2


def test_a_launcher_alone_is_its_gang():
    desired = pod_group.desired_spec(a_job(0))
    assert (desired.min_member, desired.min_task_member) == (1, {"launcher": 1})


def test_launcher_and_its_service_have_upstreams_name():
    workers = a_pod("worker-0"), a_pod("worker-1")
    decision = look(a_job(), *workers, services=[]).decide()
    assert created(decision) == ["launcher"]
    assert "launcher" in created(decision, TargetKind.SERVICE)


def test_a_launcher_that_upstreams_operator_made_is_taken_over():
    """Its name and labels have no index."""
    ours = a_pod("launcher-0")
    labels = {k: v for k, v in ours.metadata.labels.items() if not k.endswith("replica-index")}
    made = replace(ours, metadata=replace(ours.metadata, name="train-launcher", labels=labels))
    decision = look(a_job(), made, a_pod("worker-0"), a_pod("worker-1"), services=[]).decide()
    assert (created(decision), deleted(decision)) == ([], [])


@pytest.mark.parametrize(
    ("roles", "reported"),
    [
        ({"Worker": 2}, "Launcher: is missing"),
        ({"Launcher": 2, "Worker": 2}, "Launcher.replicas: 2 is not 1"),
        ({"Launcher": 1, "Master": 1}, "is not a role"),
        ({}, "Pods by role"),
    ],
)
def test_invalid_job_reports_its_errors(roles, reported):
    """Upstream accepts such a job and retries for ever, without a message in its status."""
    assert reported in MPIFramework().read(stored(job_manifest("MPIJob", roles))).spec_errors
