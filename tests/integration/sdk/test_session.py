"""The Python clients, on a complete cluster.

Takes 25 s: a dozen jobs run, one after the other.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gangline.api.jobs.kubeflow import PyTorchJob, PyTorchJobSpec, ReplicaSpec
from gangline.api.meta.objects import ObjectMeta
from gangline.api.resources import PYTORCH_JOBS
from gangline.kube.errors import AlreadyExists, NotFound
from gangline.sdk import AsyncClient, Client
from gangline.sdk.client import NoSuchJob
from gangline.sdk.functions.job import InvalidOption
from gangline.sdk.functions.program import FAILURE, RESULT
from gangline.sdk.handle import FunctionFailed, JobHandle, NoResult
from gangline.sdk.jobs import Job, JobState
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


def fails_on_one_rank() -> None:
    import os
    import time

    if os.environ["RANK"] == "1":
        computes(-1)
    time.sleep(600)


def ends_late(fails: bool) -> str:
    """The job succeeds with rank 0, before rank 1 has ended."""
    import os
    import time

    rank = os.environ["RANK"]
    if rank == "1":
        time.sleep(3)
    if rank == "1" and fails:
        raise OSError("late")
    return f"rank {rank}"


def waits() -> None:
    import time

    time.sleep(600)


def use_results(client: Client) -> None:
    """Results come back by rank; a failure has the traceback of the rank that failed first."""
    handle = client.run(computes, image="any", workers=2, arguments={"number": 1}, cpu="50m")
    assert handle.result() == {"rank": 0, "share": 10}
    assert handle.results()[1] == {"rank": 1, "share": 20}
    assert sorted(line.text for line in handle.logs()) == ["rank 0 computes", "rank 1 computes"]
    assert repr(handle).startswith("<job computes: SUCCEEDED, 0:00:")
    assert "pytorchjob/computes" in handle._repr_html_()
    with pytest.raises(NoResult, match="ranks 0 to 1"):
        handle.result(rank=2)
    handle.delete()
    failing = client.run(fails_on_one_rank, image="any", workers=2, name="fails", cpu="50m")
    with pytest.raises(FunctionFailed, match=r"^fails has failed on rank 1") as failed:
        failing.result()
    error = failed.value
    assert (error.rank, error.type, error.message) == (
        1,
        "ValueError",
        "number must not be negative",
    )
    line = computes.__code__.co_firstlineno + 6
    assert f'File "{__file__}", line {line}, in computes\n    raise ValueError' in str(error)
    lines = [line.text for line in failing.logs()]
    assert lines
    assert not any(RESULT in line or FAILURE in line for line in lines)
    failing.delete()
    late = [
        client.run(ends_late, image="any", workers=2, arguments={"fails": fails}, cpu="50m")
        for fails in (False, True)
    ]
    assert late[0].results() == {0: "rank 0", 1: "rank 1"}
    with pytest.raises(FunctionFailed, match=r"on rank 1 .*: OSError: late"):
        late[1].result()
    for handle in late:
        handle.delete()


def use_names(client: Client) -> None:
    """A second job of a function gets a name of its own; one with a taken name is refused."""
    first = client.run(waits, image="any", cpu="50m")
    second = client.run(waits, image="any", cpu="50m")
    assert first.name == "waits"
    assert second.name.startswith("waits-")
    with pytest.raises(AlreadyExists, match=r"'waits' exists .* another name") as refused:
        client.run(waits, image="any", name="waits")
    assert refused.value.__suppress_context__
    with pytest.raises(InvalidOption, match="workers"):
        client.run(waits, image="any", workers=0, name="refused")
    assert {job.name for job in client.list()} == {first.name, second.name}
    second.delete()
    use_timeouts(client, first)


def use_timeouts(client: Client, handle: JobHandle) -> None:
    """A wait that ends early leaves the job alone; a deleted job is one line and one error."""
    for limit in (0, 0.01):
        with pytest.raises(TimeoutError, match=r"'waits' has not ended .* it is [A-Z]+, . of 1"):
            handle.wait(timeout=limit)
        with pytest.raises(TimeoutError, match="the job goes on"):
            handle.result(timeout=limit)
    for wrong in (-1, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            client.wait("waits", timeout=wrong)

    def end(job: Job) -> None:
        """A callback may use the client."""
        client.delete(job.name)

    with pytest.raises(NoSuchJob, match="deleted meanwhile"):
        handle.wait(end)
    assert repr(handle) == "<job waits: deleted>"
    for call in (handle.wait, handle.results, handle.result, handle.diagnose, handle.delete):
        with pytest.raises(NoSuchJob):
            call()
    for name in ("", "a?b"):
        with pytest.raises(NoSuchJob, match="the name "):
            client.delete(name)


SCRIPT = """
import asyncio, os, sys
from gangline.sdk import AsyncClient, Client

def says(count: int) -> int:
    for number in range(count):
        print(number, flush=True)
    return count

client = Client()
with Client() as closed:
    job = closed.run(says, image="any", arguments={"count": 100}, cpu="50m", name="says")
assert job.result(timeout=100) == 100, "a handle outlives its client"
unread = job.logs(follow=True)
assert next(unread).text == "0"

async def read() -> AsyncClient:
    client = AsyncClient()
    unread = client.logs("says", follow=True)
    await anext(unread)
    return client

asyncio.run(asyncio.run(read()).get("says"))

if (child := os.fork()) == 0:
    assert job.result() == 100
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert job.result() == 100
client.delete("says")
print("done")
"""
"""Closes nothing: everything is closed at its end, without a message."""


NOTEBOOK = (
    """
import os
from gangline.sdk import Client

SCALE = 10


def share(number: int) -> int:
    return (number + int(os.environ["RANK"])) * SCALE
""",
    """
client = Client()
job = client.run(share, image="any", workers=2, arguments={"number": 4}, cpu="50m")
print(job.results())
display(job)
client.close()
""",
    "job.delete(), job",
)
"""Cells of a notebook: a function, the job that calls it, and its end after the client's."""


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
    (deleted,) = notebook.cells[2].outputs
    assert deleted.data["text/plain"] == "(None, <job share: deleted>)"


def work(kubeconfig: str) -> None:
    with Client(kubeconfig=kubeconfig) as client:
        use_results(client)
        use_names(client)
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


@pytest.fixture
async def kubeconfig(shared_cluster: EmbeddedCluster) -> str:
    async with shared_cluster.client() as client:

        async def has_kind() -> bool:
            try:
                await client.list(PYTORCH_JOBS, "default")
            except NotFound:
                return False
            return True

        await until(has_kind, 60.0)
    return str(shared_cluster.home.default_kubeconfig)


async def test_a_function_is_run_watched_and_read_from_python(kubeconfig: str) -> None:
    await asyncio.to_thread(work, kubeconfig)


async def test_notebook_shows_a_function_and_its_job(kubeconfig: str) -> None:
    await run_notebook(kubeconfig)


def test_script_that_closes_nothing_ends_without_a_message(kubeconfig: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "script.py")
        path.write_text(SCRIPT)
        done = subprocess.run(
            [sys.executable, "-W", "default", path],
            env=os.environ | {"KUBECONFIG": kubeconfig},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


async def test_async_client_connects_with_its_first_call(kubeconfig: str) -> None:
    """In any event loop, and again after it was closed."""
    client = AsyncClient(kubeconfig=kubeconfig)
    job = await client.run(computes, image="any", arguments={"number": 1}, cpu="50m")
    assert await client.result(job.name, timeout=100) == {"rank": 0, "share": 10}
    await client.aclose()
    assert [job.name for job in await client.list()] == ["computes"]
    await asyncio.to_thread(lambda: asyncio.run(client.delete("computes")))
    with pytest.raises(NoSuchJob):
        await client.results("computes")
    await client.close()
