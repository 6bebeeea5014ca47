"""Views of a layout's entries in a buffer, created once for all saves to that buffer."""

from dataclasses import dataclass

import torch

from gangline.elastic.checkpoint.envelope import envelope
from gangline.elastic.checkpoint.header import Header
from gangline.elastic.checkpoint.layout import Entry
from gangline.elastic.checkpoint.moves import Place
from gangline.elastic.checkpoint.plan import Agreement
from gangline.elastic.checkpoint.segment import Segment
from gangline.elastic.checkpoint.sums import checksum, joined


@dataclass(frozen=True, slots=True)
class Spot:
    """The memory of one entry in a buffer."""

    whole: memoryview
    place: Place | None
    """Destination of the tensor's bytes; ``None`` for other values and empty tensors."""
    before: int
    """Checksum of the bytes before the tensor's."""
    after: memoryview
    """The bytes after the tensor's."""

    def sum(self, raw: int) -> int:
        """Return the checksum of the entry, given that of its tensor's bytes."""
        if self.place is None:
            return checksum(self.whole)
        return checksum(self.after, joined(self.before, raw, len(self.place.raw)))


def spots_of(segment: Segment, header: Header, agreement: Agreement) -> list[Spot]:
    """Return the entries' memory in the segment; write the framing around tensors."""
    part = segment.part(header)
    spots = []
    for entry, item in zip(agreement.layout.entries, agreement.items, strict=True):
        entry_bytes = part[entry.offset : entry.offset + entry.length]
        if item.tensor_data is None:
            spots.append(Spot(entry_bytes, None, 0, entry_bytes[:0]))
            continue
        dtype = item.tensor_data.properties.dtype
        shape = tuple(item.tensor_data.chunk.sizes)
        around = envelope(dtype, shape)
        end = entry.raw_offset + entry.raw_length
        before, raw, after = (
            entry_bytes[: entry.raw_offset],
            entry_bytes[entry.raw_offset : end],
            entry_bytes[end:],
        )
        before[:] = around.before
        after[:] = around.after.ljust(len(after), b"\0")
        tensor = tensor_at(part, entry, dtype, shape)
        place = Place(tensor, raw) if tensor is not None else None
        spots.append(Spot(entry_bytes, place, checksum(before), after))
    return spots


def tensor_at(
    part: memoryview, entry: Entry, dtype: torch.dtype, shape: tuple[int, ...]
) -> torch.Tensor | None:
    """Return the tensor over its bytes in ``part``, without a copy; ``None`` if it is empty."""
    if entry.raw_length == 0:
        return None
    flat = torch.frombuffer(
        part, dtype=torch.uint8, offset=entry.offset + entry.raw_offset, count=entry.raw_length
    )
    return flat.view(dtype).view(shape)
