"""Deletion of events after their time to live."""

import asyncio
import contextlib
import logging
from datetime import datetime, timedelta

from gangline.api.meta.objects import Object
from gangline.api.meta.resource import Resource
from gangline.kube.errors import ApiError, NotFound
from gangline.local.controllers.context import ControllerContext, current_time

log = logging.getLogger(__name__)


class _EventTimes(Object):
    """The time stamps of an event."""

    last_timestamp: datetime | None = None
    event_time: datetime | None = None


EVENT_TIMES: Resource[_EventTimes] = Resource(_EventTimes, "", "v1", "events", "Event")


class EventTtlController:
    """Deletes events that are older than their time to live."""

    def __init__(self, context: ControllerContext) -> None:
        self._client = context.client
        self._time_to_live = timedelta(seconds=context.settings.event_ttl_s)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(min(60.0, self._time_to_live.total_seconds() / 2))
            try:
                await self._expire()
            except ApiError as error:
                log.debug("events not expired", extra={"error": str(error)})

    async def _expire(self) -> None:
        oldest = current_time() - self._time_to_live
        for event in (await self._client.list(EVENT_TIMES)).items:
            latest = event.last_timestamp or event.event_time or event.metadata.creation_timestamp
            if latest is not None and latest < oldest:
                with contextlib.suppress(NotFound):
                    await self._client.delete(
                        EVENT_TIMES, event.metadata.name, event.metadata.namespace
                    )
