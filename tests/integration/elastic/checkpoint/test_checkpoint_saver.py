"""The saver: it outlives workers, writes saves of crashed ones, cleans up, and retries failed
storage.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from gangline.elastic.checkpoint import Checkpointer, FolderInUseError, flush_job
from gangline.elastic.checkpoint.format.manifest import step_folder
from gangline.elastic.checkpoint.snapshot import directory
from gangline.elastic.checkpoint.snapshot.directory import segment_path
from gangline.elastic.checkpoint.snapshot.ring import BufferChoice, SaveRequest, SnapshotRing
from gangline.elastic.checkpoint.snapshot.segment import Segment
from gangline.elastic.checkpoint.storage.commit import committed_steps
from gangline.elastic.checkpoint.storage.target import open_target
from gangline.elastic.progress import SaveCounts, read_progress

WORKER = Path(__file__).parent / "saved_worker.py"


@pytest.fixture
def environment(memory: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    torch.set_num_threads(1)
    found = {
        "GANGLINE_CHECKPOINT_MEMORY": str(memory),
        "ELASTIC_JOB_NAME": "job",
        "JOB_UID": "1",
    }
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return found


@pytest.fixture
def checkpointer(environment: dict[str, str], tmp_path: Path) -> Iterator[Checkpointer]:
    with Checkpointer(tmp_path / "steps", linger_s=60) as made:
        yield made


def eventually(claim: Callable[[], bool], timeout_s: float = 60) -> bool:
    """Wait until the claim holds."""
    end = time.monotonic() + timeout_s
    while not claim():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def state(value: float = 1.0) -> dict[str, Any]:
    return {"w": torch.full((1000,), value), "step": int(value)}


def steps(folder: Path) -> list[int]:
    return committed_steps(open_target(str(folder)))


def test_memory_is_freed_at_the_end_of_a_job_that_had_crashed(
    environment: dict[str, str], tmp_path: Path
) -> None:
    Checkpointer(tmp_path, linger_s=300).close(finished=False)
    checkpointer = Checkpointer(tmp_path, linger_s=300)
    checkpointer.save(1, state(), "storage")
    checkpointer.close()
    assert eventually(lambda: not checkpointer.job_folder.exists())
    assert steps(tmp_path) == [1]


@pytest.fixture
def worker(
    nursery: Any, environment: dict[str, str], tmp_path: Path, outputs: Path
) -> Iterator[Callable[[float], tuple[int, Path]]]:
    """Start a training process; return its pid and its folder in memory once step 4 is saved."""
    started: list[Any] = []

    def start(linger_s: float) -> tuple[int, Path]:
        steps = str(tmp_path / "steps")
        process = nursery.start(outputs, WORKER, steps, str(linger_s), **environment)
        started.append(process)
        assert eventually(lambda: process.output.read_text().endswith("\n"))
        return process.pid, Path(process.output.read_text().strip())

    yield start
    for process in started:
        os.kill(process.pid, signal.SIGKILL)
        nursery.wait(process)


def test_the_newest_save_of_a_killed_worker_gets_to_storage_and_its_memory_is_freed(
    worker: Any, tmp_path: Path
) -> None:
    process, job_folder = worker(1.0)
    os.kill(process, signal.SIGKILL)
    assert eventually(lambda: steps(tmp_path / "steps") == [4])
    assert eventually(lambda: not job_folder.exists())


def test_an_ending_agent_flushes_the_newest_save(
    worker: Any, environment: dict[str, str], tmp_path: Path
) -> None:
    worker(60.0)
    found = flush_job(environment, timeout_s=60)
    assert found == {str(tmp_path / "steps"): 4}
    assert steps(tmp_path / "steps") == [4]


def test_an_ending_saver_writes_the_newest_save_first(worker: Any, tmp_path: Path) -> None:
    _, job_folder = worker(60.0)
    os.kill(saver_of(job_folder), signal.SIGTERM)
    assert eventually(lambda: steps(tmp_path / "steps") == [4])
    assert job_folder.exists()


def saver_of(job_folder: Path) -> int:
    """Return the pid of a folder's saver."""
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = process.read_bytes().split(b"\0")
        except OSError:
            continue
        if str(job_folder).encode() in arguments:
            return int(process.parent.name)
    raise AssertionError("no saver lives")


def test_slow_storage_skips_no_save_and_gets_the_newest_request(
    environment: dict[str, str], tmp_path: Path
) -> None:
    with Checkpointer(tmp_path, linger_s=60, bandwidth=20_000) as checkpointer:
        for step in range(1, 13):
            assert checkpointer.save(step, state(step), "storage")
        assert checkpointer.counts.skipped == 0
        assert checkpointer.wait(100)
        assert checkpointer.latest() == 12


def test_a_save_waits_for_a_descheduled_saver(
    checkpointer: Checkpointer,
) -> None:
    for step in (1, 2, 3):
        checkpointer.save(step, state(step))
    segments = [Segment(segment_path(checkpointer.job_folder, 0, number)) for number in range(3)]
    with ExitStack() as held:
        for segment in segments:
            assert held.enter_context(segment.reading())
        free_again = threading.Timer(0.1, segments[0].unlock)
        free_again.start()
        assert checkpointer.save(4, state(4))
        free_again.join()
    assert checkpointer.counts.skipped == 0
    for segment in segments:
        segment.close()


def test_with_two_buffers_a_save_is_skipped_rather_than_waits_for_storage_and_the_agent_knows(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = tmp_path / "progress"
    monkeypatch.setenv("GANGLINE_PROGRESS_FILE", str(progress))
    with Checkpointer(tmp_path / "steps", buffers=2, linger_s=60) as checkpointer:
        for step in (1, 2):
            checkpointer.save(step, state(step))
        segment = Segment(segment_path(checkpointer.job_folder, 0, 0))
        with segment.reading() as free:
            assert free
            assert not checkpointer.save(3, state(3))
        segment.close()
        assert checkpointer.counts.skipped == 1
    reported = read_progress(progress, tmp_path / "none")
    assert (reported.saved_step, reported.saves) == (2, SaveCounts(skipped=1))
    assert reported.blocked_s == pytest.approx(checkpointer.counts.blocked_s, abs=0.001)


def test_phase_of_a_save_is_reported(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = tmp_path / "progress"
    monkeypatch.setenv("GANGLINE_PROGRESS_FILE", str(progress))
    phases = []

    def save(ring: SnapshotRing, request: SaveRequest) -> BufferChoice | None:
        phases.append(read_progress(progress, tmp_path / "none").phase)
        return original(ring, request)

    original = SnapshotRing.save
    monkeypatch.setattr(SnapshotRing, "save", save)
    with Checkpointer(tmp_path / "steps", linger_s=60) as checkpointer:
        assert checkpointer.save(1, state(1))
        phases.append(read_progress(progress, tmp_path / "none").phase)
    assert phases == ["checkpoint", ""]


def test_a_step_whose_saver_was_killed_within_its_commit_is_committed_by_the_next(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "killed"
    monkeypatch.setenv("GANGLINE_FAILPOINT_RECORD", str(record))
    monkeypatch.setenv("GANGLINE_SAVER_FAILPOINT", "commit-manifest")
    with Checkpointer(tmp_path / "steps", linger_s=60) as checkpointer:
        checkpointer.save(4, state(4), "storage")
        assert eventually(record.exists)
        monkeypatch.delenv("GANGLINE_SAVER_FAILPOINT")
        assert steps(tmp_path / "steps") == []
        assert checkpointer.wait(60)
        assert steps(tmp_path / "steps") == [4]


def test_a_damaged_newest_step_is_skipped_with_a_reason(
    environment: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Checkpointer(tmp_path, linger_s=60) as checkpointer:
        for step in (1, 2):
            checkpointer.save(step, state(step), "storage")
            assert checkpointer.wait(60)
        checkpointer.buffers.close()
        for segment in checkpointer.job_folder.glob("*.seg"):
            segment.unlink()
        part = tmp_path / step_folder(2) / "__0_0.distcp"
        data = bytearray(part.read_bytes())
        data[1000] ^= 4
        part.write_bytes(data)
        into = state(0)
        with caplog.at_level(logging.WARNING):
            loaded = checkpointer.load(into)
        assert loaded is not None
        assert (loaded.step, loaded.source, into["step"]) == (1, "storage", 1)
        assert torch.equal(into["w"], torch.ones(1000))
        assert any("wrong checksum" in getattr(one, "reason", "") for one in caplog.records)


def test_a_second_job_may_not_write_to_the_folder_of_a_living_one(
    checkpointer: Checkpointer, environment: dict[str, str]
) -> None:
    with pytest.raises(FolderInUseError, match="job/1"):
        Checkpointer(checkpointer.folder, environment=environment | {"JOB_UID": "2"})


def test_ranks_without_a_process_group_may_not_share_the_files_of_rank_0(
    environment: dict[str, str],
    tmp_path: Path,
    outputs: Path,
    nursery: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(directory, "_DYING_S", 0.0)
    other = nursery.start(outputs, WORKER, str(tmp_path), "60", RANK="1", WORLD_SIZE="2")
    assert eventually(lambda: bool(other.output.read_text()))
    with pytest.raises(FolderInUseError, match=rf"process {other.pid} .*init_process_group"):
        Checkpointer(tmp_path, linger_s=60)
    os.kill(other.pid, signal.SIGKILL)
    nursery.wait(other)
    with Checkpointer(tmp_path, linger_s=60) as after:
        assert after.load({"w": torch.zeros(1000)}), "the lock ends with its process"
