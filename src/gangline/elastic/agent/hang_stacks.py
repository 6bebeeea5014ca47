"""Polls the progress of a worker group, and collects stacks and flight records when it hangs.

A process that is stopped, or blocks in the kernel, runs no signal handlers. If py-spy is installed,
it reads the stacks from the memory of such a process without stopping it.
"""

import asyncio
import contextlib
import copy
import logging
import os
import shutil
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gangline.elastic.agent.hang_detector import (
    BLOCKED,
    MIN_LEARNED_S,
    STOPPED,
    HangDetector,
    HangPhase,
    LearnedTimeout,
    ProcessActivity,
    ProgressSample,
    RankStack,
    have_worked,
    parse_stack_location,
    waits_for_children,
)
from gangline.elastic.agent.process import (
    StartError,
    descendants,
    end_processes,
    process_state,
    start_process,
    stat_fields,
)
from gangline.elastic.agent.settings import HangSettings
from gangline.elastic.agent.worker_group import (
    Worker,
    WorkerGroup,
    processor_seconds,
    read_worker_progress,
)
from gangline.elastic.progress import read_progress

log = logging.getLogger(__name__)

PY_SPY_TIMEOUT_S = 3.0
_MAIN = "MainThread"
_SAMPLES_PER_TIMEOUT = 8
_MIN_SAMPLE_S, _MAX_SAMPLE_S = 0.1, 5.0
_ACTIVITY_S = 1.0
"""Time over which the work of data loaders is measured."""


class _Frame(msgspec.Struct):
    name: str
    filename: str
    line: int = 0


class _Thread(msgspec.Struct):
    frames: list[_Frame]
    thread_id: int = 0
    thread_name: str | None = None
    os_thread_id: int | None = None


_decoder = msgspec.json.Decoder(list[_Thread])


async def py_spy_stacks(pid: int, folder: Path, environment: Mapping[str, str] = os.environ) -> str:
    """Return the stacks of a process in the format of faulthandler; empty if they cannot be read.

    Args:
        environment: environment of py-spy, and the PATH on which it is searched.
    """
    program = shutil.which("py-spy", path=environment.get("PATH"))
    if program is None:
        return ""
    out, err = folder / "py_spy.json", folder / "py_spy.err"
    arguments = [program, "dump", "--nonblocking", "--json", "--pid", str(pid)]
    try:
        process = start_process(arguments, environment, stdout=out, stderr=err)
        await asyncio.wait([process.ended], timeout=PY_SPY_TIMEOUT_S)
        await end_processes([process], signal.SIGKILL, PY_SPY_TIMEOUT_S)
        return format_stacks(_decoder.decode(out.read_bytes()), pid)
    except (StartError, OSError, msgspec.DecodeError) as error:
        log.warning("py-spy cannot read process %d: %s", pid, _last_line(err) or error)
        return ""
    finally:
        for file in (out, err):
            file.unlink(missing_ok=True)


def format_stacks(threads: Sequence[_Thread], pid: int) -> str:
    """Format stacks as faulthandler does, with the main thread last."""
    main = [
        thread for thread in threads if thread.os_thread_id == pid or thread.thread_name == _MAIN
    ]
    others = [thread for thread in threads if thread not in main]
    lines: list[str] = []
    for thread in (*others, *main):
        lines.append(f"Thread {thread.thread_id:#018x}, seen by py-spy (most recent call first):")
        lines += [
            f'  File "{frame.filename}", line {frame.line} in {frame.name}'
            for frame in thread.frames
        ]
    return "".join(f"{line}\n" for line in lines)


def _last_line(file: Path) -> str:
    try:
        lines = file.read_text(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


@dataclass(frozen=True, slots=True)
class DetectedHang:
    since: float
    """Time of the last progress on the monotonic clock."""
    phase: HangPhase
    limit_s: float


async def wait_for_hang(
    group: WorkerGroup, settings: HangSettings, times: LearnedTimeout
) -> DetectedHang:
    """Wait until the group hangs. Never returns if no timeout is set."""
    if settings.timeout_s is None:
        never: asyncio.Future[DetectedHang] = asyncio.get_running_loop().create_future()
        return await never
    workers = group.workers
    watch = HangDetector(settings, time.monotonic(), times)
    pause = _sample_pause_s(settings)
    while True:
        now = time.monotonic()
        if workers is not group.workers or group.is_held:  # a worker was lost or replaced
            workers, watch = group.workers, HangDetector(settings, now, times)
        if workers and watch.is_hung([_sample(worker) for worker in group.workers], now):
            return DetectedHang(watch.since, watch.reported_phase, watch.limit_s)
        if idle := watch.idle_workers(now):
            if await _waits_in_collective(group, idle, settings.gather_s):
                return DetectedHang(watch.since, HangPhase.STEP, watch.limit_s)
            watch.dismiss(idle, time.monotonic())
        await asyncio.sleep(pause)


def _sample_pause_s(settings: HangSettings) -> float:
    own = (settings.start_s, settings.first_step_s, settings.evaluation_s, settings.checkpoint_s)
    limits = [limit for limit in (settings.timeout_s, *own) if limit is not None]
    if settings.is_learned:
        limits.append(MIN_LEARNED_S)
    return min(max(min(limits) / _SAMPLES_PER_TIMEOUT, _MIN_SAMPLE_S), _MAX_SAMPLE_S)


async def _waits_in_collective(group: WorkerGroup, idle: Collection[int], gather_s: float) -> bool:
    """Return whether one of the idle workers waits for other ranks.

    A worker may be idle for another reason: its main thread waits for data or for a child process.
    """
    group = copy.copy(group)  # a worker may be replaced meanwhile
    stacks = await collect_stacks(group, gather_s)
    for number in idle:
        worker = group.workers[number]
        location = parse_stack_location(stacks[worker.rank].text)
        if location is not None and location.is_waiting:
            return True
    return False


def _sample(worker: Worker) -> ProgressSample:
    files = worker.files.progress_file, worker.files.metrics_file
    touched_at = [touch for touch in map(_touched_at, files) if touch is not None]
    busy_s = processor_seconds(worker.process.pid)
    if not touched_at:
        return ProgressSample(None, busy_s)
    progress = read_progress(*files)
    has_steps = progress.step is not None and not progress.lacks_steps
    return ProgressSample(max(touched_at), busy_s, progress.phase, has_steps, progress.lacks_steps)


def _touched_at(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


async def rank_stacks(group: WorkerGroup, gather_s: float, node: str) -> list[RankStack]:
    """Return the stack of each rank. Stacks and flight records are on the disk afterwards."""
    group = copy.copy(group)  # a worker may be replaced meanwhile
    began = time.monotonic()
    deadline = began + gather_s
    before = {worker.rank: _child_activity(worker) for worker in group.workers}
    recorders = [worker for worker in group.workers if _dump_flight_recorder(worker)]
    stacks = await collect_stacks(group, gather_s)
    waiting = [w for w in group.workers if waits_for_children(stacks[w.rank].text)]
    if waiting:
        await asyncio.sleep(began + _ACTIVITY_S - time.monotonic())
    passed = time.monotonic() - began
    working = {w.rank for w in waiting if have_worked(before[w.rank], _child_activity(w), passed)}
    await _wait_for_files([_flight_record(worker) for worker in recorders], deadline)
    steps = [worker.step for worker in read_worker_progress(group)]
    return [
        RankStack.from_location(
            worker.rank,
            node,
            parse_stack_location(stack.text),
            step,
            is_mute=stack.is_mute,
            state=_state(worker) if stack.is_mute else "",
            has_working_children=worker.rank in working,
        )
        for worker, step in zip(group.workers, steps, strict=True)
        for stack in [stacks[worker.rank]]
    ]


def _child_activity(worker: Worker) -> dict[int, ProcessActivity]:
    """Return what the descendants of a worker have done so far."""
    activities = {}
    for pid in descendants(worker.process.pid):
        with contextlib.suppress(OSError):
            folder = Path(f"/proc/{pid}")
            counts = dict(
                line.partition(":")[::2]
                for name in ("io", "status")
                for line in (folder / name).read_text().splitlines()
            )
            state, *fields = stat_fields(pid)
            activities[pid] = ProcessActivity(
                sum(map(int, fields[10:14])),
                int(counts["rchar"]) + int(counts["wchar"]),
                int(counts["voluntary_ctxt_switches"]),
                is_runnable=state == "R",
            )
    return activities


def describe_evidence(group: WorkerGroup, *, is_permanent: bool) -> str:
    """Return a sentence that names the folder of stacks and flight records."""
    folder = group.workers[0].files.stacks_file.parent.parent if group.workers else None
    if folder is None:
        return ""
    recorded = any(_flight_record(worker).exists() for worker in group.workers)
    what = "Stacks and NCCL's flight records" if recorded else "Stacks"
    until = "" if is_permanent else " until the end (--log-dir keeps them)"
    return f"{what} of this node are in {folder}{until}."


@dataclass(frozen=True, slots=True)
class WorkerStacks:
    text: str
    """Empty if no stacks could be obtained."""
    is_mute: bool = False
    """True if the worker did not write them itself."""


async def collect_stacks(group: WorkerGroup, gather_s: float) -> dict[int, WorkerStacks]:
    """Make all workers write their stacks; return them by rank.

    The stacks of a worker that writes none in time are read with py-spy, if possible, and stored in
    the same file.
    """
    before = {worker.rank: len(_text(worker.files.stacks_file)) for worker in group.workers}
    group.request_stacks()
    deadline = time.monotonic() + gather_s
    while True:
        texts = {
            worker.rank: _text(worker.files.stacks_file)[before[worker.rank] :]
            for worker in group.workers
        }
        answering = [worker for worker in group.workers if not _state(worker)]
        if all(parse_stack_location(texts[worker.rank]) for worker in answering):
            break
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(_MIN_SAMPLE_S)
    mute = [worker for worker in group.workers if not parse_stack_location(texts[worker.rank])]
    looks = await asyncio.gather(*map(_py_spy_stacks, mute))
    stacks = {rank: WorkerStacks(text) for rank, text in texts.items()}
    return stacks | {
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
