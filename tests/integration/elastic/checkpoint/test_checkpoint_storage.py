"""Failing storage, and storage other than a folder: neither loses a training step."""

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gangline.elastic.checkpoint import Checkpointer, CorruptError, StorageError
from gangline.elastic.checkpoint.restore.source import StorageSource
from gangline.elastic.checkpoint.storage.target import (
    RemoteTarget,
    open_target,
    wrapped_store_errors,
)


@pytest.fixture(autouse=True)
def _own_memory(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setenv("GANGLINE_CHECKPOINT_MEMORY", str(memory))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[tuple[Path, Callable[[str], None]]]:
    """A small disk, and a way to change how it is mounted."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(options: str) -> None:
        subprocess.run(["mount", "-o", options, "-t", "tmpfs", "tmpfs", place], check=True)

    mount("size=64k")
    yield place, lambda options: mount(f"remount,{options}")
    subprocess.run(["umount", "--lazy", place], check=True)


def state(value: float) -> dict[str, Any]:
    return {"w": torch.full((20_000,), value), "step": int(value)}


def reported(checkpointer: Checkpointer, words: str, timeout_s: float = 60) -> bool:
    """Wait until a failure with this text is reported."""
    end = time.monotonic() + timeout_s
    while not any(words in one for one in checkpointer.counts.failures):
        if checkpointer.wait(0.05) or time.monotonic() > end:
            return False
    return True


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk")
def test_a_full_or_read_only_disk_loses_no_step(disk: Any) -> None:
    place, remount = disk
    with Checkpointer(place / "steps", linger_s=60) as checkpointer:
        assert checkpointer.save(1, state(1), "storage")
        assert reported(checkpointer, "No space left")
        assert all(path.stat().st_size < 20_000 for path in place.rglob("*.distcp"))
        remount("size=4m,ro")
        for step in range(2, 6):
            assert checkpointer.save(step, state(step), "storage")
        assert reported(checkpointer, "Read-only")
        remount("size=4m,rw")
        assert checkpointer.save(6, state(6), "storage")
        assert checkpointer.wait(60)
        assert checkpointer.latest() == 6
        assert checkpointer.counts.skipped == 0


def test_an_unreachable_store_loses_no_step_and_memory_is_restored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        url = f"ftp://127.0.0.1:{deaf.getsockname()[1]}/steps"
        with Checkpointer(url, linger_s=0.1) as checkpointer:
            assert checkpointer.load(state(0)) is None
            assert any("refused" in getattr(one, "reason", "") for one in caplog.records)
            for step in range(1, 5):
                assert checkpointer.save(step, state(step), "storage")
            assert reported(checkpointer, "refused")
            into = state(0)
            loaded = checkpointer.load(into)
            assert loaded is not None
            assert (loaded.step, loaded.source, into["step"]) == (4, "memory", 4)
            assert not checkpointer.wait(0.1)
            assert checkpointer.counts.skipped == 0


def test_an_fsspec_target_stores_and_restores_steps(tmp_path: Path) -> None:
    """Save three steps to a store, keep two, restore from it when memory is gone."""
    url = f"local://{tmp_path}/run"
    with Checkpointer(url, linger_s=60, keep=2) as checkpointer:
        for step in range(1, 4):
            assert checkpointer.save(step, state(step), "storage")
            assert checkpointer.wait(60), checkpointer.counts.failures
        checkpointer.buffers.close()
        for segment in checkpointer.job_folder.glob("*.seg"):
            segment.unlink()
        into = state(0)
        loaded = checkpointer.load(into)
        assert loaded is not None
        assert (loaded.step, loaded.source) == (3, "storage")
        assert torch.equal(into["w"], state(3)["w"])
        assert checkpointer.wait(60)
        assert checkpointer.latest() == 3
        StorageSource(open_target(url), 2).verify()
    assert checkpointer.counts.failures == []
    assert not list(tmp_path.rglob(".partial*")), "a store renames nothing"


class OddError(Exception):
    """An error class of a store's client library."""


class OddStore:
    """A file system whose library raises its own errors, as those of cloud stores do."""

    def __getattr__(self, name: str) -> Any:
        def fail(*_: object, **__: object) -> None:
            raise OddError(f"no {name} today")

        return fail


def test_errors_of_a_store_s_own_kind_are_storage_errors() -> None:
    target = RemoteTarget(OddStore(), "bucket/run")
    for call in (
        lambda: target.list_names(""),
        lambda: target.read("x"),
        lambda: target.put("x", b""),
        lambda: target.remove("x"),
    ):
        with pytest.raises(StorageError, match="bucket/run: OddError: no "):
            call()
    with pytest.raises(CorruptError), wrapped_store_errors("bucket"):
        raise CorruptError("what is no error of the store stays what it is")
