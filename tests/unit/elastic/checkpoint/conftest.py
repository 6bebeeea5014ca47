"""A part of a checkpoint in memory and in storage, made without any saver process."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from gangline.elastic.checkpoint.format.plan import SavePlan
from gangline.elastic.checkpoint.ranks import SaveGroup
from gangline.elastic.checkpoint.snapshot import inventory
from gangline.elastic.checkpoint.snapshot.inventory import SnapshotInfo
from gangline.elastic.checkpoint.snapshot.ring import SaveRequest, SnapshotRing
from gangline.elastic.checkpoint.storage import commit
from gangline.elastic.checkpoint.storage.target import LocalTarget
from unit.elastic.checkpoint.checkpoint_states import write_part


@dataclass
class Rig:
    """One rank, its memory and its storage."""

    job_folder: Path
    folder: Path

    def __post_init__(self) -> None:
        self.ranks = SaveGroup()
        self.buffers = SnapshotRing(self.job_folder, 0, 3)
        self.target = LocalTarget(str(self.folder))

    def save(self, state: dict[str, Any], step: int, for_storage: bool = True) -> None:
        fitted = SavePlan(self.ranks, "here").fit(state)
        self.buffers.save(SaveRequest(fitted, step, for_storage))

    def held(self, step: int) -> SnapshotInfo:
        return next(one for one in inventory.list_snapshots(self.job_folder) if one.step == step)

    def steps(self) -> list[int]:
        return sorted(one.step for one in inventory.list_snapshots(self.job_folder))

    def persist(self, step: int) -> None:
        plan = write_part(self.target, self.held(step))
        assert commit.try_commit(self.target, step, plan, 1)

    def clear(self) -> None:
        self.buffers.close()
        self.buffers = SnapshotRing(self.job_folder, 0, 3)
        for path in self.job_folder.iterdir():
            path.unlink()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="gangline-test-") as job_folder:
        rig = Rig(Path(job_folder), tmp_path)
        yield rig
        rig.buffers.close()
