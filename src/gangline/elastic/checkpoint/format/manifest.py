"""The manifest of a checkpoint in storage: its files, their sizes, and the checksum of each entry.

    FOLDER/step-000000000120/
        __0_0.distcp …         one for each rank, named as by PyTorch's own writer
        .metadata              PyTorch's; plain ``dcp.load`` opens the folder
        gangline.json          the manifest; without it the step does not exist
    FOLDER/.partial-000000000120-PLAN/   an unfinished step; renamed when all parts are written

Each rank writes its part and then a note beside it. Any saver that sees the notes of all ranks
writes the manifest and commits. Several savers may do so concurrently.
"""

import re
from collections.abc import Iterable

import msgspec

from gangline.elastic.checkpoint.errors import CorruptError
from gangline.elastic.checkpoint.format.checksum import checksum
from gangline.elastic.checkpoint.format.layout import PartLayout, entries_end, part_file_name

MANIFEST = "gangline.json"
METADATA = ".metadata"
FORMAT = 2
"""Format 1 used other checksums."""
_STEP = re.compile(r"^step-(\d{12,})$")
_PARTIAL = re.compile(r"^\.partial-(\d{12,})-([0-9a-f]{32})$")


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
    """Read a manifest.

    Raises:
        CorruptError: it is damaged or of a newer format.
    """
    try:
        found = msgspec.json.decode(data, type=Manifest)
    except msgspec.MsgspecError as error:
        raise CorruptError(f"{MANIFEST} cannot be read: {error}") from error
    if found.format != FORMAT:
        raise CorruptError(f"{MANIFEST} has format {found.format}; this version reads {FORMAT}")
    if checksum(_text(found)) != found.sum or msgspec.json.encode(found) != data:
        raise CorruptError(f"{MANIFEST} is damaged")
    if [part.rank for part in found.parts] != list(range(found.world)):
        raise CorruptError(f"{MANIFEST} does not name the parts of {found.world} ranks")
    return found
