"""Stores reservations as PodGroup annotations, so that a restarted scheduler keeps them."""

import asyncio
import logging
from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from gangline.api.resources import POD_GROUPS
from gangline.api.volcano.scheduling import (
    BACKFILLS_FOR_ANNOTATION,
    RESERVED_ANNOTATION,
    PodGroup,
    ReservedNodesAnnotation,
)
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import KubeError, NotFound
from gangline.scheduler.types.types import GroupKey, NodeName, PodGroupInfo, PodKey, Reservation

log = logging.getLogger(__name__)

RETRY_S = 5.0


def read_reservation(group: PodGroup) -> Reservation | None:
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
    places = tuple(
        (PodKey(f"{namespace}/{pod}"), NodeName(node))
        for pod, node in sorted(reserved.nodes.items())
    )
    return Reservation(places, reserved.cleared, since.timestamp())


def encode_reservation(promise: Reservation) -> str:
    """Return the annotation value of a reservation."""
    reserved = ReservedNodesAnnotation(
        since=datetime.fromtimestamp(promise.created_at, UTC),
        nodes={pod.partition("/")[2]: node for pod, node in promise.nodes},
        cleared=promise.preempting,
    )
    return msgspec.json.encode(reserved).decode()


class ReservationStore:
    """Writes changed reservations in the background, one group after the other."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._stored: dict[GroupKey, Reservation] = {}
        self._desired: dict[GroupKey, Reservation] = {}
        self._lodgers: dict[GroupKey, str] = {}
        """Backfilled gangs whose owner has not been written."""
        self._written: set[GroupKey] = set()
        """Backfilled gangs that were written, though the watch may not show it yet."""
        self._changed = asyncio.Event()

    def add_stored(self, group: GroupKey, promise: Reservation) -> None:
        """Take over a reservation that is stored already."""
        self._stored[group] = promise

    def store(
        self,
        promises: Mapping[str, Reservation],
        lodgers: Mapping[GroupKey, str],
        groups: Mapping[GroupKey, PodGroupInfo],
    ) -> None:
        """Store exactly these reservations of groups, and the owners of backfilled gangs."""
        self._written &= lodgers.keys()
        for key, host in lodgers.items():
            if key not in self._written and key in groups and groups[key].backfills_for != host:
                self._lodgers[key] = host
                self._changed.set()
        desired = {key: promises[key] for name in promises if (key := GroupKey(name)) in groups}
        if desired != self._desired or self._stored.keys() - desired.keys():
            self._desired = desired
            self._changed.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._write_lodgers()
            for key in sorted(self._stored.keys() | self._desired.keys()):
                promise = self._desired.get(key)
                if self._stored.get(key) != promise and not await self._write(key, promise):
                    await asyncio.sleep(RETRY_S)
                    self._changed.set()

    async def _write_lodgers(self) -> None:
        """Write the owners of backfilled gangs, which a restarted scheduler must know."""
        for key, host in list(self._lodgers.items()):
            namespace, _, name = key.partition("/")
            body = {"metadata": {"annotations": {BACKFILLS_FOR_ANNOTATION: host}}}
            try:
                await self._client.patch(POD_GROUPS, name, body, namespace)
            except NotFound:
                pass
            except KubeError as error:
                log.warning("owner of backfilled gang not stored: %s", error, extra={"group": key})
                continue  # the next cycle requests it again
            self._lodgers.pop(key)
            self._written.add(key)

    async def _write(self, key: GroupKey, promise: Reservation | None) -> bool:
        namespace, _, name = key.partition("/")
        value = None if promise is None else encode_reservation(promise)
        body = {"metadata": {"annotations": {RESERVED_ANNOTATION: value}}}
        try:
            await self._client.patch(POD_GROUPS, name, body, namespace)
        except NotFound:
            self._stored.pop(key, None)
            self._desired.pop(key, None)
            return True
        except KubeError as error:
            log.warning("reservation not stored: %s", error, extra={"group": key})
            return False
        if promise is None:
            self._stored.pop(key, None)
        else:
            self._stored[key] = promise
        return True
