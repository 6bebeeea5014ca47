"""Carries evictions out: says why on the pod, then asks the API server to let it go.

The API server has the last word on disruption budgets. What it refuses is taken back, and the next
decision looks for others.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from gangline.api.failure import DISRUPTED
from gangline.api.meta import Condition
from gangline.api.resources import PODS
from gangline.kube.client import Client
from gangline.kube.errors import KubeError, NotFound
from gangline.kube.request import PatchKind
from gangline.scheduler.metrics import EVICTIONS
from gangline.scheduler.model import Eviction
from gangline.scheduler.state import ClusterState

log = logging.getLogger(__name__)

REASON = "PreemptionByScheduler"
SETTLE_S = 5.0
"""After a refusal the pod is left alone for so long: asking again at once would get the same."""


class Evictor:
    """Evicts pods concurrently; the tasks live in the group that it is given."""

    def __init__(
        self,
        client: Client,
        state: ClusterState,
        tasks: asyncio.TaskGroup,
        *,
        evicted: Callable[[Eviction], None],
        refused: Callable[[], None],
    ) -> None:
        self._client = client
        self._state = state
        self._tasks = tasks
        self._evicted, self._refused = evicted, refused

    def evict(self, evictions: Iterable[Eviction]) -> None:
        """Count the pods as going from now on, and evict them in the background."""
        for eviction in evictions:
            self._state.evict(eviction.pod, eviction.uid)
            self._tasks.create_task(self._evict(eviction), name=f"evict {eviction.pod}")

    async def _evict(self, eviction: Eviction) -> None:
        namespace, _, name = eviction.pod.partition("/")
        try:
            await self._say_why(name, namespace, eviction)
            await self._client.evict(name, namespace)
        except NotFound:
            return
        except KubeError as error:
            log.warning("eviction refused: %s", error, extra={"pod": eviction.pod})
            await asyncio.sleep(SETTLE_S)
            self._state.pardon(eviction.pod, eviction.uid)
            self._refused()
        else:
            fields = {"pod": eviction.pod, "for": eviction.beneficiary}
            log.info("evicted", extra=fields)
            EVICTIONS.inc()
            self._evicted(eviction)

    async def _say_why(self, name: str, namespace: str, eviction: Eviction) -> None:
        condition = Condition(
            type=DISRUPTED,
            status="True",
            reason=REASON,
            message=f"Evicted: {eviction.reason}",
            last_transition_time=datetime.now(UTC).replace(microsecond=0),
        )
        # The uid makes sure that a newer pod of the same name is not meant.
        body = {"metadata": {"uid": eviction.uid}, "status": {"conditions": [condition]}}
        await self._client.patch(
            PODS, name, body, namespace, kind=PatchKind.STRATEGIC, subresource="status"
        )
