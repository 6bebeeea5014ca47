"""Connects a master with the readers of its facts, and with the writers of tuning and requests.

Facts are published when a segment closes, at most once a minute, and at the end of the job. None of
it delays the master or fails it: a sink that fails logs it once, and gets the facts again after a
pause, also if they have not changed meanwhile.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gangline.elastic.master.facts.collector import FactsCollector
from gangline.elastic.master.facts.eviction_saves import EvictionSaveRequests, SaveRelay
from gangline.elastic.master.segments.document import ReportedJob, encode_facts
from gangline.elastic.protocol.messages import Tuning

if TYPE_CHECKING:
    from gangline.elastic.master.facts.cluster import JobConfigMaps

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
        self, job: ReportedJob, collector: FactsCollector, sinks: Sequence[FactsSink]
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


class PublishingService(Protocol):
    """The master, as far as publication needs it."""

    facts: FactsCollector
    eviction_saves: EvictionSaveRequests
    is_over: asyncio.Event

    def set_queue(self, queue: str) -> None: ...
    def set_tuning(self, tuning: Tuning) -> None: ...


@dataclass(slots=True)
class Publication:
    """Publishes facts and receives tuning while a master serves. It never delays the master."""

    job: ReportedJob
    sinks: Sequence[FactsSink]
    cluster: "JobConfigMaps | None" = None
    """Where tuning and requests to save before an eviction come from; a sink too."""
    _publisher: FactsPublisher | None = None

    async def run(self, service: PublishingService) -> None:
        """Publish and receive until it is cancelled. An unexpected error ends only this."""
        try:
            await self._run(service)
        except Exception:  # a defect here must not end the master, on which the training depends
            log.exception("facts of this job are no longer published")

    async def _run(self, service: PublishingService) -> None:
        if self.cluster is not None and (earlier := await self.cluster.published()) is not None:
            service.facts.load(earlier)
        self._publisher = FactsPublisher(self.job, service.facts, self.sinks)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._publisher.run(service.is_over))
            if self.cluster is not None:
                group.create_task(self.cluster.watch_tuning(service.set_tuning))
                self.cluster.queue_changed = service.set_queue
                group.create_task(SaveRelay(self.cluster, service.eviction_saves).run())

    async def finish(self) -> None:
        if self._publisher is not None:
            await self._publisher.finish()


@asynccontextmanager
async def open_publication(
    job: ReportedJob, *, in_cluster: bool, brain_url: str | None
) -> AsyncIterator[Publication | None]:
    """Open all destinations; None without any."""
    sinks: list[FactsSink] = []
    cluster = None
    async with AsyncExitStack() as stack:
        if brain_url:
            from gangline.elastic.master.facts.brain_client import BrainSink

            brain = BrainSink(brain_url)
            stack.push_async_callback(asyncio.to_thread, brain.close)
            sinks.append(brain)
        if in_cluster:
            from gangline.elastic.master.facts.cluster import cluster_facts

            cluster = await stack.enter_async_context(cluster_facts(job.namespace, job.name))
            sinks.append(cluster)
        yield Publication(job, sinks, cluster) if sinks else None
