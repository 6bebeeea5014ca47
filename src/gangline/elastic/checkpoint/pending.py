"""What a saver has to do, as pure choices over what lies in its home."""

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
    """A complete save that lies in memory."""

    path: Path
    own: bool
    """Whether a rank of this node made it; else it is a copy for another node."""
    header: Header
    layout: Layout
    written: bool
    """Its part is in storage; whether the step is committed depends on the other ranks."""

    @property
    def rank(self) -> int:
        """Whose part it is."""
        return self.layout.rank

    @property
    def step(self) -> int:
        """The step."""
        return self.header.step


def survey(home: Path) -> list[Held]:
    """Everything complete in a home. What is damaged is left out."""
    found = []
    for _, slot, path in homes.segments(home):
        try:
            segment = Segment(path)
        except (FileNotFoundError, CorruptError):
            continue
        try:
            header = segment.header()
            if header is not None and header.state is State.COMPLETE:
                written = segment.persisted(header.generation)
                found.append(Held(path, slot is not None, header, segment.layout(header), written))
        except CorruptError:
            continue
        finally:
            segment.close()
    return found


def current_plan(held: Iterable[Held]) -> str | None:
    """The plan of the newest save."""
    newest = max(held, key=lambda one: (one.header.saved_at, one.step), default=None)
    return newest.layout.plan if newest else None


def asked_for(held: Sequence[Held]) -> list[Held]:
    """What was to go to storage and is not there: each rank's newest wish."""
    wishes: dict[int, Held] = {}
    for one in held:
        if one.own and one.header.wanted and not one.written:
            known = wishes.get(one.rank)
            if known is None or one.header.generation > known.header.generation:
                wishes[one.rank] = one
    return [wishes[rank] for rank in sorted(wishes)]


def common_steps(held: Sequence[Held]) -> list[int]:
    """The steps that all ranks of this node hold in the newest plan, the newest first."""
    plan = current_plan(one for one in held if one.own)
    steps: dict[int, set[int]] = {}
    for one in held:
        if one.own and one.layout.plan == plan:
            steps.setdefault(one.rank, set()).add(one.step)
    return sorted(set.intersection(*steps.values()), reverse=True) if steps else []


def at_step(held: Sequence[Held], step: int) -> list[Held]:
    """The ranks' own saves of a step in the newest plan."""
    plan = current_plan(one for one in held if one.own)
    return [one for one in held if one.own and one.layout.plan == plan and one.step == step]


def stand_ins(held: Sequence[Held], step: int, plan: str, missing: Sequence[int]) -> list[Held]:
    """Copies that can be written in place of ranks that are gone."""
    return [
        one
        for one in held
        if not one.own and one.step == step and one.layout.plan == plan and one.rank in missing
    ]
