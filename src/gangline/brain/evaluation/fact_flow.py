"""What the collector has observed flows into the history, and what is too old leaves it."""

import time
from collections.abc import Callable

from gangline.api.jobs.training_facts import FACTS_MAX_SEGMENTS
from gangline.brain.collection.collector import Collector
from gangline.brain.evaluation.history import JobHistory

PRUNE_S = 3600.0
MAX_SKEW_S = 60.0
"""With a clock that differs more from the API server's, nothing is deleted by age."""


class FactFlow:
    """Writes the facts of one cluster, whether or not anything is advised on them."""

    def __init__(
        self,
        collector: Collector,
        history: JobHistory,
        skew_s: Callable[[], float | None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._collector, self._history = collector, history
        self._skew_s, self._clock = skew_s, clock
        self._earlier_loaded: set[str] = set()
        self._pruned_at: float | None = None

    async def store(self) -> None:
        """Write what has changed; it stays in memory while the database is away."""
        for uid, watched in list(self._collector.jobs.items()):
            # Runs of pods that an earlier process has watched keep their numbers.
            if uid in self._earlier_loaded:
                continue
            self._earlier_loaded.add(uid)
            earlier = await self._history.earlier(uid)
            for pod in earlier.pods if earlier else ():
                watched.observations.earlier[pod.role, pod.rank, pod.started_ms] = pod
            for segment in earlier.segments[-FACTS_MAX_SEGMENTS:] if earlier else ():
                watched.observations.segments.setdefault(segment.key, segment)
        self._earlier_loaded &= self._collector.jobs.keys()
        is_available = True
        for run in self._collector.changed_runs():
            self._history.add([run])
            # After a start each job is given completely, which is more than memory is for.
            if is_available and self._history.is_filling:
                is_available = await self._history.flush()
        if is_available:
            await self._history.flush()

    @property
    def may_delete(self) -> bool:
        """Whether the clock is right enough to delete by age."""
        skew = self._skew_s()
        return skew is not None and abs(skew) <= MAX_SKEW_S

    async def prune(self) -> None:
        """Delete what is older than the retention, once an hour."""
        now = time.monotonic()
        is_due = self._pruned_at is None or now - self._pruned_at >= PRUNE_S
        if is_due and self.may_delete:
            self._pruned_at = now
            await self._history.prune(round(self._clock() * 1000))
