"""Looks at the progress of workers, and gathers stacks and flight recorders when there is none."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path

from gangline.api.failure import Failure
from gangline.elastic.agent.group import Group, Worker
from gangline.elastic.agent.hang import HangWatch, Place, Pulse, hang_failure, place
from gangline.elastic.agent.settings import HangSettings

log = logging.getLogger(__name__)

_LOOKS_PER_TIMEOUT = 8
_SHORTEST_LOOK_S, _LONGEST_LOOK_S = 0.1, 5.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


async def hung(group: Group, settings: HangSettings) -> Failure:
    """Wait until the group hangs; say who is to blame. Never returns without a time limit."""
    if settings.timeout_s is None:
        never: asyncio.Future[Failure] = asyncio.get_running_loop().create_future()
        return await never
    pause = min(max(settings.timeout_s / _LOOKS_PER_TIMEOUT, _SHORTEST_LOOK_S), _LONGEST_LOOK_S)
    watch = HangWatch(settings.timeout_s, since=time.time())
    while not watch.is_hung([_pulse(each) for each in group.workers], time.time()):  # noqa: ASYNC110 - files
        await asyncio.sleep(pause)
    log.warning("no progress for %g s: taking stacks", settings.timeout_s)
    return hang_failure(await _places(group, settings.gather_s), settings.timeout_s)


def _pulse(worker: Worker) -> Pulse:
    touches = [_touched(path) for path in (worker.streams.progress, worker.streams.metrics)]
    known = [each for each in touches if each is not None]
    return Pulse(max(known, default=None), _busy_s(worker.process.pid))


def _touched(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _busy_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


async def _places(group: Group, gather_s: float) -> dict[int, Place | None]:
    group.ask_for_stacks()
    for worker in group.workers:
        _dump_flight_recorder(worker)
    deadline = time.monotonic() + gather_s
    while time.monotonic() < deadline and not all(_is_written(group.workers)):  # noqa: ASYNC110
        await asyncio.sleep(_SHORTEST_LOOK_S)
    return {worker.rank: place(_text(worker.streams.stacks)) for worker in group.workers}


def _is_written(workers: Sequence[Worker]) -> list[bool]:
    return [place(_text(worker.streams.stacks)) is not None for worker in workers]


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _dump_flight_recorder(worker: Worker) -> None:
    pipe = f"{worker.streams.flight_pipe}{worker.rank}.pipe"
    with contextlib.suppress(OSError):  # there is none without NCCL
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "wb") as file:
            file.write(b"1")
