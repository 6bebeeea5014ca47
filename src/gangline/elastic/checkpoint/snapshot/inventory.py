"""The inventory of snapshots in a node's memory, and choices over it: what a saver has to write."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gangline.elastic.checkpoint.errors import CorruptError
from gangline.elastic.checkpoint.format.manifest import PartLayout
from gangline.elastic.checkpoint.snapshot import directory
from gangline.elastic.checkpoint.snapshot.segment import Segment, SegmentHeader, SegmentState


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """A complete save in memory."""

    path: Path
    is_local: bool
    """True if a rank of this node made it; false for a copy from another node."""
    header: SegmentHeader
    layout: PartLayout
    is_in_storage: bool
    """True if its part is in storage. Whether the step is committed depends on the other ranks."""

    @property
    def rank(self) -> int:
        return self.layout.rank

    @property
    def step(self) -> int:
        return self.header.step


def list_snapshots(job_folder: Path) -> list[SnapshotInfo]:
    """Return all complete saves of a job's folder. Damaged ones are left out."""
    snapshots = []
    for _, slot, path in directory.list_segments(job_folder):
        try:
            segment = Segment(path)
        except (FileNotFoundError, CorruptError):
            continue
        try:
            header = segment.read_header()
            if header is not None and header.state is SegmentState.COMPLETE:
                written = segment.is_persisted(header.generation)
                snapshots.append(
                    SnapshotInfo(
                        path, slot is not None, header, segment.read_layout(header), written
                    )
                )
        except CorruptError:
            continue
        finally:
            segment.close()
    return snapshots


def current_plan(snapshots: Iterable[SnapshotInfo]) -> str | None:
    newest = max(snapshots, key=lambda one: (one.header.saved_at, one.step), default=None)
    return newest.layout.plan if newest else None


def storage_requests(snapshots: Sequence[SnapshotInfo]) -> list[SnapshotInfo]:
    """Return the saves to write to storage: each rank's newest one that is not there yet.

    If other nodes write parts too, a save is not written after a newer one: the commit of that one
    removes unfinished older steps.
    """
    written = newest_by_rank(one for one in snapshots if one.is_in_storage)
    ranks = {one.rank for one in snapshots if one.is_local}
    newest = newest_by_rank(
        one for one in snapshots if one.header.for_storage and not one.is_in_storage
    )
    return [
        one
        for rank, one in sorted(newest.items())
        if one.layout.world <= len(ranks)
        or rank not in written
        or one.header.generation > written[rank].header.generation
    ]


def newest_by_rank(snapshots: Iterable[SnapshotInfo]) -> dict[int, SnapshotInfo]:
    """Return the newest save of each rank of this node."""
    ordered = sorted(snapshots, key=lambda one: one.header.generation)
    return {one.rank: one for one in ordered if one.is_local}


def common_steps(snapshots: Sequence[SnapshotInfo]) -> list[int]:
    """Return the steps of the newest plan that all ranks of this node hold, the newest first."""
    plan = current_plan(one for one in snapshots if one.is_local)
    steps: dict[int, set[int]] = {}
    for one in snapshots:
        if one.is_local and one.layout.plan == plan:
            steps.setdefault(one.rank, set()).add(one.step)
    return sorted(set.intersection(*steps.values()), reverse=True) if steps else []


def snapshots_at_step(snapshots: Sequence[SnapshotInfo], step: int) -> list[SnapshotInfo]:
    """Return the ranks' own saves of a step in the newest plan."""
    plan = current_plan(one for one in snapshots if one.is_local)
    return [
        one for one in snapshots if one.is_local and one.layout.plan == plan and one.step == step
    ]


def replacement_parts(
    snapshots: Sequence[SnapshotInfo], step: int, plan: str, missing: Sequence[int]
) -> list[SnapshotInfo]:
    """Return copies that can be written in place of lost ranks."""
    return [
        one
        for one in snapshots
        if not one.is_local and one.step == step and one.layout.plan == plan and one.rank in missing
    ]
