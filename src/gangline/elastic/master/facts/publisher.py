"""Publishes facts when a segment closes, at most once a minute, and at the end of the job.

Publishing never delays the master: a sink that fails logs it once, and the job continues.
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
END_TIMEOUT_S = 2.0
"""Maximum time for publishing when the master ends."""


class FactsSink(Protocol):
    """A place to which facts are published."""

    async def publish(self, facts: bytes) -> None:
        """Publish the JSON of all facts. Errors are logged, not raised."""
        ...


class FactsPublisher:
    """Publishes the facts of one job to all sinks."""

    def __init__(
        self, job: JobIdentity, collector: FactsCollector, sinks: Sequence[FactsSink]
    ) -> None:
        self._job, self._collector, self._sinks = job, collector, sinks
        self._every_s = min(PUBLISH_EVERY_S, collector.segment_s)
        self._published = 0  # segments may have been closed before this publisher exists
        self._not_before = 0.0

    async def run(self, is_over: asyncio.Event) -> None:
        """Publish changes, for ever. ``is_over`` is set when all workers have succeeded."""
        loop, was_over = asyncio.get_running_loop(), False
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            self._collector.check()
            if is_over.is_set() and not was_over:
                was_over, self._not_before = True, 0.0
                self._collector.finish()
            if self._collector.changes != self._published and loop.time() >= self._not_before:
                self._not_before = loop.time() + self._every_s
                await self._publish()

    async def finish(self) -> None:
        """Publish the rest before the master ends."""
        self._collector.finish()
        if self._collector.changes != self._published:
            try:
                async with asyncio.timeout(END_TIMEOUT_S):
                    await self._publish()
            except TimeoutError:
                log.warning("the last facts of this job are not published")

    async def _publish(self) -> None:
        self._published = self._collector.changes
        facts = encode_facts(self._job, self._collector.content())
        for sink in self._sinks:
            await sink.publish(facts)
