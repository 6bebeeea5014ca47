"""Logs of deleted pods remain readable on the embedded cluster."""

import json
from pathlib import Path

import pytest

from gangline.cli.errors import ExitCode
from gangline.kube.errors import NotFound
from integration.cluster.embedded import EmbeddedCluster, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SUBMIT = (
    "submit", "pytorch", "--name", "gone", "--image", "any", "--cpu", "50m", "--share-memory", "0",
    "--workers", "2", "--clean-task-policy", "All",
)  # fmt: skip


def typed(cluster: EmbeddedCluster, *args: str) -> str:
    done = cluster.run(*args)
    assert done.returncode == ExitCode.DONE, f"{args}: {done.stdout}\n{done.stderr}"
    return done.stdout


async def without_pods(cluster: EmbeddedCluster, state: str = "SUCCEEDED") -> None:
    async def cleaned_up() -> bool:
        job = json.loads(typed(cluster, "get", "gone", "-o", "json"))
        return job["status"] == state and not job["instances"]

    await until(cleaned_up, 200.0)


async def test_logs_of_deleted_pods_are_readable(shared_cluster: EmbeddedCluster) -> None:
    cluster = shared_cluster
    typed(cluster, *SUBMIT, "echo first of $RANK; echo last of $RANK")
    await without_pods(cluster)
    assert typed(cluster, "logs", "gone") == "first of 0\nlast of 0\n"
    assert typed(cluster, "logs", "gone", "-i", "worker-0", "--tail", "1") == "last of 1\n"
    assert sorted(typed(cluster, "logs", "-f", "--all", "gone").splitlines()) == [
        "[master-0] first of 0",
        "[master-0] last of 0",
        "[worker-0] first of 1",
        "[worker-0] last of 1",
    ]
    async with cluster.client() as client:
        with pytest.raises(NotFound):  # without the parameter the response is that of Kubernetes
            await anext(client.logs("gone-master-0", "default"))

    # A later job of the name has written nothing yet.
    typed(cluster, "delete", "gone")
    typed(cluster, *SUBMIT, "true")
    await without_pods(cluster)
    assert typed(cluster, "logs", "gone", "--all") == ""

    # The diagnosis reads the stored logs of deleted pods.
    typed(cluster, "delete", "gone")
    full = "OSError: [Errno 28] No space left on device"
    wait = "trap exit TERM; while :; do sleep 0.1; done"
    typed(cluster, *SUBMIT, f"test $RANK = 1 || {{ {wait}; }}; echo '{full}' >&2; exit 3")
    await without_pods(cluster, "FAILED")
    root = json.loads(typed(cluster, "diagnose", "gone", "-o", "json"))["root"]
    result = (root["replica"], root["cause"], root["exitCode"], root["evidence"])
    assert result == ("worker-0", "DiskFull", 3, full)


def submit_counting(
    cluster: EmbeddedCluster, name: str, folder: Path, then: str, *flags: str
) -> None:
    """Submit a job that says with each run how many there were before it."""
    count = f"n=$(ls {folder} | wc -l); touch {folder}/$n; echo run $n; {then}"
    job = ("submit", "pytorch", "--name", name, "--image", "any", "--cpu", "50m")
    mount = ("--share-memory", "0", "--data-dir", str(folder))
    typed(cluster, *job, *mount, *flags, count)


async def test_previous_logs_of_deleted_or_replaced_pods(
    shared_cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    cluster = shared_cluster
    gone, again = tmp_path / "of-gone", tmp_path / "of-again"
    for folder in (gone, again):
        folder.mkdir()
    # It fails once, is restarted in its place, and cleans up behind itself.
    clean = ("--retry", "3", "--clean-task-policy", "All")
    submit_counting(cluster, "gone", gone, "test $n = 1", *clean)
    submit_counting(cluster, "again", again, "trap exit TERM; while :; do sleep 0.1; done")

    async def written(text: str) -> bool:
        return cluster.run("logs", "again").stdout == text

    await until(lambda: written("run 0\n"), 200.0)
    nothing = cluster.run("logs", "again", "--previous")
    assert nothing.returncode == ExitCode.UNEXPECTED
    assert "no log of an earlier pod" in nothing.stderr
    typed(cluster, "restart", "again")
    await until(lambda: written("run 1\n"), 200.0)
    assert typed(cluster, "logs", "again", "--previous") == "run 0\n"

    await without_pods(cluster)
    assert typed(cluster, "logs", "gone") == "run 1\n"
    assert typed(cluster, "logs", "gone", "--previous") == "run 0\n"
    assert typed(cluster, "logs", "gone", "--previous", "--all", "--no-prefix") == "run 0\n"
