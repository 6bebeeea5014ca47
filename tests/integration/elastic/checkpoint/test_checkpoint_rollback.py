"""Training goes back to an older step: its saves remain, and what it left does not come back."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from gangline.elastic.checkpoint import Checkpointer
from gangline.elastic.checkpoint.storage.branches import RECORD
from gangline.elastic.checkpoint.storage.commit import committed_steps
from gangline.elastic.checkpoint.storage.target import LocalTarget


@pytest.fixture(autouse=True)
def _own_memory(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setenv("GANGLINE_CHECKPOINT_MEMORY", str(memory))


def value_of(checkpointer: Checkpointer, step: int | None = None) -> tuple[int, float]:
    """Load; return the step and the value that was saved."""
    state = {"x": torch.zeros(1000)}
    loaded = checkpointer.load(state, step)
    assert loaded is not None
    assert torch.equal(state["x"], state["x"][:1].expand(1000))
    return loaded.step, state["x"][0].item()


def save(
    checkpointer: Checkpointer, steps: Iterable[int], branch: int, level: Any = "storage"
) -> None:
    """Save steps whose value says of which branch they are."""
    for step in steps:
        checkpointer.save(step, {"x": torch.full((1000,), 1000.0 * branch + step)}, level)
        assert checkpointer.wait(60), checkpointer.counts.failures


def start(folder: Path, **settings: Any) -> tuple[int, float]:
    """Start as a script does; return what it loads by default."""
    with Checkpointer(folder, **settings) as checkpointer:
        return value_of(checkpointer)


def lose_memory(memory: Path) -> None:
    """Lose all saves in memory and what is noted beside them, as with a node."""
    for path in memory.rglob("*.seg"):
        path.unlink()
    for path in memory.rglob(RECORD):
        path.unlink()


def test_saves_after_a_rollback_stay_and_the_steps_it_left_do_not_come_back(
    tmp_path: Path, memory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"keep": 3, "keep_every": 5}
    with Checkpointer(tmp_path, **settings) as checkpointer:
        save(checkpointer, range(1, 10), 0)
    with Checkpointer(tmp_path, **settings) as checkpointer:
        assert value_of(checkpointer, 5) == (5, 5.0)
        save(checkpointer, [6, 7], 1)
        assert checkpointer.latest() == 7
    assert "continued from step 5" in caplog.text
    assert start(tmp_path, **settings) == (7, 1007.0)
    with Checkpointer(tmp_path, **settings) as checkpointer:
        value_of(checkpointer)
        save(checkpointer, [8, 9], 1)
    while checkpointer.job_folder.exists():  # the saver may still be removing steps
        time.sleep(0.01)
    assert committed_steps(LocalTarget(str(tmp_path))) == [5, 7, 8, 9]
    lose_memory(memory)
    assert start(tmp_path, **settings) == (9, 1009.0)


def test_an_inspected_older_step_changes_no_default(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        save(checkpointer, [1, 2], 0)
        save(checkpointer, [3], 0, "memory")
        assert value_of(checkpointer, 1) == (1, 1.0)
        checkpointer.close(finished=False)
    assert start(tmp_path) == (3, 3.0)
    assert not (tmp_path / RECORD).exists()


@pytest.mark.parametrize("lost", [False, True])
def test_a_rollback_counts_from_its_first_save_to_memory(
    lost: bool, tmp_path: Path, memory: Path
) -> None:
    """It is in storage soon, although no step of the new branch is."""
    checkpointer = Checkpointer(tmp_path, keep=0)
    save(checkpointer, range(1, 5), 0)
    value_of(checkpointer, 2)
    save(checkpointer, [3], 1, "memory")
    while not (tmp_path / RECORD).exists():
        checkpointer.saver_client.poll(0.01)
    if lost:
        lose_memory(memory)
    assert value_of(checkpointer) == ((2, 2.0) if lost else (3, 1003.0))
    assert value_of(checkpointer, 4) == (4, 4.0), "abandoned, and loaded by its number"
    checkpointer.close()


def test_a_restarted_attempt_continues_the_branch_and_later_loads_go_back(
    tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    with Checkpointer(tmp_path, keep=0) as checkpointer:
        save(checkpointer, range(1, 5), 0)
    with Checkpointer(tmp_path, keep=0) as checkpointer:
        assert value_of(checkpointer, 2) == (2, 2.0)
        save(checkpointer, [3, 4, 5], 1)
        lose_memory(memory)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    with Checkpointer(tmp_path, keep=0) as checkpointer:
        assert value_of(checkpointer, 2) == (5, 1005.0)
        assert "an earlier attempt of this run has loaded step 2" in caplog.text
        assert value_of(checkpointer, 2) == (2, 2.0), "the script goes back again"
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    with Checkpointer(tmp_path, keep=0) as checkpointer:
        assert value_of(checkpointer, 2) == (2, 2.0), "another run"


def test_a_step_that_is_saved_twice_has_the_second_value(tmp_path: Path, memory: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        for branch in range(3):
            save(checkpointer, [1], branch)
        save(checkpointer, [2, 3], 0)
        save(checkpointer, [2], 1)
        assert value_of(checkpointer) == (2, 1002.0), "the script went back by its own means"
        lose_memory(memory)
        assert value_of(checkpointer) == (2, 1002.0)
        assert value_of(checkpointer, 1) == (1, 2001.0)


def test_a_training_that_loads_nothing_is_told_of_newer_steps(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Checkpointer(tmp_path, keep=2) as checkpointer:
        save(checkpointer, [8, 9], 0)
    with Checkpointer(tmp_path, keep=2) as checkpointer:
        save(checkpointer, [1, 2, 3], 1)
    assert "step 9, from which this training has not continued" in caplog.text
    assert start(tmp_path) == (9, 9.0)
