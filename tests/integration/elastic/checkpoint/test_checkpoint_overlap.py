"""Saves that overlap with training, as the saver and the next process see them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from accelerator_stand_in import install
from gangline.elastic.checkpoint import Checkpointer
from gangline.elastic.checkpoint.snapshot import ring
from gangline.elastic.progress import PROGRESS_VARIABLE, read_progress


def test_a_save_goes_to_storage_once_it_has_arrived(
    memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, progress = install(monkeypatch), tmp_path / "progress"
    monkeypatch.setenv("GANGLINE_CHECKPOINT_MEMORY", str(memory))
    monkeypatch.setenv(PROGRESS_VARIABLE, str(progress))
    state = {"w": torch.arange(1000.0)}
    with Checkpointer(tmp_path / "steps", linger_s=60, overlap=True) as checkpointer:
        checkpointer.save(1, state, "storage")
        assert checkpointer.wait(60)
        module.holds_back = True
        checkpointer.save(2, state, "storage")
        assert read_progress(progress, tmp_path / "none").saved_step == 1
        assert checkpointer.latest() == 1
        module.events[-1].happened.set()
        assert checkpointer.wait(60)
        assert checkpointer.latest() == 2
        assert read_progress(progress, tmp_path / "none").saved_step == 2
        state["w"].zero_()
        module.holds_back = False
        loaded = checkpointer.load(state)
        assert loaded is not None
        assert (loaded.step, loaded.source) == (2, "memory")
        assert torch.equal(state["w"], torch.arange(1000.0))


class Model:
    """An object that exposes its state only through ``state_dict``."""

    def state_dict(self) -> dict[str, Any]:
        return {"w": torch.ones(3)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError("nothing was saved")


def save(checkpointer: Checkpointer, state: dict[str, Any]) -> None:
    checkpointer.save(1, state)


@pytest.mark.parametrize("first", [Checkpointer.prepare, Checkpointer.load, save])
def test_tensors_to_pin_are_found_within_objects(
    first: Callable[[Checkpointer, dict[str, Any]], object],
    memory: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch)
    pinned = list[torch.device]()
    monkeypatch.setattr(ring, "pin_segment", lambda segment, device: pinned.append(device))
    monkeypatch.setenv("GANGLINE_CHECKPOINT_MEMORY", str(memory))
    with Checkpointer(tmp_path / "steps", linger_s=60) as checkpointer:
        first(checkpointer, {"training": Model()})
        checkpointer.buffers.wait_for_memory()
        assert set(pinned) == {torch.device("cpu")}
