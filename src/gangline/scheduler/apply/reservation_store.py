"""Stores reservations as PodGroup annotations, so that a restarted scheduler keeps them.

The reservation of a gang of thousands of pods is too large for an annotation. It is not stored: a
scheduler that starts while its victims end decides again.
"""

import asyncio
import logging
from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from gangline.api.meta.objects import Object
from gangline.api.volcano.scheduling import RESERVED_ANNOTATION, ReservedNodesAnnotation
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import KubeError, NotFound
from gangline.scheduler.cache.kubernetes_groups import pod_group_resource
from gangline.scheduler.types import (
    GroupKey,
    NodeName,
    PodGroupInfo,
    PodKey,
    Reservation,
    group_name,
)

log = logging.getLogger(__name__)

RETRY_S = 5.0
MAX_STORED_BYTES = 200_000
"""The largest value that is stored: all annotations of an object take at most 256 KiB together."""


def read_reservation(group: Object) -> Reservation | None:
    """Return the reservation stored on a group; None: none, or one that cannot be parsed."""
    written = group.metadata.annotations.get(RESERVED_ANNOTATION)
    if not written:
        return None
    try:
        reserved = msgspec.json.decode(written, type=ReservedNodesAnnotation)
    except msgspec.DecodeError:
        return None
    since = reserved.since if reserved.since.tzinfo else reserved.since.replace(tzinfo=UTC)
    namespace = group.metadata.namespace
    nodes = tuple(
        (PodKey(f"{namespace}/{pod}"), NodeName(node))
        for pod, node in sorted(reserved.nodes.items())
    )
    return Reservation(nodes, reserved.cleared, since.timestamp())


def encode_reservation(reservation: Reservation) -> str:
    """Return the annotation value of a reservation."""
    reserved = ReservedNodesAnnotation(
        since=datetime.fromtimestamp(reservation.created_at, UTC),
        nodes={pod.partition("/")[2]: node for pod, node in reservation.nodes},
        cleared=reservation.preempting,
    )
    return msgspec.json.encode(reserved).decode()


class ReservationStore:
    """Writes changed reservations in the background, one group after the other."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._stored: dict[GroupKey, Reservation] = {}
        """Reservations that are stored, or are too large for that."""
        self._annotated: set[GroupKey] = set()
        """Groups with the annotation."""
        self._desired: dict[GroupKey, Reservation] = {}
        self._changed = asyncio.Event()

    def add_stored(self, group: GroupKey, reservation: Reservation) -> None:
        """Take over a reservation that is stored already."""
        self._stored[group] = reservation
        self._annotated.add(group)

    def store(
        self,
        reservations: Mapping[str, Reservation],
        groups: Mapping[GroupKey, PodGroupInfo],
    ) -> None:
        """Store exactly these reservations, as far as they belong to groups."""
        desired = {
            key: reservations[key] for name in reservations if (key := GroupKey(name)) in groups
        }
        if desired != self._desired or self._stored.keys() - desired.keys():
            self._desired = desired
            self._changed.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            for key in sorted(self._stored.keys() | self._desired.keys()):
                reservation = self._desired.get(key)
                if self._stored.get(key) != reservation and not await self._write(key, reservation):
                    await asyncio.sleep(RETRY_S)
                    self._changed.set()

    async def _write(self, key: GroupKey, reservation: Reservation | None) -> bool:
        namespace, name = group_name(key)
        value = None if reservation is None else encode_reservation(reservation)
        if value is not None and len(value) > MAX_STORED_BYTES:
            fields = {"group": key, "bytes": len(value)}
            log.debug("reservation not stored: too large", extra=fields)
            value = None
        if value is not None or key in self._annotated:
            body = {"metadata": {"annotations": {RESERVED_ANNOTATION: value}}}
            try:
                await self._client.patch(pod_group_resource(key), name, body, namespace)
            except NotFound:
                self._desired.pop(key, None)
                reservation = value = None
            except KubeError as error:
                log.warning("reservation not stored: %s", error, extra={"group": key})
                return False
        (self._annotated.discard if value is None else self._annotated.add)(key)
        if reservation is None:
            self._stored.pop(key, None)
        else:
            self._stored[key] = reservation
        return True
