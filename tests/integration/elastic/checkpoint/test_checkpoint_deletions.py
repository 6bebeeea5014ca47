"""What a user deletes from storage does not come back from memory."""

import logging
import shutil
from pathlib import Path

import pytest
import torch

from gangline.elastic.checkpoint import Checkpointer
from gangline.elastic.checkpoint.format.manifest import step_folder


def fail_after(folder: Path, storage: range, memory: range) -> None:
    """Save steps, then end as a failed training does: memory is retained for a restart."""
    checkpointer = Checkpointer(folder, keep=0)
    state = {"x": torch.zeros(100)}
    for step in [*storage, *memory]:
        state["x"].fill_(step)
        checkpointer.save(step, state, "storage" if step in storage else "memory")
        assert checkpointer.wait()
    checkpointer.close(finished=False)


@pytest.mark.parametrize(("deleted", "left"), [(range(3, 6), 2), (range(1, 6), None)])
def test_deleted_steps_stay_deleted(
    deleted: range, left: int | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fail_after(tmp_path, range(1, 6), range(0))
    for step in deleted:
        shutil.rmtree(tmp_path / step_folder(step))
    with caplog.at_level(logging.WARNING), Checkpointer(tmp_path, keep=0) as checkpointer:
        state = {"x": torch.zeros(100)}
        loaded = checkpointer.load(state)
        assert (loaded.step if loaded else None) == left
        assert torch.equal(state["x"], torch.full((100,), float(left or 0)))
        assert "in memory are ignored" in caplog.text


def test_unstored_steps_of_memory_are_used_if_nothing_was_deleted(tmp_path: Path) -> None:
    fail_after(tmp_path, range(1, 3), range(3, 5))
    with Checkpointer(tmp_path, keep=0) as checkpointer:
        loaded = checkpointer.load({"x": torch.zeros(100)})
        assert loaded is not None
        assert (loaded.step, loaded.source) == (4, "memory")
