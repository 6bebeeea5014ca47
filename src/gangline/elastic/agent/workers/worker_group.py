"""The worker group of one attempt on this node: its processes start and end together.

A worker is forked from the fork server, starts in an interpreter of the node check, or as a new
process.
"""

import asyncio
import logging
import signal
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gangline.elastic.agent.logs import LogFolder, LogTee, WorkerFiles
from gangline.elastic.agent.process import (
    STACKS_SIGNAL,
    STACKS_VARIABLE,
    Process,
    bind_to_processors,
    end_processes,
    hook_environment,
    start_process,
)
from gangline.elastic.agent.settings import AgentSettings
from gangline.elastic.agent.spares.pool import SparePool
from gangline.elastic.agent.workers.environment import (
    report_environment,
    worker_arguments,
    worker_environment,
)
from gangline.elastic.agent.workers.failure_diagnosis import (
    RankExit,
    WorkerError,
    WorkerFailure,
    diagnose_exit,
    read_error_file,
)
from gangline.elastic.agent.world import WorldSpec
from gangline.elastic.memory import out_of_memory_kills

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker process of the attempt."""

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
            settings: settings of the agent.
            world: the world of the attempt.
            folder: files of the workers.
            spares: spare interpreters, if there are any.
            number: number of the attempt, counted from 0 on this agent.
            has_agent_store: False if rank 0 must open the store of the workers itself.
        """
        self._settings, self._world = settings, world
        self._has_agent_store = has_agent_store
        self._folder, self._spares, self._number = folder, spares, number
        self._tee = LogTee(settings.logs, settings.role)
        self._kills_before = out_of_memory_kills()
        self.workers: list[Worker] = []

    async def start(self, base: Mapping[str, str]) -> None:
        """Start all workers, concurrently.

        Raises:
            StartError: the command cannot be started.
            DevicesError: there are fewer devices than workers.
        """
        environments, files = {}, {}
        for local_rank in range(self._settings.local_world_size):
            streams = files[local_rank] = self._folder.worker_files(self._number, local_rank)
            environment = worker_environment(
                self._settings,
                self._world,
                local_rank,
                base,
                has_agent_store=self._has_agent_store,
            )
            environment |= report_environment(self._settings, streams, base)
            environments[local_rank] = environment
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
        """End all live workers and show the rest of their output.

        Args:
            number: the signal.
            grace_s: time between the signal and SIGKILL.
            hung_ranks: ranks that get SIGKILL immediately.
        """
        processes = [worker.process for worker in self.workers]
        hung = [worker.process for worker in self.workers if worker.rank in hung_ranks]
        if await end_processes(processes, number, grace_s, killed=hung):
            log.warning(
                "workers were killed because they did not end within %g s after %s",
                grace_s, number.name,
            )  # fmt: skip
        await self._tee.end()

    def exits(self) -> list[RankExit]:
        """Return the workers that have ended."""
        node, causes = (
            self._settings.node_name,
            {failure.rank: failure.failure.cause for failure in self.failures()},
        )
        return [
            RankExit(worker.rank, worker.process.pid, node, causes.get(worker.rank, ""))
            for worker in self.workers
            if worker.process.ended.done()
        ]

    def failures(self) -> list[WorkerFailure]:
        out_of_memory = out_of_memory_kills() > self._kills_before
        full = str(self._folder.path) if self._folder.is_full else ""
        found = (_failure_of(worker, out_of_memory, full) for worker in self.workers)
        return [failure for failure in found if failure is not None]

    def request_stacks(self) -> None:
        """Make every worker write its stacks to its file."""
        for worker in self.workers:
            worker.process.signal_process(STACKS_SIGNAL)

    async def _add_worker(
        self, local_rank: int, environment: dict[str, str], streams: WorkerFiles
    ) -> None:
        worker = await self._start_worker(local_rank, environment, streams)
        self.workers.append(worker)
        self._tee.start(streams, worker.rank, local_rank)

    async def _start_worker(
        self, local_rank: int, env: dict[str, str], streams: WorkerFiles
    ) -> Worker:
        rank = self._world.first_rank + local_rank
        spare = self._spares.take(local_rank) if self._spares else None
        if spare:
            stacks = {STACKS_VARIABLE: f"{int(STACKS_SIGNAL)}:{streams.stacks_file}"}
            try:
                channel = await spare.activate(
                    {**env, **stacks}, streams, reports_imports=self._learns_imports(local_rank)
                )
                if channel and self._spares:
                    self._spares.learn_from(channel)
                return Worker(rank, local_rank, spare.process, streams)
            except ConnectionError:
                log.warning("a spare interpreter has died; its worker starts without it")
        if self._spares and (forked := await self._fork_process(local_rank, env, streams)):
            return Worker(rank, local_rank, forked, streams)
        process = self._start_process(local_rank, env, streams)
        return Worker(rank, local_rank, process, streams)

    async def _fork_process(
        self, local_rank: int, env: dict[str, str], streams: WorkerFiles
    ) -> Process | None:
        assert self._spares is not None
        stacks = {STACKS_VARIABLE: f"{int(STACKS_SIGNAL)}:{streams.stacks_file}"}
        return await self._spares.fork(
            local_rank, {**env, **stacks}, streams, reports_imports=self._learns_imports(local_rank)
        )

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
        stacks = {STACKS_VARIABLE: f"{int(STACKS_SIGNAL)}:{streams.stacks_file}"}
        hook = hook_environment({**env, **stacks}, "learn" if learns else "plain", theirs)
        with theirs:
            process = run(hook, channel=theirs)
        if learns and self._spares:
            self._spares.learn_from(ours)
        else:
            ours.close()
        return process

    def _learns_imports(self, local_rank: int) -> bool:
        return self._spares is not None and local_rank == 0 and not self._spares.has_learned


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
