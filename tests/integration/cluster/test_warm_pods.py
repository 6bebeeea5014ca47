"""Pods of ``gangline up`` that an image map starts warm, compared with pods that start cold."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gangline.api.core.pod import Pod
from gangline.api.resources import PODS
from gangline.kube.client.client import ApiClient
from gangline.local.kubelet.runtime.isolation import IsolationLevel, detect_isolation
from gangline.local.kubelet.runtime.process_tree import walk_process_tree
from integration.cluster.embedded import EmbeddedCluster, embedded, until
from integration.kubelet.start_probe import PYTHON, was_imported_before, write_probe

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        detect_isolation().level is IsolationLevel.NONE, reason="namespaces are not allowed here"
    ),
]


def write_image_map(folder: Path) -> Path:
    """One environment under two names; the pods of one of them start warm."""
    program, libraries = write_probe(folder)
    entry = {
        "env": str(PYTHON.parent.parent),
        "path": f"{program}:{libraries}",
        "variables": {"PYTHONPATH": str(libraries), "PYTHONDONTWRITEBYTECODE": "1"},
    }
    path = folder / "images.json"
    path.write_text(json.dumps({"warm:*": {**entry, "warm": ["library"]}, "cold:*": entry}))
    return path


def a_pod(name: str, folder: Path) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": f"{name}:1",
        "command": ["python3", str(folder / "program" / "probe.py"), "--lr", "$(RATE)"],
        "env": [
            {"name": "RATE", "value": "0.1"},
            {"name": "SECRET", "value": "s"},
            {"name": "SLEEP", "value": "yes"},
        ],
        "resources": {"limits": {"memory": "256Mi", "cpu": "1"}},
        "workingDir": "/var/tmp",
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    user = {"runAsUser": 1234, "runAsGroup": 2345, "fsGroup": 3456}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "containers": [container],
            "volumes": [{"name": "data", "emptyDir": {}}],
            "terminationGracePeriodSeconds": 0,
            **({"securityContext": user} if os.geteuid() == 0 else {}),
        },
    }


async def what_it_sees(client: ApiClient, name: str) -> dict[str, Any]:
    """What a pod's program has printed, without the properties of this pod."""

    async def is_running() -> Pod | None:
        pod = await client.get(PODS, name, "default")
        return pod if pod.status.phase == "Running" else None

    pod = await until(is_running)
    line = (await anext(client.logs(name, "default", follow=True))).decode()
    for own, common in (
        (pod.metadata.uid, "UID"),
        (pod.status.pod_ip, "ADDRESS"),
        (f"{name}-main", "CONTAINER"),
        (f'"{name}"', '"POD"'),
        (f"={name}\\u0000", "=POD\\u0000"),
    ):
        line = line.replace(own, common)
    seen: dict[str, Any] = json.loads(line)
    return seen


def command_names_above(pid: int, ancestor: int) -> list[str]:
    """The names of the processes between two, the nearest one first."""
    found = []
    while (pid := int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])) > 1:
        if pid == ancestor:
            break
        found.append(Path(f"/proc/{pid}/comm").read_text().strip())
    return found


def find_program(cluster: EmbeddedCluster, pod: str) -> int:
    """The process of a pod's program, as this machine sees it."""
    assert cluster.process is not None
    for pid in walk_process_tree(cluster.process.pid):
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if f"HOSTNAME={pod}".encode() in environment and b"SLEEP=yes" in environment:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if command.startswith(b"python3\0"):
                return pid
    raise AssertionError(f"pod {pod} has no process")


async def test_warm_pod_is_forked_and_sees_what_a_cold_pod_sees(tmp_path: Path) -> None:
    images = write_image_map(tmp_path)
    arguments = ("--nodes", "1", "--image-map", str(images))
    async with embedded(tmp_path / "home", *arguments) as cluster, cluster.client() as client:
        for name in ("cold", "warm"):
            await client.create(PODS, a_pod(name, tmp_path), "default")
        cold, warm = [await what_it_sees(client, name) for name in ("cold", "warm")]
        assert cluster.process is not None
        parents = {
            name: command_names_above(find_program(cluster, name), cluster.process.pid)
            for name in ("cold", "warm")
        }
    assert (was_imported_before(cold), was_imported_before(warm)) == (False, True)
    assert {name: (cold[name], warm[name]) for name in cold if cold[name] != warm[name]} == {}
    # Its supervisor, and the server.
    assert parents["warm"] == ["gangline-fork", "gangline-fork"]
    assert "gangline-fork" not in parents["cold"]
    assert warm["argv"][1:] == ["--lr", "0.1"]
