"""``--save-at-breakpoint`` with a real checkpoint in memory: no step is lost with its worker."""

from pathlib import Path

import pytest

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
    while attempt == 1 and checkpointer.latest() != 3:
        time.sleep(0.05)
    for step in range(first, first + 3):
        state["weights"].fill_(step)
        checkpointer.save(step, state)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_newest_step_in_memory_is_in_storage_after_each_death(launch, script, tmp_path):
    path, folder, memory = script(SAVES_AND_DIES), tmp_path / "steps", tmp_path / "memory"
    memory.mkdir()
    run = launch(
        "--save-at-breakpoint", "--max-restarts", 1, "--no-standby", path, folder,
        GANGLINE_CHECKPOINT_MEMORY=str(memory),
    )  # fmt: skip
    assert run.wait() != 0
    assert "attempt 0 begins with step 1, [0.0, 0.0, 0.0, 0.0]" in run.output
    assert "attempt 1 begins with step 4, [3.0, 3.0, 3.0, 3.0]" in run.output
    for step in (3, 6):
        assert f"checkpoint in {folder}: step {step} is in storage" in run.output
    assert steps(folder)[-1] == 6


def steps(folder: Path) -> list[int]:
    """The steps that are in storage, whole."""
    names = (path.parent.name for path in folder.glob("*/gangline.json"))
    return sorted(int(name.removeprefix("step-")) for name in names)
