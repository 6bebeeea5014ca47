"""The layout of one rank's part of a checkpoint: the same bytes in memory and in the file.

A part is a sequence of entries without gaps. The entry of a tensor is what ``torch.save`` writes
for it. The owned entries together are a ``.distcp`` file that plain PyTorch opens, and writing a
file is a copy of memory. Entries after the first ``owned`` are copies of entries that other nodes
own: with them the memory of one node suffices for a restore. They are not written to storage.
"""

import msgspec

ALIGNMENT = 64
"""Entries begin at multiples of it, because PyTorch requires aligned tensors."""


class LayoutEntry(msgspec.Struct, frozen=True, array_like=True):
    """One tensor chunk or one pickled value."""

    key: str
    """Name in the flattened state."""
    chunk: tuple[int, ...] | None
    """Offset of the chunk in the full tensor; ``None`` for a pickled value."""
    offset: int
    """Bytes from the start of the part."""
    length: int
    """Bytes including framing and padding."""
    archive: int
    """Bytes without the padding: what PyTorch's reader receives."""
    raw_offset: int
    """Offset of the tensor's raw bytes in the entry."""
    raw_length: int
    """Number of raw bytes; zero for a pickled value, which is read by its own length."""


class PartLayout(msgspec.Struct, frozen=True):
    """The layout of one rank's part, which is stored beside the data."""

    plan: str
    """Random name of the save agreement that this part belongs to."""
    rank: int
    world: int
    entries: list[LayoutEntry]
    owned: int
    """Number of entries, from the first, that this rank writes to storage."""
    metadata: bytes
    """The ``.metadata`` file of the checkpoint, the same on all ranks."""
    holders: list[list[int]]
    """Sets of ranks that hold the same entries: a restore needs one rank of each set."""
    alone: bool
    """True if only this node holds some entry, so that a copy on a peer is useful."""

    @property
    def file(self) -> str:
        """File name of this part in storage, as PyTorch's own writer chooses it."""
        return part_file_name(self.rank)

    @property
    def part_bytes(self) -> int:
        """Length of the part in memory."""
        return entries_end(self.entries)


def part_file_name(rank: int) -> str:
    return f"__{rank}_0.distcp"


def entries_end(entries: list[LayoutEntry]) -> int:
    return entries[-1].offset + entries[-1].length if entries else 0


def align_up(size: int, alignment: int = ALIGNMENT) -> int:
    return -(-size // alignment) * alignment


def encode_layout(layout: PartLayout) -> bytes:
    return msgspec.msgpack.encode(layout)


def decode_layout(data: bytes | memoryview) -> PartLayout:
    """Read a layout.

    Raises:
        msgspec.MsgspecError: the bytes are no layout.
    """
    return msgspec.msgpack.decode(data, type=PartLayout)


def find_layout_error(layout: PartLayout) -> str | None:
    """Return what is wrong with a layout, or ``None``. Entries must tile the part."""
    at = 0
    for entry in layout.entries:
        if entry.offset != at or entry.length < 0:
            return f"entry {entry.key!r} does not start where the one before it ends"
        if not 0 <= entry.raw_offset <= entry.raw_offset + entry.raw_length <= entry.archive:
            return f"entry {entry.key!r} has its bytes outside of its archive"
        if entry.archive > entry.length:
            return f"entry {entry.key!r} reaches beyond its end"
        at += entry.length
    if not 0 <= layout.owned <= len(layout.entries):
        return "the number of owned entries is out of range"
    return None
