"""A rank's buffers in shared memory: choosing one, copying the state into it, and nothing more.

The copy is the only thing that training waits for. Pages are had beforehand (``prepare``), views of
the tensors' places are made once for each buffer, checksums are left to the saver.
"""

import ctypes
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from gangline.elastic.checkpoint import home as homes
from gangline.elastic.checkpoint.envelope import envelope, pickled
from gangline.elastic.checkpoint.errors import CorruptError, MemoryShortError
from gangline.elastic.checkpoint.failpoints import reach
from gangline.elastic.checkpoint.header import Header, State
from gangline.elastic.checkpoint.layout import Entry
from gangline.elastic.checkpoint.moves import Copier, Pair
from gangline.elastic.checkpoint.plan import Agreement
from gangline.elastic.checkpoint.segment import Segment, create, place
from gangline.elastic.checkpoint.slots import Choice, Slot, choose

log = logging.getLogger(__name__)
_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE: have all pages now, keep what is in them. Linux 5.14 and later."""
_ALWAYS_ENOUGH = 3
"""With so many buffers one is always free, but for an instant."""
_INSTANT_S, _SHORT_S = 0.5, 0.02
"""How long to wait for a free buffer where there will be one, and where there may not."""
Lookup = Callable[[int], object]
"""Gives the value of the layout's n-th entry."""


class OutgrownError(Exception):
    """A pickled value no longer fits into its place: the ranks must agree anew."""


@dataclass(slots=True)
class _Open:
    """A buffer that this process has mapped."""

    segment: Segment
    plan: str
    places: list[torch.Tensor | None]


@dataclass(frozen=True, slots=True)
class Saved:
    """Where a save went."""

    number: int
    generation: int
    superseded: int | None


class Buffers:
    """The buffers of one rank."""

    def __init__(self, home: Path, rank: int, count: int) -> None:
        self.home, self.rank, self.count = home, rank, count
        self._open: dict[int, _Open] = {}
        self._small: dict[str, tuple[object, bytes]] = {}
        self._lock = threading.Lock()
        self._preparing: threading.Thread | None = None
        self._copier = Copier()

    def close(self) -> None:
        """Unmap everything; the segments stay."""
        self.settle()
        self._copier.close()
        for number in list(self._open):
            self._drop(number)

    def slots(self) -> list[Slot]:
        """What is in the buffers."""
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
        self._open[number] = _Open(segment, "", [])
        return segment

    def _drop(self, number: int) -> None:
        opened = self._open.pop(number, None)
        if opened is not None:
            opened.places.clear()
            opened.segment.close()

    def need(self, agreement: Agreement) -> tuple[int, int]:
        """How many bytes all buffers take, and how many of them are had already."""
        header, _ = place(agreement.layout, step=0, generation=0, wanted=False)
        had = sum(path.stat().st_size for path in self._paths() if path.exists())
        return header.total_bytes * self.count, had

    def prepare(self, agreement: Agreement) -> None:
        """Have the memory of all buffers, in the background; values in them are kept."""
        self.settle()
        header, _ = place(agreement.layout, step=0, generation=0, wanted=False)
        self._preparing = threading.Thread(
            target=self._prepare,
            args=(header.total_bytes,),
            name="gangline-checkpoint-memory",
            daemon=True,
        )
        self._preparing.start()

    def _paths(self) -> list[Path]:
        return [homes.segment_path(self.home, self.rank, number) for number in range(self.count)]

    def _prepare(self, size: int) -> None:
        for number in range(self.count):
            with self._lock:
                segment = self._segment(number)
                if segment is None or segment.size < size:
                    if self._slot(number).complete:
                        continue  # a crash may be restored from it: replaced when its turn comes
                    try:
                        segment = self._replace(number, size).segment
                    except MemoryShortError as error:
                        log.warning("memory for checkpoints is short", exc_info=error)
                        return
            _populate(segment)

    def settle(self) -> None:
        """Wait for the memory that is being had."""
        if self._preparing is not None:
            self._preparing.join()
            self._preparing = None

    def _replace(self, number: int, size: int) -> _Open:
        self._drop(number)
        segment = create(homes.segment_path(self.home, self.rank, number), size)
        self._open[number] = _Open(segment, "", [])
        return self._open[number]

    def save(
        self,
        agreement: Agreement,
        lookup: Lookup,
        small: dict[int, bytes],
        step: int,
        wanted: bool,
    ) -> Saved | None:
        """Copy the state, with what ``pickle`` gave, into a buffer; ``None`` when none is free.

        Raises:
            MemoryShortError: shared memory is full.
        """
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
        header, data = place(agreement.layout, step=step, generation=generation, wanted=wanted)
        opened = self._open.get(choice.number)
        if opened is None or opened.segment.size < header.total_bytes:
            opened = self._replace(choice.number, header.total_bytes)
            if not opened.segment.try_lock(exclusive=True):
                return None
        try:
            opened.segment.begin(header, data)
            self._copy(opened, agreement, header, lookup, small)
            reach("save-copied")
            opened.segment.put_header(replace(header, state=State.COMPLETE))
            reach("save-complete")
        finally:
            opened.segment.unlock()
        return Saved(choice.number, generation, choice.supersedes)

    def _lock_one(self) -> tuple[list[Slot], Choice] | None:
        """Choose a buffer and lock it; ``None`` when all are needed for longer than an instant.

        The saver locks one for as long as noting its sums takes, and may be put off the processor
        meanwhile. Where no third buffer is, the other may be on its way to storage for minutes.
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
        """The values that are no tensors; those that did not change since are not pickled again.

        Raises:
            OutgrownError: one needs more room than was agreed.
            UnsavableError: one does not pickle.
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
    ) -> None:
        if opened.plan != agreement.layout.plan or not opened.places:
            opened.places = _places(opened.segment, header, agreement)
            opened.plan = agreement.layout.plan
        part = opened.segment.part(header)
        tensors: list[Pair] = []
        for number, entry in enumerate(agreement.layout.entries):
            target = opened.places[number]
            if number in small:
                value = small[number]
                part[entry.offset : entry.offset + entry.length] = value.ljust(entry.length, b"\0")
            elif target is not None:
                tensor = lookup(number)
                assert isinstance(tensor, torch.Tensor)
                tensors.append((target, tensor.detach() if tensor.requires_grad else tensor))
        self._copier.copy(tensors, lambda: reach("save-half"))


def _places(segment: Segment, header: Header, agreement: Agreement) -> list[torch.Tensor | None]:
    """Views of the tensors' raw bytes in the segment; writes the envelopes around them."""
    part = segment.part(header)
    places: list[torch.Tensor | None] = []
    for entry, item in zip(agreement.layout.entries, agreement.items, strict=True):
        if item.tensor_data is None:
            places.append(None)
            continue
        dtype = item.tensor_data.properties.dtype
        shape = tuple(item.tensor_data.chunk.sizes)
        _wrap(part, entry, dtype, shape)
        places.append(tensor_at(part, entry, dtype, shape))
    return places


def _wrap(part: memoryview, entry: Entry, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    around = envelope(dtype, shape)
    raw = entry.offset + entry.raw_offset
    part[entry.offset : raw] = around.before
    end = entry.offset + entry.length
    part[raw + entry.raw_length : end] = around.after.ljust(end - raw - entry.raw_length, b"\0")


def tensor_at(
    part: memoryview, entry: Entry, dtype: torch.dtype, shape: tuple[int, ...]
) -> torch.Tensor | None:
    """The tensor whose bytes lie in ``part``, without a copy; ``None`` when it has none."""
    if entry.raw_length == 0:
        return None
    flat = torch.frombuffer(
        part, dtype=torch.uint8, offset=entry.offset + entry.raw_offset, count=entry.raw_length
    )
    return flat.view(dtype).view(shape)


def _populate(segment: Segment) -> None:
    """Have all pages of the segment without changing them; slower first copies are all it saves."""
    try:
        anchor = ctypes.c_char.from_buffer(segment.map)  # while it lives the map stays
    except (TypeError, ValueError):
        return  # it was closed meanwhile
    library = ctypes.CDLL(None, use_errno=True)
    library.madvise(
        ctypes.c_void_p(ctypes.addressof(anchor)),
        ctypes.c_size_t(segment.size),
        ctypes.c_int(_POPULATE_WRITE),
    )
