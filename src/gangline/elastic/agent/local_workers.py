"""The workers of this node's present attempt: progress, stacks, and saving of checkpoints.

A requested save: workers whose script looks for requests have half of the time to reach the end of
their step. After it, and for other scripts immediately, the newest complete save in memory is
written to storage.
"""

import asyncio
import contextlib
import json
import logging
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gangline.elastic.agent.failures import RankExit
from gangline.elastic.agent.hang_detector import RankStack, working_ranks
from gangline.elastic.agent.hang_stacks import collect_stacks, describe_evidence, rank_stacks
from gangline.elastic.agent.process import Process, StartError, end_processes, start_process
from gangline.elastic.agent.progress_report import NodeProgress, ProgressTracker, WorkerUsage
from gangline.elastic.agent.rendezvous import WorldSpec
from gangline.elastic.agent.settings import AgentSettings
from gangline.elastic.agent.worker_group import (
    PeakMemory,
    UsageMeter,
    WorkerGroup,
    read_worker_progress,
)
from gangline.elastic.save_request import (
    SaveOrder,
    replied_step,
    takes_orders,
    withdraw_order,
    write_order,
)
from gangline.elastic.survivors.coordinator import Replacement
from gangline.elastic.variables import FLUSH_RESULT_VARIABLE

log = logging.getLogger(__name__)

_POLL_S = 0.02
_EVICTION_S = 30.0
"""Workers wait this much longer than the answer may take: for the eviction that follows it."""


class RequestedSave:
    """Carries out one request at a time."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command, self._environment = tuple(command), environment
        self._files: tuple[Path, ...] = ()

    async def run(self, request: str, wait_s: float, files: Sequence[Path]) -> int | None:
        """Save; return the step in storage, or None.

        Args:
            wait_s: seconds that all of it may take.
        """
        begin = time.monotonic()
        self._files = tuple(files)
        for file in files:
            with contextlib.suppress(OSError):  # it does not answer then
                write_order(file, SaveOrder(request, wait_s + _EVICTION_S))
        await self._wait_for_workers(request, begin + wait_s / 2)
        return await self._write(begin + wait_s)

    def withdraw(self) -> None:
        files, self._files = self._files, ()
        for file in files:
            withdraw_order(file)

    async def _wait_for_workers(self, request: str, until: float) -> None:
        files = [file for file in self._files if takes_orders(file)]
        while any(replied_step(file, request) is None for file in files):
            if time.monotonic() > until or not self._files:
                log.warning("not all workers have saved on request: the newest save is written")
                return
            await asyncio.sleep(_POLL_S)

    async def _write(self, until: float) -> int | None:
        """Write the newest save to storage; return the lowest step of its targets."""
        if not self._command:
            return None
        with tempfile.TemporaryDirectory(prefix="gangline-save-") as folder:
            result = Path(folder, "result")
            environment = {**self._environment, FLUSH_RESULT_VARIABLE: str(result)}
            try:
                process = start_process(self._command, environment)
            except StartError as error:
                log.warning("the requested save is not written: %s", error)
                return None
            await asyncio.wait({process.ended}, timeout=max(until - time.monotonic(), 0.0))
            if not process.ended.done():
                log.warning("the requested save is not in storage in time")
                await end_processes([process], signal.SIGKILL, 0)
                return None
            return _lowest_step(result)


def _lowest_step(result: Path) -> int | None:
    try:
        steps = json.loads(result.read_bytes()).values()
        return min((int(step) for step in steps), default=None)
    except (OSError, ValueError, TypeError, AttributeError):
        return None  # nothing was written, or not all of it


class LocalWorkers:
    """One node's present attempt, and the process that saves checkpoints beside it."""

    def __init__(self, settings: AgentSettings, base: Mapping[str, str]) -> None:
        self._settings = settings
        self._environment = {**base, "TORCHELASTIC_RUN_ID": settings.run_id}
        self.is_warm: Callable[[], bool | None] = lambda: None
        """Returns whether the next workers start without imports; None if that is disabled."""
        self.are_kept: Callable[[], bool] = lambda: False
        """Returns whether the workers keep running when nodes leave or join."""
        self._group: WorkerGroup | None = None
        self._tracker: ProgressTracker | None = None
        self._meter: UsageMeter | None = None
        self._peak_memory = PeakMemory()
        self._last_report = NodeProgress()
        self._ended: tuple[WorkerGroup, ProgressTracker] | None = None
        self._ended_at = 0.0
        self._exits: list[RankExit] = []
        self._usage: WorkerUsage | None = None
        self._stacks_task: asyncio.Task[list[RankStack]] | None = None
        self._stacks_epoch = 0
        self._save_process: Process | None = None
        self._save_task: asyncio.Task[None] | None = None
        self._is_save_requested = False
        self._replaced, self._replacement = 0, ""
        self._requested_save = RequestedSave(settings.save_command, self._environment)

    def begin_attempt(self, group: WorkerGroup, world: WorldSpec) -> None:
        before, now = self._tracker, time.monotonic()
        in_place = before is not None and before.round == world.round
        self._tracker = ProgressTracker(
            world.round,
            world.attempt,
            since=self._ended_at if in_place else now,
            is_first=before is None,
            reports_steps=before is not None and before.reports_steps,
        )
        self._group, self._meter, self._stacks_task = group, UsageMeter(group), None

    @property
    def survives(self) -> bool:
        return self._group is not None and self.are_kept()

    @property
    def epoch(self) -> int:
        return self._group.epoch if self._group else 0

    def continue_in(self, world: WorldSpec) -> None:
        if self._tracker:
            self._tracker.round, self._tracker.attempt = world.round, world.attempt

    def end_attempt(self) -> None:
        """Record that the workers are about to end.

        Their progress is read when a report is requested, so that it does not delay the restart.
        """
        if self._group is not None and self._tracker is not None:
            self._ended, self._ended_at = (self._group, self._tracker), time.monotonic()
            # Before the others are ended: these may handle the signal and return 0.
            self._exits = self._group.exits()
        self._group = None
        self._requested_save.withdraw()

    def record_hang(self, since: float) -> None:
        if self._tracker:
            self._tracker.hung_since = since

    def record_replacement(self, replacement: Replacement) -> None:
        self._replaced, self._replacement = self._replaced + 1, replacement.describe()
        log.warning("%s", self._replacement)

    def farthest_step(self) -> int | None:
        """Return the last step in a checkpoint, else the last step; None if none is reported."""
        progress = read_worker_progress(self._group) if self._group else []
        saved = [worker.saved_step for worker in progress if worker.saved_step is not None]
        steps = [worker.step for worker in progress if worker.step is not None]
        return min(saved or steps, default=None)

    def report(self) -> NodeProgress:
        if self._group and self._tracker and self._meter:
            self._usage = replace(self._meter.usage(), is_warm=self.is_warm())
            progress = read_worker_progress(self._group)
            report = self._tracker.report(progress, time.monotonic(), self._usage)
            if report.is_detailed:
                peak_bytes = self._peak_memory.peak_bytes()
                report = replace(
                    report,
                    memory_peak_bytes=peak_bytes,
                    replaced=self._replaced,
                    replacement=self._replacement,
                )
            return report
        if self._ended:
            (group, tracker), self._ended = self._ended, None
            progress = read_worker_progress(group)
            self._last_report = tracker.report(progress, self._ended_at, self._usage, is_last=True)
        return self._last_report

    async def rank_stacks(self) -> list[RankStack]:
        if self._group is None:
            return await self._stacks_task if self._stacks_task else []
        task = self._stacks_task
        if task and (
            self._stacks_epoch != self.epoch or (task.done() and working_ranks(task.result()))
        ):
            task = None
        if task is None:
            taken = rank_stacks(self._group, self._settings.hang.gather_s, self._settings.node_name)
            task = self._stacks_task = asyncio.create_task(taken)
            self._stacks_epoch = self.epoch
        return await asyncio.shield(task)

    def exits(self) -> list[RankExit]:
        return self._group.exits() if self._group else self._exits

    def describe_evidence(self) -> str:
        if self._group is None:
            return ""
        return describe_evidence(self._group, is_permanent=self._settings.logs.folder is not None)

    async def dump_stacks(self, reason: str) -> None:
        if self._group is None:
            return
        stacks = await collect_stacks(self._group, self._settings.hang.gather_s)
        for rank, stack in stacks.items():
            text = stack.text or "none"
            log.warning("stacks of rank %d (%s):\n%s", rank, reason or "requested", text)

    def start_saving(self) -> None:
        self._is_save_requested = True
        if self._save_task is None or self._save_task.done():
            self._save_task = asyncio.create_task(self._save())

    async def _save(self) -> None:
        # A running save may have started before the newest step was complete, so a request that
        # comes meanwhile starts another one.
        while self._is_save_requested:
            self._is_save_requested = False
            self._save_process = start_process(self._settings.save_command, self._environment)
            await asyncio.wait({self._save_process.ended})

    async def save_on_request(self, request: str, wait_s: float) -> int | None:
        workers = self._group.workers if self._group else []
        files = [worker.files.progress_file for worker in workers]
        return await self._requested_save.run(request, wait_s, files)

    def withdraw_request(self) -> None:
        self._requested_save.withdraw()

    async def wait_for_save(self, timeout_s: float | None = None) -> None:
        """Wait for the end of saving. Kill it after the timeout."""
        if self._save_task is None:
            return
        await asyncio.wait({self._save_task}, timeout=timeout_s)
        if not self._save_task.done():
            log.warning("the newest checkpoint is not in storage after %g s", timeout_s)
            self._save_task.cancel()
            await end_processes(
                [self._save_process] if self._save_process else [], signal.SIGKILL, 0
            )

    def has_checkpoints_in_memory(self) -> bool:
        # The import takes time, so only a node that is about to end does it.
        from gangline.elastic.checkpoint.saver.client import job_directories

        return bool(job_directories(self._environment))
