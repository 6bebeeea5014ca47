"""The ring of snapshot buffers of one rank: chooses a buffer and copies the state into it.

A save goes neither to the newest complete buffer (a crash would be restored from it) nor to one
that is being read. With three buffers one is always free: one may be in upload, one is the newest.
Training waits only for the copy; pages are allocated before (``prepare``) and pinned for a GPU.
With ``overlap`` it does not wait for copies from accelerators either: a background thread completes
the save when they have arrived, and until then the optimizer step waits.

Invariant: a buffer is locked exclusively from before its header says WRITING until its header says
COMPLETE. The newest complete buffer is never overwritten.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from gangline.elastic.checkpoint.errors import CorruptError, MemoryShortError
from gangline.elastic.checkpoint.failpoints import pass_failpoint
from gangline.elastic.checkpoint.format.plan import FittedState, SaveAgreement
from gangline.elastic.checkpoint.snapshot import directory
from gangline.elastic.checkpoint.snapshot.copy import (
    CopyResult,
    EntryView,
    OptimizerBarrier,
    PendingTransfers,
    TensorCopier,
    TensorMove,
    entry_views,
    pin_segment,
)
from gangline.elastic.checkpoint.snapshot.segment import (
    BackgroundTasks,
    PopulateAdvice,
    Segment,
    SegmentHeader,
    SegmentState,
    create_segment,
    plan_segment,
    prefault_segment,
)

log = logging.getLogger(__name__)
_ALWAYS_FREE_COUNT = 3
"""With this number of buffers one is free at all times, except for short moments."""
_INSTANT_S, _SHORT_S = 0.5, 0.02
"""How long to wait for a free buffer where there will be one, and where there may not."""


@dataclass(frozen=True, slots=True)
class BufferState:
    number: int
    complete: bool
    generation: int
    step: int
    awaits_storage: bool
    """True if it is to be written to storage and is not there yet."""
    locked: bool
    """True while the saver reads it."""


@dataclass(frozen=True, slots=True)
class BufferChoice:
    number: int
    supersedes: int | None
    """The step that waited for upload and is overwritten; newer ones replace it."""


def choose_buffer(states: Sequence[BufferState]) -> BufferChoice | None:
    """Return the buffer to overwrite, or ``None`` if every buffer is needed."""
    newest = max((state.generation for state in states if state.complete), default=None)
    free = [
        state
        for state in states
        if not state.locked and not (state.complete and state.generation == newest)
    ]
    if not free:
        return None
    best = min(
        free,
        key=lambda state: (state.awaits_storage, state.complete, state.generation, state.number),
    )
    return BufferChoice(best.number, best.step if best.awaits_storage else None)


@dataclass(frozen=True, slots=True)
class SaveRequest:
    state: FittedState
    step: int
    for_storage: bool
    """The saver shall write this save to storage."""


@dataclass(slots=True)
class _OpenBuffer:
    """A buffer that this process has mapped."""

    segment: Segment
    plan: str = ""
    views: list[EntryView] = field(default_factory=list)
    unpin: Callable[[], None] | None = None
    is_filling: bool = False
    """True while an accelerator still writes to it."""


class SnapshotRing:
    """The snapshot buffers of one rank."""

    def __init__(
        self,
        job_folder: Path,
        rank: int,
        count: int,
        overlap: bool = False,
        on_complete: Callable[[int], None] = lambda step: None,
    ) -> None:
        """Create the ring without buffers; they are opened or created when needed.

        ``on_complete`` is called with the step of each complete save, possibly in another thread.
        """
        self.job_folder, self.rank, self.count = job_folder, rank, count
        self._on_complete = on_complete
        self.accelerator: torch.device | None = None
        """The device that saves are copied from; None for the CPU."""
        self._optimizer_barrier = OptimizerBarrier() if overlap else None
        self._finisher = ThreadPoolExecutor(1, thread_name_prefix="gangline-checkpoint-arrivals")
        self._transferring: Future[None] | None = None
        self._open: dict[int, _OpenBuffer] = {}
        self._lock = threading.Lock()
        self._background = BackgroundTasks()
        self._copier = TensorCopier()

    def close(self) -> None:
        """Unmap all buffers; the files stay."""
        self.wait_for_memory()
        try:
            self.wait_for_transfers()
        except RuntimeError as error:
            log.warning("the last save is incomplete", exc_info=error)
        self._finisher.shutdown()
        if self._optimizer_barrier is not None:
            self._optimizer_barrier.close()
        self._copier.close()
        for number in list(self._open):
            self._drop(number)

    def buffer_states(self) -> list[BufferState]:
        return [self._buffer_state(number) for number in range(self.count)]

    def _buffer_state(self, number: int) -> BufferState:
        segment = self._segment(number)
        header = segment.read_header() if segment else None
        if segment is None or header is None:
            return BufferState(number, False, 0, 0, awaits_storage=False, locked=False)
        locked = not segment.try_lock(exclusive=True)
        if not locked:
            segment.unlock()
        is_waiting = header.for_storage and not segment.is_persisted(header.generation)
        complete = header.state is SegmentState.COMPLETE
        return BufferState(
            number, complete, header.generation, header.step, is_waiting and complete, locked
        )

    def _segment(self, number: int) -> Segment | None:
        if number in self._open:
            return self._open[number].segment
        try:
            segment = Segment(directory.segment_path(self.job_folder, self.rank, number))
        except (FileNotFoundError, CorruptError):
            return None
        self._open[number] = _OpenBuffer(segment)
        return segment

    def _drop(self, number: int) -> None:
        opened = self._open.pop(number, None)
        if opened is not None:
            opened.views.clear()
            if opened.unpin is not None:
                opened.unpin()
            opened.segment.close()

    def required_bytes(self, agreement: SaveAgreement) -> tuple[int, int]:
        """Return the bytes that all buffers need, and how many of them are allocated already."""
        header, _ = plan_segment(agreement.layout, step=0, generation=0, for_storage=False)
        allocated = sum(path.stat().st_size for path in self._paths() if path.exists())
        return header.total_bytes * self.count, allocated

    def prepare(self, agreement: SaveAgreement) -> None:
        """Allocate the memory of all buffers in the background. Saves in them stay valid."""
        self.wait_for_memory()
        header, _ = plan_segment(agreement.layout, step=0, generation=0, for_storage=False)
        self._background.start(self._prepare, header.total_bytes)

    def _paths(self) -> list[Path]:
        return [
            directory.segment_path(self.job_folder, self.rank, number)
            for number in range(self.count)
        ]

    def _prepare(self, size: int) -> None:
        for number in range(self.count):
            with self._lock:
                segment = self._segment(number)
                if segment is None or segment.size < size:
                    if self._is_filling(number) or self._buffer_state(number).complete:
                        continue  # a restart may need it; its next save replaces it
                    try:
                        segment = self._replace(number, size).segment
                    except MemoryShortError as error:
                        log.warning("memory for checkpoints is short", exc_info=error)
                        return
                was_used = segment.read_header() is not None
            prefault_segment(segment, PopulateAdvice.READ if was_used else PopulateAdvice.WRITE)
            self._pin(number)

    def _is_filling(self, number: int) -> bool:
        return number in self._open and self._open[number].is_filling

    def _pin(self, number: int) -> None:
        with self._lock:
            opened = self._open.get(number)
            if opened is not None and opened.unpin is None and self.accelerator is not None:
                opened.unpin = pin_segment(opened.segment, self.accelerator)

    def wait_for_transfers(self) -> None:
        """Wait for the transfers of the last save.

        Raises RuntimeError: the accelerator failed; the save is incomplete.
        """
        transfer, self._transferring = self._transferring, None
        if transfer is not None:
            transfer.result()

    def wait_for_memory(self) -> None:
        """Wait for allocations that run in the background."""
        self._background.wait()

    def mapped_segment(self, path: Path) -> Segment | None:
        """Return the segment at ``path`` if it is a buffer of this rank; the ring owns it."""
        with self._lock:
            number = next((n for n, own in enumerate(self._paths()) if own == path), None)
            if number is None:
                return None
            segment = self._segment(number)
            if segment is None or not (segment.is_file_at(path) and segment.has_full_length()):
                return None
        return segment

    def has_all_segments(self) -> bool:
        """True if the file of every buffer exists, as an earlier process left it."""
        return all(path.exists() for path in self._paths())

    def prefault_existing(self) -> None:
        """Fault in the pages of all existing buffers, in the background."""
        self.wait_for_memory()
        self._background.start(self._reuse)

    def _reuse(self) -> None:
        for number in range(self.count):
            with self._lock:
                segment = self._segment(number)
            if segment is not None:
                prefault_segment(segment, PopulateAdvice.READ)
                self._pin(number)

    def _replace(self, number: int, size: int) -> _OpenBuffer:
        self._drop(number)
        segment = create_segment(directory.segment_path(self.job_folder, self.rank, number), size)
        self._open[number] = _OpenBuffer(segment)
        return self._open[number]

    def save(self, request: SaveRequest) -> BufferChoice | None:
        """Copy the state into a buffer; return it, or ``None`` if none is free.

        Raises:
            MemoryShortError: shared memory is full.
            RuntimeError: an accelerator failed.
        """
        self.wait_for_transfers()
        with self._lock:
            return self._save(request)

    def _save(self, request: SaveRequest) -> BufferChoice | None:
        # 1. Lock a buffer. The lock is held until the save is complete: the saver and other
        #    processes skip the buffer, and a crash leaves it to the next save.
        locked = self._lock_one()
        if locked is None:
            return None
        # 2. The generation orders saves, not the step: after a restart from an older step, steps
        #    repeat, and a lower step may be the newest save.
        states, choice = locked
        generation = max(state.generation for state in states) + 1
        header, data = plan_segment(
            request.state.agreement.layout,
            step=request.step,
            generation=generation,
            for_storage=request.for_storage,
        )
        # 3. A buffer that is too small becomes another file, to be locked like the first: the lock
        #    on the old file ends with its descriptor.
        opened = self._open.get(choice.number)
        if opened is None or opened.segment.size < header.total_bytes:
            opened = self._replace(choice.number, header.total_bytes)
            self._background.start(self._pin, choice.number)
            if not opened.segment.try_lock(exclusive=True):
                return None
        # 4. Copy. If it fails, the header stays WRITING and the buffer is unlocked: its content
        #    counts as absent.
        with contextlib.ExitStack() as leaving:
            leaving.callback(opened.segment.unlock)
            opened.segment.begin_save(header, data)
            copied = self._copy(opened, header, request.state)
            if copied.transfers:
                # 5. The lock passes to the thread that waits for the accelerator.
                opened.is_filling = True
                self._transferring = self._finisher.submit(
                    self._complete_later, opened, header, copied.transfers
                )
                leaving.pop_all()
            else:
                _mark_complete(opened.segment, header, copied.sums)
        if not copied.transfers:
            self._on_complete(request.step)
        return choice

    def _complete_later(
        self, opened: _OpenBuffer, header: SegmentHeader, transfers: PendingTransfers
    ) -> None:
        try:
            transfers.wait()
            _mark_complete(opened.segment, header, None)
        finally:
            opened.segment.unlock()
            opened.is_filling = False
            if self._optimizer_barrier is not None:
                # Allows the source tensors to be freed.
                self._optimizer_barrier.set_pending(PendingTransfers())
        self._on_complete(header.step)

    def _lock_one(self) -> tuple[list[BufferState], BufferChoice] | None:
        """Choose a buffer and lock it; return ``None`` if none becomes free within the timeout.

        The saver locks a buffer only while it writes checksums, but it may be descheduled
        meanwhile. With fewer than three buffers the other buffer may be in upload for minutes: then
        the wait is short.
        """
        patience_s = _INSTANT_S if self.count >= _ALWAYS_FREE_COUNT else _SHORT_S
        deadline = time.monotonic() + patience_s
        while True:
            states = self.buffer_states()
            if (choice := choose_buffer(states)) is not None:
                opened = self._open.get(choice.number)
                if opened is None or opened.segment.try_lock(exclusive=True):
                    return states, choice
            if time.monotonic() > deadline:
                return None
            time.sleep(0.001)

    def _copy(self, opened: _OpenBuffer, header: SegmentHeader, state: FittedState) -> CopyResult:
        """Copy the state; return the checksums of the entries."""
        agreement = state.agreement
        if opened.plan != agreement.layout.plan or not opened.views:
            opened.views = entry_views(opened.segment, header, agreement)
            opened.plan = agreement.layout.plan
        moves: list[TensorMove] = []
        for number, view in enumerate(opened.views):
            if number in state.pickled:
                view.entry[:] = state.pickled[number].ljust(len(view.entry), b"\0")
            elif view.destination is not None:
                tensor = state.value_of(number)
                assert isinstance(tensor, torch.Tensor)
                moves.append(
                    (view.destination, tensor.detach() if tensor.requires_grad else tensor)
                )
        barrier = self._optimizer_barrier
        is_stable = None if barrier is None else barrier.optimizer_memory()
        copied = self._copier.copy(moves, lambda: pass_failpoint("save-half"), is_stable)
        if barrier is not None:
            barrier.set_pending(copied.transfers)
        if copied.sums is None:
            return copied
        raw = iter(copied.sums)
        sums = [
            view.entry_checksum(next(raw) if view.destination is not None else 0)
            for view in opened.views
        ]
        return CopyResult(sums, copied.transfers)


def _mark_complete(segment: Segment, header: SegmentHeader, sums: list[int] | None) -> None:
    pass_failpoint("save-copied")
    if sums is not None:
        segment.write_seal(header, sums)
        pass_failpoint("save-sealed")
    segment.write_header(replace(header, state=SegmentState.COMPLETE))
    pass_failpoint("save-complete")
