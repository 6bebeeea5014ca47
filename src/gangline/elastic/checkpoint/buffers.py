"""The ring of snapshot buffers of one rank: choose a buffer and copy the state into it.

Training waits only for the copy. Pages are allocated beforehand (``prepare``) and pinned for a GPU,
and tensor views of the buffer are created once. Checksums are computed during the copy, except for
large tensors of a device: the saver computes those right after the save.

With ``overlap`` training does not wait for copies from accelerators either. A background thread
completes the save when they have arrived; until then the optimizer step waits.

Invariant: a buffer is locked exclusively from before its header says WRITING until its header says
COMPLETE. The newest complete buffer is never overwritten.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from gangline.elastic.checkpoint import home as homes
from gangline.elastic.checkpoint.accelerator import Arrivals, Updates, pin
from gangline.elastic.checkpoint.envelope import pickled
from gangline.elastic.checkpoint.errors import CorruptError, MemoryShortError
from gangline.elastic.checkpoint.failpoints import reach
from gangline.elastic.checkpoint.header import Header, State
from gangline.elastic.checkpoint.moves import Copied, Copier, Move
from gangline.elastic.checkpoint.pages import Background, How, populate
from gangline.elastic.checkpoint.plan import Agreement
from gangline.elastic.checkpoint.segment import Segment, create, place
from gangline.elastic.checkpoint.slots import Choice, Slot, choose
from gangline.elastic.checkpoint.spots import Spot, spots_of

log = logging.getLogger(__name__)
_ALWAYS_ENOUGH = 3
"""With this number of buffers one is free at all times, except for short moments."""
_INSTANT_S, _SHORT_S = 0.5, 0.02
"""How long to wait for a free buffer where there will be one, and where there may not."""
Lookup = Callable[[int], object]
"""Returns the value of the n-th entry of the layout."""


class OutgrownError(Exception):
    """A pickled value no longer fits into its entry: the ranks must agree on a new layout."""


@dataclass(slots=True)
class _Open:
    """A buffer that this process has mapped."""

    segment: Segment
    plan: str = ""
    spots: list[Spot] = field(default_factory=list)
    unpin: Callable[[], None] | None = None
    filling: bool = False
    """True while an accelerator still writes to it."""


@dataclass(frozen=True, slots=True)
class Saved:
    """The buffer that received a save."""

    number: int
    generation: int
    superseded: int | None


class Buffers:
    """The snapshot buffers of one rank."""

    def __init__(
        self,
        home: Path,
        rank: int,
        count: int,
        overlap: bool = False,
        told: Callable[[int], None] = lambda step: None,
    ) -> None:
        """Create the ring without buffers; they are opened or created when needed.

        Args:
            home: the job's folder in shared memory.
            rank: the rank whose state is saved.
            count: the number of buffers.
            overlap: do not wait for copies from accelerators.
            told: called with the step of each complete save, possibly in another thread.
        """
        self.home, self.rank, self.count, self._told = home, rank, count, told
        self.accelerator: torch.device | None = None
        """The device that saves are copied from; None for the CPU."""
        self._updates = Updates() if overlap else None
        self._finisher = ThreadPoolExecutor(1, thread_name_prefix="gangline-checkpoint-arrivals")
        self._arriving: Future[None] | None = None
        self._open: dict[int, _Open] = {}
        self._small: dict[str, tuple[object, bytes]] = {}
        self._lock = threading.Lock()
        self._background = Background()
        self._copier = Copier()

    def close(self) -> None:
        """Unmap all buffers; the files stay."""
        self.settle()
        try:
            self.arrive()
        except RuntimeError as error:
            log.warning("the last save is incomplete", exc_info=error)
        self._finisher.shutdown()
        if self._updates is not None:
            self._updates.close()
        self._copier.close()
        for number in list(self._open):
            self._drop(number)

    def slots(self) -> list[Slot]:
        return [self._slot(number) for number in range(self.count)]

    def _slot(self, number: int) -> Slot:
        segment = self._segment(number)
        header = segment.header() if segment else None
        if segment is None or header is None:
            return Slot(number, False, 0, 0, waiting=False, locked=False)
        locked = not segment.try_lock(exclusive=True)
        if not locked:
            segment.unlock()
        waiting = header.wanted and not segment.persisted(header.generation)
        complete = header.state is State.COMPLETE
        return Slot(number, complete, header.generation, header.step, waiting and complete, locked)

    def _segment(self, number: int) -> Segment | None:
        if number in self._open:
            return self._open[number].segment
        try:
            segment = Segment(homes.segment_path(self.home, self.rank, number))
        except (FileNotFoundError, CorruptError):
            return None
        self._open[number] = _Open(segment)
        return segment

    def _drop(self, number: int) -> None:
        opened = self._open.pop(number, None)
        if opened is not None:
            opened.spots.clear()
            if opened.unpin is not None:
                opened.unpin()
            opened.segment.close()

    def need(self, agreement: Agreement) -> tuple[int, int]:
        """Return the bytes that all buffers need, and how many of them are allocated already."""
        header, _ = place(agreement.layout, step=0, generation=0, for_storage=False)
        allocated = sum(path.stat().st_size for path in self._paths() if path.exists())
        return header.total_bytes * self.count, allocated

    def prepare(self, agreement: Agreement) -> None:
        """Allocate the memory of all buffers in the background. Saves in them stay valid."""
        self.settle()
        header, _ = place(agreement.layout, step=0, generation=0, for_storage=False)
        self._background.start(self._prepare, header.total_bytes)

    def _paths(self) -> list[Path]:
        return [homes.segment_path(self.home, self.rank, number) for number in range(self.count)]

    def _prepare(self, size: int) -> None:
        for number in range(self.count):
            with self._lock:
                segment = self._segment(number)
                if segment is None or segment.size < size:
                    if self._is_filling(number) or self._slot(number).complete:
                        continue  # a restart may need it; its next save replaces it
                    try:
                        segment = self._replace(number, size).segment
                    except MemoryShortError as error:
                        log.warning("memory for checkpoints is short", exc_info=error)
                        return
                was_used = segment.header() is not None
            populate(segment, How.FIND if was_used else How.MAKE)
            self._pin(number)

    def _is_filling(self, number: int) -> bool:
        return number in self._open and self._open[number].filling

    def _pin(self, number: int) -> None:
        with self._lock:
            opened = self._open.get(number)
            if opened is not None and opened.unpin is None and self.accelerator is not None:
                opened.unpin = pin(opened.segment, self.accelerator)

    def arrive(self) -> None:
        """Wait for the transfers of the last save.

        Raises:
            RuntimeError: the accelerator failed; the save is incomplete.
        """
        arriving, self._arriving = self._arriving, None
        if arriving is not None:
            arriving.result()

    def settle(self) -> None:
        """Wait for allocations that run in the background."""
        self._background.settle()

    def mapped(self, path: Path) -> Segment | None:
        """Return the segment at ``path`` if it is a buffer of this rank; the ring owns it."""
        with self._lock:
            number = next((n for n, own in enumerate(self._paths()) if own == path), None)
            if number is None:
                return None
            segment = self._segment(number)
            if segment is None or not (segment.is_at(path) and segment.is_whole()):
                return None
        return segment

    def all_there(self) -> bool:
        """True if the file of every buffer exists, as an earlier process left it."""
        return all(path.exists() for path in self._paths())

    def reuse(self) -> None:
        """Fault in the pages of all existing buffers, in the background."""
        self.settle()
        self._background.start(self._reuse)

    def _reuse(self) -> None:
        for number in range(self.count):
            with self._lock:
                segment = self._segment(number)
            if segment is not None:
                populate(segment, How.FIND)
                self._pin(number)

    def _replace(self, number: int, size: int) -> _Open:
        self._drop(number)
        segment = create(homes.segment_path(self.home, self.rank, number), size)
        self._open[number] = _Open(segment)
        return self._open[number]

    def save(
        self,
        agreement: Agreement,
        lookup: Lookup,
        small: dict[int, bytes],
        step: int,
        wanted: bool,
    ) -> Saved | None:
        """Copy the state into a buffer; return ``None`` if no buffer is free.

        Args:
            agreement: the layout that all ranks agreed on.
            lookup: returns the value of an entry.
            small: the pickled values by entry number, from ``pickle_values``.
            step: the training step.
            wanted: the saver shall write this save to storage.

        Raises:
            MemoryShortError: shared memory is full.
            RuntimeError: an accelerator failed.
        """
        self.arrive()
        with self._lock:
            return self._save(agreement, lookup, small, step, wanted)

    def _save(
        self,
        agreement: Agreement,
        lookup: Lookup,
        small: dict[int, bytes],
        step: int,
        wanted: bool,
    ) -> Saved | None:
        found = self._lock_one()
        if found is None:
            return None
        slots, choice = found
        generation = max(slot.generation for slot in slots) + 1
        header, data = place(agreement.layout, step=step, generation=generation, for_storage=wanted)
        opened = self._open.get(choice.number)
        if opened is None or opened.segment.size < header.total_bytes:
            opened = self._replace(choice.number, header.total_bytes)
            self._background.start(self._pin, choice.number)
            if not opened.segment.try_lock(exclusive=True):
                return None
        with contextlib.ExitStack() as leaving:
            leaving.callback(opened.segment.unlock)
            opened.segment.begin(header, data)
            copied = self._copy(opened, agreement, header, lookup, small)
            if copied.arrivals:
                opened.filling = True
                self._arriving = self._finisher.submit(
                    self._complete_later, opened, header, copied.arrivals
                )
                leaving.pop_all()
            else:
                _complete(opened.segment, header, copied.sums)
        if not copied.arrivals:
            self._told(step)
        return Saved(choice.number, generation, choice.supersedes)

    def _complete_later(self, opened: _Open, header: Header, arrivals: Arrivals) -> None:
        try:
            arrivals.wait()
            _complete(opened.segment, header, None)
        finally:
            opened.segment.unlock()
            opened.filling = False
            if self._updates is not None:
                self._updates.expect(Arrivals())  # allows the source tensors to be freed
        self._told(header.step)

    def _lock_one(self) -> tuple[list[Slot], Choice] | None:
        """Choose a buffer and lock it; return ``None`` if none becomes free within the timeout.

        The saver locks a buffer only while it writes checksums, but it may be descheduled
        meanwhile. With fewer than three buffers the other buffer may be in upload for minutes: then
        the wait is short.
        """
        patience_s = _INSTANT_S if self.count >= _ALWAYS_ENOUGH else _SHORT_S
        deadline = time.monotonic() + patience_s
        while True:
            slots = self.slots()
            if (choice := choose(slots)) is not None:
                opened = self._open.get(choice.number)
                if opened is None or opened.segment.try_lock(exclusive=True):
                    return slots, choice
            if time.monotonic() > deadline:
                return None
            time.sleep(0.001)

    def pickle(self, agreement: Agreement, lookup: Lookup) -> dict[int, bytes]:
        """Pickle the values that are no tensors; unchanged simple values are not pickled again.

        Raises:
            OutgrownError: a value needs more bytes than its entry has.
            UnsavableError: a value cannot be pickled.
        """
        found = {}
        for number, entry in enumerate(agreement.layout.entries):
            if entry.chunk is not None:
                continue
            value = lookup(number)
            simple = isinstance(value, int | float | str | bool | None)
            known = self._small.get(entry.key)
            if simple and known and type(known[0]) is type(value) and known[0] == value:
                found[number] = known[1]
                continue
            found[number] = pickled(entry.key, value)
            if len(found[number]) > entry.length:
                raise OutgrownError(entry.key)
            if simple:
                self._small[entry.key] = (value, found[number])
        return found

    def _copy(
        self,
        opened: _Open,
        agreement: Agreement,
        header: Header,
        lookup: Lookup,
        small: dict[int, bytes],
    ) -> Copied:
        """Copy the state; return the checksums of the entries."""
        if opened.plan != agreement.layout.plan or not opened.spots:
            opened.spots = spots_of(opened.segment, header, agreement)
            opened.plan = agreement.layout.plan
        moves: list[Move] = []
        for number, spot in enumerate(opened.spots):
            if number in small:
                spot.whole[:] = small[number].ljust(len(spot.whole), b"\0")
            elif spot.place is not None:
                tensor = lookup(number)
                assert isinstance(tensor, torch.Tensor)
                moves.append((spot.place, tensor.detach() if tensor.requires_grad else tensor))
        lasting = None if self._updates is None else self._updates.theirs()
        copied = self._copier.copy(moves, lambda: reach("save-half"), lasting)
        if self._updates is not None:
            self._updates.expect(copied.arrivals)
        if copied.sums is None:
            return copied
        raw = iter(copied.sums)
        sums = [spot.sum(next(raw) if spot.place is not None else 0) for spot in opened.spots]
        return Copied(sums, copied.arrivals)


def _complete(segment: Segment, header: Header, sums: list[int] | None) -> None:
    reach("save-copied")
    if sums is not None:
        segment.put_seal(header, sums)
        reach("save-sealed")
    segment.put_header(replace(header, state=State.COMPLETE))
    reach("save-complete")
