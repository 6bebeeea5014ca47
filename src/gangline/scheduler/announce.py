"""Tells of pods that got their nodes, when there is nothing more urgent to send.

An event costs the API server and us as much as the binding that it tells of. So it waits until no
binding is under way, or some seconds at most where there always is one; then events go one by one,
each when the one before has gone, so that none is dropped for there being many.
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
"""Then further ones are dropped: the API server takes no events, or hardly any."""


class Announcer:
    """Sends an event for each pod that is bound.

    Args:
        events: where they go.
        resting: set while no binding is under way.
        clock: seconds that only go forward.
    """

    def __init__(
        self, events: EventRecorder, resting: asyncio.Event, clock: Callable[[], float]
    ) -> None:
        self._events, self._resting, self._clock = events, resting, clock
        self._bound: asyncio.Queue[tuple[float, Binding]] = asyncio.Queue(MOST_WAITING)

    def bound(self, binding: Binding) -> None:
        """Note that a pod has its node; never waits."""
        try:
            self._bound.put_nowait((self._clock(), binding))
        except asyncio.QueueFull:
            log.debug("event dropped: too many wait", extra={"pod": binding.pod})

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
