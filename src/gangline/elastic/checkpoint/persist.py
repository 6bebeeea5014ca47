"""Writes parts from memory to storage with checksums, and commits a step when all parts are there.

Each operation may be killed and repeated. Write order: the file of a part before its note, all
notes before the manifest, the manifest before the rename. So a reader never sees a manifest whose
parts are incomplete.
"""

import logging
import threading
import time
from dataclasses import dataclass, field

import msgspec

from gangline.elastic.checkpoint.errors import CorruptError
from gangline.elastic.checkpoint.failpoints import reach
from gangline.elastic.checkpoint.header import Header
from gangline.elastic.checkpoint.layout import Layout
from gangline.elastic.checkpoint.manifest import (
    METADATA,
    Note,
    combine,
    note_name,
    part_of,
    read_manifest,
    step_name,
    step_of,
    write_manifest,
)
from gangline.elastic.checkpoint.segment import Segment
from gangline.elastic.checkpoint.sums import checksum
from gangline.elastic.checkpoint.target import Target

log = logging.getLogger(__name__)
CHUNK = 1 << 24
"""Bytes per write: small enough for an even rate under a bandwidth limit."""


@dataclass(slots=True)
class Pace:
    """Limits the bytes per second of all writers of one node together."""

    bytes_per_s: float
    stop: threading.Event
    _free_at: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def spend(self, size: int) -> None:
        """Wait until ``size`` more bytes may be written, or until ``stop`` is set."""
        if self.bytes_per_s <= 0:
            return
        with self._lock:
            now = time.monotonic()
            begin = max(now, self._free_at)
            self._free_at = begin + size / self.bytes_per_s
        self.stop.wait(max(0.0, begin - now))


def sums_of(segment: Segment, header: Header, layout: Layout) -> list[int]:
    """Return the checksums of all entries as they are in memory now."""
    with segment.part(header) as part:
        return [checksum(part[e.offset : e.offset + e.length]) for e in layout.entries]


def seal(segment: Segment, header: Header, layout: Layout) -> list[int]:
    """Return the segment's checksums; compute and store them if they are missing."""
    known = segment.seal(header, len(layout.entries))
    if known is None:
        known = sums_of(segment, header, layout)
        segment.put_seal(header, known)
        reach("sealed")
    return known


def seal_unless_overtaken(segment: Segment, header: Header, layout: Layout) -> bool:
    """Store the checksums without blocking a writer; return whether the save has checksums now.

    A writer changes the header before anything else, so checksums that were computed under one
    header are right. The segment is locked only to write them. Were it locked throughout, then with
    another buffer in upload no buffer would be free for a save.
    """
    if segment.seal(header, len(layout.entries)) is not None:
        return True
    sums = sums_of(segment, header, layout)
    with segment.reading() as free:
        if not free or segment.header() != header:
            return False
        segment.put_seal(header, sums)
    reach("sealed")
    return True


def write_part(
    target: Target, segment: Segment, header: Header, layout: Layout, pace: Pace
) -> None:
    """Write a rank's file and its note.

    Raises:
        OSError: the target did not accept it.
        CorruptError: the memory differs from its checksums.
    """
    folder = target.partial(header.step, layout.plan)
    target.begin(header.step, layout.plan)
    known = segment.seal(header, len(layout.entries))
    sums: list[int] = []
    with segment.part(header) as part, target.create(f"{folder}/{layout.file}") as stream:
        for number, entry in enumerate(layout.entries[: layout.owned]):
            piece = part[entry.offset : entry.offset + entry.length]
            sums.append(checksum(piece))
            if known is not None and known[number] != sums[-1]:
                raise CorruptError(f"{entry.key!r} changed in memory after it was saved")
            for at in range(0, len(piece), CHUNK):
                some = piece[at : at + CHUNK]
                pace.spend(len(some))
                write_all(stream, some)
            reach("part-entry")
    reach("part-written")
    blob = layout.metadata
    if layout.rank == 0:
        target.put(f"{folder}/{METADATA}", blob)
        reach("metadata-written")
    note = Note(layout.plan, header.step, layout.world, part_of(layout, sums), checksum(blob))
    # A note lost in a power failure only leaves the step uncommitted, so it needs no fsync.
    target.put(f"{folder}/{note_name(layout.rank)}", msgspec.json.encode(note), durable=False)
    reach("note-written")


def write_all(stream: object, data: memoryview) -> None:
    """Write all bytes: an unbuffered file may accept fewer than it is given."""
    write = getattr(stream, "write")  # noqa: B009 - streams of fsspec have no common type
    while len(data):
        written = write(data)
        data = data[written:] if written is not None else data[:0]


def missing_ranks(target: Target, step: int, plan: str, world: int) -> list[int]:
    """Return the ranks whose notes are not there yet."""
    present = set(target.names(target.partial(step, plan)))
    return [rank for rank in range(world) if note_name(rank) not in present]


def try_commit(target: Target, step: int, plan: str, world: int) -> bool:
    """Commit the step if the parts of all ranks are there; return whether it is committed now.

    Raises:
        OSError: the target cannot be read or written.
        StepTakenError: a save of another plan was committed meanwhile.
    """
    if is_committed(target, step, plan):
        return True
    folder = target.partial(step, plan)
    if missing_ranks(target, step, plan, world):
        return False
    try:
        notes = [
            msgspec.json.decode(target.read(f"{folder}/{note_name(rank)}"), type=Note)
            for rank in range(world)
        ]
        if {(note.plan, note.step) for note in notes} != {(plan, step)}:
            return False  # of an earlier run: in an object store all plans share one folder
        target.commit(step, plan, write_manifest(combine(notes)))
    except (FileNotFoundError, msgspec.MsgspecError):
        # Another node's saver committed first; or a note is unreadable, which forbids a commit.
        return is_committed(target, step, plan)
    reach("committed")
    return True


def is_committed(target: Target, step: int, plan: str) -> bool:
    """Return whether storage has the step as this plan saved it."""
    try:
        return read_manifest(target.read(f"{step_name(step)}/gangline.json")).plan == plan
    except (FileNotFoundError, CorruptError):
        return False


def committed_steps(target: Target) -> list[int]:
    """Return the steps in storage, the oldest first. Their content is verified only when it is
    read.
    """
    steps = [step for name in target.names("") if (step := step_of(name)) is not None]
    return sorted(step for step in steps if "gangline.json" in target.names(step_name(step)))


def surplus(steps: list[int], keep: int, keep_every: int) -> list[int]:
    """Return the expired steps: all but the newest ``keep`` and the multiples of ``keep_every``."""
    if keep <= 0:
        return []
    return [step for step in sorted(steps)[:-keep] if not (keep_every and step % keep_every == 0)]


def tidy(target: Target, keep: int, keep_every: int, newest: int) -> None:
    """Remove expired steps, and unfinished ones older than the newest commit."""
    for step in surplus(committed_steps(target), keep, keep_every):
        target.remove(step_name(step))
        reach("removed")
    old = [name for step, name in target.unfinished() if step < newest]
    for name in [*old, *(name for name in target.names("") if name.startswith(".trash-"))]:
        target.remove(name)
