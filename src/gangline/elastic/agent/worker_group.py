"""The worker group of one attempt on this node: its processes start and end together; their usage.

A worker is forked from the fork server, starts in an interpreter of the node check, or as a new
process. Its variables are those of torchrun.

The highest memory use of a pod: a container has a cgroup of its own, whose peak the kernel records.
That peak includes pages of files: reading a data set fills the memory up to its limit, although the
kernel would reclaim those pages. So the peak of the cgroup is an upper bound, and two other figures
are a lower one: the use without the file cache, which is sampled, and the sum of the peaks of the
resident sets of the agent and its descendants, which holds short peaks too, and counts shared pages
repeatedly. Processes without a cgroup of their own have only that sum.
"""

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from string import Template

from gangline.elastic.agent.failures import (
    RankExit,
    WorkerError,
    WorkerFailure,
    diagnose_exit,
    read_error_file,
)
from gangline.elastic.agent.logs import LogFolder, LogTee, WorkerFiles
from gangline.elastic.agent.process import (
    STACKS_SIGNAL,
    STACKS_VARIABLE,
    Process,
    bind_to_processors,
    descendants,
    end_processes,
    hook_environment,
    start_process,
    stat_fields,
)
from gangline.elastic.agent.progress_report import WorkerUsage
from gangline.elastic.agent.rendezvous import WorldSpec
from gangline.elastic.agent.settings import AgentSettings
from gangline.elastic.agent.spare_pool import SparePool
from gangline.elastic.memory import (
    cgroup_use_bytes,
    out_of_memory_kills,
    peak_resident_bytes,
    resident_bytes,
)
from gangline.elastic.progress import (
    METRICS_VARIABLE,
    PROGRESS_VARIABLE,
    WorkerProgress,
    read_progress,
)

_FLIGHT_RECORDS = "2000"

log = logging.getLogger(__name__)
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PEAK_FILES = ("memory.peak", "memory.max_usage_in_bytes")
"""The peak in a cgroup, for version 2 and 1 of the interface."""


class DevicesError(ValueError):
    """There are fewer devices than workers."""


@dataclass(frozen=True, slots=True)
class Worker:
    rank: int
    local_rank: int
    process: Process
    files: WorkerFiles


class WorkerGroup:
    """All workers of this node in one attempt."""

    def __init__(
        self,
        settings: AgentSettings,
        world: WorldSpec,
        folder: LogFolder,
        spares: SparePool | None,
        number: int,
        *,
        has_agent_store: bool = True,
    ) -> None:
        """Prepare an attempt.

        Args:
            number: number of the attempt, counted from 0 on this agent.
            has_agent_store: False if rank 0 must open the store of the workers itself.
        """
        self._settings, self._world = settings, world
        self._has_agent_store = has_agent_store
        self._folder, self._spares, self._number = folder, spares, number
        self._tee = LogTee(settings.logs, settings.role)
        self._kills_before = out_of_memory_kills()
        self.workers: list[Worker] = []
        self.slots: dict[int, Worker] = {}
        """All workers and successors by their slot, which for the first workers is the rank."""
        self.variables: Callable[[int], Mapping[str, str]] = lambda _slot: {}
        """Returns further variables of a slot."""
        self.epoch = 0
        """Number of the present process group of workers that keep running when one is lost."""
        self.is_held = False
        """True while the workers form a process group, or wait for the successor of a lost one."""
        self.sessions: set[int] = set()
        """Sessions of all processes that were started: each leads one."""

    @property
    def folder(self) -> Path:
        return self._folder.attempt_folder(self._number)

    async def start(self, base: Mapping[str, str]) -> None:
        environments, files = {}, {}
        for local_rank in range(self._settings.local_world_size):
            streams = files[local_rank] = self._folder.worker_files(self._number, local_rank)
            slot = self._world.first_rank + local_rank
            environments[local_rank] = self._environment(slot, local_rank, base, streams)
        # Each fork takes some switches between processes: on a busy machine, most of a restart.
        starts = [
            self._add_worker(local_rank, environment, files[local_rank])
            for local_rank, environment in environments.items()
        ]
        results = await asyncio.gather(*starts, return_exceptions=True)
        self.workers.sort(key=lambda worker: worker.rank)
        for error in filter(None, results):
            raise error
        if self._spares:
            self._spares.fill(environments)

    async def wait_for_end(self) -> list[WorkerFailure]:
        """Wait until all workers succeed or one fails; return the failures."""
        waiting = {worker.process.ended for worker in self.workers}
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if any(future.result() for future in done):
                break
        return self.failures()

    async def stop(
        self, number: signal.Signals, grace_s: float, hung_ranks: Collection[int] = ()
    ) -> None:
        """End all live workers and show the rest of their output."""
        processes = [worker.process for worker in self.workers]
        hung = [worker.process for worker in self.workers if worker.rank in hung_ranks]
        if await end_processes(processes, number, grace_s, killed=hung):
            log.warning(
                "workers were killed because they did not end within %g s after %s",
                grace_s, number.name,
            )  # fmt: skip
        await self._tee.end()

    def exits(self) -> list[RankExit]:
        node = self._settings.node_name
        causes = {failure.rank: failure.failure.cause for failure in self.failures()}
        return [
            RankExit(worker.rank, worker.process.pid, node, causes.get(worker.rank, ""))
            for worker in self.workers
            if worker.process.ended.done()
        ]

    def failures(self) -> list[WorkerFailure]:
        out_of_memory = out_of_memory_kills() > self._kills_before
        full = str(self._folder.path) if self._folder.is_full else ""
        failures = (_failure_of(worker, out_of_memory, full) for worker in self.workers)
        return [failure for failure in failures if failure is not None]

    def request_stacks(self) -> None:
        for worker in self.workers:
            worker.process.signal_process(STACKS_SIGNAL)

    async def _add_worker(
        self, local_rank: int, environment: dict[str, str], streams: WorkerFiles
    ) -> None:
        worker = await self._start_worker(local_rank, environment, streams)
        self.slots[worker.rank] = worker
        self.workers.append(worker)

    async def start_successor(self, slot: int, local_rank: int, base: Mapping[str, str]) -> Worker:
        """Start a process that may take the place of a worker; it is none of ``workers`` yet.

        Raises StartError: it cannot be started.
        """
        streams = self._folder.worker_files(self._number, local_rank, f"slot_{slot}")
        environment = self._environment(slot, local_rank, base, streams)
        worker = self.slots[slot] = await self._start_worker(local_rank, environment, streams)
        return worker

    def _environment(
        self, slot: int, local_rank: int, base: Mapping[str, str], streams: WorkerFiles
    ) -> dict[str, str]:
        environment = worker_environment(
            self._settings, self._world, local_rank, base, has_agent_store=self._has_agent_store
        )
        environment |= report_environment(self._settings, streams, base)
        return environment | dict(self.variables(slot))

    async def _start_worker(
        self, local_rank: int, environment: dict[str, str], streams: WorkerFiles
    ) -> Worker:
        process = await self._start_warm(local_rank, environment, streams)
        process = process or self._start_process(local_rank, environment, streams)
        self.sessions.add(process.pid)
        rank = self._world.first_rank + local_rank
        self._tee.start(streams, rank, local_rank)
        return Worker(rank, local_rank, process, streams)

    async def _start_warm(
        self, local_rank: int, environment: dict[str, str], streams: WorkerFiles
    ) -> Process | None:
        """Start a worker in an interpreter of the node check, or as a fork; None without either."""
        if self._spares is None:
            return None
        environment = _with_stacks(environment, streams)
        learns = self._learns_imports(local_rank)
        if spare := self._spares.take(local_rank):
            try:
                channel = await spare.activate(environment, streams, reports_imports=learns)
            except ConnectionError:
                log.warning("a spare interpreter has died; its worker starts without it")
            else:
                if channel:
                    self._spares.learn_from(channel)
                return spare.process
        return await self._spares.fork(local_rank, environment, streams, reports_imports=learns)

    def _start_process(self, local_rank: int, env: dict[str, str], streams: WorkerFiles) -> Process:
        arguments = worker_arguments(self._settings, local_rank)
        near = self._settings.affinity
        prepare = partial(bind_to_processors, near[local_rank] if near else frozenset())
        run = partial(
            start_process, arguments, stdout=streams.stdout, stderr=streams.stderr, prepare=prepare
        )
        if not self._settings.command.is_python:
            return run(env)
        learns = self._learns_imports(local_rank)
        ours, theirs = socket.socketpair()
        env = _with_stacks(env, streams)
        hook = hook_environment(env, "learn" if learns else "plain", theirs)
        with theirs:
            process = run(hook, channel=theirs)
        if learns and self._spares:
            self._spares.learn_from(ours)
        else:
            ours.close()
        return process

    def _learns_imports(self, local_rank: int) -> bool:
        return self._spares is not None and local_rank == 0 and not self._spares.has_learned


def _with_stacks(environment: Mapping[str, str], streams: WorkerFiles) -> dict[str, str]:
    """Add the variable by which the worker hook writes stacks when the agent asks for them."""
    return {**environment, STACKS_VARIABLE: f"{int(STACKS_SIGNAL)}:{streams.stacks_file}"}


def _failure_of(worker: Worker, out_of_memory: bool, full_disk: str) -> WorkerFailure | None:
    process = worker.process
    if not process.ended.done():
        return None
    code = process.ended.result()
    error = read_error_file(Path(worker.files.error_file)) if code else None
    if error is None and code > 0 and full_disk:
        # The error file is on that disk, so the exception could not be stored either.
        error = WorkerError(f"No space left on device: the disk of {full_disk} is full", "")
    failure = diagnose_exit(code, error, out_of_memory=out_of_memory)
    if failure is None:
        return None
    return WorkerFailure(
        worker.rank, worker.local_rank, process.pid, code, process.ended_at, failure, error
    )


def worker_environment(
    settings: AgentSettings,
    world: WorldSpec,
    local_rank: int,
    base: Mapping[str, str],
    *,
    has_agent_store: bool = True,
) -> dict[str, str]:
    """Return all variables of a worker, those of the agent (``base``) included.

    Args:
        has_agent_store: False if rank 0 must open the store itself.

    Raises:
        DevicesError: ``CUDA_VISIBLE_DEVICES`` lists too few devices for virtual local ranks.
    """
    rank = str(world.first_rank + local_rank)
    size = str(world.world_size)
    return {
        **base,
        "RANK": rank,
        "GROUP_RANK": str(world.group_rank),
        "ROLE_RANK": rank,
        "ROLE_NAME": settings.role,
        "LOCAL_WORLD_SIZE": str(settings.local_world_size),
        "WORLD_SIZE": size,
        "GROUP_WORLD_SIZE": str(world.group_world_size),
        "ROLE_WORLD_SIZE": size,
        "MASTER_ADDR": world.store_host,
        "MASTER_PORT": str(world.store_port),
        "TORCHELASTIC_RESTART_COUNT": str(world.attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(settings.restart_limit),
        "TORCHELASTIC_RUN_ID": settings.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": str(has_agent_store),
        "TORCHELASTIC_SIGNALS_TO_HANDLE": ",".join(number.name for number in settings.signals),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": base.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        **_device_variables(settings, local_rank, base),
    }


def spare_environment(
    settings: AgentSettings, local_rank: int, base: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of a spare interpreter, whose world is not known yet."""
    world = WorldSpec(0, 0, 1, 0, settings.local_world_size, "127.0.0.1", 0)
    return worker_environment(settings, world, local_rank, base)


def report_environment(
    settings: AgentSettings, files: WorkerFiles, base: Mapping[str, str]
) -> dict[str, str]:
    variables = {
        "TORCHELASTIC_ERROR_FILE": str(files.error_file),
        PROGRESS_VARIABLE: str(files.progress_file),
        METRICS_VARIABLE: str(files.metrics_file),
    }
    if settings.hang.timeout_s is not None:
        recorder = {
            "TORCH_NCCL_TRACE_BUFFER_SIZE": _FLIGHT_RECORDS,
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(files.flight_dump),
            "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(files.flight_pipe),
        }
        variables |= {name: value for name, value in recorder.items() if name not in base}
    return variables


def worker_arguments(settings: AgentSettings, local_rank: int) -> list[str]:
    """Return the command line of a worker with its local rank filled in."""
    return [
        Template(argument).safe_substitute(local_rank=local_rank)
        if "${local_rank}" in argument
        else argument
        for argument in settings.command.arguments
    ]


def _device_variables(
    settings: AgentSettings, local_rank: int, base: Mapping[str, str]
) -> dict[str, str]:
    if not settings.virtual_local_rank:
        return {"LOCAL_RANK": str(local_rank)}
    visible = base.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible is not None else None
    if devices is not None and local_rank >= len(devices):
        raise DevicesError(
            f"local rank {local_rank} has no device: CUDA_VISIBLE_DEVICES={visible} "
            f"names {len(devices)}; lower --nproc-per-node"
        )
    own = devices[local_rank].strip() if devices else str(local_rank)
    return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": own}


def read_worker_progress(group: WorkerGroup) -> list[WorkerProgress]:
    return [
        read_progress(worker.files.progress_file, worker.files.metrics_file)
        for worker in group.workers
    ]


def processor_seconds(pid: int) -> float:
    """Return the processor time that a process has used; 0 if it has ended."""
    try:
        fields = stat_fields(pid)
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


class UsageMeter:
    """Measures the resource usage of one attempt's workers and their children."""

    def __init__(self, group: WorkerGroup) -> None:
        self._group = group
        self._busy_s, self._measured_at = 0.0, time.monotonic()

    def usage(self) -> WorkerUsage:
        """Return the processors used since the last call, and the memory used now."""
        pids = [
            pid
            for worker in self._group.workers
            for pid in _process_and_children(worker.process.pid)
        ]
        busy_s, now = sum(map(processor_seconds, pids)), time.monotonic()
        passed, used = now - self._measured_at, max(0.0, busy_s - self._busy_s)
        self._busy_s, self._measured_at = busy_s, now
        return WorkerUsage(
            round(used / passed, 3) if passed else 0.0, sum(map(resident_bytes, pids))
        )


def _process_and_children(pid: int) -> list[int]:
    """Return a process and its children, such as data loaders."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        children = []  # it has ended, or this kernel lacks the file
    return [pid, *map(int, children)]


class PeakMemory:
    """Measures the peak of this process, its descendants, and the rest of its own cgroup."""

    def __init__(
        self, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup"), pid: int = 0
    ) -> None:
        self._proc, self._pid = proc, pid or os.getpid()
        self._cgroup = cgroup
        self._peak_file: Path | None = None
        self._is_examined = False
        self._highest = 0
        """Of the resident sets, and of the use without the file cache."""
        self._bound = 0
        """The peak of the cgroup; 0 if it has none."""

    def peak_bytes(self) -> int | None:
        """Return the highest use so far; None if it cannot be measured."""
        if not self._is_examined:
            self._peak_file, self._is_examined = self._own_peak_file(), True
        pids = [self._pid, *descendants(self._pid, self._proc)]
        resident = sum(peak_resident_bytes(pid, self._proc) for pid in pids)
        self._highest = max(self._highest, resident)
        if self._peak_file is not None:
            try:
                self._bound = max(self._bound, int(self._peak_file.read_text()))
            except (OSError, ValueError):
                self._peak_file = None
            else:
                used = cgroup_use_bytes(self._peak_file.parent)
                # Without a figure for the file cache the upper bound is all that is certain.
                self._highest = max(self._highest, self._bound if used is None else used)
        return min(self._highest, self._bound or self._highest) or None

    def _own_peak_file(self) -> Path | None:
        """Return the file with the cgroup's peak, if all its processes belong to this pod."""
        own = {self._pid, *self._ancestors(), *descendants(self._pid, self._proc)}
        for folder in self._cgroup_folders():
            try:
                peak = next(folder / name for name in _PEAK_FILES if (folder / name).exists())
                int(peak.read_text())
                pids = {int(line) for line in (folder / "cgroup.procs").read_text().split()}
            except (OSError, ValueError, StopIteration):
                continue
            # A process of another PID namespace is listed as 0, which is no process of ours.
            if pids and pids <= own:
                return peak
        return None

    def _cgroup_folders(self) -> Iterator[Path]:
        """List where the cgroup may be; a container sees its own as the root."""
        try:
            lines = (self._proc / f"{self._pid}/cgroup").read_text().splitlines()
        except OSError:
            lines = []
        for line in lines:
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield self._cgroup / path.lstrip("/")
            elif "memory" in controllers.split(","):
                yield self._cgroup / "memory" / path.lstrip("/")
        yield self._cgroup
        yield self._cgroup / "memory"

    def _ancestors(self) -> list[int]:
        ancestors: list[int] = []
        pid = self._pid
        while pid > 1 and len(ancestors) < 64:
            try:
                pid = int(stat_fields(pid, self._proc)[1])
            except OSError:
                break
            ancestors.append(pid)
        return ancestors
