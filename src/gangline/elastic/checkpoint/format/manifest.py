"""The files of a checkpoint: one part for each rank, and the manifest that commits them.

    FOLDER/step-000000000120/
        __0_0.distcp …         one for each rank, named as by PyTorch's own writer
        .metadata              PyTorch's; plain ``dcp.load`` opens the folder
        gangline.json          the manifest; without it the step does not exist
    FOLDER/.partial-000000000120-PLAN/   an unfinished step; renamed when all parts are written
    FOLDER/abandoned.json      branches that were left for an older step; see ``storage.branches``

A part is a sequence of entries without gaps, each as ``torch.save`` writes it. It has the same
bytes in memory and in the file, except that entries after the first ``owned`` stay in memory: they
are copies of what other nodes own, with which the memory of one node suffices for a restore. Each
rank writes its part and then a note beside it; any saver that sees all notes may commit the step.
"""

import re
from collections.abc import Collection, Iterable
from hashlib import sha256

import msgspec

from gangline.elastic.checkpoint.errors import CorruptError
from gangline.elastic.checkpoint.format.checksum import checksum

ALIGNMENT = 64
"""Entries begin at multiples of it, because PyTorch requires aligned tensors."""
MANIFEST = "gangline.json"
METADATA = ".metadata"
FORMAT = 2
"""Format 1 used other checksums."""
_STEP = re.compile(r"^step-(\d{12,})$")
_OF_RANK = re.compile(r"^(?:__|rank-)(\d+)(?:_0\.distcp|\.json)$")
_PARTIAL = re.compile(r"^\.partial-(\d{12,})-([0-9a-f]{32})$")


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
    """Name of the save agreement that this part belongs to; see ``next_plan``."""
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


class PartManifest(msgspec.Struct, frozen=True):
    """The file of one rank."""

    rank: int
    bytes: int
    entries: list[tuple[str, tuple[int, ...] | None, int, int, int, int, int]]
    """Rows of key, chunk, offset, length, start and length of the raw bytes, checksum."""

    @property
    def file(self) -> str:
        return part_file_name(self.rank)


class PartNote(msgspec.Struct, frozen=True):
    """What a rank writes beside its file once the file is on disk."""

    plan: str
    step: int
    world: int
    part: PartManifest
    metadata_sum: int


class Manifest(msgspec.Struct, frozen=True):
    """Description of a complete checkpoint."""

    step: int
    plan: str
    world: int
    parts: list[PartManifest]
    metadata_sum: int
    sum: int = 0
    """Checksum of the manifest's text with this field set to zero."""
    format: int = FORMAT


def describe_part(layout: PartLayout, sums: list[int]) -> PartManifest:
    """Describe the file of a rank from the checksums of its owned entries."""
    owned = layout.entries[: layout.owned]
    rows = [
        (e.key, e.chunk, e.offset, e.length, e.raw_offset, e.raw_length, value)
        for e, value in zip(owned, sums, strict=True)
    ]
    return PartManifest(layout.rank, entries_end(owned), rows)


def note_file_name(rank: int) -> str:
    return f"rank-{rank:05d}.json"


def step_folder(step: int) -> str:
    """Return the folder name of a committed step."""
    return f"step-{step:012d}"


def partial_folder(step: int, plan: str) -> str:
    """Return the folder name of an unfinished step."""
    return f".partial-{step:012d}-{plan}"


def parse_step_folder(name: str) -> int | None:
    """Return the step of a committed folder's name; ``None`` for other names."""
    match = _STEP.match(name)
    return int(match[1]) if match else None


def parse_partial_folder(name: str) -> tuple[int, str] | None:
    """Return step and plan of an unfinished folder's name; ``None`` for other names."""
    match = _PARTIAL.match(name)
    return (int(match[1]), match[2]) if match else None


def first_plan(branch: str) -> str:
    """Return the plan of the first save of a branch, a random name."""
    return f"{branch}{0:016x}"


def next_plan(plan: str) -> str:
    """Return the plan that follows in the same branch; it is greater as text."""
    return f"{branch_of(plan)}{(int(plan[16:], 16) + 1) % (1 << 64):016x}"


def next_branch(plan: str) -> str:
    """Return the first plan of the branch that follows; all ranks get the same one."""
    return first_plan(sha256(plan.encode()).hexdigest()[:16])


def branch_of(plan: str) -> str:
    """Return the branch of a plan: what was saved from one load to the next."""
    return plan[:16]


def missing_file(names: Collection[str]) -> str | None:
    """Return the first file that a committed step lacks, from its file names; None if complete."""
    ranks = {int(match[1]) for name in names if (match := _OF_RANK.match(name))}
    needed = [MANIFEST, METADATA, *map(part_file_name, range(max(ranks, default=0) + 1))]
    return next((name for name in needed if name not in names), None)


def combine_notes(notes: Iterable[PartNote]) -> Manifest:
    """Return the manifest of a step from the notes of all its ranks."""
    ordered = sorted(notes, key=lambda note: note.part.rank)
    first = ordered[0]
    return Manifest(
        first.step, first.plan, first.world, [note.part for note in ordered], first.metadata_sum
    )


def encode_manifest(manifest: Manifest) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(manifest, sum=checksum(_text(manifest))))


def _text(manifest: Manifest) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(manifest, sum=0))


def decode_manifest(data: bytes) -> Manifest:
    """Read a manifest. Raises CorruptError: it is damaged or of a newer format."""
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.MsgspecError as error:
        raise CorruptError(f"{MANIFEST} cannot be read: {error}") from error
    if manifest.format != FORMAT:
        raise CorruptError(f"{MANIFEST} has format {manifest.format}; this version reads {FORMAT}")
    if checksum(_text(manifest)) != manifest.sum or msgspec.json.encode(manifest) != data:
        raise CorruptError(f"{MANIFEST} is damaged")
    if [part.rank for part in manifest.parts] != list(range(manifest.world)):
        raise CorruptError(f"{MANIFEST} does not name the parts of {manifest.world} ranks")
    return manifest
