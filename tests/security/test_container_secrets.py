"""Secrets of pods on a machine with other users: arguments of processes, files of the cluster."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from gangline.api.core.pod import Pod
from gangline.api.resources import PODS, SECRETS
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import AlreadyExists
from integration.cluster.embedded import EmbeddedCluster, cluster_of_module, until
from security.spy import SECRET, spy

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root"),
    pytest.mark.root,
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """A cluster in a folder that all users could enter, as its parents, before it started."""
    top = Path(tempfile.mkdtemp(dir="/var/tmp"))
    top.chmod(0o755)
    older = top / "home/clusters/default"
    older.mkdir(parents=True)
    older.chmod(0o755)
    (older / "old").write_text(SECRET)
    with cluster_of_module(top / "home") as running:
        yield running
    shutil.rmtree(top)


async def make_secret(client: ApiClient) -> None:
    secret = {"metadata": {"name": "s"}, "stringData": {"key": SECRET}}
    with suppress(AlreadyExists):
        await client.create(SECRETS, secret, "default")


async def start_pod(client: ApiClient, name: str, **spec: Any) -> None:
    """Run a pod and wait until it is ready."""
    body = {"metadata": {"name": name}, "spec": {"terminationGracePeriodSeconds": 1, **spec}}
    await client.create(PODS, body, "default")

    async def ready() -> bool:
        pod: Pod = await client.get(PODS, name, "default")
        assert pod.status.phase != "Failed", pod.status
        return any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions)

    await until(ready, 60)


def container(script: str = "sleep 600", **more: Any) -> dict[str, Any]:
    return {"name": "c", "image": "any", "command": ["sh", "-c", script], **more}


FROM_SECRET = {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "s", "key": "key"}}}


async def test_secret_variables_are_visible_to_no_other_user(cluster: EmbeddedCluster) -> None:
    probe = {"exec": {"command": ["sh", "-c", "sleep 0.5; test -n $PASSWORD"]}, "periodSeconds": 1}
    async with cluster.client() as client:
        await make_secret(client)
        with spy(cluster.root) as watcher:
            body = container(env=[FROM_SECRET], readinessProbe=probe)
            await start_pod(client, "p", containers=[body])
            with kubectl(cluster, "exec", "-i", "p", "--", "sh", "-c", "echo up; cat") as session:
                assert session.stdout is not None
                assert session.stdout.readline() == b"up\n"
                assert await watcher.findings() == []
        shown = cluster_kubectl(cluster, "exec", "p", "--", "sh", "-c", "echo $PASSWORD")
        assert shown == SECRET + "\n"


TOKEN = {"serviceAccountToken": {"path": "token"}}
VOLUMES = [
    {"name": "secret", "secret": {"secretName": "s"}},
    {"name": "items", "secret": {
        "secretName": "s", "defaultMode": 0o440,
        "items": [
            {"key": "key", "path": "a/owner", "mode": 0o400}, {"key": "key", "path": "group"},
        ],
    }},
    {"name": "token", "projected": {"sources": [TOKEN, {"secret": {"name": "s"}}]}},
    {"name": "disk", "emptyDir": {}},
    {"name": "memory", "emptyDir": {"medium": "Memory"}},
]  # fmt: skip
MOUNTS = [{"name": each["name"], "mountPath": f"/v/{each['name']}"} for each in VOLUMES]
FILES = "secret/key items/a/owner items/group token/token token/key disk memory"
API_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"
READ_ALL = (
    f"cd /v; stat -Lc %a:%u:%g {FILES} {API_TOKEN}; umask 0; "
    "for to in disk memory; do cp secret/key $to/copy || exit 1; done; sleep 600"
)


USERS = {
    "root": (
        {},
        "644:0:0 400:0:0 440:0:0 644:0:0 644:0:0 777:0:0 777:0:0 644:0:0",
    ),
    "user-and-group": (
        {"runAsUser": 4321, "fsGroup": 4322},
        "644:0:4322 440:0:4322 440:0:4322 640:4321:4322 644:0:4322 "
        "2777:0:4322 2777:0:4322 640:4321:4322",
    ),
    "user": (
        {"runAsUser": 4321},
        "644:0:0 400:0:0 440:0:0 600:4321:0 644:0:0 777:0:0 777:0:0 600:4321:0",
    ),
}
"""Security contexts, and the modes and owners of the files."""


async def test_files_of_volumes_are_open_to_their_pod_only(cluster: EmbeddedCluster) -> None:
    body = container(READ_ALL, volumeMounts=MOUNTS, env=[FROM_SECRET])
    body["readinessProbe"] = {"exec": {"command": ["test", "-e", "/v/memory/copy"]}}
    async with cluster.client() as client:
        await make_secret(client)
        with spy(cluster.root) as watcher:
            for name, (context, _) in USERS.items():
                spec = {"containers": [body], "volumes": VOLUMES, "securityContext": context}
                await start_pod(client, name, **spec)
            assert await watcher.findings() == []
    for name, (_, modes) in USERS.items():
        assert cluster_kubectl(cluster, "logs", name).split() == modes.split(), name


async def test_folder_of_an_older_cluster_is_closed_at_start(cluster: EmbeddedCluster) -> None:
    with spy(cluster.root) as watcher:
        assert await watcher.findings() == []
    files = (cluster.home.folder, cluster.home.default_kubeconfig)
    assert [path.stat().st_mode & 0o077 for path in files] == [0, 0]


@contextmanager
def kubectl(cluster: EmbeddedCluster, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        ["kubectl", *arguments],
        env=cluster.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def cluster_kubectl(cluster: EmbeddedCluster, *arguments: str) -> str:
    done = subprocess.run(
        ["kubectl", *arguments],
        env=cluster.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout
