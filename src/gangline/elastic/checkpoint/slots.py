"""Chooses the buffer for the next save.

Never the newest complete one (a crash would be restored from it), and never one that is being read.
With three buffers one is always free: one may be in upload, one is the newest.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BufferState:
    """The state of a buffer."""

    number: int
    complete: bool
    generation: int
    step: int
    awaits_storage: bool
    """True if it is to be written to storage and is not there yet."""
    locked: bool
    """True while the saver reads it."""


@dataclass(frozen=True, slots=True)
class BufferChoice:
    """The buffer for a save."""

    number: int
    supersedes: int | None
    """The step that waited for upload and is overwritten; newer ones replace it."""


def choose_buffer(slots: Sequence[BufferState]) -> BufferChoice | None:
    """Return the buffer to overwrite, or ``None`` if every buffer is needed."""
    newest = max((slot.generation for slot in slots if slot.complete), default=None)
    free = [
        slot
        for slot in slots
        if not slot.locked and not (slot.complete and slot.generation == newest)
    ]
    if not free:
        return None
    best = min(
        free, key=lambda slot: (slot.awaits_storage, slot.complete, slot.generation, slot.number)
    )
    return BufferChoice(best.number, best.step if best.awaits_storage else None)
