"""The ``torch.distributed.checkpoint`` side of saving: a storage writer that commits a step.

    dcp.save(state, storage_writer=FlashWriter("s3://bucket/run", step))
    dcp.load(state, storage_reader=FlashReader.of_step("s3://bucket/run", step))

Files, checksums and commit are those of a ``Checkpointer``, which loads such a step too. It uses no
shared memory: ``dcp.save`` returns when the step is in storage.
"""

import io
import os
import pickle
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import IO, Any

from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from gangline.elastic.checkpoint.format.checksum import checksum
from gangline.elastic.checkpoint.format.manifest import (
    METADATA,
    Manifest,
    PartManifest,
    encode_manifest,
    part_file_name,
)
from gangline.elastic.checkpoint.format.torch_framing import tensor_bytes, torch_save_framing
from gangline.elastic.checkpoint.restore.source import entry_key
from gangline.elastic.checkpoint.storage.commit import write_all
from gangline.elastic.checkpoint.storage.target import open_target

ManifestRow = tuple[str, tuple[int, ...] | None, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class _PartLocation:
    """Where a rank writes; the coordinator sends it with the plan."""

    plan: str
    rank: int


@dataclass(frozen=True, slots=True)
class _WrittenValue:
    """What a rank reports about one value."""

    place: _PartLocation
    row: ManifestRow


class FlashWriter(StorageWriter):
    """Writes one step to a folder, or to a URL that fsspec supports, for PyTorch's planners."""

    def __init__(
        self, folder: str | os.PathLike[str], step: int, options: Mapping[str, str] | None = None
    ) -> None:
        """Open the target; ``options`` are passed to fsspec.

        Raises:
            StorageError: the URL's scheme needs a package that is not installed.
        """
        super().__init__()
        self.target, self.step = open_target(str(folder), options), step

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Do nothing: the target was chosen at construction."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Accept any name; it is not used."""
        del checkpoint_id
        return True

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None: ...

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Give each rank its location."""
        name = uuid.uuid4().hex
        return [replace(plan, storage_data=_PartLocation(name, n)) for n, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's file.

        Raises:
            OSError: the target did not accept it.
        """
        location: _PartLocation = plan.storage_data
        folder = self.target.staging_folder(self.step, location.plan)
        path = f"{folder}/{part_file_name(location.rank)}"
        self.target.begin(self.step, location.plan)
        results, at = [], 0
        with self.target.create(path) as stream:
            for item in plan.items:
                row = _write(stream, at, item, planner)
                at += row[3]
                results.append(WriteResult(item.index, row[3], _WrittenValue(location, row)))
        if not results:  # a result without a row reports a rank that has nothing to write
            results.append(WriteResult(None, 0, location))  # type: ignore[arg-type]
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the metadata and commit the step.

        Raises:
            OSError: the target did not accept it.
            StepTakenError: another saver committed the step meanwhile.
        """
        written = [one for rank in results for one in rank if one.index is not None]
        metadata.storage_data = {
            one.index: _StorageInfo(
                part_file_name(one.storage_data.place.rank),
                one.storage_data.row[2],
                one.size_in_bytes,
            )
            for one in written
        }
        blob = pickle.dumps(metadata)
        plan, parts = _parts(results)
        self.target.put(f"{self.target.staging_folder(self.step, plan)}/{METADATA}", blob)
        manifest = Manifest(self.step, plan, len(parts), parts, checksum(blob))
        self.target.commit(self.step, plan, encode_manifest(manifest))


def _parts(results: list[list[WriteResult]]) -> tuple[str, list[PartManifest]]:
    """Return the plan's name and each rank's part of the manifest."""
    rows: dict[int, list[ManifestRow]] = {}
    plan = ""
    for one in (one for rank in results for one in rank):
        reported: _WrittenValue | _PartLocation = one.storage_data
        location = reported.place if isinstance(reported, _WrittenValue) else reported
        plan = location.plan
        own_rows = rows.setdefault(location.rank, [])
        if isinstance(reported, _WrittenValue):
            own_rows.append(reported.row)
    return plan, [
        PartManifest(rank, sum(row[3] for row in rows[rank]), rows[rank]) for rank in sorted(rows)
    ]


def _write(stream: IO[bytes], at: int, item: WriteItem, planner: SavePlanner) -> ManifestRow:
    """Write one value; return its row of the manifest."""
    pieces, raw_offset, raw_length = _pieces(item, planner)
    total, length = 0, 0
    for piece in pieces:
        total = checksum(piece, total)
        length += len(piece)
        write_all(stream, piece)
    key, chunk = entry_key(item.index)
    if item.type is not WriteItemType.BYTE_IO and chunk is None:
        chunk = ()
    return key, chunk, at, length, raw_offset, raw_length, total


def _pieces(item: WriteItem, planner: SavePlanner) -> tuple[list[memoryview], int, int]:
    """Return a value's bytes in ``torch.save`` format, and start and length of the raw ones."""
    value = planner.resolve_data(item)
    if isinstance(value, io.BytesIO):
        return [value.getbuffer()], 0, 0
    tensor = value.detach().cpu().contiguous()
    framing = torch_save_framing(tensor.dtype, tuple(tensor.shape))
    raw = memoryview(b"")
    if tensor.numel():
        raw = tensor_bytes(tensor)
    pieces = [memoryview(framing.before), raw, memoryview(framing.after)]
    return pieces, len(framing.before), framing.raw_length
