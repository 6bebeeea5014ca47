"""Carries bindings out: a whole gang at once, and what fails again until it holds.

A pod stays assumed on its node while its binding is tried, so nobody takes its place, and the
gang is completed rather than broken up. Only when the API server insists does the pod go back
to waiting; its gang then comes first in the next decision, since the rest of it runs already.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from gangline.kube.client import Client
from gangline.kube.errors import BadRequest, Conflict, Forbidden, Invalid, KubeError, NotFound
from gangline.scheduler.model import Binding
from gangline.scheduler.state import ClusterState

log = logging.getLogger(__name__)

FIRST_RETRY_S, LAST_RETRY_S = 0.1, 5.0
GIVE_UP_AFTER = 6
"""Attempts before the pod is decided again: its node may be at fault."""
SETTLE_S, LONGEST_SETTLE_S = 1.0, 30.0
"""After a refusal the watch is given this long to show why, before the pod waits again; longer
each time, since a pod that the API server keeps refusing would else be decided without end."""
_FINAL = (NotFound, Conflict, Invalid, BadRequest, Forbidden)
"""Refusals that another attempt would only repeat."""


class Binder:
    """Binds pods concurrently; the tasks live in the group that it is given."""

    def __init__(
        self,
        client: Client,
        state: ClusterState,
        tasks: asyncio.TaskGroup,
        *,
        at_once: int,
        bound: Callable[[Binding], None],
        released: Callable[[], None],
        prepare: Callable[[Binding], Awaitable[bool]] | None = None,
    ) -> None:
        self._client = client
        self._state = state
        self._tasks = tasks
        self._slots = asyncio.Semaphore(at_once)
        self._prepare, self._bound, self._released = prepare, bound, released
        self._under_way = 0
        self.resting = asyncio.Event()
        """Set while no binding is under way."""
        self.resting.set()
        self._refused: dict[str, int] = {}
        """How often in a row, by uid of the pod."""

    def bind(self, bindings: Iterable[Binding]) -> None:
        """Assume the pods on their nodes now, and bind them in the background."""
        for binding in bindings:
            self._state.assume(binding.pod, binding.node)
            self._under_way += 1
            self.resting.clear()
            self._tasks.create_task(self._bind(binding), name=f"bind {binding.pod}")

    async def _bind(self, binding: Binding) -> None:
        try:
            settled = await self._attempt(binding)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self.resting.set()
        if not settled:
            await self._settle(binding)
            self._state.unassume(binding.pod, binding.uid)
            self._released()

    async def _attempt(self, binding: Binding) -> bool:
        """Bind a pod; False: it is to be decided again."""
        namespace, _, name = binding.pod.partition("/")
        wait_s = FIRST_RETRY_S
        for attempt in range(1, GIVE_UP_AFTER + 1):
            try:
                # What takes long is not done in a slot: other pods are bound meanwhile.
                if self._prepare is not None and not await self._prepare(binding):
                    break
                async with self._slots:
                    await self._client.bind(name, namespace, binding.node, uid=binding.uid)
            except KubeError as error:
                fields = {"pod": binding.pod, "node": binding.node, "attempt": attempt}
                log.warning("binding failed: %s", error, extra=fields)
                if isinstance(error, _FINAL):
                    break
                await asyncio.sleep(wait_s)
                wait_s = min(LAST_RETRY_S, wait_s * 2)
            else:
                self._refused.pop(binding.uid, None)
                self._bound(binding)
                return True
        return False

    async def _settle(self, binding: Binding) -> None:
        """Wait until the watch has had time to show why a binding was refused."""
        times = self._refused.get(binding.uid, 0)
        self._refused[binding.uid] = times + 1
        await asyncio.sleep(min(LONGEST_SETTLE_S, SETTLE_S * 2 ** min(times, 10)))
        pod = self._state.pods.get(binding.pod)
        if pod is None or pod.uid != binding.uid:
            del self._refused[binding.uid]
