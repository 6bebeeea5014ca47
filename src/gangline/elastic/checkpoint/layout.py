"""What lies where in one rank's part of a checkpoint: the same bytes in memory and in the file.

A part is a row of entries without gaps. Each entry of a tensor is what ``torch.save`` would write
for it, so the owned entries, taken together, are a ``.distcp`` file that plain PyTorch opens, and
writing a file means copying memory. Entries after the first ``owned`` are copies of what other
nodes own; they make the memory of one node enough to restore from, and are not written to storage.
"""

import msgspec

ALIGNMENT = 64
"""Entries begin at multiples of it, so that tensors in them are aligned as PyTorch wants."""


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One tensor chunk or one pickled value."""

    key: str
    """Name in the flattened state."""
    chunk: tuple[int, ...] | None
    """Where the chunk begins in the whole tensor; ``None`` for a pickled value."""
    offset: int
    """Bytes from the start of the part."""
    length: int
    """Bytes with envelope and padding."""
    archive: int
    """Bytes without the padding: what PyTorch's reader is given."""
    raw_offset: int
    """Where the tensor's own bytes begin, counted from the start of the entry."""
    raw_length: int
    """Their number. Zero for a pickled value, which is read by its own length."""


class Layout(msgspec.Struct, frozen=True):
    """One rank's part, as it is kept beside the data."""

    plan: str
    """Random name of the agreement of all ranks that this part belongs to."""
    rank: int
    world: int
    entries: list[Entry]
    owned: int
    """How many entries, from the first on, this rank writes to storage."""
    metadata: bytes
    """The checkpoint's ``.metadata`` file, the same on all ranks."""
    holders: list[list[int]]
    """Sets of ranks that hold the same entries: of each set one is needed."""
    alone: bool
    """Whether something in it is held on this node only, and so is worth a copy elsewhere."""

    @property
    def file(self) -> str:
        """The name of this part in storage, as PyTorch's own writer would call it."""
        return part_name(self.rank)

    @property
    def file_bytes(self) -> int:
        """Length of the part's file."""
        return end_of(self.entries[: self.owned])

    @property
    def part_bytes(self) -> int:
        """Length of the part in memory."""
        return end_of(self.entries)


def part_name(rank: int) -> str:
    """The file of ``rank``'s part."""
    return f"__{rank}_0.distcp"


def end_of(entries: list[Entry]) -> int:
    """Where a row of entries ends."""
    return entries[-1].offset + entries[-1].length if entries else 0


def aligned(size: int, alignment: int = ALIGNMENT) -> int:
    """``size``, rounded up to a multiple of ``alignment``."""
    return -(-size // alignment) * alignment


def encode(layout: Layout) -> bytes:
    """The bytes that are kept in a segment."""
    return msgspec.msgpack.encode(layout)


def decode(data: bytes | memoryview) -> Layout:
    """Read a layout.

    Raises:
        msgspec.MsgspecError: it is none.
    """
    return msgspec.msgpack.decode(data, type=Layout)


def faults(layout: Layout) -> str | None:
    """What is wrong with a layout, or ``None``: entries must tile the part and stay inside."""
    at = 0
    for entry in layout.entries:
        if entry.offset != at or entry.length < 0:
            return f"entry {entry.key!r} does not begin where the one before ends"
        if not 0 <= entry.raw_offset <= entry.raw_offset + entry.raw_length <= entry.archive:
            return f"entry {entry.key!r} has its bytes outside of its archive"
        if entry.archive > entry.length:
            return f"entry {entry.key!r} reaches beyond its end"
        at += entry.length
    if not 0 <= layout.owned <= len(layout.entries):
        return "more entries are owned than there are"
    return None
