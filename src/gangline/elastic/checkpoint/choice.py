"""Which step to restore: the newest that is whole, the same on all ranks. A pure choice.

Memory comes before storage at the same step. A step in memory counts as whole when of everything
that was saved somebody still holds it, be it in another node's memory.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gangline.elastic.checkpoint.pending import Held


class Holding(NamedTuple):
    """One rank's part of a step in some node's memory, as nodes tell each other."""

    step: int
    plan: str
    rank: int
    node: str
    address: str
    """Where the node's saver gives it away; empty when it does not."""
    holders: tuple[tuple[int, ...], ...]


class Candidate(NamedTuple):
    """A step that can be restored, and from where."""

    step: int
    plan: str | None
    """The plan of a step in memory; ``None`` is storage."""


def holdings(node: str, address: str, held: Iterable[Held]) -> list[Holding]:
    """What a node holds."""
    return [
        Holding(
            one.step,
            one.layout.plan,
            one.rank,
            node,
            address,
            tuple(map(tuple, one.layout.holders)),
        )
        for one in held
    ]


def candidates(found: Sequence[Holding], stored: Sequence[int]) -> list[Candidate]:
    """What can be restored, the best first."""
    whole = [Candidate(step, plan) for step, plan in _steps(found) if not lacks(found, step, plan)]
    return sorted(
        [*whole, *(Candidate(step, None) for step in stored)],
        key=lambda one: (one.step, one.plan is not None, one.plan or ""),
        reverse=True,
    )


def torn(found: Sequence[Holding]) -> dict[int, str]:
    """The steps in memory that are not whole, and why."""
    return {
        step: f"of ranks {' or '.join(map(str, missing))} nothing is left in memory"
        for step, plan in _steps(found)
        if (missing := lacks(found, step, plan))
    }


def lacks(found: Sequence[Holding], step: int, plan: str) -> tuple[int, ...]:
    """A set of ranks of which one would be needed and none is there; empty when all is well."""
    here = [one for one in found if (one.step, one.plan) == (step, plan)]
    present = {one.rank for one in here}
    for ranks in here[0].holders if here else ():
        if not present.intersection(ranks):
            return ranks
    return ()


def _steps(found: Sequence[Holding]) -> set[tuple[int, str]]:
    return {(one.step, one.plan) for one in found}
