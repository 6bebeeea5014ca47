"""What is done seldom: outdated plans, the retention of the history, trials of ended jobs."""

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from gangline.brain.collection.collector import Collector
from gangline.brain.evaluation.history import History
from gangline.brain.evaluation.job_state import decode_action, encode_action
from gangline.brain.guard.state import Verdict
from gangline.brain.publication.plans import Actuator

log = logging.getLogger(__name__)

CLEAN_UP_S = 600.0
PRUNE_S = 3600.0
MAX_SKEW_S = 60.0
"""With a clock that differs more from the API server's, nothing is deleted by age."""


class Chores:
    """Runs each chore when it is due."""

    def __init__(
        self,
        collector: Collector,
        history: History,
        actuator: Actuator,
        skew_s: Callable[[], float | None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._collector, self._history, self._actuator = collector, history, actuator
        self._skew_s, self._clock = skew_s, clock
        self._cleaned_at: float | None = None
        self._pruned_at: float | None = None

    async def run_due(self) -> None:
        """Run what is due."""
        now = time.monotonic()
        skew = self._skew_s()
        if skew is None or abs(skew) > MAX_SKEW_S:
            return
        if self._cleaned_at is None or now - self._cleaned_at >= CLEAN_UP_S:
            self._cleaned_at = now
            await self._clean_up()
        if self._pruned_at is None or now - self._pruned_at >= PRUNE_S:
            self._pruned_at = now
            await self._history.prune(round(self._clock() * 1000))

    async def _clean_up(self) -> None:
        now = datetime.fromtimestamp(self._clock(), UTC)
        deleted = await self._actuator.delete_outdated(self._collector.plans.items(), now)
        if deleted:
            log.info("finished plans were deleted", extra={"plans": deleted})
        await self._history.expire_advice(round(self._clock() * 1000))
        running = {job.meta.uid for job in self._collector.running()}
        for record in await self._history.open_actions():
            action = decode_action(record)
            if record.uid in running or action is None:
                continue
            # The job ended first: nothing can be concluded from it.
            ended = msgspec.structs.replace(
                action, verdict=Verdict.OVERTAKEN, judged_ms=round(self._clock() * 1000)
            )
            await self._history.update_action(encode_action(record, ended))
