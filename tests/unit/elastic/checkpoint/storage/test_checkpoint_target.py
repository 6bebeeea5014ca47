"""Savers that write the same step to one store, and savers that follow a killed one."""

import errno
import uuid
from pathlib import Path
from typing import Any

import fsspec
import msgspec
import pytest
import torch

from gangline.elastic.checkpoint.errors import StepTakenError
from gangline.elastic.checkpoint.format.manifest import MANIFEST, decode_manifest, step_folder
from gangline.elastic.checkpoint.restore.source import StorageSource
from gangline.elastic.checkpoint.saver.messages import StorageOutcome
from gangline.elastic.checkpoint.saver.process import Uploader
from gangline.elastic.checkpoint.snapshot import inventory
from gangline.elastic.checkpoint.snapshot.directory import SaverSettings
from gangline.elastic.checkpoint.storage import commit
from gangline.elastic.checkpoint.storage.target import RemoteTarget, open_target
from unit.elastic.checkpoint.checkpoint_states import write_part

STEP = 7


@pytest.fixture
def store() -> RemoteTarget:
    return RemoteTarget(fsspec.filesystem("memory"), f"/run-{uuid.uuid4().hex}")


def write(rig: Any, store: RemoteTarget, value: float) -> str:
    """Write a new plan's part of the step to the store; return the plan."""
    rig.clear()
    rig.save({"w": torch.full((50,), value)}, STEP)
    return write_part(store, rig.held(STEP))


def owner(store: RemoteTarget) -> str:
    return decode_manifest(store.read(f"{step_folder(STEP)}/{MANIFEST}")).plan


def manifest_of(store: RemoteTarget, plan: str) -> bytes:
    """Return the manifest that would commit the written parts."""
    kept: list[bytes] = []

    class Kept(RemoteTarget):
        def commit(self, step: int, plan: str, manifest: bytes) -> None:
            kept.append(manifest)

    commit.try_commit(Kept(store.files, store.root), STEP, plan, 1)
    return kept[0]


def test_a_step_is_committed_by_one_of_two_savers(rig: Any, store: RemoteTarget) -> None:
    first = write(rig, store, 1.0)
    manifest = manifest_of(store, first)
    second = write(rig, store, 2.0)
    store.commit(STEP, first, manifest)  # it had seen its own notes before they were overwritten
    store.commit(STEP, first, manifest)  # a saver of another node does the same: no harm
    with pytest.raises(StepTakenError, match="folder of its own"):
        commit.try_commit(store, STEP, second, 1)
    assert owner(store) == first


def test_a_damaged_manifest_does_not_block_a_commit(rig: Any, store: RemoteTarget) -> None:
    store.put(f"{step_folder(STEP)}/{MANIFEST}", b"{}")
    assert commit.try_commit(store, STEP, write(rig, store, 1.0), 1)


class Picky:
    """A memory store that may lack conditional writes, or report conflicts differently."""

    def __init__(self, error: Exception) -> None:
        self.files, self.error = fsspec.filesystem("memory"), error

    def __getattr__(self, name: str) -> Any:
        return getattr(self.files, name)

    def pipe_file(self, *_: object, **__: object) -> None:
        raise self.error


class ParamValidationError(Exception):
    """What botocore raises for a parameter that it does not know."""


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(OSError(errno.ENOSYS, "not implemented"), id="the server cannot"),
        pytest.param(ParamValidationError("IfNoneMatch"), id="its library is too old"),
        pytest.param(TypeError("mode"), id="fsspec's is too old"),
    ],
)
def test_a_store_without_conditional_writes_commits(
    rig: Any, store: RemoteTarget, error: Exception
) -> None:
    store.files = Picky(error)
    plan = write(rig, store, 1.0)
    assert commit.try_commit(store, STEP, plan, 1)
    assert owner(store) == plan


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(
            OSError(errno.EINVAL, "precondition failed"), id="refused with another message"
        ),
        pytest.param(OSError(errno.EIO, "no answer"), id="the answer was lost"),
    ],
)
def test_stored_manifest_decides_for_every_error(
    rig: Any, store: RemoteTarget, error: OSError
) -> None:
    plain, plan = store.files, write(rig, store, 1.0)
    manifest = manifest_of(store, plan)
    store.files = Picky(error)
    with pytest.raises(OSError, match=error.strerror):
        store.commit(STEP, plan, manifest)
    plain.pipe_file(f"{store.root}/{step_folder(STEP)}/{MANIFEST}", manifest)
    store.commit(STEP, plan, manifest)
    with pytest.raises(StepTakenError):
        store.commit(STEP, "another", manifest)


def test_a_superseded_saver_reports_once_and_does_not_retry(rig: Any) -> None:
    root = f"/run-{uuid.uuid4().hex}"
    store = RemoteTarget(fsspec.filesystem("memory"), root)
    settings, outcomes = SaverSettings(target=f"memory:/{root}", job="job"), list[StorageOutcome]()
    first = write(rig, store, 1.0)
    manifest = manifest_of(store, first)
    rig.clear()
    rig.save({"w": torch.zeros(50)}, STEP)
    writer = Uploader(rig.job_folder, outcomes.append)
    try:
        assert writer.write_snapshots(settings, [rig.held(STEP)])
        store.commit(STEP, first, manifest)
        assert writer.commit(settings) == []
        assert [(one.step, one.committed) for one in outcomes] == [(STEP, False)]
        assert "another saver" in outcomes[0].reason
        assert not writer.uncommitted
        assert writer.write_newest(settings) is None
        assert owner(store) == first
        assert len(outcomes) == 1
    finally:
        writer.close()


@pytest.mark.parametrize("kind", ["folder", "store"])
def test_a_restarted_saver_commits_parts_of_the_killed_one(rig: Any, kind: str) -> None:
    target = str(rig.folder) if kind == "folder" else f"memory://run-{uuid.uuid4().hex}"
    settings = SaverSettings(target=target, job="job")
    rig.save({"w": torch.ones(50)}, STEP)
    killed = Uploader(rig.job_folder, lambda _: None)
    assert killed.write_snapshots(settings, [rig.held(STEP)])
    killed.close()
    assert commit.committed_steps(open_target(target)) == []
    outcomes = list[StorageOutcome]()
    writer = Uploader(rig.job_folder, outcomes.append)
    try:
        held = inventory.list_snapshots(rig.job_folder)
        writer.resume_commits(settings, held)
        assert writer.write_snapshots(settings, inventory.storage_requests(held))
        assert writer.commit(settings) == [STEP]
        assert [(one.step, one.committed) for one in outcomes] == [(STEP, True)]
        StorageSource(open_target(target), STEP).verify()
    finally:
        writer.close()


@pytest.mark.parametrize("kind", ["folder", "store"])
def test_commit_removes_older_unfinished_steps_and_leaves_newer_ones(rig: Any, kind: str) -> None:
    address = str(rig.folder) if kind == "folder" else f"memory://run-{uuid.uuid4().hex}"
    target = open_target(address)
    for step in (STEP - 1, STEP, STEP + 1):
        rig.clear()
        rig.save({"w": torch.ones(50)}, step)
        plan = write_part(target, rig.held(step))
        if step == STEP:
            assert commit.try_commit(target, STEP, plan, 1)
    assert [step for step, _ in target.list_unfinished()] == [STEP - 1, STEP + 1]
    commit.apply_retention(target, 3, 0, STEP)
    assert [step for step, _ in target.list_unfinished()] == [STEP + 1]
    assert commit.committed_steps(target) == [STEP]
    StorageSource(target, STEP).verify()


def test_a_store_unreachable_at_saver_start_is_retried(rig: Any) -> None:
    rig.save({"w": torch.ones(50)}, STEP)
    settings = SaverSettings(target=str(rig.folder), job="job")
    killed = Uploader(rig.job_folder, lambda _: None)
    assert killed.write_snapshots(settings, [rig.held(STEP)])
    killed.close()
    writer, held = (
        Uploader(rig.job_folder, lambda _: None),
        inventory.list_snapshots(rig.job_folder),
    )
    try:
        writer.resume_commits(msgspec.structs.replace(settings, target="no-such-scheme://x"), held)
        assert (writer.consecutive_failures, writer.uncommitted) == (1, {})
        writer.resume_commits(settings, held)
        assert writer.commit(settings) == [STEP]
    finally:
        writer.close()


@pytest.mark.parametrize("scheme", ["", "local://", "memory://"])
def test_files_and_folders_are_removed(scheme: str, tmp_path: Path) -> None:
    target = open_target(f"{scheme}{tmp_path}")
    target.put("step-1/part", b"abc")
    target.put("token", b"")
    assert target.list_names("") == ["step-1", "token"]
    for name in ("token", "step-1", "nothing"):
        target.remove(name)
    assert target.list_names("") == []
