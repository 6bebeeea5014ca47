"""The synchronous Python client, on a complete cluster."""

import asyncio
import os
import tempfile

import pytest

from gangline.api.jobs.kubeflow import PyTorchJob, PyTorchJobSpec, ReplicaSpec
from gangline.api.meta.objects import ObjectMeta
from gangline.api.resources import PYTORCH_JOBS
from gangline.kube.errors import AlreadyExists, NotFound
from gangline.sdk import Client
from gangline.sdk.client import NoSuchJob
from gangline.sdk.functions.job import NoResult
from gangline.sdk.handle import FunctionFailed
from gangline.sdk.jobs import JobState
from integration.cluster.embedded import EmbeddedCluster, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def train(steps: int) -> None:
    import os

    for step in range(steps):
        print(f"step {step} of rank {os.environ['RANK']}")


SCALE = 10


def share_of(number: int) -> int:
    return number * SCALE


def computes(number: int) -> dict[str, int]:
    import os

    rank = int(os.environ["RANK"])
    print(f"rank {rank} computes")
    if number < 0:
        raise ValueError("number must not be negative")
    return {"rank": rank, "share": share_of(number + rank)}


def use_handle(client: Client) -> None:
    """Results come back by rank, and a failure has its cause."""
    handle = client.run(computes, image="any", workers=2, arguments={"number": 1}, cpu="50m")
    assert handle.result() == {"rank": 0, "share": 10}
    assert handle.results()[1] == {"rank": 1, "share": 20}
    assert sorted(line.text for line in handle.logs()) == ["rank 0 computes", "rank 1 computes"]
    assert repr(handle) == "<job computes: SUCCEEDED, 0/2 running>"
    assert "pytorchjob/computes" in handle._repr_html_()
    with pytest.raises(NoResult, match="ranks 0 to 1"):
        handle.result(rank=2)
    handle.delete()
    failing = client.run(computes, image="any", name="fails", arguments={"number": -1}, cpu="50m")
    with pytest.raises(FunctionFailed, match=r"ValueError|exit code 1"):
        failing.result()
    client.handle("fails").delete()


NOTEBOOK = (
    """
import os
from gangline.sdk import Client

SCALE = 10


def share(number: int) -> int:
    return (number + int(os.environ["RANK"])) * SCALE
""",
    """
with Client() as client:
    job = client.run(share, image="any", workers=2, arguments={"number": 4}, cpu="50m")
    print(job.results())
    display(job)
    job.delete()
""",
)
"""Cells of a notebook: a function, and the job that calls it."""


async def run_notebook(kubeconfig: str) -> None:
    """Jupyter finds the source of the function, and the progress and the job are shown as HTML."""
    nbclient = pytest.importorskip("nbclient", reason="Jupyter is not installed")
    nbformat = pytest.importorskip("nbformat")
    cells = [nbformat.v4.new_code_cell(source) for source in NOTEBOOK]
    notebook = nbformat.v4.new_notebook(cells=cells)
    executor = nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3")
    with tempfile.TemporaryDirectory() as folder:
        variables = {"KUBECONFIG": kubeconfig, "IPYTHONDIR": folder, "JUPYTER_RUNTIME_DIR": folder}
        await executor.async_execute(env=os.environ | variables)
    outputs = notebook.cells[1].outputs
    shown = [each.data["text/html"] for each in outputs if each.output_type == "display_data"]
    assert [each.text for each in outputs if each.output_type == "stream"] == ["{0: 40, 1: 50}\n"]
    progress, job = shown
    assert "pytorchjob/share" in progress
    assert "SUCCEEDED after 0:00:" in progress
    assert "pytorchjob/share" in job


def work(kubeconfig: str) -> None:
    with Client(kubeconfig=kubeconfig) as client:
        use_handle(client)
        # Limits are low: the nodes of tests share a small machine.
        client.run(train, image="any", workers=2, arguments={"steps": 3}, cpu="50m")
        lines = [(line.replica, line.text) for line in client.logs("train", follow=True)]
        assert sorted(lines) == [
            (replica, f"step {step} of rank {rank}")
            for rank, replica in enumerate(("master-0", "worker-0"))
            for step in range(3)
        ]
        result: list[JobState] = []
        assert (
            client.wait("train", lambda job: result.append(job.state)).state is JobState.SUCCEEDED
        )
        assert result[-1] is JobState.SUCCEEDED
        assert "pytorchjob/train" in client.get("train")._repr_html_()
        again = list(client.logs("train"))
        assert len(again) == 6
        with pytest.raises(AlreadyExists):
            client.run(train, image="any", arguments={"steps": 1})

        container = {"name": "pytorch", "image": "any", "command": ["sh", "-c", "exit 3"]}
        template = {"spec": {"containers": [container]}}
        spec = PyTorchJobSpec(
            pytorch_replica_specs={"Master": ReplicaSpec(template=template, restart_policy="Never")}
        )
        client.submit(PyTorchJob(metadata=ObjectMeta(name="broken"), spec=spec))
        assert client.wait("broken").state is JobState.FAILED
        root = client.diagnose("broken").root
        assert root is not None
        assert root.exit_code == 3
        assert any(event.subject == "pod/broken-master-0" for event in client.events("broken"))
        assert {job.name for job in client.list()} == {"train", "broken"}
        client.delete("broken")
        with pytest.raises(NoSuchJob):
            client.get("broken")


async def test_a_function_is_run_watched_and_read_from_python(
    shared_cluster: EmbeddedCluster,
) -> None:
    async with shared_cluster.client() as client:

        async def known() -> bool:
            try:
                await client.list(PYTORCH_JOBS, "default")
            except NotFound:
                return False
            return True

        await until(known, 60.0)
    kubeconfig = str(shared_cluster.home.default_kubeconfig)
    await asyncio.to_thread(work, kubeconfig)
    # The last one: without Jupyter, this test is skipped after all else has passed.
    await run_notebook(kubeconfig)
