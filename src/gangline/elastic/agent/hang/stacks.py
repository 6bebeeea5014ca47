"""Polls the progress of a worker group, and collects stacks and flight records when it hangs."""

import asyncio
import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from gangline.elastic.agent.hang.detector import (
    BLOCKED,
    STOPPED,
    HangDetector,
    ProgressSample,
    RankStack,
    parse_stack_location,
)
from gangline.elastic.agent.hang.py_spy import py_spy_stacks
from gangline.elastic.agent.process import process_state
from gangline.elastic.agent.settings import HangSettings
from gangline.elastic.agent.workers.usage import processor_seconds, read_worker_progress
from gangline.elastic.agent.workers.worker_group import Worker, WorkerGroup

_SAMPLES_PER_TIMEOUT = 8
_MIN_SAMPLE_S, _MAX_SAMPLE_S = 0.1, 5.0


async def wait_for_hang(group: WorkerGroup, settings: HangSettings) -> float:
    """Wait until the group hangs; return the time of its last progress on the monotonic clock.

    Never returns if no timeout is set.
    """
    if settings.timeout_s is None:
        never: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        return await never
    pause = min(max(settings.timeout_s / _SAMPLES_PER_TIMEOUT, _MIN_SAMPLE_S), _MAX_SAMPLE_S)
    watch = HangDetector(settings.timeout_s, since=time.monotonic())
    while not watch.is_hung([_sample(worker) for worker in group.workers], time.monotonic()):  # noqa: ASYNC110 - files
        await asyncio.sleep(pause)
    return watch.since


def _sample(worker: Worker) -> ProgressSample:
    touches = [
        _touched_at(path) for path in (worker.files.progress_file, worker.files.metrics_file)
    ]
    known = [touch for touch in touches if touch is not None]
    return ProgressSample(max(known, default=None), processor_seconds(worker.process.pid))


def _touched_at(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


async def rank_stacks(group: WorkerGroup, gather_s: float, node: str) -> list[RankStack]:
    """Return the stack of each rank. Stacks and flight records are on the disk afterwards."""
    deadline = time.monotonic() + gather_s
    recorders = [each for each in group.workers if _dump_flight_recorder(each)]
    found = await collect_stacks(group, gather_s)
    await _wait_for_files([_flight_record(each) for each in recorders], deadline)
    steps = [each.step for each in read_worker_progress(group)]
    return [
        RankStack.from_location(
            worker.rank,
            node,
            parse_stack_location(seen.text),
            step,
            is_mute=seen.is_mute,
            state=_state(worker) if seen.is_mute else "",
        )
        for worker, step in zip(group.workers, steps, strict=True)
        for seen in [found[worker.rank]]
    ]


def describe_evidence(group: WorkerGroup, *, is_permanent: bool) -> str:
    """Return a sentence that names the folder of stacks and flight records.

    Args:
        group: the workers.
        is_permanent: True if the files remain when the launcher has ended.
    """
    folder = group.workers[0].files.stacks_file.parent.parent if group.workers else None
    if folder is None:
        return ""
    recorded = any(_flight_record(worker).exists() for worker in group.workers)
    what = "Stacks and NCCL's flight records" if recorded else "Stacks"
    until = "" if is_permanent else " until the end (--log-dir keeps them)"
    return f"{what} of this node are in {folder}{until}."


@dataclass(frozen=True, slots=True)
class WorkerStacks:
    """The stacks of one worker."""

    text: str
    """Empty if no stacks could be obtained."""
    is_mute: bool = False
    """True if the worker did not write them itself."""


async def collect_stacks(group: WorkerGroup, gather_s: float) -> dict[int, WorkerStacks]:
    """Make all workers write their stacks; return them by rank.

    The stacks of a worker that writes none in time are read with py-spy, if possible, and stored in
    the same file.
    """
    before = {worker.rank: _text_length(worker.files.stacks_file) for worker in group.workers}
    group.request_stacks()
    deadline = time.monotonic() + gather_s
    while True:
        texts = {
            worker.rank: _text(worker.files.stacks_file)[before[worker.rank] :]
            for worker in group.workers
        }
        answering = [worker for worker in group.workers if not _state(worker)]
        if all(_has_location(texts[worker.rank]) for worker in answering):
            break
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(_MIN_SAMPLE_S)
    mute = [worker for worker in group.workers if not _has_location(texts[worker.rank])]
    looks = await asyncio.gather(*map(_py_spy_stacks, mute))
    found = {rank: WorkerStacks(text) for rank, text in texts.items()}
    return found | {
        worker.rank: WorkerStacks(look, is_mute=True)
        for worker, look in zip(mute, looks, strict=True)
    }


def _state(worker: Worker) -> str:
    """Return why a worker runs no code; empty if it may run."""
    if worker.process.ended.done():
        return f"ended with exit code {worker.process.ended.result()}"
    state = process_state(worker.process.pid)
    if state == "D":
        return BLOCKED
    return STOPPED if state in ("T", "t") else ""


async def _py_spy_stacks(worker: Worker) -> str:
    if worker.process.ended.done():
        return ""
    file = worker.files.stacks_file
    text = await py_spy_stacks(worker.process.pid, file.parent)
    with contextlib.suppress(OSError), file.open("a") as stacks_file:  # a full disk: only shown
        stacks_file.write(text)
    return text


async def _wait_for_files(files: list[Path], deadline: float) -> None:
    """Wait until files exist and do not grow any more."""
    before: list[int] = []
    while time.monotonic() < deadline:
        sizes = [_file_size(file) for file in files]
        if all(sizes) and sizes == before:
            return
        before = sizes
        await asyncio.sleep(_MIN_SAMPLE_S)


def _file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _has_location(text: str) -> bool:
    return parse_stack_location(text) is not None


def _text_length(path: Path) -> int:
    return len(_text(path))


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _flight_record(worker: Worker) -> Path:
    return Path(f"{worker.files.flight_dump}{worker.rank}")


def _dump_flight_recorder(worker: Worker) -> bool:
    """Trigger NCCL's flight recorder. Returns False if there is none."""
    pipe = f"{worker.files.flight_pipe}{worker.rank}.pipe"
    try:
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "wb") as file:
            file.write(b"1")
    except OSError:
        return False  # there is none without NCCL
    return True
