"""``--save-at-breakpoint`` with a real checkpoint in memory: no step is lost with its worker."""

import asyncio
from pathlib import Path

import pytest

from gangline.elastic.protocol.channel import read_job_secret
from gangline.elastic.protocol.client import MasterClient
from gangline.elastic.protocol.messages import JobStatusReply, JobStatusRequest

SECRET = {"GANGLINE_JOB_SECRET": "00" * 32}

SAVES_AND_DIES = """
    import os, signal, sys, time
    import torch
    from gangline.elastic.checkpoint import Checkpointer

    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    state = {"weights": torch.zeros(4)}
    checkpointer = Checkpointer(sys.argv[1])
    loaded = checkpointer.load(state)
    first = loaded.step + 1 if loaded else 1
    print(f"attempt {attempt} begins with step {first}, {state['weights'].tolist()}", flush=True)
    while attempt == 1 and not os.path.exists(sys.argv[2]):
        time.sleep(0.05)
    for step in range(first, first + 3):
        state["weights"].fill_(step)
        checkpointer.save(step, state)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_newest_step_in_memory_is_in_storage_after_each_death(
    launch, script, tmp_path, free_port
):
    path, folder, go = script(SAVES_AND_DIES), tmp_path / "steps", tmp_path / "go"
    memory = tmp_path / "memory"
    memory.mkdir()
    address = f"127.0.0.1:{free_port}"
    run = launch(
        "--rdzv-backend", "c10d", "--rdzv-endpoint", address, "--rdzv-id", "job",
        "--save-at-breakpoint", "--max-restarts", 1, "--no-standby", path, folder, go,
        GANGLINE_CHECKPOINT_MEMORY=str(memory), **SECRET,
    )  # fmt: skip
    run.until("attempt 1 begins")
    asyncio.run(asyncio.wait_for(timeline_contains(address, f"{folder}: step 3 is in storage"), 60))
    go.touch()
    assert run.wait() != 0
    assert "attempt 0 begins with step 1, [0.0, 0.0, 0.0, 0.0]" in run.output
    assert "attempt 1 begins with step 4, [3.0, 3.0, 3.0, 3.0]" in run.output
    for step in (3, 6):
        assert f"checkpoint in {folder}: step {step} is in storage" in run.output
    assert steps(folder)[-1] == 6


async def timeline_contains(address: str, message: str) -> None:
    """Wait until the job's timeline contains a text."""
    async with MasterClient(address, read_job_secret(SECRET, "job")) as client:
        while True:
            status = await client.ask(JobStatusRequest(), JobStatusReply)
            if ("CheckpointSaved", message) in [(e.reason, e.message) for e in status.events]:
                return
            await asyncio.sleep(0.05)


def steps(folder: Path) -> list[int]:
    """The complete steps in storage."""
    names = (path.parent.name for path in folder.glob("*/gangline.json"))
    return sorted(int(name.removeprefix("step-")) for name in names)
