"""Event recorder: reports to users what happened to an object (``kubectl describe`` shows it).

Recording never delays or breaks a controller: ``event`` only enqueues, a task sends, and events
that cannot be sent are dropped. As in client-go, the correlator reduces their number in three ways:
an equal event increments the count of the previous one; many similar events of one object are
combined into one; and each object has a rate limit.
"""

import asyncio
import logging
import socket
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

import msgspec

from gangline.api.core.core import Event, EventSource
from gangline.api.core.reference import ObjectReference
from gangline.api.meta.objects import Object, ObjectMeta
from gangline.api.meta.resource import Resource
from gangline.api.resources import BUILT_IN_RESOURCES, CUSTOM_RESOURCES, EVENTS
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import ApiError, ConfigError, NotFound
from gangline.kube.rate_limit import TokenBucket

log = logging.getLogger(__name__)

MAX_MESSAGE = 1024
"""Maximum length of a message in Kubernetes."""
MAX_PENDING = 1000
MAX_REMEMBERED = 1024
"""Maximum number of remembered events. Each takes about 2 kB; a cluster has several recorders."""
SIMILAR_LIMIT = 10
"""From this number of different messages per object and reason on, they are combined."""
SIMILAR_WINDOW_S = 600.0
BURST, RATE = 25, 1 / 300
"""Rate limit per object, as in Kubernetes: a burst of 25, then one per five minutes."""
SEND_TIMEOUT_S = 10.0

_KINDS: dict[object, Resource[Any]] = {
    kind.type: kind for kind in (*BUILT_IN_RESOURCES, *CUSTOM_RESOURCES)
}


@dataclass(frozen=True, slots=True)
class PendingEvent:
    """An event that has not been sent."""

    involved_object: ObjectReference
    type: str
    reason: str
    message: str

    @property
    def aggregation_key(self) -> tuple[str, ...]:
        """Key of events that differ only in their message."""
        return (*_identity(self.involved_object), self.type, self.reason)


@dataclass(slots=True)
class _SimilarEvents:
    """Recent messages of one object with one reason."""

    since: float
    messages: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _SentEvent:
    """What the next update of a stored event needs."""

    name: str
    resource_version: str
    first_timestamp: datetime | None
    count: int


class EventCorrelator:
    """Decides about an event: drop it, create a new one, or increment a previous one's count."""

    def __init__(self, component: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._component = component
        self._clock = clock
        self._buckets: OrderedDict[tuple[str, ...], TokenBucket] = OrderedDict()
        self._similar: OrderedDict[tuple[str, ...], _SimilarEvents] = OrderedDict()
        self._sent: OrderedDict[tuple[str, ...], _SentEvent] = OrderedDict()

    def admit(self, note: PendingEvent) -> bool:
        """Whether the rate limit of the object admits one more event now."""
        identity = _identity(note.involved_object)
        bucket = self._buckets.pop(identity, None) or TokenBucket(RATE, BURST, clock=self._clock)
        _remember(self._buckets, identity, bucket)
        return bucket.try_take()

    def next_event(self, note: PendingEvent, now: datetime) -> Event:
        """Return the event to send: a new one, or an update (it then has a resource version)."""
        key, message = self._key(note)
        event = self._new_event(note, message, now)
        before = self._sent.get(key)
        if before is None:
            return event
        return msgspec.structs.replace(
            event,
            metadata=ObjectMeta(
                name=before.name,
                namespace=event.metadata.namespace,
                resource_version=before.resource_version,
            ),
            first_timestamp=before.first_timestamp,
            count=before.count + 1,
        )

    def record_sent(self, note: PendingEvent, event: Event) -> None:
        """Remember an event as the server stored it, for later counts."""
        stored = _SentEvent(
            event.metadata.name, event.metadata.resource_version, event.first_timestamp, event.count
        )
        _remember(self._sent, self._key(note)[0], stored)

    def forget(self, note: PendingEvent) -> None:
        """Forget an event that the server has deleted: the next one is a new event."""
        self._sent.pop(self._key(note)[0], None)

    def _key(self, note: PendingEvent) -> tuple[tuple[str, ...], str]:
        """Return the key under which an event is counted, and its message."""
        now = self._clock()
        similar = self._similar.pop(note.aggregation_key, None)
        if similar is None or now - similar.since > SIMILAR_WINDOW_S:
            similar = _SimilarEvents(now)
        _remember(self._similar, note.aggregation_key, similar)
        if len(similar.messages) < SIMILAR_LIMIT:
            similar.messages.add(note.message)
        if note.message in similar.messages:
            return (*note.aggregation_key, note.message), note.message
        return note.aggregation_key, f"(combined from similar events): {note.message}"[:MAX_MESSAGE]

    def _new_event(self, note: PendingEvent, message: str, now: datetime) -> Event:
        involved = note.involved_object
        # Events of cluster-scoped objects are in the default namespace, as in Kubernetes.
        namespace = involved.namespace or "default"
        name = f"{involved.name[:200]}.{time.time_ns():x}"
        return Event(
            metadata=ObjectMeta(name=name, namespace=namespace),
            involved_object=involved,
            type=note.type,
            reason=note.reason,
            message=message,
            source=EventSource(component=self._component),
            reporting_component=self._component,
            reporting_instance=socket.gethostname(),
            first_timestamp=now,
            last_timestamp=now,
            count=1,
        )


class EventRecorder:
    """Reports events of a component. Use as ``async with EventRecorder(...) as recorder``."""

    def __init__(
        self,
        client: ApiClient,
        component: str,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._now = now
        self._correlator = EventCorrelator(component, clock)
        self._pending: asyncio.Queue[PendingEvent] = asyncio.Queue(MAX_PENDING)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self.run(), name="event recorder")
        return self

    async def __aexit__(self, *_: object) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._pending.join()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def event(
        self, involved: Object | ObjectReference, type_: str, reason: str, message: str
    ) -> None:
        """Record that something happened to an object; never raises, never blocks.

        Args:
            involved: the object, or a reference to it.
            type_: ``Normal`` or ``Warning``.
            reason: one CamelCase word, always the same for the same kind of event.
            message: a sentence for users.
        """
        note = PendingEvent(object_reference(involved), type_, reason, message[:MAX_MESSAGE])
        if not self._correlator.admit(note):
            return
        try:
            self._pending.put_nowait(note)
        except asyncio.QueueFull:
            log.debug("event dropped: the queue is full", extra={"reason": reason})

    async def flush(self) -> None:
        """Wait until everything recorded so far was sent or dropped."""
        await self._pending.join()

    async def run(self) -> None:
        """Send recorded events until cancelled."""
        while True:
            note = await self._pending.get()
            try:
                async with asyncio.timeout(SEND_TIMEOUT_S):
                    await self._send(note)
            except (ApiError, ConfigError, TimeoutError) as error:
                log.debug("event dropped: %s", error, extra={"reason": note.reason})
            finally:
                self._pending.task_done()

    def _time(self) -> datetime:
        return self._now().replace(microsecond=0)

    async def _send(self, note: PendingEvent) -> None:
        event = self._correlator.next_event(note, self._time())
        namespace = event.metadata.namespace
        if event.metadata.resource_version:
            change = {
                "count": event.count,
                "lastTimestamp": event.last_timestamp,
                "message": event.message,
            }
            try:
                stored = await self._client.patch(EVENTS, event.metadata.name, change, namespace)
            except NotFound:
                # The server deletes events after an hour: create a new one.
                self._correlator.forget(note)
                event = self._correlator.next_event(note, self._time())
                stored = await self._client.create(EVENTS, event, namespace)
        else:
            stored = await self._client.create(EVENTS, event, namespace)
        self._correlator.record_sent(note, stored)


def object_reference(involved: Object | ObjectReference) -> ObjectReference:
    """Return a reference to an object, also to one whose kind is not set."""
    if isinstance(involved, ObjectReference):
        return involved
    resource = _KINDS.get(type(involved))
    metadata = involved.metadata
    return ObjectReference(
        kind=involved.kind or (resource.kind if resource else ""),
        api_version=involved.api_version or (resource.api_version if resource else ""),
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid,
        resource_version=metadata.resource_version,
    )


def _identity(involved: ObjectReference) -> tuple[str, ...]:
    return involved.kind, involved.namespace, involved.name, involved.uid, involved.field_path


def _remember(memory: OrderedDict[tuple[str, ...], Any], key: tuple[str, ...], value: Any) -> None:
    """Store a value in an LRU cache of limited size."""
    memory[key] = value
    memory.move_to_end(key)
    while len(memory) > MAX_REMEMBERED:
        memory.popitem(last=False)
