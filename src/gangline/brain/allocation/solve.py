"""The division of devices that loses least: exact, by dynamic programming.

Each job has some sizes with a loss each; the sum of losses is minimal over all divisions of at most
``capacity`` devices. A greedy choice on concave envelopes is optimal only if all steps are equal;
here they are not (units of pods, sizes that are worse than their neighbours), and the exact
solution of 512 jobs and 2,000 devices takes a fraction of a second with numpy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Option:
    """One size of a job, and what is lost with it."""

    devices: int
    loss: float


@dataclass(frozen=True, slots=True)
class Division:
    """The best division."""

    chosen: dict[str, int]
    """Index of the option of each job."""
    loss: float


def divide(options: Mapping[str, Sequence[Option]], capacity: int) -> Division | None:
    """Return the division of at most ``capacity`` devices with the least loss; None if none fits.

    Args:
        options: of each job, at least one.
        capacity: devices of all jobs together.
    """
    least = {key: min(option.devices for option in each) for key, each in options.items()}
    spare = capacity - sum(least.values())
    if spare < 0:
        return None
    # Losses are counted from the least sizes on: arrays hold the spare devices only.
    best: NDArray[np.float64] = np.zeros(spare + 1)
    picks: list[NDArray[np.int32]] = []
    for key, each in options.items():
        best, pick = _add_job(best, [(o.devices - least[key], o.loss) for o in each])
        picks.append(pick)
    chosen, left = {}, int(np.argmin(best))
    loss = float(best[left])
    for key, pick in zip(reversed(list(options)), reversed(picks), strict=True):
        index = int(pick[left])
        chosen[key] = index
        left -= options[key][index].devices - least[key]
    return Division(chosen=chosen, loss=loss)


def _add_job(
    before: NDArray[np.float64], sizes: Sequence[tuple[int, float]]
) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """Return the least loss with one more job for each number of devices, and its option."""
    best = np.full_like(before, np.inf)
    pick = np.zeros(len(before), dtype=np.int32)
    for index, (extra, loss) in enumerate(sizes):
        if extra >= len(before):
            continue
        candidate = before[: len(before) - extra] + loss
        target = best[extra:]
        better = candidate < target
        target[better] = candidate[better]
        pick[extra:][better] = index
    return best, pick
