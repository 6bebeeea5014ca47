"""Connects a master with the readers of its facts and the writers of its tuning."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gangline.api.jobs.training_facts import TrainingFacts
from gangline.elastic.master.facts.collector import FactsCollector
from gangline.elastic.master.facts.publisher import FactsPublisher, FactsSink
from gangline.elastic.master.facts.save_relay import SaveCluster, SaveRelay, SavingService
from gangline.elastic.master.segments.document import JobIdentity
from gangline.elastic.protocol.messages import Tuning

log = logging.getLogger(__name__)


class TuningSource(Protocol):
    """The ConfigMaps of the job."""

    async def published(self) -> TrainingFacts | None:
        """Return the facts that an earlier master has published; None without any."""
        ...

    async def watch_tuning(self, changed: Callable[[Tuning], None]) -> None:
        """Pass each tuning to ``changed``, for ever."""
        ...


class PublishingService(Protocol):
    """The master, as far as publication needs it."""

    is_over: asyncio.Event

    @property
    def facts(self) -> FactsCollector:
        """The facts of the job."""
        ...

    @property
    def eviction_saves(self) -> SavingService:
        """Saves before an eviction."""
        ...

    def set_queue(self, queue: str) -> None:
        """Record the job's queue, for the metrics."""
        ...

    def set_tuning(self, tuning: Tuning) -> None:
        """Pass a tuning on to all nodes, unless it is older than the last one."""
        ...


@dataclass(slots=True)
class Publication:
    """Publishes facts and receives tuning while a master serves. It never delays the master."""

    job: JobIdentity
    sinks: Sequence[FactsSink]
    source: TuningSource | None = None
    cluster: SaveCluster | None = None
    """Where requests to save before an eviction come from."""
    _publisher: FactsPublisher | None = None

    async def run(self, service: PublishingService) -> None:
        """Publish and receive until it is cancelled. An unexpected error ends only this."""
        try:
            await self._run(service)
        except Exception:  # a defect here must not end the master, on which the training depends
            log.exception("facts of this job are no longer published")

    async def _run(self, service: PublishingService) -> None:
        if self.source is not None and (earlier := await self.source.published()) is not None:
            service.facts.load(earlier)
        self._publisher = FactsPublisher(self.job, service.facts, self.sinks)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._publisher.run(service.is_over))
            if self.source is not None:
                group.create_task(self.source.watch_tuning(service.set_tuning))
            if self.cluster is not None:
                self.cluster.queue_changed = service.set_queue
                group.create_task(SaveRelay(self.cluster, service.eviction_saves).run())

    async def finish(self) -> None:
        """Publish the rest before the master ends."""
        if self._publisher is not None:
            await self._publisher.finish()
