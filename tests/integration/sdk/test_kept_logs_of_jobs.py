"""What a job has written can be read when its pods are gone, on the embedded cluster."""

import json

import pytest

from gangline.cli.exit_codes import ExitCode
from gangline.kube.errors import NotFound
from integration.cluster.embedded import EmbeddedCluster, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SUBMIT = (
    "submit", "pytorch", "--name", "gone", "--image", "any", "--cpu", "50m", "--share-memory", "0",
    "--workers", "2", "--clean-task-policy", "All",
)  # fmt: skip


def typed(cluster: EmbeddedCluster, *words: str) -> str:
    done = cluster.run(*words)
    assert done.returncode == ExitCode.DONE, f"{words}: {done.stdout}\n{done.stderr}"
    return done.stdout


async def without_pods(cluster: EmbeddedCluster) -> None:
    async def cleaned_up() -> bool:
        job = json.loads(typed(cluster, "get", "gone", "-o", "json"))
        return job["status"] == "SUCCEEDED" and not job["instances"]

    await until(cleaned_up, 200.0)


async def test_logs_are_there_when_the_pods_are_gone(embedded_cluster: EmbeddedCluster) -> None:
    cluster = embedded_cluster
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
        with pytest.raises(NotFound):  # who does not ask for kept ones is told as by Kubernetes
            await anext(client.logs("gone-master-0", "default"))

    # A later job of the name has written nothing yet.
    typed(cluster, "delete", "gone")
    typed(cluster, *SUBMIT, "true")
    await without_pods(cluster)
    assert typed(cluster, "logs", "gone", "--all") == ""
