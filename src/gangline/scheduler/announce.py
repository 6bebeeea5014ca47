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
from gangline.scheduler.model import Binding

log = logging.getLogger(__name__)

LONGEST_WAIT_S = 5.0
MOST_WAITING = 20_000
"""Further events are dropped: the API server accepts none, or hardly any."""


class Announcer:
    """Sends the Scheduled event of each bound pod.

    Args:
        events: sends the events.
        resting: set while no binding is in flight.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self, events: EventRecorder, resting: asyncio.Event, clock: Callable[[], float]
    ) -> None:
        self._events, self._resting, self._clock = events, resting, clock
        self._bound: asyncio.Queue[tuple[float, Binding]] = asyncio.Queue(MOST_WAITING)

    def bound(self, binding: Binding) -> None:
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
                async with asyncio.timeout(max(0.0, since + LONGEST_WAIT_S - self._clock())):
                    await self._resting.wait()
            message = f"Successfully assigned {binding.pod} to {binding.node}"
            self._events.event(_reference(binding), "Normal", "Scheduled", message)
            await self._events.settled()


def _reference(binding: Binding) -> ObjectReference:
    namespace, _, name = binding.pod.partition("/")
    return ObjectReference(
        kind="Pod", api_version="v1", namespace=namespace, name=name, uid=binding.uid
    )
