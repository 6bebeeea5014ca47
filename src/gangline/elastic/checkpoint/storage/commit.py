"""Writes parts from memory to storage with checksums, and commits a step when all parts are there.

Each operation may be killed and repeated, and savers of all nodes work without a coordinator:

1. A rank's saver writes the file of the part, and then its note. A note therefore means that the
   part is complete, with the checksums in the note.
2. Any saver that finds the notes of all ranks writes the manifest, of which readers trust only a
   complete one.
3. The step appears by the rename of its folder, or in an object store by the manifest itself.

A folder without a step of ours but with checkpoints of another program is most likely a mistake,
and training would start from scratch: it is refused, with a message that explains how to load them.
"""

import logging
import threading
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from gangline.elastic.checkpoint.errors import CorruptError
from gangline.elastic.checkpoint.failpoints import pass_failpoint
from gangline.elastic.checkpoint.format.checksum import checksum
from gangline.elastic.checkpoint.format.manifest import (
    MANIFEST,
    METADATA,
    PartLayout,
    PartNote,
    branch_of,
    combine_notes,
    decode_manifest,
    describe_part,
    encode_manifest,
    missing_file,
    note_file_name,
    parse_partial_folder,
    parse_step_folder,
    step_folder,
)
from gangline.elastic.checkpoint.snapshot.segment import Segment, SegmentHeader
from gangline.elastic.checkpoint.storage.branches import BranchRecord, read_record
from gangline.elastic.checkpoint.storage.target import StorageTarget

log = logging.getLogger(__name__)
_LOOKED_INTO = 50
"""Largest number of entries of the folder that are listed, because a store may hold many."""
_SAVED = (".pt", ".pth", ".ckpt", ".bin", ".safetensors")
_TRACKERS = {
    "dlrover_latest.txt": "of DLRover",
    "._dlrover_ckpt_stage": "of DLRover",
    "latest_checkpointed_iteration.txt": "of Megatron",
}
HINTS = {
    "of DLRover": "load STEP/rank_RANK.pt with torch.load(…, weights_only=True), or a STEP that "
    "has .metadata with torch.distributed.checkpoint.load",
    "of Megatron": "load them with Megatron",
    "of torch.distributed.checkpoint": "load them with torch.distributed.checkpoint.load(state, "
    "checkpoint_id=…)",
    "of torch.save": "load them with torch.load(…, weights_only=True), or with safetensors",
}
_NAMED = 10
"""Steps in a message; of more only the first ones and the last are named."""
CHUNK = 1 << 24
"""Bytes per write: small enough for an even rate under a bandwidth limit."""


def list_folder_names(target: StorageTarget) -> dict[str, list[str]]:
    """List the folder (under ``""``) and those of its entries that may be folders."""
    top = target.list_names("")
    names = {"": top}
    for name in [one for one in top if not one.endswith(_SAVED)][:_LOOKED_INTO]:
        try:
            names[name] = target.list_names(name)
        except NotADirectoryError:
            continue
    return names


def detect_format(names: Mapping[str, Sequence[str]]) -> str | None:
    """Return the foreign format, a key of ``HINTS``; ``None`` for our own or no checkpoints.

    ``names`` is the result of the listing. A folder with a step of ours, even unfinished, is ours.
    """
    top = names[""]
    if any(parse_step_folder(name) is not None or parse_partial_folder(name) for name in top):
        return None
    for name in top:
        if name in _TRACKERS:
            return _TRACKERS[name]
    if any(_is_distributed(inside) for inside in names.values()):
        return "of torch.distributed.checkpoint"
    if any(name.endswith(_SAVED) for inside in names.values() for name in inside):
        return "of torch.save"
    return None


def _is_distributed(names: Sequence[str]) -> bool:
    return METADATA in names or any(name.endswith(".distcp") for name in names)


def foreign_folder_message(folder: str, kind: str) -> str:
    return (
        f"{folder} holds checkpoints {kind}, which are not loaded automatically: {HINTS[kind]}; "
        "then give the Checkpointer a folder of its own"
    )


@dataclass(slots=True)
class BandwidthLimiter:
    """Limits the bytes per second of all writers of one node together."""

    bytes_per_s: float
    stop: threading.Event
    _free_at: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def acquire(self, size: int) -> None:
        """Wait until ``size`` more bytes may be written, or until ``stop`` is set."""
        if self.bytes_per_s <= 0:
            return
        with self._lock:
            now = time.monotonic()
            begin = max(now, self._free_at)
            self._free_at = begin + size / self.bytes_per_s
        self.stop.wait(max(0.0, begin - now))


def entry_checksums(segment: Segment, header: SegmentHeader, layout: PartLayout) -> list[int]:
    """Return the checksums of all entries as they are in memory now."""
    with segment.part(header) as part:
        return [checksum(part[e.offset : e.offset + e.length]) for e in layout.entries]


def seal_segment(segment: Segment, header: SegmentHeader, layout: PartLayout) -> None:
    """Compute and store the checksums of a locked segment if they are missing."""
    if segment.read_seal(header, len(layout.entries)) is None:
        segment.write_seal(header, entry_checksums(segment, header, layout))
        pass_failpoint("sealed")


def seal_if_unchanged(segment: Segment, header: SegmentHeader, layout: PartLayout) -> bool:
    """Store the checksums without blocking a writer; return whether the save has checksums now.

    A writer changes the header before anything else, so checksums that were computed under one
    header are right. The segment is locked only to write them. Were it locked throughout, then with
    another buffer in upload no buffer would be free for a save.
    """
    if segment.read_seal(header, len(layout.entries)) is not None:
        return True
    sums = entry_checksums(segment, header, layout)
    with segment.reading() as free:
        if not free or segment.read_header() != header:
            return False
        segment.write_seal(header, sums)
    pass_failpoint("sealed")
    return True


def write_part(
    target: StorageTarget,
    segment: Segment,
    header: SegmentHeader,
    layout: PartLayout,
    pace: BandwidthLimiter,
) -> None:
    """Write a rank's file and its note.

    Raises:
        OSError: the target did not accept it.
        CorruptError: the memory differs from its checksums.
    """
    folder = target.staging_folder(header.step, layout.plan)
    target.begin(header.step, layout.plan)
    seal = segment.read_seal(header, len(layout.entries))
    sums: list[int] = []
    with segment.part(header) as part, target.create(f"{folder}/{layout.file}") as stream:
        for number, entry in enumerate(layout.entries[: layout.owned]):
            piece = part[entry.offset : entry.offset + entry.length]
            sums.append(checksum(piece))
            if seal is not None and seal[number] != sums[-1]:
                raise CorruptError(f"{entry.key!r} changed in memory after it was saved")
            for at in range(0, len(piece), CHUNK):
                some = piece[at : at + CHUNK]
                pace.acquire(len(some))
                write_all(stream, some)
            pass_failpoint("part-entry")
    pass_failpoint("part-written")
    blob = layout.metadata
    if layout.rank == 0:
        target.put(f"{folder}/{METADATA}", blob)
        pass_failpoint("metadata-written")
    note = PartNote(
        layout.plan, header.step, layout.world, describe_part(layout, sums), checksum(blob)
    )
    # A note lost in a power failure only leaves the step uncommitted, so it needs no fsync.
    target.put(f"{folder}/{note_file_name(layout.rank)}", msgspec.json.encode(note), durable=False)
    pass_failpoint("note-written")


def write_all(stream: object, data: memoryview) -> None:
    """Write all bytes: an unbuffered file may accept fewer than it is given."""
    write = getattr(stream, "write")  # noqa: B009 - streams of fsspec have no common type
    while len(data):
        written = write(data)
        data = data[written:] if written is not None else data[:0]


def missing_ranks(target: StorageTarget, step: int, plan: str, world: int) -> list[int]:
    """Return the ranks whose notes are not there yet."""
    present = set(target.list_names(target.staging_folder(step, plan)))
    return [rank for rank in range(world) if note_file_name(rank) not in present]


def ranks_text(ranks: Sequence[int], hosts: Sequence[str]) -> str:
    """Name ranks and their hosts, as far as these are known."""
    by_host: dict[str, list[int]] = {}
    for rank in ranks:
        by_host.setdefault(hosts[rank] if rank < len(hosts) else "", []).append(rank)
    named = [
        f"rank{'s' * (len(own) > 1)} {', '.join(map(str, own))}{f' on {host}' if host else ''}"
        for host, own in by_host.items()
    ]
    return " and ".join(named)


def delay_text(target: StorageTarget, step: int, plan: str, hosts: Sequence[str]) -> str:
    """Explain why a step is not in storage yet.

    Raises OSError, StorageError: storage cannot be read.
    """
    missing = missing_ranks(target, step, plan, len(hosts))
    if not missing:
        return "it is complete, but not committed yet"
    return f"it lacks the part{'s' * (len(missing) > 1)} of {ranks_text(missing, hosts)}"


def steps_text(steps: Iterable[int]) -> str:
    """Name some steps in a message."""
    names = [str(step) for step in sorted(steps)]
    if len(names) > _NAMED:
        names = [*names[: _NAMED - 1], "…", names[-1]]
    return f"step{'s' * (len(names) > 1)} {', '.join(names)}"


def try_commit(target: StorageTarget, step: int, plan: str, world: int) -> bool:
    """Commit the step if the parts of all ranks are there; return whether it is committed now.

    Raises:
        OSError: the target cannot be read or written.
        StepTakenError: a save of another plan was committed meanwhile.
    """
    # Savers of several nodes may be here concurrently with the same notes: they write the same
    # manifest, and the rename or the conditional write lets one of them commit.
    if is_committed(target, step, plan):
        return True
    folder = target.staging_folder(step, plan)
    if missing_ranks(target, step, plan, world):
        return False
    try:
        notes = [
            msgspec.json.decode(target.read(f"{folder}/{note_file_name(rank)}"), type=PartNote)
            for rank in range(world)
        ]
        if {(note.plan, note.step) for note in notes} != {(plan, step)}:
            return False  # of an earlier run: in an object store all plans share one folder
        target.commit(step, plan, encode_manifest(combine_notes(notes)))
    except (FileNotFoundError, msgspec.MsgspecError):
        # Another node's saver committed first; or a note is unreadable, which forbids a commit.
        return is_committed(target, step, plan)
    pass_failpoint("committed")
    return True


def is_committed(target: StorageTarget, step: int, plan: str) -> bool:
    """Return whether storage has the step as this plan saved it."""
    return stored_plan(target, step) == plan


def stored_plan(target: StorageTarget, step: int) -> str | None:
    """Return the plan of a step in storage; ``None`` if it has no valid manifest."""
    try:
        return decode_manifest(target.read(f"{step_folder(step)}/{MANIFEST}")).plan
    except (FileNotFoundError, CorruptError):
        return None


def list_steps(target: StorageTarget) -> tuple[list[int], dict[int, str]]:
    """Return the steps in storage, the oldest first, and the incomplete ones with a missing file.

    The content of files is not verified.
    """
    missing = {
        step: missing_file(target.list_names(name))
        for name in target.list_names("")
        if (step := parse_step_folder(name)) is not None
    }
    return sorted(step for step, name in missing.items() if name is None), {
        step: name for step, name in sorted(missing.items()) if name is not None
    }


def committed_steps(target: StorageTarget) -> list[int]:
    """Return the complete steps in storage, the oldest first, abandoned ones among them."""
    return list_steps(target)[0]


def expired_steps(
    steps: Iterable[int], keep: int, keep_every: int, abandoned: Container[int] = ()
) -> list[int]:
    """Return the expired steps: all but the newest ``keep`` and the multiples of ``keep_every``.

    Abandoned steps count as older than all others.
    """
    if keep <= 0:
        return []
    ordered = sorted(steps, key=lambda step: (step not in abandoned, step))
    return [step for step in ordered[:-keep] if not (keep_every and step % keep_every == 0)]


@dataclass(frozen=True, slots=True)
class RetentionResult:
    """What is in storage after a commit."""

    newest: int
    """The newest step that is not abandoned."""
    removed: list[int]
    """Abandoned steps that were removed."""


def apply_retention(
    target: StorageTarget, keep: int, keep_every: int, committed: int, plan: str = ""
) -> RetentionResult:
    """Remove expired steps, and unfinished ones that the step just committed makes obsolete.

    These are the older ones, and all of branches other than that of ``plan``: every saver has
    written its part of the committed step after it had ended its part of any other one.
    """
    steps, record = committed_steps(target), read_record(target)
    abandoned = abandoned_steps(target, steps, record)
    # A live step that is newer belongs to a training that was not loaded, and remains.
    counted = [step for step in steps if step <= committed or step in abandoned]
    expired = expired_steps(counted, keep, keep_every, abandoned)
    for step in expired:
        log.info(f"removed step {step}", extra={"step": step})
        target.remove(step_folder(step))
        pass_failpoint("removed")
    for step, name in target.list_unfinished():
        partial = parse_partial_folder(name)
        is_of_another = partial and plan and branch_of(partial[1]) != branch_of(plan)
        if step <= committed or is_of_another:
            log.info(f"removed unfinished step {step}", extra={"step": step})
            target.remove(name)
    for name in target.list_names(""):
        if name.startswith(".trash-"):
            target.remove(name)
    newest = max((step for step in steps if step not in abandoned), default=committed)
    return RetentionResult(newest, [step for step in expired if step in abandoned])


def abandoned_steps(
    target: StorageTarget, steps: Iterable[int], record: BranchRecord
) -> dict[int, str]:
    """Return the abandoned ones of these steps, with their plans."""
    plans = {step: stored_plan(target, step) for step in steps if record.may_abandon(step)}
    return {step: plan for step, plan in plans.items() if plan and record.abandons(step, plan)}
