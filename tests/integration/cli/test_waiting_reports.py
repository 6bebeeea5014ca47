"""What ``submit --wait`` says of a job while it runs: the first step of an elastic job."""

import asyncio
import shlex
import subprocess
import sys

import pytest

from integration.cluster.embedded import EmbeddedCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

STEPS = (
    "import itertools, os, time\n"
    "for step in itertools.count(5):\n"
    "    with open(os.environ['GANGLINE_PROGRESS_FILE'], 'a') as file:\n"
    "        print('step', step, file=file)\n"
    "    time.sleep(0.05)\n"
)
WAITS_S = 150.0


async def test_first_step_of_an_elastic_job_is_reported(shared_cluster: EmbeddedCluster) -> None:
    command = f"gangline run --nnodes 1 --no-standby --no-python python -c {shlex.quote(STEPS)}"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gangline", "submit", "elastic", "--name", "steps", "--image", "any",
        "--cpu", "500m", "--share-memory", "0", "--workers", "1", "--min-workers", "1",
        "--max-workers", "1", "--wait", command,
        env=shared_cluster.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    said: list[str] = []
    try:
        async with asyncio.timeout(WAITS_S):
            while not any("trains: step" in line for line in said):
                line = await process.stderr.readline()
                assert line, said
                said.append(line.decode())
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        shared_cluster.run("delete", "steps")
    assert said[-1].startswith("steps trains: step ")
    assert sum("trains: step" in line for line in said) == 1
