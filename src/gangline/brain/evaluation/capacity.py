"""How far jobs can grow: asked of the scheduler before a plan is written, and remembered a while.

The round divides free devices; CPU, memory, quotas and the limits of queues are the scheduler's
matter. Its trial placement reads the cluster, so it is asked only for growth that nothing else
holds.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from msgspec.structs import replace

from gangline.api.resource_list import CPU, MEMORY
from gangline.api.resources import PODS
from gangline.brain.advisers.advice import Advice, Reason, What, because
from gangline.brain.advisers.view import ClusterView
from gangline.brain.collection.collector import requests_by_node
from gangline.brain.guard.state import Bound
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import ApiError

log = logging.getLogger(__name__)

GrowthCheck: TypeAlias = Callable[[str, str, int], Awaitable[tuple[int, str]]]
"""For a gang (``namespace/name``), a role and a number of pods: how many of them would get nodes
now, and why not the others."""

USED_MS = 60_000
"""Requests on nodes are read again after this time."""


class NodeRequests:
    """What the pods of all nodes request: read for jobs with parameter servers only, as it takes
    a list of all pods.
    """

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._used: dict[str, list[int]] = {}
        self._read_ms: int | None = None

    async def applied(self, view: ClusterView, now_ms: int) -> ClusterView:
        if self._read_ms is None or not 0 <= now_ms - self._read_ms < USED_MS:
            try:
                pods = (await self._client.list(PODS)).items
            except ApiError as error:
                log.info("free CPU and memory of nodes are not known: %s", error)
            else:
                self._used = requests_by_node(pods, CPU, MEMORY)
            self._read_ms = now_ms
        used = {name: (cpu, memory) for name, (cpu, memory) in self._used.items()}
        nodes = (replace(node, used=used.get(node.name, (0, 0))) for node in view.nodes)
        return replace(view, nodes=tuple(nodes))


CAPACITY = "capacity"
"""Name of the limit that free capacity is."""
MEMORY_MS = 300_000


class FreeCapacity:
    """The largest sizes that jobs can have now, as far as the scheduler was asked."""

    def __init__(self, check: GrowthCheck | None) -> None:
        self._check = check
        self._limits: dict[str, tuple[int, int, Reason]] = {}
        """When the scheduler was asked, workers, and why not more, by uid of the job."""

    def bounds(self, uid: str, now_ms: int) -> tuple[Bound, ...]:
        """Return the limits of the number of workers that are known now."""
        at_ms, workers, _ = self._limits.get(uid, (None, 0, None))
        if at_ms is None or not 0 <= now_ms - at_ms <= MEMORY_MS:
            self._limits.pop(uid, None)
            return ()
        return (Bound(what=What.WORKERS, role="worker", high=workers, name=CAPACITY),)

    def reason(self, uid: str, held: Reason | None) -> Reason | None:
        """Return why a job is held, with the scheduler's reason if capacity is the limit."""
        if uid in self._limits and held and held.arguments.get("limit") == CAPACITY:
            return self._limits[uid][2]
        return held

    async def lacks(
        self, uid: str, group: str, advice: Advice, value: float, now_ms: int
    ) -> Reason | None:
        """Ask whether a growth fits; return why not, and remember how far it would."""
        was = advice.was
        if advice.what is not What.WORKERS or was is None or value <= was or self._check is None:
            return None
        count = round(value - was)
        try:
            fits, why = await self._check(group, advice.role or "worker", count)
        except (ApiError, ValueError) as error:
            log.info("growth is not checked: %s", error, extra={"podgroup": group})
            return None
        if fits >= count:
            return None
        workers = round(was) + fits
        reason = because("NoCapacity", workers=workers, why=why or "no node has room")
        self._limits[uid] = now_ms, workers, reason
        return reason
