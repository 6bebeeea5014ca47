"""The environment of containers: volumes, users, images, names."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from gangline.api.core.pod import Pod
from gangline.api.resources import (
    EVENTS,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    SECRETS,
    SERVICE_ACCOUNTS,
)

LogOf = Callable[..., str]
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")


def shell(script: str, **more: Any) -> dict[str, Any]:
    """The JSON of a container that runs a shell script."""
    return {"name": "c", "image": "any/image", "command": ["sh", "-c", script], **more}


def mount(path: str, **more: Any) -> dict[str, Any]:
    return {"name": "v", "mountPath": path, **more}


async def run_to_end(node: Any, script: str, **spec: Any) -> Pod:
    container = shell(script, **spec.pop("container", {}))
    await node.run(containers=[container], restartPolicy="Never", **spec)
    pod: Pod = await node.until(lambda pod: pod.status.phase in ("Succeeded", "Failed"))
    return pod


async def an_event(node: Any, reason: str) -> str:
    while True:
        for event in (await node.client.list(EVENTS, "default")).items:
            if event.reason == reason:
                return str(event.message)


async def test_a_claimed_volume_is_its_folder(node: Any, tmp_path: Path) -> None:
    folder = tmp_path / "pv"
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": str(folder)},
        "storageClassName": "",
    }
    await node.client.create(PERSISTENT_VOLUMES, {"metadata": {"name": "pv"}, "spec": spec})
    wanted = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "volumeName": "pv",
        "storageClassName": "",
    }
    claim = {"metadata": {"name": "claim"}, "spec": wanted}
    await node.client.create(PERSISTENT_VOLUME_CLAIMS, claim, "default")
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "claim"}}
    container = shell("echo kept >/data/file", volumeMounts=[mount("/data")])
    await node.run(containers=[container], restartPolicy="Never", volumes=[volume])
    assert 'persistentvolumeclaim "claim" is not bound yet' in await an_event(node, "FailedMount")
    os.mkdir(folder)
    bound = {"status": {"phase": "Bound"}}
    await node.client.patch(
        PERSISTENT_VOLUME_CLAIMS, "claim", bound, "default", subresource="status"
    )
    await node.until_phase("Succeeded")
    assert _read(folder / "file") == "kept\n"


@ROOT
async def test_kernel_parameters_and_rights_are_those_of_the_pod(node: Any, log_of: LogOf) -> None:
    sysctls = [{"name": "kernel.shm_rmid_forced", "value": "1"}]
    pod = await run_to_end(
        node,
        "cat /proc/sys/kernel/shm_rmid_forced; mount -t tmpfs t /mnt 2>/dev/null || echo refused",
        securityContext={"sysctls": sysctls},
        container={"securityContext": {"privileged": False}},
    )
    assert (pod.status.phase, log_of()) == ("Succeeded", "1\nrefused")
    assert pod.status.observed_generation == pod.metadata.generation == 1


async def test_secrets_and_fields_are_files(node: Any, log_of: LogOf) -> None:
    secret = {"metadata": {"name": "s"}, "data": {"k": "c2VjcmV0"}}
    await node.client.create(SECRETS, secret, "default")
    fields = {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}
    sources = [{"secret": {"name": "s"}}, {"downwardAPI": fields}]
    pod = await run_to_end(
        node,
        "cd /conf; cat k; echo; cat name; echo; touch x 2>/dev/null || echo read-only",
        volumes=[{"name": "v", "projected": {"sources": sources}}],
        container={"volumeMounts": [mount("/conf")]},
    )
    assert pod.status.phase == "Succeeded"
    assert log_of() == "secret\np\nread-only"


async def test_a_pod_finds_the_token_of_its_account(node: Any, log_of: LogOf) -> None:
    script = "cd /var/run/secrets/kubernetes.io/serviceaccount; cat namespace; echo; test -s token"
    await node.client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "own"}}, "default")
    pod = await run_to_end(node, script, serviceAccountName="own")
    assert (pod.status.phase, log_of()) == ("Succeeded", "default")
    [volume], [mounted] = pod.spec.volumes, pod.spec.containers[0].volume_mounts
    assert volume.name == mounted.name
    assert volume.name.startswith("kube-api-access-")
    assert mounted.mount_path == "/var/run/secrets/kubernetes.io/serviceaccount"
    parts = [part.service_account_token for part in volume.projected.sources]
    assert parts[0].expiration_seconds == 3607
    await node.run(
        "q",
        containers=[shell("! test -e /var/run/secrets/kubernetes.io/serviceaccount")],
        restartPolicy="Never",
        serviceAccountName="own",
        automountServiceAccountToken=False,
    )
    await node.until_phase("Succeeded", "q")


async def test_tokens_are_replaced_while_the_pod_runs(node: Any, log_of: LogOf) -> None:
    sources = [{"serviceAccountToken": {"path": "token", "audience": "vault"}}]
    script = """
        for file in /var/run/secrets/kubernetes.io/serviceaccount/token /other/token; do
            first=$(cat $file)
            while [ "$(cat $file)" = "$first" ]; do sleep 0.1; done
        done
        echo replaced"""
    pod = await run_to_end(
        node,
        script,
        volumes=[{"name": "v", "projected": {"sources": sources}}],
        container={"volumeMounts": [mount("/other")]},
    )
    assert (pod.status.phase, log_of()) == ("Succeeded", "replaced")


async def test_a_host_path_of_the_wrong_kind_holds_the_pod(node: Any, tmp_path: Path) -> None:
    volume = {"name": "v", "hostPath": {"path": str(tmp_path), "type": "File"}}
    container = shell("true", volumeMounts=[mount("/data")])
    await node.run(containers=[container], volumes=[volume])
    message = await an_event(node, "FailedMount")
    assert f'volume "v": hostPath type check failed: {tmp_path} is not a file' in message
    pod = await node.until(lambda pod: bool(pod.status.container_statuses))
    assert pod.status.container_statuses[0].state.waiting.reason == "ContainerCreating"


async def test_memory_volumes_are_shared_and_removed_with_the_pod(
    node: Any, tmp_path: Path, log_of: LogOf
) -> None:
    pod = await run_to_end(
        node,
        "cat /mem/x",
        volumes=[{"name": "v", "emptyDir": {"medium": "Memory"}}],
        initContainers=[
            {**shell("echo hi >/mem/x", volumeMounts=[mount("/mem")]), "name": "i"},
        ],
        container={"volumeMounts": [mount("/mem")]},
    )
    assert (pod.status.phase, log_of()) == ("Succeeded", "hi")
    while _memory_folders(tmp_path.name):
        await node.until(lambda pod: True)


@ROOT
async def test_the_group_of_the_pod_may_write_its_volumes(node: Any, log_of: LogOf) -> None:
    pod = await run_to_end(
        node,
        "id -u; id -G; echo x >/data/file; stat -c %g /data/file; cat /proc/1/status >/dev/null",
        securityContext={"runAsUser": 4000, "runAsGroup": 4001, "fsGroup": 4002},
        volumes=[{"name": "v", "emptyDir": {}}],
        container={"volumeMounts": [mount("/data")]},
    )
    assert pod.status.phase == "Succeeded"
    assert log_of() == "4000\n4001 4002\n4002"


async def test_a_terminal_for_the_container_itself(node: Any, log_of: LogOf) -> None:
    await run_to_end(node, "test -t 1 && echo terminal", container={"tty": True, "stdin": True})
    assert log_of() == "terminal"


async def test_nothing_of_a_deleted_pod_stays(node: Any, tmp_path: Path) -> None:
    await run_to_end(node, "echo x", volumes=[{"name": "v", "emptyDir": {}}])
    await node.client.delete(PODS, "p", "default")
    await node.until_gone()
    while node.kubelet.workers:
        await node.until_gone()
    assert _names(tmp_path / "node/pods") == []
    assert _names(tmp_path / "node/logs") == []


async def test_an_unmapped_image_is_announced(node: Any) -> None:
    await run_to_end(node, "true")
    message = await an_event(node, "ImageNotMapped")
    assert 'Image "any/image" is not in the image map: container c runs in' in message


@ROOT
async def test_full_disk_loses_logs_and_delays_new_pods(node: Any, tmp_path: Path) -> None:
    disk = tmp_path / "node"
    with _tiny_disk(disk):
        await run_to_end(node, "head -c 1000000 /dev/zero | tr '\\0' 'x'; echo")
        assert "could not be written: No space left on device" in await an_event(node, "LogLost")
        _fill(disk)
        await node.run("q", containers=[shell("true")], restartPolicy="Never")

        def held(pod: Pod) -> bool:
            waiting = pod.status.container_statuses and pod.status.container_statuses[0].state
            return bool(waiting and waiting.waiting and "No space" in waiting.waiting.message)

        await node.until(held, "q")
        _empty(disk)
        await node.until_phase("Succeeded", "q")
        await node.crash()


@contextmanager
def _tiny_disk(folder: Path) -> Iterator[None]:
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tiny", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def _fill(folder: Path) -> None:
    with suppress(OSError), (folder / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def _empty(folder: Path) -> None:
    (folder / "ballast").unlink()
    for log in folder.glob("logs/*/c/*.log*"):
        log.unlink()


def _read(path: Path) -> str:
    return path.read_text()


def _names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir()) if folder.exists() else []


def _memory_folders(mark: str) -> list[Path]:
    return list(Path("/dev/shm").glob(f"gangline-{mark}-*"))
