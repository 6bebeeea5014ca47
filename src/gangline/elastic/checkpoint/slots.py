"""Which buffer the next save goes to: a pure choice.

Never the newest complete one (it is what a crash would be restored from), never one that is being
read. With three buffers one is always left: one may be on its way to storage, one is the newest.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Slot:
    """A buffer as it was found."""

    number: int
    complete: bool
    generation: int
    step: int
    waiting: bool
    """It was asked to be written to storage and is not there yet."""
    locked: bool
    """The saver is reading it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Where the save goes."""

    number: int
    supersedes: int | None
    """The step that waited for storage and will not get there: newer ones overtook it."""


def choose(slots: Sequence[Slot]) -> Choice | None:
    """The buffer to overwrite, or ``None`` when each is needed."""
    newest = max((slot.generation for slot in slots if slot.complete), default=None)
    free = [
        slot
        for slot in slots
        if not slot.locked and not (slot.complete and slot.generation == newest)
    ]
    if not free:
        return None
    best = min(free, key=lambda slot: (slot.waiting, slot.complete, slot.generation, slot.number))
    return Choice(best.number, best.step if best.waiting else None)
