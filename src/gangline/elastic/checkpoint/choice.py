"""Selects the step to restore: the newest complete one, the same on all ranks.

At the same step memory is preferred to storage. A step in memory is complete if every part has at
least one holder, on any node.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gangline.elastic.checkpoint.pending import SnapshotInfo


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
    found: Sequence[PartHolder], stored: Sequence[int]
) -> list[RestoreCandidate]:
    """Return the steps that can be restored, the best first."""
    complete = [
        RestoreCandidate(step, plan)
        for step, plan in _steps(found)
        if not unheld_ranks(found, step, plan)
    ]
    return sorted(
        [*complete, *(RestoreCandidate(step, None) for step in stored)],
        key=lambda one: (one.step, one.plan is not None, one.plan or ""),
        reverse=True,
    )


def incomplete_steps(found: Sequence[PartHolder]) -> dict[int, str]:
    """Return the incomplete steps in memory, each with the reason."""
    return {
        step: f"memory has no part of rank {' or '.join(map(str, missing))}"
        for step, plan in _steps(found)
        if (missing := unheld_ranks(found, step, plan))
    }


def unheld_ranks(found: Sequence[PartHolder], step: int, plan: str) -> tuple[int, ...]:
    """Return a set of ranks of which a restore needs one and none is held; empty if complete."""
    here = [one for one in found if (one.step, one.plan) == (step, plan)]
    present = {one.rank for one in here}
    for ranks in here[0].holders if here else ():
        if not present.intersection(ranks):
            return ranks
    return ()


def _steps(found: Sequence[PartHolder]) -> set[tuple[int, str]]:
    return {(one.step, one.plan) for one in found}
