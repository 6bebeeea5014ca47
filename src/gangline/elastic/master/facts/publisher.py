"""Publishes facts when a segment closes, at most once a minute, and at the end of the job.

Publishing never delays the master: a sink that fails logs it once, and the job continues. It gets
the facts again after a pause, also if they have not changed meanwhile.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from gangline.elastic.master.facts.collector import FactsCollector
from gangline.elastic.master.segments.document import JobIdentity, encode_facts

log = logging.getLogger(__name__)

PUBLISH_EVERY_S = 60.0
CHECK_EVERY_S = 1.0
RETRY_S = (5.0, PUBLISH_EVERY_S)
"""Shortest and longest pause after a sink has failed."""
END_TIMEOUT_S = 2.0
"""Maximum time for publishing when the master ends."""


class FactsSink(Protocol):
    """A place to which facts are published."""

    async def publish(self, facts: bytes) -> bool:
        """Publish the JSON of all facts. Errors are logged, not raised; False: try again."""
        ...


class FactsPublisher:
    """Publishes the facts of one job to all sinks."""

    def __init__(
        self, job: JobIdentity, collector: FactsCollector, sinks: Sequence[FactsSink]
    ) -> None:
        self._job, self._collector, self._sinks = job, collector, sinks
        self._every_s = min(PUBLISH_EVERY_S, collector.segment_s)
        # Segments may have been closed before this publisher exists.
        self._published = dict.fromkeys(range(len(sinks)), 0)
        self._not_before = 0.0
        self._retry_s = RETRY_S[0]

    async def run(self, is_over: asyncio.Event) -> None:
        """Publish changes, for ever. ``is_over`` is set when all workers have succeeded."""
        loop, was_over = asyncio.get_running_loop(), False
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            self._collector.check()
            if is_over.is_set() and not was_over:
                was_over, self._not_before = True, 0.0
                self._collector.finish()
            if self._late_sinks() and loop.time() >= self._not_before:
                is_published = await self._publish()
                self._not_before = loop.time() + self._pause_s(is_published)

    async def finish(self) -> None:
        """Publish the rest before the master ends."""
        self._collector.finish()
        if self._late_sinks():
            try:
                async with asyncio.timeout(END_TIMEOUT_S):
                    await self._publish()
            except TimeoutError:
                log.warning("the last facts of this job are not published")

    def _late_sinks(self) -> list[int]:
        changes = self._collector.changes
        return [number for number, seen in self._published.items() if seen != changes]

    async def _publish(self) -> bool:
        changes = self._collector.changes
        facts = encode_facts(self._job, self._collector.content())
        for number in self._late_sinks():
            if await self._sinks[number].publish(facts):
                self._published[number] = changes
        return all(seen == changes for seen in self._published.values())

    def _pause_s(self, is_published: bool) -> float:
        if is_published:
            self._retry_s = RETRY_S[0]
            return self._every_s
        pause_s = min(self._retry_s, self._every_s)
        self._retry_s = min(2 * self._retry_s, RETRY_S[1])
        return pause_s
