"""Restoring: all ranks list what exists, agree on a step, load it, and agree that all succeeded.

The newest complete step is chosen, the same on all ranks; at the same step memory is preferred to
storage. A step in memory is complete if every part has at least one holder, on any node.
"""

import contextlib
import functools
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from gangline.display import error_text
from gangline.elastic.checkpoint.errors import (
    CheckpointError,
    CorruptError,
    ForeignFolderError,
    StorageError,
)
from gangline.elastic.checkpoint.failpoints import pass_failpoint
from gangline.elastic.checkpoint.format.structure import flatten_state, is_below
from gangline.elastic.checkpoint.ranks import SaveGroup
from gangline.elastic.checkpoint.restore.dcp_reader import load_state
from gangline.elastic.checkpoint.restore.source import (
    EntryKey,
    MappedSegments,
    MemorySource,
    RestoreSource,
    StorageSource,
)
from gangline.elastic.checkpoint.saver.replication import SegmentRequest, fetch_segment
from gangline.elastic.checkpoint.snapshot import directory, inventory
from gangline.elastic.checkpoint.snapshot.directory import SaverSettings
from gangline.elastic.checkpoint.snapshot.inventory import SnapshotInfo
from gangline.elastic.checkpoint.snapshot.segment import Segment, SegmentState
from gangline.elastic.checkpoint.storage import commit
from gangline.elastic.checkpoint.storage.branches import (
    RECORD,
    BranchRecord,
    FirstLoad,
    decode_record,
    read_record,
)
from gangline.elastic.checkpoint.storage.target import StorageTarget, open_target

log = logging.getLogger(__name__)


class PartHolder(NamedTuple):
    """One rank's part of a step in the memory of some node, as nodes report it to each other."""

    step: int
    plan: str
    rank: int
    node: str
    address: str
    """Address at which the node's saver serves it; empty if it does not."""
    holders: tuple[tuple[int, ...], ...]


class RestoreCandidate(NamedTuple):
    """A step that can be restored, and where it is."""

    step: int
    plan: str | None
    """The plan of a step in memory; ``None`` for storage."""


def part_holders(node: str, address: str, snapshots: Iterable[SnapshotInfo]) -> list[PartHolder]:
    """Describe the snapshots of a node to the other nodes."""
    return [
        PartHolder(
            one.step,
            one.layout.plan,
            one.rank,
            node,
            address,
            tuple(map(tuple, one.layout.holders)),
        )
        for one in snapshots
    ]


def restore_candidates(
    holders: Sequence[PartHolder], stored: Iterable[int]
) -> list[RestoreCandidate]:
    """Return the steps that can be restored, the best first."""
    complete = [
        RestoreCandidate(step, plan)
        for step, plan in _steps(holders)
        if not unheld_ranks(holders, step, plan)
    ]
    return sorted(
        [*complete, *(RestoreCandidate(step, None) for step in stored)],
        key=lambda one: (one.step, one.plan is not None, one.plan or ""),
        reverse=True,
    )


def incomplete_steps(holders: Sequence[PartHolder]) -> dict[int, str]:
    """Return the incomplete steps in memory, each with the reason."""
    return {
        step: f"memory has no part of rank {' or '.join(map(str, missing))}"
        for step, plan in _steps(holders)
        if (missing := unheld_ranks(holders, step, plan))
    }


def unheld_ranks(holders: Sequence[PartHolder], step: int, plan: str) -> tuple[int, ...]:
    """Return a set of ranks of which a restore needs one and none is held; empty if complete."""
    here = [one for one in holders if (one.step, one.plan) == (step, plan)]
    present = {one.rank for one in here}
    for ranks in here[0].holders if here else ():
        if not present.intersection(ranks):
            return ranks
    return ()


def _steps(holders: Sequence[PartHolder]) -> set[tuple[int, str]]:
    return {(one.step, one.plan) for one in holders}


@dataclass(frozen=True, slots=True)
class StoredSteps:
    live: Sequence[int] = ()
    abandoned: Collection[int] = ()
    incomplete: Mapping[int, str] = field(default_factory=dict)
    """Steps of which files were removed, each with a missing one."""
    is_known: bool = False
    """False if storage could not be read."""


def list_stored(target: StorageTarget, record: BranchRecord) -> StoredSteps:
    """List the steps in storage. Raises OSError, StorageError: it cannot be read."""
    steps, incomplete = commit.list_steps(target)
    abandoned = commit.abandoned_steps(target, steps, record)
    live = [step for step in steps if step not in abandoned]
    return StoredSteps(live, sorted(abandoned), incomplete, is_known=True)


@dataclass(frozen=True, slots=True)
class Loaded:
    step: int
    state: dict[str, Any]
    source: Literal["memory", "peer", "storage"]
    """Where this rank read it from."""


class Restorer:
    """The steps that can be restored, as seen by all ranks."""

    def __init__(
        self,
        ranks: SaveGroup,
        job_folder: Path,
        node: str,
        settings: SaverSettings,
        mapped: MappedSegments | None = None,
    ) -> None:
        self.ranks, self.job_folder, self.settings = ranks, job_folder, settings
        self._mapped = mapped
        self.snapshots = _newest_of_each(inventory.list_snapshots(job_folder))
        views = ranks.all_gather(
            (
                part_holders(node, settings.address, self.snapshots),
                decode_record(directory.read_file(job_folder / RECORD) or b""),
            )
        )
        self.holders: list[PartHolder] = sorted({one for held, _ in views for one in held})
        self.record = max((record for _, record in views), key=lambda one: one.number)
        """The abandoned branches."""
        self.stored = StoredSteps()
        self.loaded: RestoreCandidate | None = None
        self.target: StorageTarget | None = None
        self.foreign_format: str | None = None
        """Format of foreign checkpoints in the folder if it has none of ours."""
        self.fetched = False

    def load(
        self,
        state: dict[str, Any] | None,
        step: int | None,
        optional: Sequence[tuple[str, ...]] = (),
        fixed: Sequence[tuple[str, ...]] = (),
        resumed_run: str | None = None,
    ) -> Loaded | None:
        """Load the best candidate that all ranks can load.

        ``optional`` are paths of groups of values that may be missing in the checkpoint, ``fixed``
        those below which the structure of the state is not adapted to that of the checkpoint.
        ``resumed_run`` is the run that this is the first load of a later attempt of.

        Raises:
            CheckpointError: there are candidates, but none could be loaded.
            ForeignFolderError: there are none, but checkpoints of another format.
        """
        # 1. All ranks have one list of candidates, the best first: holders of parts in memory were
        #    gathered, and rank 0's view of storage is broadcast. Views of their own would differ
        #    while a saver commits.
        reasons: list[str] = []
        load = functools.partial(
            load_state,
            optional=optional,
            rank=self.ranks.rank,
            fixed=fixed,
            elsewhere=self._names_elsewhere(state, fixed),
        )
        self._survey()
        if step is not None and self.record.first_load == FirstLoad(resumed_run or "", step):
            if self.ranks.rank == 0:
                log.warning(
                    f"an earlier attempt of this run has loaded step {step} and continued from it: "
                    "its newest step is loaded"
                )
            step = None
        options = self._options(step)
        if not options and self.foreign_format:
            raise ForeignFolderError(
                commit.foreign_folder_message(self.settings.target, self.foreign_format)
            )
        # 2. A candidate is loaded by all ranks or by none: if one rank fails, all try the next one.
        for candidate in options:
            loaded = self._try(candidate, state, load, reasons)
            if loaded is not None:
                # 3. Newer saves end here. Training computes these steps again, perhaps with other
                #    numbers, and a later restore must not mix parts of both. If the step was asked
                #    for, this may be an inspection: then they end with the next save.
                if step is None:
                    self._invalidate_newer(candidate.step)
                self.loaded = candidate
                return loaded
        if step is not None and not reasons:
            raise CheckpointError(self._absent_message(step))
        if reasons:
            raise CheckpointError("no checkpoint could be loaded: " + "; ".join(reasons))
        return None

    def _names_elsewhere(
        self, state: dict[str, Any] | None, fixed: Sequence[tuple[str, ...]]
    ) -> set[str]:
        """Return the names in the states of all ranks, outside of ``fixed`` paths."""
        names = list[str]()
        with contextlib.suppress(ValueError):  # loading reports it on all ranks
            _, paths = flatten_state(state or {}, fixed)
            names = [name for name, path in paths.items() if not is_below(path, fixed)]
        return set[str]().union(*self.ranks.all_gather(names))

    def _options(self, step: int | None) -> list[RestoreCandidate]:
        """Return the candidates, the best first: live ones, or those of the step asked for."""
        live = restore_candidates(
            [one for one in self.holders if not self.record.abandons(one.step, one.plan)],
            self.stored.live,
        )
        if step is None:
            return live
        of_all = restore_candidates(self.holders, [*self.stored.live, *self.stored.abandoned])
        return [one for one in live if one.step == step] or [
            one for one in of_all if one.step == step
        ]

    def _absent_message(self, step: int) -> str:
        if name := self.stored.incomplete.get(step):
            return f"step {step} in {self.settings.target} is incomplete: it lacks {name}"
        return f"step {step} is neither in memory nor in storage"

    def _survey(self) -> None:
        """Find the steps in storage.

        If steps were deleted from there after memory was written, memory is ignored.
        """
        self.read_storage()
        noted = self.ranks.all_gather(directory.read_stored_step(self.job_folder))
        recorded = max(
            (one[0] for one in noted if one and not self.record.abandons(*one)), default=0
        )
        newest = max(self.stored.live, default=None)
        if not self.stored.is_known or recorded <= (newest or 0):
            return
        if self.holders and self.ranks.rank == 0:
            steps = ", ".join(str(step) for step in sorted({one.step for one in self.holders}))
            log.warning(
                f"steps {steps} in memory are ignored: {self.settings.target} had step {recorded} "
                f"and now has {'no step' if newest is None else f'step {newest} as its newest'}"
            )
        # Otherwise the saver would write them to storage after the next crash.
        self._invalidate_newer(-1)
        plan = None if newest is None else self._plan_of(newest)
        directory.write_stored_step(self.job_folder, newest, plan or "")
        self.holders = []

    def read_storage(self) -> None:
        """List the steps in storage, and read its record of branches, as rank 0 sees them."""
        problem, stored, kind, record = "", StoredSteps(), None, self.record
        try:
            self.target = open_target(self.settings.target, self.settings.options)
            if self.ranks.rank == 0:
                record = max(read_record(self.target), record, key=lambda one: one.number)
                stored = list_stored(self.target, record)
                if not (stored.live or stored.abandoned):
                    kind = commit.detect_format(commit.list_folder_names(self.target))
        except (OSError, StorageError) as error:
            problem = str(error)
            log.warning(f"storage cannot be read: {problem}", extra={"reason": problem})
        self.stored, self.foreign_format, self.record = self.ranks.broadcast((stored, kind, record))
        for step, name in self.stored.incomplete.items() if self.ranks.rank == 0 else ():
            log.warning(f"step {step} in storage is ignored: it lacks {name}", extra={"step": step})

    def begin_branch(
        self, branch: str, step: int, is_asked: bool, first_load: FirstLoad | None = None
    ) -> BranchRecord | None:
        """Return the record of a training that continues from ``step``, after ``load``.

        Returns None if this abandons nothing and is not to be recorded otherwise. All ranks call
        it.

        Args:
            branch: the new branch.
            step: the step to continue from.
            is_asked: the script has chosen the step. Otherwise newer ones in memory are incomplete,
                and have been invalidated.
            first_load: to record.
        """
        assert self.loaded is not None
        stored, holders = self.stored, self.holders if is_asked else []
        newer = [one for one in [*stored.live, *(held.step for held in holders)] if one > step]
        if not (newer or first_load or step in stored.abandoned):
            return None
        record = None
        if self.ranks.rank == 0:
            first = min(self.record.first_affected(step), step)
            steps = [one for one in [*stored.live, *stored.abandoned] if one >= first]
            plans = {one: plan for one in steps if (plan := self._plan_of(one))}
            loaded = (step, self.loaded.plan or plans.get(step, branch))
            existing = [*plans.items(), *((held.step, held.plan) for held in holders)]
            record = self.record.begin_branch(branch, loaded, existing, first_load)
            if not first_load and record.abandoned == self.record.abandoned:
                record = None
        return self.ranks.broadcast(record)

    def _plan_of(self, step: int) -> str | None:
        with contextlib.suppress(OSError, StorageError):
            return commit.stored_plan(self.target, step) if self.target else None
        return None

    def _try(
        self,
        candidate: RestoreCandidate,
        state: dict[str, Any] | None,
        load: Callable[[RestoreSource, dict[str, Any] | None], dict[str, Any]],
        reasons: list[str],
    ) -> Loaded | None:
        """Load one candidate on all ranks, or on none."""
        problem, fatal, filled = "", "", dict[str, Any]()
        source: RestoreSource | None = None
        self.fetched = False
        try:
            source = self._source(candidate)
            pass_failpoint("restore-source")
            filled = load(source, state)
            pass_failpoint("restore-loaded")
        except (CorruptError, OSError, StorageError) as error:
            problem = error_text(error)
        except (ValueError, RuntimeError) as error:
            fatal = str(error)  # the state does not match the checkpoint: no other step would
        finally:
            if source is not None:
                source.close()
        answers = self.ranks.all_gather((problem, fatal))
        if mismatch := [text for _, text in answers if text]:
            raise CheckpointError(
                f"the state does not fit step {candidate.step}: {mismatch[0]} (an object whose "
                "tensors change their shapes or names is saved as SingleValueState(object))"
            )
        place: Literal["memory", "storage"] = "memory" if candidate.plan else "storage"
        for rank, (text, _) in enumerate(answers):
            if text:
                reason = f"step {candidate.step} from {place}: rank {rank}: {text}"
                reasons.append(reason)
                log.warning(f"checkpoint skipped: {reason}", extra={"reason": reason})
        if any(text for text, _ in answers):
            return None
        return Loaded(candidate.step, filled, "peer" if self.fetched else place)

    def _source(self, candidate: RestoreCandidate) -> RestoreSource:
        if candidate.plan is None:
            if self.target is None:
                raise StorageError(f"{self.settings.target} cannot be opened on this node")
            return StorageSource(self.target, candidate.step)
        own = [one for one in self.snapshots if (one.step, one.layout.plan) == candidate]

        def fetch_parts(keys: Sequence[EntryKey], metadata: Metadata) -> list[SnapshotInfo]:
            owners = {owner_rank(metadata, key) for key in keys}
            return [self._fetch(candidate, owner) for owner in sorted(owners)]

        if not own:
            own = [self._fetch(candidate, self._preferred_rank(candidate))]
        return MemorySource(own, fetch_parts, self._mapped)

    def _preferred_rank(self, candidate: RestoreCandidate) -> int:
        """Return the rank whose part this rank most likely needs: its own, if it exists."""
        there = sorted(
            one.rank for one in self.holders if (one.step, one.plan) == candidate and one.address
        )
        if not there:
            raise CorruptError(f"step {candidate.step} is in no reachable memory")
        return self.ranks.rank if self.ranks.rank in there else there[0]

    def _fetch(self, candidate: RestoreCandidate, rank: int) -> SnapshotInfo:
        """Fetch the part of ``rank``, or of a rank that holds the same entries, from another node.

        Raises CorruptError: no node has it, or it arrived damaged.
        """
        there = [one for one in self.holders if (one.step, one.plan) == candidate and one.address]
        for one in sorted(there, key=lambda one: (one.rank != rank, one.rank)):
            if one.rank != rank and not any(
                {rank, one.rank} <= set(holders) for holders in one.holders
            ):
                continue
            request = SegmentRequest("get", one.rank, one.step, one.plan)
            try:
                fetch_segment(self.job_folder, one.address, self.settings.token, request)
            except (OSError, CheckpointError) as error:
                log.warning(
                    f"the peer {one.address} did not send its copy: {error}",
                    extra={"reason": str(error)},
                )
                continue
            self.fetched = True
            return next(
                snapshot
                for snapshot in inventory.list_snapshots(self.job_folder)
                if not snapshot.is_local
                and (snapshot.step, snapshot.layout.plan) == candidate
                and snapshot.rank == one.rank
            )
        raise CorruptError(f"the part of rank {rank} is in no reachable memory")

    def _invalidate_newer(self, step: int) -> None:
        """Invalidate saves newer than the restored step: training computes them again."""
        for snapshot in inventory.list_snapshots(self.job_folder):
            if snapshot.step > step:
                invalidate(snapshot)


def invalidate(snapshot: SnapshotInfo) -> None:
    """Let a save in memory count as absent, unless its buffer is being overwritten."""
    with contextlib.closing(Segment(snapshot.path)) as segment, segment.reading() as free:
        # The saver may be reading it too: only the header changes.
        if free and segment.read_header() == snapshot.header:
            segment.write_header(replace(snapshot.header, state=SegmentState.CORRUPT))


def owner_rank(metadata: Metadata, key: EntryKey) -> int:
    """Return the rank that owns a value, from the name of its file."""
    index = MetadataIndex(*key)
    try:
        return int(metadata.storage_data[index].relative_path.split("_")[2])
    except (KeyError, ValueError, IndexError) as error:
        raise CorruptError(f"{key[0]!r} is not in the checkpoint's metadata") from error


def _newest_of_each(snapshots: Sequence[SnapshotInfo]) -> list[SnapshotInfo]:
    """Return one save for each step, plan and rank: own before copy, the newest first."""
    ordered = sorted(snapshots, key=lambda one: (one.is_local, one.header.generation))
    return list({(one.step, one.layout.plan, one.rank): one for one in ordered}.values())
