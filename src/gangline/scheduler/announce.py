"""Reports results: conditions of pod groups and pods, and events, written only when they change.

An event costs the API server and this process as much as the binding that it reports. Therefore
events wait until no binding is in flight, for at most some seconds. They are sent one by one, so
that the client never drops one for lack of a free slot.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from gangline.api.reference import ObjectReference
from gangline.kube.events import EventRecorder
from gangline.scheduler.model import PodBinding

log = logging.getLogger(__name__)

MAX_EVENT_DELAY_S = 5.0
MAX_QUEUED_EVENTS = 20_000
"""Further events are dropped: the API server accepts none, or hardly any."""


class ScheduledEventSender:
    """Sends the Scheduled event of each bound pod.

    Args:
        events: sends the events.
        resting: set while no binding is in flight.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self, events: EventRecorder, resting: asyncio.Event, clock: Callable[[], float]
    ) -> None:
        self._events, self._idle, self._clock = events, resting, clock
        self._bound: asyncio.Queue[tuple[float, PodBinding]] = asyncio.Queue(MAX_QUEUED_EVENTS)

    def add_binding(self, binding: PodBinding) -> None:
        """Queue the event of a bound pod; never waits."""
        try:
            self._bound.put_nowait((self._clock(), binding))
        except asyncio.QueueFull:
            log.debug("event dropped: the queue is full", extra={"pod": binding.pod})

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            since, binding = await self._bound.get()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, since + MAX_EVENT_DELAY_S - self._clock())):
                    await self._idle.wait()
            message = f"Successfully assigned {binding.pod} to {binding.node}"
            self._events.event(_binding_reference(binding), "Normal", "Scheduled", message)
            await self._events.flush()


def _binding_reference(binding: PodBinding) -> ObjectReference:
    namespace, _, name = binding.pod.partition("/")
    return ObjectReference(
        kind="Pod", api_version="v1", namespace=namespace, name=name, uid=binding.uid
    )
