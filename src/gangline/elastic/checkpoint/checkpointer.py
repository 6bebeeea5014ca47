"""``Checkpointer``: the checkpoint API for training scripts.

    checkpointer = Checkpointer("s3://bucket/run", keep=3)
    loaded = checkpointer.load(state)                 # the newest complete step, or None
    for step in range(loaded.step + 1 if loaded else 1, …):
        …
        checkpointer.save(step, state)                # to memory: one copy
        if step % 500 == 0:
            checkpointer.save(step, state, "storage") # also to storage, in the background
    checkpointer.close()

All ranks call the same methods in the same order. ``state`` is a nested dictionary of tensors,
``DTensor``, numbers, strings, and objects with ``state_dict`` and ``load_state_dict``.
"""

import contextlib
import logging
import operator
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, get_args

from torch.distributed.checkpoint.stateful import Stateful

from gangline.display import error_text
from gangline.elastic.checkpoint.branch_switch import BranchSwitch, CurrentRun
from gangline.elastic.checkpoint.errors import CheckpointError, StorageError
from gangline.elastic.checkpoint.format.manifest import branch_of
from gangline.elastic.checkpoint.format.plan import SavePlan
from gangline.elastic.checkpoint.ranks import SaveGroup
from gangline.elastic.checkpoint.replicas import ReplicaCheck
from gangline.elastic.checkpoint.restore.restore import (
    Loaded,
    Restorer,
    incomplete_steps,
    list_stored,
)
from gangline.elastic.checkpoint.save_schedule import AutoInterval, RequestedSaves, TunedPrior
from gangline.elastic.checkpoint.saver.messages import SaveNotice
from gangline.elastic.checkpoint.session import BufferOptions, open_session
from gangline.elastic.checkpoint.shared_folder import SharedFolderProof
from gangline.elastic.checkpoint.snapshot.copy import find_accelerator
from gangline.elastic.checkpoint.snapshot.ring import BufferChoice, SaveRequest
from gangline.elastic.checkpoint.snapshot.segment import (
    check_capacity,
    memory_request,
    memory_warning,
)
from gangline.elastic.checkpoint.storage.branches import read_record
from gangline.elastic.checkpoint.storage.commit import delay_text, is_committed
from gangline.elastic.checkpoint.storage.target import open_target
from gangline.elastic.checkpoint.training import TrainingState
from gangline.elastic.progress import PhaseReporter, SaveCounts, SaveReporter
from gangline.elastic.save_request import SaveOrders

log = logging.getLogger(__name__)
SaveLevel = Literal["memory", "storage"]


def _check_count(name: str, value: object, least: int) -> int:
    """Return a whole number; raise ValueError if it is none, or less than ``least``."""
    try:
        count = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        count = least - 1
    if count < least:
        raise ValueError(f"{name} is {value!r}, must be a whole number of at least {least}")
    return count


@dataclass(slots=True)
class CheckpointCounts:
    """Counters of saves in this process, for metrics."""

    saves: int = 0
    skipped: int = 0
    """Saves that found no free buffer. This happens only with fewer than three buffers."""
    superseded: int = 0
    """Steps that newer ones replaced before their upload to storage."""
    blocked_s: float = 0.0
    """Seconds that training has waited for saves."""
    failures: list[str] = field(default_factory=list)
    """Reasons why steps were not written to storage."""


class Checkpointer:
    """Saves the state of all ranks to shared memory, and in the background to storage."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        buffers: int = 3,
        interval: Literal["auto"] | int = 1,
        replicas: bool = True,
        overlap: bool = False,
        environment: Mapping[str, str] = os.environ,
        **settings: Any,
    ) -> None:
        """Join the other ranks and create the job's folder in shared memory.

        Storage is not used yet.

        Args:
            folder: a path, or a URL that fsspec can open.
            buffers: number of snapshots of the state that each rank has in shared memory. With
                three, no save is ever skipped.
            interval: what ``due`` uses: a number of steps, or ``"auto"``.
            replicas: copy each node's saves to the memory of the next node, unless it has them
                anyway.
            overlap: return from ``save`` while an accelerator still sends. The next optimizer step
                waits for it, and nothing else may change the tensors of the optimizer.
            environment: environment variables of the job.
            settings: further fields of ``SaverSettings``: keep, keep_every, bandwidth, linger_s,
                options.

        Raises:
            FolderInUseError: another running job writes into the folder, or another process as
                the same rank: several ranks need a process group.
            InsecureMemoryError: another user can change the folder in shared memory.
            ValueError: a number or interval is impossible.
        """
        if interval != "auto":
            _check_count("interval", interval, 1)
        _check_count("buffers", buffers, 1)
        for name in ("keep", "keep_every"):
            _check_count(name, settings.get(name, 0), 0)
        self.folder = str(folder)
        if "://" not in self.folder:
            self.folder = str(Path(self.folder).absolute())
        self.ranks = SaveGroup()
        self.counts, self.interval = CheckpointCounts(), interval
        ring = BufferOptions(buffers, overlap, self._on_save_complete)
        self._session = open_session(self.ranks, self.folder, environment, ring, replicas, settings)
        self.buffers, self.saver_client = self._session.buffers, self._session.saver_client
        self.job_folder, self.node = self._session.job_folder, self._session.node
        self.plan, self.replicas = SavePlan(self.ranks, self.node), ReplicaCheck(self.ranks)
        self.auto_interval, self._tuned_prior = AutoInterval(), TunedPrior(environment)
        self.auto_interval.failures = int(environment.get("TORCHELASTIC_RESTART_COUNT") or 0)
        self._is_closed = False
        self._awaiting_storage: list[tuple[int, str]] = []
        """Steps and plans that were saved to storage, in this order."""
        self._delayed: set[tuple[int, str]] = set()
        """Those of which a delay was logged."""
        self._folder_proof = SharedFolderProof(self.ranks, self.job_folder, self._session.settings)
        run = CurrentRun.from_environment(self._session.settings.job, environment)
        self._branch = BranchSwitch(self.plan, self.job_folder, run, self._open_restorer)
        self._progress_reporter = SaveReporter(environment)
        self._phase_reporter = PhaseReporter(environment)
        self._orders = SaveOrders(environment)
        self._requested_saves = RequestedSaves(self.ranks, self._orders)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(finished=kind is None)

    def close(self, finished: bool = True) -> None:
        """Release all resources; after a ``finished`` training also the memory, once all is stored.

        Otherwise, or if the process dies, the saver writes the newest save to storage and retains
        the memory for a restart for ``linger_s`` seconds.
        """
        if not self._is_closed:
            self._is_closed = True
            self._session.close(finished)
            self.ranks.close()

    def due(self, step: int) -> bool:
        """Return whether to save after this step; all ranks get the same answer.

        A save is due by the interval, or because the job is about to be evicted (see ``save``).
        """
        if self.is_requested(step):
            return True
        if self.interval == "auto":
            if (prior := self._tuned_prior.changed()) is not None:
                self.auto_interval.prior = prior
            return self.ranks.broadcast(self.auto_interval.due(time.monotonic()))
        return step % self.interval == 0

    def is_requested(self, step: int) -> bool:
        """Return whether the agent asks for a save after this step; all ranks get the same answer.

        For scripts that do not use ``due``. All ranks call it after each step.
        """
        return self._requested_saves.is_due(step)

    def prepare(self, state: dict[str, Any]) -> None:
        """Agree on the layout and allocate memory, so that the first save is as fast as later ones.

        ``load`` does this too. All ranks call it together.

        Raises:
            MemoryShortError: the buffers of some node's ranks do not fit into its shared memory;
                all ranks raise.
        """
        self.buffers.wait_for_memory()  # before other ranks measure free memory
        plain = state_templates_of(state)
        self.plan.declare_common(common_paths(state))
        agreement = self.plan.agree(plain)
        self.buffers.accelerator = find_accelerator(plain)
        request = memory_request(
            self.node, self.job_folder, *self.buffers.required_bytes(agreement)
        )
        requests = self.ranks.all_gather(request)
        check_capacity(requests)
        is_first = [request.node for request in requests].index(self.node) == self.ranks.rank
        if is_first and (warning := memory_warning(requests, self.node)):
            log.warning(f"memory for checkpoints is short: {warning}", extra={"reason": warning})
        self.buffers.prepare(agreement)

    def save(self, step: int, state: dict[str, Any], level: SaveLevel = "memory") -> bool:
        """Save the state; return when it is in memory, or with ``overlap`` while the transfer runs.

        Returns False if the save was skipped because no buffer was free. With ``"storage"`` the
        saver then writes the step to the folder; ``wait`` waits for that.

        A save that the agent has requested, because the job is to be evicted, returns only when the
        request is withdrawn or its time is over: steps after it would be lost.

        Raises:
            MemoryShortError: the state does not fit into shared memory.
            UnsavableError: a value cannot be pickled, or loading it would run code.
            RuntimeError: an accelerator failed; with ``overlap`` possibly during the previous save.
            UnsharedFolderError: the nodes do not share the folder; all ranks raise at the first
                save to storage.
            ValueError: the step or the level is none.
        """
        step = _check_count("step", step, 0)
        if level not in get_args(SaveLevel):
            raise ValueError(f"level is {level!r}, must be 'memory' or 'storage'")
        begin = time.monotonic()
        if level == "storage":
            self._folder_proof.prove()
        self._branch.before_save(step)
        plain, agreement = state_dicts_of(state), self.plan.agreement
        self.plan.declare_common(common_paths(state))
        fitted = self.plan.fit(plain)
        if level == "storage":
            self.replicas.check(step, fitted.replica_sets, fitted.replicas)
        if fitted.agreement is not agreement:
            self.buffers.accelerator = find_accelerator(plain)
        with self._phase_reporter.report_phase("checkpoint"):
            saved = self.buffers.save(SaveRequest(fitted, step, level == "storage"))
        now = time.monotonic()
        self._count(step, level, saved, now - begin)
        self.auto_interval.record_save(now, now - begin)
        self._progress_reporter.report_blocked(now - begin)
        self._report_times()
        self._process_reports()
        self._answer_request(step, is_saved=saved is not None)
        return saved is not None

    def _answer_request(self, step: int, *, is_saved: bool) -> None:
        """Report a requested save to the agent, and wait there for the eviction."""
        order = self._requested_saves.answer(step, is_saved=is_saved)
        if order is None:
            return
        self.buffers.wait_for_transfers()
        self._orders.reply(order, step)
        log.warning(f"step {step} saved on request, waiting", extra={"step": step})
        with self._phase_reporter.report_phase("checkpoint"):
            held_s = self._orders.hold(order)
        self.counts.blocked_s += held_s
        self._progress_reporter.report_blocked(held_s)

    def _report_times(self) -> None:
        times, adapts = self.auto_interval, self.interval == "auto"
        interval_s = times.interval_s() if adapts else times.between_saves_s
        if times.measured_s is not None:
            self._progress_reporter.report_times(times.measured_s, interval_s, adapts=adapts)

    def _on_save_complete(self, step: int) -> None:
        """Report a complete save; with ``overlap`` this may happen after ``save`` returned."""
        self._branch.after_save()
        self._progress_reporter.report_saved(step)
        self.saver_client.send(SaveNotice(step))

    def _count(
        self, step: int, level: SaveLevel, saved: BufferChoice | None, took_s: float
    ) -> None:
        self.counts.blocked_s += took_s
        if saved is None:
            self.counts.skipped += 1
            log.warning(f"step {step} not saved: every buffer is needed", extra={"step": step})
            return
        self.counts.saves += 1
        if saved.supersedes is not None:
            self.counts.superseded += 1
            self._awaiting_storage = [
                one for one in self._awaiting_storage if one[0] != saved.supersedes
            ]
            log.warning(
                f"storage is slower than saves: step {step} replaces step {saved.supersedes}",
                extra={"step": saved.supersedes, "by": step},
            )
        if level == "storage":
            self._awaiting_storage.append((step, self.plan.name))

    def _process_reports(self) -> None:
        while self.saver_client.poll(0):
            pass
        outcomes, self.saver_client.outcomes = self.saver_client.outcomes, []
        for outcome in outcomes:
            if outcome.committed:
                self._mark_stored(outcome.step, outcome.plan)
            else:
                self.counts.failures.append(f"step {outcome.step}: {outcome.reason}")
        self._awaiting_storage = [
            one for one in self._awaiting_storage if not self._branch.abandons(*one)
        ]
        counts = self.counts
        self._progress_reporter.report_counts(
            SaveCounts(counts.skipped, counts.superseded, len(counts.failures))
        )

    def wait(self, timeout_s: float = 1800.0) -> bool:
        """Wait until storage has every step that was saved to it; return whether it has.

        Steps that newer ones replaced before their upload are not waited for, and abandoned ones
        neither. If the time is over, a warning says what is missing.
        """
        deadline = time.monotonic() + timeout_s
        self.buffers.wait_for_transfers()
        self._process_reports()
        while self._awaiting_storage and (left := deadline - time.monotonic()) > 0:
            if not self.saver_client.poll(min(left, 1.0)):
                self._refresh_from_storage()
            self._process_reports()
        self._log_delay()
        return not self._awaiting_storage

    def _mark_stored(self, step: int, plan: str) -> None:
        """Wait no longer for a step, nor for those that were saved before it."""
        awaiting = self._awaiting_storage
        if (step, plan) in awaiting:
            awaiting = awaiting[awaiting.index((step, plan)) + 1 :]
        branch = branch_of(plan)
        self._awaiting_storage = [
            one for one in awaiting if branch_of(one[1]) != branch or one[0] > step
        ]

    def _refresh_from_storage(self) -> None:
        """Read whether a step is committed, in case no saver reported it to this process."""
        with contextlib.suppress(OSError, StorageError):
            target = open_target(self.folder, self._session.settings.options)
            for step, plan in reversed(self._awaiting_storage):
                if is_committed(target, step, plan):
                    self._mark_stored(step, plan)
                    return

    def _log_delay(self) -> None:
        """Log why the newest step that is awaited is not in storage, once for each step."""
        if not self._awaiting_storage or self._awaiting_storage[-1] in self._delayed:
            return
        step, plan = self._awaiting_storage[-1]
        self._delayed.add((step, plan))
        try:
            target = open_target(self.folder, self._session.settings.options)
            reason = delay_text(target, step, plan, self._session.settings.hosts)
        except (OSError, StorageError) as error:
            reason = error_text(error)
        log.warning(
            f"step {step} is not in storage yet: {reason}", extra={"step": step, "reason": reason}
        )

    def latest(self) -> int | None:
        """Return the newest step in storage that is not abandoned; None if there is none.

        Raises:
            OSError, StorageError: storage cannot be reached.
        """
        target = open_target(self.folder, self._session.settings.options)
        return max(list_stored(target, read_record(target)).live, default=None)

    def load(self, state: dict[str, Any] | None = None, step: int | None = None) -> Loaded | None:
        """Restore the newest step that is complete on all ranks, or ``step``.

        Returns None if there is none.

        The first save after it abandons newer steps: they are no longer loaded by default. If a
        launcher restarts a script that began with a ``step``, its first load restores the newest
        step that this run has saved since, so continue from ``Loaded.step``.

        Tensors of ``state`` are overwritten in place. Without ``state`` everything that was saved
        is returned. Incomplete and damaged steps are skipped with a warning that gives the reason.

        Raises:
            CheckpointError: checkpoints exist, but none could be loaded.
            ForeignFolderError: the folder holds only checkpoints of another format; the message
                names it.
        """
        self.buffers.wait_for_memory()
        self.buffers.wait_for_transfers()
        plain = state_templates_of(state) if state is not None else None
        self.buffers.accelerator = find_accelerator(plain)
        restorer = self._open_restorer()
        for skipped, reason in sorted(incomplete_steps(restorer.holders).items(), reverse=True):
            log.warning(
                f"step {skipped} in memory is incomplete: {reason}",
                extra={"step": skipped, "reason": reason},
            )
        loaded = restorer.load(
            plain,
            step,
            optional_paths(state or {}),
            common_paths(state or {}),
            self._branch.resumed_run,
        )
        self._branch.prepare_after_load(restorer, loaded, step)
        if state is not None:
            if loaded is not None:
                load_objects(state, loaded.state)
            if self.ranks.any_rank(
                loaded is None or not self._continues_own_save(restorer, loaded.step)
            ):
                self.prepare(state)
            else:  # memory is allocated; the first save agrees on the layout
                self.buffers.prefault_existing()
        if loaded is not None:
            self._progress_reporter.report_saved(loaded.step)
        return loaded

    def _open_restorer(self) -> Restorer:
        return Restorer(
            self.ranks,
            self.job_folder,
            self.node,
            self._session.settings,
            self.buffers.mapped_segment,
        )

    def _continues_own_save(self, restorer: Restorer, step: int) -> bool:
        """True if this rank saved ``step`` with this world size, and all its buffers exist."""
        return self.buffers.has_all_segments() and any(
            one.is_local and (one.rank, one.step) == (self.ranks.rank, step)
            for one in restorer.snapshots
            if one.layout.world == self.ranks.world
        )


def state_dicts_of(state: dict[str, Any]) -> dict[str, Any]:
    """Replace objects of the state by their state dictionaries."""
    return {key: _state_dict_of(value) for key, value in state.items()}


def _state_dict_of(value: Any) -> Any:
    return value.state_dict() if isinstance(value, Stateful) else value


def state_templates_of(state: dict[str, Any]) -> dict[str, Any]:
    """As ``state_dicts_of``, but with all values that the objects will have after a first step."""
    return {
        key: value.state_template() if isinstance(value, TrainingState) else _state_dict_of(value)
        for key, value in state.items()
    }


def optional_paths(state: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the paths below which values are loaded only as far as they were saved."""
    return [
        (key, *value.optional_values)
        for key, value in state.items()
        if isinstance(value, TrainingState)
    ]


def common_paths(state: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the paths below which values are the same on all ranks, or sharded."""
    return [
        (key, *path)
        for key, value in state.items()
        if isinstance(value, TrainingState)
        for path in value.common_values
    ]


def load_objects(state: dict[str, Any], loaded: dict[str, Any]) -> None:
    """Put the loaded values into the objects and values of ``state``."""
    for key, value in state.items():
        if key not in loaded:
            raise CheckpointError(f"{key!r} is not in the checkpoint")
        if isinstance(value, Stateful):
            value.load_state_dict(loaded[key])
        else:
            state[key] = loaded[key]
