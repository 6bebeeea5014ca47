"""A real Brain on SQLite beside a real cluster: history, advice, kills, suspension, two copies.

Takes 60 s: each test has a Brain and a cluster as processes, and kills or stops them.
"""

import json
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from gangline.api.brain.job_advice import JobAdvice
from gangline.api.core.core import Event
from gangline.api.resources import EVENTS, JOB_ADVICE, NAMESPACES, PYTORCH_JOBS
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import NotFound
from integration.brain.brain_process import (
    BrainProcess,
    brain_process,
    brain_url,
    stored_run,
    waiting_connections,
)
from integration.cluster.embedded import EmbeddedCluster, until

pytestmark = pytest.mark.slow

MIB = 2**20


def training(name: str, release: Path, *, namespace: str = "default") -> dict[str, Any]:
    """A job of two workers that hold 200 MiB each until a file appears."""
    script = (
        "import os, time\n"
        f"held = bytearray({200 * MIB})\n"
        f"while not os.path.exists('/signals/{release.name}'): time.sleep(0.05)\n"
    )
    resources = {"requests": {"memory": "2Gi", "cpu": "500m"}, "limits": {"memory": "2Gi"}}
    main = {
        "name": "pytorch",
        "image": "repo/train:1",
        "command": ["python", "-c", script],
        "resources": resources,
        # Pods have a /tmp of their own.
        "volumeMounts": [{"name": "signals", "mountPath": "/signals"}],
    }
    signals = {"name": "signals", "hostPath": {"path": str(release.parent)}}
    worker = {
        "replicas": 2,
        "restartPolicy": "Never",
        "template": {"spec": {"containers": [main], "volumes": [signals]}},
    }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"pytorchReplicaSpecs": {"Worker": worker}},
    }


def signal_file(folder: Path) -> Path:
    """A file that ends the jobs when it exists, in a folder that pods mount."""
    (folder / "signals").mkdir()
    return folder / "signals" / "release"


def remove(release: Path) -> None:
    release.unlink(missing_ok=True)


def release_jobs(release: Path) -> None:
    release.touch()


async def submit(client: ApiClient, manifest: dict[str, Any]) -> None:
    await client.create(PYTORCH_JOBS, manifest, manifest["metadata"]["namespace"])


async def measured(url: str, job: str, brain: BrainProcess) -> dict[str, Any]:
    """Wait until the history has the memory of both workers."""

    async def has_peaks() -> dict[str, Any]:
        found = await stored_run(url, job)
        peaks = [
            pod for pod in found.get("pods", []) if (pod.get("peak_memory_bytes") or 0) > 200 * MIB
        ]
        return found if len(peaks) == 2 else {}

    return await until(has_peaks, 60.0, brain.said)


async def ended(url: str, job: str, brain: BrainProcess) -> dict[str, Any]:
    """Wait until the history has the end of a job."""

    async def has_ended() -> dict[str, Any]:
        found = await stored_run(url, job)
        return found if found and found["job"].get("outcome") == "succeeded" else {}

    return await until(has_ended, 60.0, brain.said)


async def advice_on(client: ApiClient, job: str, brain: BrainProcess) -> JobAdvice:
    async def found() -> JobAdvice | None:
        try:
            advice = await client.get(JOB_ADVICE, job, "default")
        except NotFound:
            return None
        return advice if advice.status.items else None

    advice = await until(found, 60.0, brain.said)
    assert advice is not None
    return advice


async def run_once(
    client: ApiClient, url: str, name: str, release: Path, brain: BrainProcess
) -> dict[str, Any]:
    remove(release)
    await submit(client, training(name, release))
    await measured(url, name, brain)
    release_jobs(release)
    return await ended(url, name, brain)


async def test_third_run_is_advised_from_the_first_two(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    release = signal_file(tmp_path)
    with brain_process(cluster, tmp_path) as brain:
        async with cluster.client() as client:
            url = await brain_url(client, brain)
            # Jobs of an excluded namespace leave no trace.
            labels = {"gangline.dev/brain": "off"}
            await client.create(NAMESPACES, {"metadata": {"name": "private", "labels": labels}})
            await submit(client, training("hidden-1", release, namespace="private"))
            first = await run_once(client, url, "train-1", release, brain)
            assert first["job"]["stem"] == "train"
            assert first["job"]["complete"] is True
            assert {pod["node"] for pod in first["pods"]} <= {"node-1", "node-2"}
            await run_once(client, url, "train-2", release, brain)
            remove(release)
            await submit(client, training("train-3", release))
            advice = await advice_on(client, "train-3", brain)
            items = [item for item in advice.status.items if item.what == "memory"]
            assert len(items) == 1
            assert items[0].role == "worker"
            assert items[0].value is not None
            assert 200 * MIB < items[0].value < 1024 * MIB
            assert set(items[0].evidence.of) <= {"train-1", "train-2"}
            assert items[0].evidence.runs == 2
            assert advice.metadata.owner_references[0].name == "train-3"

            async def announced() -> list[Event]:
                found = (await client.list(EVENTS, "default")).items
                about = [each for each in found if each.involved_object.name == "train-3"]
                return [each for each in about if each.reason == "Advised"]

            events = await until(announced, 30.0, brain.said)
            subjects = {item.sentence for item in advice.status.items}
            assert {each.message for each in events} <= subjects
            assert all(each.count <= 1 for each in events)
            shown = cluster.run("advise", "train-3", "-o", "json")
            assert shown.returncode == 0, shown.stderr
            assert json.loads(shown.stdout)["items"][0]["value"] == advice.status.items[0].value
            assert "Advice:" in cluster.run("get", "train-3").stdout
            listed = cluster.run("history")
            assert listed.stdout.split("\n")[1].split()[0] == "train-2"
            assert len(listed.stdout.strip().split("\n")) == 3
            patch = json.loads(cluster.run("advise", "train-3", "--diff").stdout)
            assert patch[0]["op"] == "replace"
            assert patch[0]["path"].endswith("/resources/requests/memory")
            release_jobs(release)
            await ended(url, "train-3", brain)

            async def withdrawn() -> bool:
                return not (await client.list(JOB_ADVICE, "default")).items

            await until(withdrawn, 60.0, brain.said)
            assert await stored_run(url, "hidden-1", "private") == {}
            shown = json.loads(cluster.run("history", "-A", "-o", "json").stdout)
            assert {job["name"] for job in shown} == {"train-1", "train-2", "train-3"}


async def test_killed_brain_goes_on_where_it_was(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    release = signal_file(tmp_path)
    with brain_process(cluster, tmp_path) as brain:
        async with cluster.client() as client:
            url = await brain_url(client, brain)
            await submit(client, training("train-1", release))
            await submit(client, training("train-2", release))
            before = await measured(url, "train-1", brain)
            await measured(url, "train-2", brain)
            await brain.end(signal.SIGKILL)
            # One job is deleted and one ends while nothing watches.
            await client.delete(PYTORCH_JOBS, "train-2", "default")

            async def gone() -> bool:
                return len((await client.list(PYTORCH_JOBS, "default")).items) == 1

            await until(gone, 30.0)
            release_jobs(release)
            brain.log.unlink()
            brain.start()
            url = await brain_url(client, brain)
            after = await ended(url, "train-1", brain)
            assert [pod["number"] for pod in after["pods"]] == [0, 0]
            peaks = {pod["rank"]: pod["peak_memory_bytes"] for pod in after["pods"]}
            for pod in before["pods"]:
                assert peaks[pod["rank"]] >= pod["peak_memory_bytes"]

            async def deleted() -> bool:
                found = await stored_run(url, "train-2")
                return bool(found) and found["job"]["outcome"] == "deleted"

            await until(deleted, 60.0, brain.said)


async def test_g2_suspended_brain_does_not_delay_a_job(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    """Nothing calls it, and the job is created, runs and ends while it stands still."""
    release = signal_file(tmp_path)
    with brain_process(cluster, tmp_path) as brain:
        async with cluster.client() as client:
            url = await brain_url(client, brain)
            brain.send(signal.SIGSTOP)
            await submit(client, training("train-1", release))

            async def condition(wanted: str) -> bool:
                job = await client.get(PYTORCH_JOBS, "train-1", "default")
                return any(
                    each.type == wanted and each.status == "True" for each in job.status.conditions
                )

            await until(lambda: condition("Created"), 60.0)
            await until(lambda: condition("Running"), 60.0)
            release_jobs(release)
            await until(lambda: condition("Succeeded"), 60.0)
            assert brain.is_stopped
            port = int(url.rpartition(":")[2])
            assert waiting_connections(port) == 0
            with socket.create_connection(("127.0.0.1", port)):
                assert waiting_connections(port) == 1  # what a call would have left
            brain.send(signal.SIGCONT)
            found = await ended(url, "train-1", brain)
            assert found["job"]["outcome"] == "succeeded"


async def test_second_brain_takes_over(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    release = signal_file(tmp_path)
    with brain_process(cluster, tmp_path, "first") as first:
        async with cluster.client() as client:
            await brain_url(client, first)

            async def leads(brain: BrainProcess) -> bool:
                return "leading" in brain.said()

            await until(lambda: leads(first), 30.0, first.said)
            with brain_process(cluster, tmp_path, "second") as second:
                url = await brain_url(client, second)
                await submit(client, training("train-1", release))
                # The second serves what the first writes.
                await measured(url, "train-1", first)
                assert "leading" not in second.said()
                await first.end()
                await until(lambda: leads(second), 60.0, second.said)
                # A job whose end nobody sees is not known completely.
                await submit(client, training("train-2", release))
                await until(lambda: stored_run(url, "train-2"), 60.0, second.said)
                release_jobs(release)
                found = await ended(url, "train-1", second)
                assert [pod["number"] for pod in found["pods"]] == [0, 0]
                assert found["job"]["complete"] is True
