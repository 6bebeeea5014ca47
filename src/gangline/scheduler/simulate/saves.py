"""Saves before evictions on virtual time: when a gang stops, and when it has answered.

A gang with checkpoints whose step time is known works to the end of its present step, stops there,
and answers when the save is written. If that takes longer than the scheduler waits, it is evicted
without an answer, and the work since its last checkpoint is lost.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gangline.scheduler.preemption.save_first import SaveOutcome, SaveRequests
from gangline.scheduler.types.types import CycleResult, GroupKey, PodEviction


@dataclass(frozen=True, slots=True)
class PlannedSave:
    """How a gang carries out a request to save."""

    stops_at: float
    """Time at which it stops working: the end of its present step."""
    answers_at: float
    """Time at which the save is written."""


def plan_save(now: float, started: float, rate: float, step_s: float, save_s: float) -> PlannedSave:
    """Return when a gang stops and answers.

    Args:
        now: time of the request.
        started: time of its last start or change.
        rate: work per second.
        step_s: work of one step, in seconds.
        save_s: seconds that the save takes.
    """
    work = max(now - started, 0.0) * rate
    stops_at = max(now, started + math.ceil(work / step_s - 1e-9) * step_s / rate)
    return PlannedSave(stops_at, stops_at + save_s)


class SimulatedSaves:
    """Open requests, and the plans of the gangs that they ask."""

    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s
        self.plans: dict[GroupKey, PlannedSave] = {}
        self.count = 0
        """Number of requests so far."""
        self._requests = SaveRequests()

    def is_asked(self, group: GroupKey) -> bool:
        return group in self._requests.open

    def ask(
        self, group: GroupKey, evictions: Sequence[PodEviction], now: float, plan: PlannedSave
    ) -> float | None:
        """Hold evictions back; return when the wait ends at the latest, None: it is known."""
        request = self._requests.begin(group, evictions, now, self.wait_s, str(self.count))
        if request is None:
            return None
        self.count += 1
        self.plans[group] = plan
        return min(plan.answers_at, request.deadline)

    def is_answered(self, group: GroupKey, now: float) -> bool:
        """Return whether a gang has written its save."""
        return group in self.plans and now >= self.plans[group].answers_at

    def transfer(self, result: CycleResult, is_waiting: Callable[[str], bool]) -> None:
        """Change the beneficiaries of evictions, where reservations went to other gangs."""
        self._requests.transfer(result.displaced, result.awaited, is_waiting)

    def settle(
        self,
        now: float,
        is_waiting: Callable[[str], bool],
        is_present: Callable[[PodEviction], bool],
    ) -> Iterable[SaveOutcome]:
        """Return what is to be done now."""
        return self._requests.settle(
            now,
            answered_id=lambda group: (
                self._requests.open[group].id if self.is_answered(group, now) else ""
            ),
            is_waiting=is_waiting,
            is_present=is_present,
        )
