"""Kubernetes' own scheduler and controllers run on the embedded cluster.

The programs are those of release 1.20, which can be compiled from Debian's sources. They send
protobuf, elect leaders by leases, and write events. The scheduler runs without preemption: it would
watch disruption budgets in ``policy/v1beta1``, which is not served.
"""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config

from e2e.kubernetes_cluster import without_insecure_port
from integration.cluster.embedded import embedded
from integration.kubectl import tool

PROGRAMS = Path(os.environ.get("KUBE_BIN", "/var/cache/realkube/bin"))
NAMES = ("kube-scheduler", "kube-controller-manager")
CONTROLLERS = "statefulset,daemonset"
"""Controllers that this cluster does not have."""
NAMESPACE = "default"
FOREVER: list[str] = ["sh", "-c", "trap exit TERM; while :; do sleep 0.1; done"]

until = partial(tool.until, within_s=90.0)

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not all((PROGRAMS / name).exists() for name in NAMES),
        reason=f"there are no programs of Kubernetes in {PROGRAMS} (KUBE_BIN)",
    ),
]


def workload(name: str, **spec: Any) -> dict[str, Any]:
    """A workload that selects its pods by the label ``app``."""
    container = {"name": "main", "image": "busybox:1", "command": FOREVER}
    pods = {"terminationGracePeriodSeconds": 5, "containers": [container]}
    template = {"metadata": {"labels": {"app": name}}, "spec": pods}
    selector = {"matchLabels": {"app": name}}
    return {"metadata": {"name": name}, "spec": {"template": template, "selector": selector} | spec}


@contextlib.contextmanager
def running(folder: Path, name: str, *flags: str) -> Iterator[Path]:
    """Run one of the programs; yields its log."""
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [PROGRAMS / name, *flags, *without_insecure_port(PROGRAMS / name), "--secure-port=0"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield log
        assert process.poll() is None, log.read_text()[-4000:]
    finally:
        process.terminate()
        process.wait(30)


def scheduler_config(folder: Path, kubeconfig: Path) -> Path:
    disabled = {"postFilter": {"disabled": [{"name": "DefaultPreemption"}]}}
    with socket.create_server(("127.0.0.1", 0)) as free:  # it accepts no port 0
        address = f"127.0.0.1:{free.getsockname()[1]}"
    content = {
        "apiVersion": "kubescheduler.config.k8s.io/v1beta1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "leaderElection": {"leaderElect": True},
        "healthzBindAddress": address,
        "metricsBindAddress": address,
        "profiles": [{"schedulerName": "default-scheduler", "plugins": disabled}],
    }
    file = folder / "scheduler.json"
    file.write_text(json.dumps(content))
    return file


async def test_kubernetes_controllers_and_scheduler_run_workloads(tmp_path: Path) -> None:
    without = ("--without", "operator", "--without", "scheduler")
    async with embedded(tmp_path / "home", "--nodes", "2", *without) as cluster:
        await asyncio.to_thread(run_workloads, tmp_path, cluster.home.default_kubeconfig)


def run_workloads(folder: Path, kubeconfig: Path) -> None:
    chosen = f"--config={scheduler_config(folder, kubeconfig)}"
    flags = (f"--kubeconfig={kubeconfig}", f"--controllers={CONTROLLERS}")
    with (
        config.new_client_from_config(str(kubeconfig)) as connected,
        running(folder, NAMES[0], chosen) as scheduler_log,
        running(folder, NAMES[1], *flags) as controllers_log,
    ):
        try:
            check_workloads(connected)
        except AssertionError as error:
            logs = (log.read_text()[-3000:] for log in (scheduler_log, controllers_log))
            raise AssertionError("\n".join([str(error), *logs])) from error


def check_workloads(connected: client.ApiClient) -> None:
    apps, core = client.AppsV1Api(connected), client.CoreV1Api(connected)
    events = client.EventsV1Api(connected)
    ordered = workload("ordered", replicas=2, serviceName="none")
    apps.create_namespaced_stateful_set(NAMESPACE, ordered)
    apps.create_namespaced_daemon_set(NAMESPACE, workload("everywhere"))

    def pods(name: str) -> list[Any]:
        found: list[Any] = core.list_namespaced_pod(NAMESPACE, label_selector=f"app={name}").items
        return found

    def replicas() -> Any:
        return apps.read_namespaced_stateful_set_status("ordered", NAMESPACE).status

    until(lambda: replicas().ready_replicas == 2, replicas)
    assert {pod.metadata.name for pod in pods("ordered")} == {"ordered-0", "ordered-1"}

    def nodes() -> Any:
        return apps.read_namespaced_daemon_set_status("everywhere", NAMESPACE).status

    until(lambda: nodes().number_ready == 2, nodes)
    assert len({pod.spec.node_name for pod in pods("everywhere")}) == 2

    apps.patch_namespaced_stateful_set_scale("ordered", NAMESPACE, {"spec": {"replicas": 1}})
    until(lambda: [pod.metadata.name for pod in pods("ordered")] == ["ordered-0"])
    apps.delete_namespaced_daemon_set("everywhere", NAMESPACE, propagation_policy="Background")
    until(lambda: not pods("everywhere"))

    scheduled = events.list_namespaced_event(NAMESPACE, field_selector="reason=Scheduled").items
    assert {each.reporting_controller for each in scheduled} == {"default-scheduler"}
    leases = client.CoordinationV1Api(connected).list_namespaced_lease("kube-system").items
    assert set(NAMES) <= {lease.metadata.name for lease in leases if lease.spec.holder_identity}
