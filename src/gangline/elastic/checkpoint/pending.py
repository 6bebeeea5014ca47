"""The inventory of snapshots in a node's memory, and choices over it: what a saver has to write."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gangline.elastic.checkpoint import home as homes
from gangline.elastic.checkpoint.errors import CorruptError
from gangline.elastic.checkpoint.header import Header, State
from gangline.elastic.checkpoint.layout import Layout
from gangline.elastic.checkpoint.segment import Segment


@dataclass(frozen=True, slots=True)
class Held:
    """A complete save in memory."""

    path: Path
    own: bool
    """True if a rank of this node made it; false for a copy from another node."""
    header: Header
    layout: Layout
    written: bool
    """True if its part is in storage. Whether the step is committed depends on the other ranks."""

    @property
    def rank(self) -> int:
        return self.layout.rank

    @property
    def step(self) -> int:
        return self.header.step


def survey(home: Path) -> list[Held]:
    """Return all complete saves of a job's folder. Damaged ones are left out."""
    snapshots = []
    for _, slot, path in homes.segments(home):
        try:
            segment = Segment(path)
        except (FileNotFoundError, CorruptError):
            continue
        try:
            header = segment.header()
            if header is not None and header.state is State.COMPLETE:
                written = segment.persisted(header.generation)
                snapshots.append(
                    Held(path, slot is not None, header, segment.layout(header), written)
                )
        except CorruptError:
            continue
        finally:
            segment.close()
    return snapshots


def current_plan(snapshots: Iterable[Held]) -> str | None:
    """Return the plan of the newest save."""
    newest = max(snapshots, key=lambda one: (one.header.saved_at, one.step), default=None)
    return newest.layout.plan if newest else None


def asked_for(snapshots: Sequence[Held]) -> list[Held]:
    """Return the saves to write to storage: each rank's newest one that is not there yet."""
    requested: dict[int, Held] = {}
    for one in snapshots:
        if one.own and one.header.wanted and not one.written:
            known = requested.get(one.rank)
            if known is None or one.header.generation > known.header.generation:
                requested[one.rank] = one
    return [requested[rank] for rank in sorted(requested)]


def common_steps(snapshots: Sequence[Held]) -> list[int]:
    """Return the steps of the newest plan that all ranks of this node hold, the newest first."""
    plan = current_plan(one for one in snapshots if one.own)
    steps: dict[int, set[int]] = {}
    for one in snapshots:
        if one.own and one.layout.plan == plan:
            steps.setdefault(one.rank, set()).add(one.step)
    return sorted(set.intersection(*steps.values()), reverse=True) if steps else []


def at_step(snapshots: Sequence[Held], step: int) -> list[Held]:
    """Return the ranks' own saves of a step in the newest plan."""
    plan = current_plan(one for one in snapshots if one.own)
    return [one for one in snapshots if one.own and one.layout.plan == plan and one.step == step]


def stand_ins(
    snapshots: Sequence[Held], step: int, plan: str, missing: Sequence[int]
) -> list[Held]:
    """Return copies that can be written in place of lost ranks."""
    return [
        one
        for one in snapshots
        if not one.own and one.step == step and one.layout.plan == plan and one.rank in missing
    ]
