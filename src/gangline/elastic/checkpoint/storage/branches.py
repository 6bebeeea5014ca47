"""Branches: which steps belong to the training that is going on, and which to an abandoned one.

A branch is what a process saves from one load to the next; the plan of a save names its branch. A
training that loads an older step and then saves begins a branch beside the newer steps. These are
abandoned: they can be loaded by their number, but are not restored by default, and retention
removes them before any other step.

The record of this is the file ``abandoned.json``, in storage and in the memory of each node. A
branch begins in memory with its first save (a load alone changes nothing); the savers then copy the
record to storage. Of two records the one with the higher number is valid.
"""

import time
from collections.abc import Iterable

import msgspec

from gangline.elastic.checkpoint.format.manifest import branch_of
from gangline.elastic.checkpoint.storage.target import StorageTarget

RECORD = "abandoned.json"


class AbandonedBranch(msgspec.Struct, frozen=True):
    """A branch whose steps greater than ``after`` are abandoned."""

    branch: str
    after: int
    newest: int
    """The newest step that it had."""
    successor: str
    """The branch that was begun in its place."""


class FirstLoad(msgspec.Struct, frozen=True):
    """The step that a run of a launcher asked for by number when it began."""

    run: str
    step: int


class BranchRecord(msgspec.Struct, frozen=True):
    """The abandoned branches of a folder."""

    number: int = 0
    abandoned: tuple[AbandonedBranch, ...] = ()
    first_load: FirstLoad | None = None

    def abandons(self, step: int, plan: str) -> bool:
        """Return whether the step that this plan has saved is abandoned."""
        branch = branch_of(plan)
        return any(one.branch == branch and step > one.after for one in self.abandoned)

    def may_abandon(self, step: int) -> bool:
        """Return whether the step may be abandoned; its plan decides."""
        return any(one.after < step <= one.newest for one in self.abandoned)

    def first_affected(self, step: int) -> int:
        """Return the oldest step that may count otherwise if a branch begins after ``step``."""
        return min([step, *(one.after for one in self.abandoned)]) + 1

    def begin_branch(
        self,
        branch: str,
        loaded: tuple[int, str],
        existing: Iterable[tuple[int, str]],
        first_load: FirstLoad | None = None,
    ) -> "BranchRecord":
        """Return the record of a training that continues from a step.

        Args:
            branch: the new branch.
            loaded: step and plan that training continues from.
            existing: steps and plans that exist. If the loaded step was abandoned, its own branch
                is revived up to this step, and what was begun in its place is abandoned.
            first_load: replaces the recorded one.
        """
        step, own = loaded[0], branch_of(loaded[1])
        rules = {one.branch: one for one in self.abandoned}
        line, fork = {own}, step
        if own in rules and step > rules[own].after:
            event = rules[own].successor
            revived = [one for one in self.abandoned if one.successor == event]
            line |= {one.branch for one in revived}
            fork = min(one.after for one in revived)
            rules = {name: one for name, one in rules.items() if name not in line}
        newest = dict[str, int]()
        for other_step, plan in existing:
            other = branch_of(plan)
            newest[other] = max(newest.get(other, other_step), other_step)
        newest.pop(branch, None)
        for other, other_newest in newest.items():
            after = step if other in line else fork
            if other_newest > after and (other not in rules or rules[other].after > after):
                rules[other] = AbandonedBranch(other, after, other_newest, branch)
        present = [one for one in rules.values() if newest.get(one.branch, -1) > one.after]
        # A clock, because storage may have been unreachable when its record was to be read.
        number = max(self.number + 1, int(time.time()))
        return BranchRecord(number, tuple(present), first_load or self.first_load)


def encode_record(record: BranchRecord) -> bytes:
    return msgspec.json.encode(record)


def decode_record(data: bytes) -> BranchRecord:
    """Read a record; a damaged one counts as empty."""
    try:
        return msgspec.json.decode(data, type=BranchRecord)
    except msgspec.MsgspecError:
        return BranchRecord()


def read_record(target: StorageTarget) -> BranchRecord:
    """Return the record in storage; an empty one if there is none.

    Raises OSError, StorageError: storage cannot be read.
    """
    try:
        return decode_record(target.read(RECORD))
    except FileNotFoundError:
        return BranchRecord()


def publish_record(target: StorageTarget, record: BranchRecord) -> BranchRecord:
    """Write the record to storage, unless a later one is there; return the one that is valid."""
    stored = read_record(target)
    if record.number <= stored.number:
        return stored
    target.put(RECORD, encode_record(record))
    return record
