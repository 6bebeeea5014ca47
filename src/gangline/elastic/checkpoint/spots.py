"""Views of a layout's entries in a buffer, created once for all saves to that buffer."""

from dataclasses import dataclass

import torch

from gangline.elastic.checkpoint.envelope import torch_save_framing
from gangline.elastic.checkpoint.header import SegmentHeader
from gangline.elastic.checkpoint.layout import LayoutEntry
from gangline.elastic.checkpoint.moves import TensorDestination
from gangline.elastic.checkpoint.plan import SaveAgreement
from gangline.elastic.checkpoint.segment import Segment
from gangline.elastic.checkpoint.sums import checksum, combine_checksums


@dataclass(frozen=True, slots=True)
class EntryView:
    """The memory of one entry in a buffer."""

    entry: memoryview
    destination: TensorDestination | None
    """Destination of the tensor's bytes; ``None`` for other values and empty tensors."""
    before: int
    """Checksum of the bytes before the tensor's."""
    after: memoryview
    """The bytes after the tensor's."""

    def entry_checksum(self, raw: int) -> int:
        """Return the checksum of the entry, given that of its tensor's bytes."""
        if self.destination is None:
            return checksum(self.entry)
        return checksum(self.after, combine_checksums(self.before, raw, len(self.destination.raw)))


def entry_views(
    segment: Segment, header: SegmentHeader, agreement: SaveAgreement
) -> list[EntryView]:
    """Return the entries' memory in the segment; write the framing around tensors."""
    part = segment.part(header)
    spots = []
    for entry, item in zip(agreement.layout.entries, agreement.items, strict=True):
        entry_bytes = part[entry.offset : entry.offset + entry.length]
        if item.tensor_data is None:
            spots.append(EntryView(entry_bytes, None, 0, entry_bytes[:0]))
            continue
        dtype = item.tensor_data.properties.dtype
        shape = tuple(item.tensor_data.chunk.sizes)
        around = torch_save_framing(dtype, shape)
        end = entry.raw_offset + entry.raw_length
        before, raw, after = (
            entry_bytes[: entry.raw_offset],
            entry_bytes[entry.raw_offset : end],
            entry_bytes[end:],
        )
        before[:] = around.before
        after[:] = around.after.ljust(len(after), b"\0")
        tensor = tensor_view(part, entry, dtype, shape)
        place = TensorDestination(tensor, raw) if tensor is not None else None
        spots.append(EntryView(entry_bytes, place, checksum(before), after))
    return spots


def tensor_view(
    part: memoryview, entry: LayoutEntry, dtype: torch.dtype, shape: tuple[int, ...]
) -> torch.Tensor | None:
    """Return the tensor over its bytes in ``part``, without a copy; ``None`` if it is empty."""
    if entry.raw_length == 0:
        return None
    flat = torch.frombuffer(
        part, dtype=torch.uint8, offset=entry.offset + entry.raw_offset, count=entry.raw_length
    )
    return flat.view(dtype).view(shape)
