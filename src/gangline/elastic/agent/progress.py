"""Polls the progress of a worker group, and collects stacks and flight records when it hangs."""

import asyncio
import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from gangline.elastic.agent.group import Group, Worker
from gangline.elastic.agent.hang import HangWatch, Pulse, View, place
from gangline.elastic.agent.outside import stacks_of
from gangline.elastic.agent.settings import HangSettings
from gangline.elastic.agent.usage import processor_seconds, told

_LOOKS_PER_TIMEOUT = 8
_SHORTEST_LOOK_S, _LONGEST_LOOK_S = 0.1, 5.0


async def hung(group: Group, settings: HangSettings) -> float:
    """Wait until the group hangs; return the time of its last progress on the monotonic clock.

    Never returns if no timeout is set.
    """
    if settings.timeout_s is None:
        never: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        return await never
    pause = min(max(settings.timeout_s / _LOOKS_PER_TIMEOUT, _SHORTEST_LOOK_S), _LONGEST_LOOK_S)
    watch = HangWatch(settings.timeout_s, since=time.monotonic())
    while not watch.is_hung([_pulse(worker) for worker in group.workers], time.monotonic()):  # noqa: ASYNC110 - files
        await asyncio.sleep(pause)
    return watch.since


def _pulse(worker: Worker) -> Pulse:
    touches = [_touched(path) for path in (worker.streams.progress, worker.streams.metrics)]
    known = [touch for touch in touches if touch is not None]
    return Pulse(max(known, default=None), processor_seconds(worker.process.pid))


def _touched(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


async def views(group: Group, gather_s: float, node: str) -> list[View]:
    """Return the stack of each rank. Stacks and flight records are on the disk afterwards."""
    deadline = time.monotonic() + gather_s
    recorders = [each for each in group.workers if _dump_flight_recorder(each)]
    found = await stacks(group, gather_s)
    await _written([_flight_record(each) for each in recorders], deadline)
    steps = [each.step for each in told(group)]
    return [
        View.of(worker.rank, node, place(seen.text), step, is_mute=seen.is_mute)
        for worker, step in zip(group.workers, steps, strict=True)
        for seen in [found[worker.rank]]
    ]


def evidence(group: Group, *, stays: bool) -> str:
    """Return a sentence that names the folder of stacks and flight records.

    Args:
        group: the workers.
        stays: True if the files remain when the launcher has ended.
    """
    folder = group.workers[0].streams.stacks.parent.parent if group.workers else None
    if folder is None:
        return ""
    recorded = any(_flight_record(worker).exists() for worker in group.workers)
    what = "Stacks and NCCL's flight records" if recorded else "Stacks"
    until = "" if stays else " until the end (--log-dir keeps them)"
    return f"{what} of this node are in {folder}{until}."


@dataclass(frozen=True, slots=True)
class Stacks:
    """The stacks of one worker."""

    text: str
    """Empty if no stacks could be obtained."""
    is_mute: bool = False
    """True if the worker did not write them itself."""


async def stacks(group: Group, gather_s: float) -> dict[int, Stacks]:
    """Make all workers write their stacks; return them by rank.

    The stacks of a worker that writes none in time are read with py-spy, if possible, and stored in
    the same file.
    """
    before = {worker.rank: _size(worker.streams.stacks) for worker in group.workers}
    group.ask_for_stacks()
    deadline = time.monotonic() + gather_s
    while True:
        texts = {
            worker.rank: _text(worker.streams.stacks)[before[worker.rank] :]
            for worker in group.workers
        }
        if all(map(_is_written, texts.values())) or time.monotonic() > deadline:
            break
        await asyncio.sleep(_SHORTEST_LOOK_S)
    mute = [worker for worker in group.workers if not _is_written(texts[worker.rank])]
    looks = await asyncio.gather(*map(_seen_from_outside, mute))
    found = {rank: Stacks(text) for rank, text in texts.items()}
    return found | {
        worker.rank: Stacks(look, is_mute=True) for worker, look in zip(mute, looks, strict=True)
    }


async def _seen_from_outside(worker: Worker) -> str:
    if worker.process.ended.done():
        return ""
    file = worker.streams.stacks
    text = await stacks_of(worker.process.pid, file.parent)
    with contextlib.suppress(OSError), file.open("a") as stacks_file:  # a full disk: only shown
        stacks_file.write(text)
    return text


async def _written(files: list[Path], deadline: float) -> None:
    """Wait until files exist and do not grow any more."""
    before: list[int] = []
    while time.monotonic() < deadline:
        sizes = [_bytes(file) for file in files]
        if all(sizes) and sizes == before:
            return
        before = sizes
        await asyncio.sleep(_SHORTEST_LOOK_S)


def _bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _is_written(text: str) -> bool:
    return place(text) is not None


def _size(path: Path) -> int:
    return len(_text(path))


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _flight_record(worker: Worker) -> Path:
    return Path(f"{worker.streams.flight_dump}{worker.rank}")


def _dump_flight_recorder(worker: Worker) -> bool:
    """Trigger NCCL's flight recorder. Returns False if there is none."""
    pipe = f"{worker.streams.flight_pipe}{worker.rank}.pipe"
    try:
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "wb") as file:
            file.write(b"1")
    except OSError:
        return False  # there is none without NCCL
    return True
