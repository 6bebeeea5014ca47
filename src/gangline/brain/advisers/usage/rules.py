"""Rules that hold for memory and CPU alike: what may be lowered, how sure the advice is."""

from gangline.brain.advisers.advice import Confidence
from gangline.brain.advisers.similarity import LOWERING_LEVEL, is_larger
from gangline.brain.advisers.view import View

Arguments = dict[str, str | int | float | list[str]]

UNCHANGED = 0.05
"""Smaller changes are no advice."""
_HIGH_RUNS = 5
_WIDER_PER_LEVEL = 1.3


def obstacle_to_lower(view: View) -> str:
    """Why nothing may be lowered; empty if it may."""
    if view.similar is None or not view.similar.runs or view.similar.level > LOWERING_LEVEL:
        return "similarity"
    return "size" if is_larger(view.run, view.similar.runs) else ""


def range_factor(level: int) -> float:
    """How much wider a range is at a level of similarity."""
    return float(_WIDER_PER_LEVEL ** max(level - 1, 0))


def confidence_of(level: int, runs: int) -> Confidence:
    if level <= LOWERING_LEVEL and runs >= _HIGH_RUNS:
        return Confidence.HIGH
    return Confidence.MEDIUM if level <= 2 and runs else Confidence.LOW
