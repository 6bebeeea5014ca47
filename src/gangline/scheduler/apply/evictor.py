"""The evictor: writes the reason on the pod, then evicts it through the eviction API.

The API server has the final decision on disruption budgets. A refused eviction is undone, and the
next cycle searches for other victims. Gangs that can save are asked first (``eviction_saves``);
their pods count as terminating meanwhile.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from gangline.api.failure import DISRUPTION_TARGET
from gangline.api.meta.objects import Condition
from gangline.api.resources import PODS
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import KubeError, NotFound
from gangline.kube.http.request import PatchKind
from gangline.scheduler.apply.eviction_saves import EvictionSaves
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.metrics import EVICTIONS
from gangline.scheduler.types.types import PodEviction

log = logging.getLogger(__name__)

REASON = "PreemptionByScheduler"
SETTLE_S = 5.0
"""Wait after a refusal: an immediate retry would be refused again."""


class Evictor:
    """Evicts pods concurrently; its tasks run in the task group of the caller."""

    def __init__(
        self,
        client: ApiClient,
        state: SchedulerCache,
        tasks: asyncio.TaskGroup,
        *,
        saves: EvictionSaves,
        evicted: Callable[[PodEviction], None],
        refused: Callable[[], None],
    ) -> None:
        self._client = client
        self._state = state
        self._tasks = tasks
        self._evicted, self._refused = evicted, refused
        self._saves = saves
        saves.evict, saves.withdraw = self._start, self._undo

    def evict(self, evictions: Iterable[PodEviction]) -> None:
        """Count the pods as terminating from now on, and evict them in the background."""
        decided = list(evictions)
        for eviction in decided:
            self._state.evict(eviction.pod, eviction.uid)
        self._start(self._saves.hold_back(decided))

    def _start(self, evictions: Iterable[PodEviction]) -> None:
        for eviction in evictions:
            self._tasks.create_task(self._evict(eviction), name=f"evict {eviction.pod}")

    def _undo(self, evictions: Iterable[PodEviction]) -> None:
        for eviction in evictions:
            self._state.undo_eviction(eviction.pod, eviction.uid)
        self._refused()

    async def _evict(self, eviction: PodEviction) -> None:
        namespace, _, name = eviction.pod.partition("/")
        try:
            # The condition first: after the eviction the pod may be deleted at any time.
            await self._write_condition(name, namespace, eviction)
            await self._client.evict(name, namespace)
        except NotFound:
            return
        except KubeError as error:
            log.warning("eviction refused: %s", error, extra={"pod": eviction.pod})
            await asyncio.sleep(SETTLE_S)
            self._saves.eviction_undone(eviction)
            self._undo([eviction])
        else:
            fields = {"pod": eviction.pod, "for": eviction.beneficiary}
            log.info("evicted", extra=fields)
            EVICTIONS.inc()
            self._evicted(eviction)

    async def _write_condition(self, name: str, namespace: str, eviction: PodEviction) -> None:
        condition = Condition(
            type=DISRUPTION_TARGET,
            status="True",
            reason=REASON,
            message=f"Evicted: {eviction.reason}",
            last_transition_time=datetime.now(UTC).replace(microsecond=0),
        )
        # The uid protects a newer pod of the same name.
        body = {"metadata": {"uid": eviction.uid}, "status": {"conditions": [condition]}}
        await self._client.patch(
            PODS, name, body, namespace, kind=PatchKind.STRATEGIC, subresource="status"
        )
