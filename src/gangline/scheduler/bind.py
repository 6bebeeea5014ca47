"""The binder: binds complete gangs concurrently, and retries failed bindings.

A pod stays assumed on its node while its binding is tried. So no other pod takes the node, and the
gang is completed rather than split. Only when the API server keeps refusing does the pod become
pending again. Its gang then comes first in the next cycle, since its other pods run already.

Workers take bindings from one queue: a task per binding would cost a tenth of the binding. Slow
work (volumes, retries) continues in a task of its own.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from enum import Enum, auto

from gangline.kube.client import Client
from gangline.kube.errors import BadRequest, Conflict, Forbidden, Invalid, KubeError, NotFound
from gangline.scheduler.model import Binding
from gangline.scheduler.rush import Rush
from gangline.scheduler.state import ClusterState

log = logging.getLogger(__name__)

FIRST_RETRY_S, LAST_RETRY_S = 0.1, 5.0
GIVE_UP_AFTER = 6
"""Attempts before the pod becomes pending again: its node may be the cause."""
SETTLE_S, LONGEST_SETTLE_S = 1.0, 30.0
"""After a refusal the watch gets this long to show the cause before the pod becomes pending again.
The wait doubles each time, so that a pod which is always refused is not tried all the time.
"""
_FINAL = (NotFound, Conflict, Invalid, BadRequest, Forbidden)
"""Errors that a retry would only repeat."""


class _Outcome(Enum):
    """Result of one attempt."""

    BOUND = auto()
    AGAIN = auto()
    """It failed, and a retry may succeed."""
    REFUSED = auto()


class Binder:
    """Binds pods concurrently; its tasks run in the task group of the caller."""

    def __init__(  # noqa: PLR0913 - callbacks
        self,
        client: Client,
        state: ClusterState,
        tasks: asyncio.TaskGroup,
        *,
        at_once: int,
        bound: Callable[[Binding], None],
        released: Callable[[], None],
        prepare: Callable[[Binding], Awaitable[bool]] | None = None,
        rush: Rush | None = None,
    ) -> None:
        self._client = client
        self._state = state
        self._tasks = tasks
        self._at_once = at_once
        self._slots = asyncio.Semaphore(at_once)
        self._prepare, self._bound, self._released = prepare, bound, released
        self._line: deque[Binding] = deque()
        """Bindings that wait for a free worker."""
        self._workers = 0
        self.rush = rush or Rush()
        self._refused: dict[str, int] = {}
        """Number of consecutive refusals by uid of the pod."""

    def bind(self, bindings: Iterable[Binding]) -> None:
        """Assume the pods on their nodes now, and bind them in the background."""
        for binding in bindings:
            # Assumed before the first await: the next cycle must not see these resources as free.
            self._state.assume(binding.pod, binding.node)
            self.rush.begun()
            if self._prepare is not None and self._state.pods[binding.pod].claims:
                self._persist(binding, 1)
            else:
                self._line.append(binding)
        for _ in range(min(self._at_once - self._workers, len(self._line))):
            self._workers += 1
            self._tasks.create_task(self._work(), name="bind")

    async def _work(self) -> None:
        """Try each binding of the queue once."""
        while self._line:
            binding = self._line.popleft()
            outcome = await self._attempt(binding, 1)
            if outcome is _Outcome.BOUND:
                self.rush.ended()
            else:
                self._persist(binding, 2, outcome)
        self._workers -= 1

    def _persist(self, binding: Binding, attempt: int, outcome: _Outcome = _Outcome.AGAIN) -> None:
        """Continue a binding in a task of its own, after an attempt with this outcome."""
        work = self._carry_out(binding, attempt, outcome)
        self._tasks.create_task(work, name=f"bind {binding.pod}")

    async def _carry_out(self, binding: Binding, attempt: int, outcome: _Outcome) -> None:
        try:
            wait_s = FIRST_RETRY_S
            while outcome is _Outcome.AGAIN and attempt <= GIVE_UP_AFTER:
                if attempt > 1:
                    await asyncio.sleep(wait_s)
                    wait_s = min(LAST_RETRY_S, wait_s * 2)
                outcome = await self._attempt(binding, attempt)
                attempt += 1
        finally:
            self.rush.ended()
        if outcome is not _Outcome.BOUND:
            await self._settle(binding)
            self._state.unassume(binding.pod, binding.uid)
            self._released()

    async def _attempt(self, binding: Binding, attempt: int) -> _Outcome:
        """Bind a pod after its volumes are bound."""
        namespace, _, name = binding.pod.partition("/")
        try:
            # Volumes are bound outside of the semaphore: other pods are bound meanwhile.
            if self._prepare is not None and not await self._prepare(binding):
                return _Outcome.REFUSED
            async with self._slots:
                await self._client.bind(name, namespace, binding.node, uid=binding.uid)
        except KubeError as error:
            fields = {"pod": binding.pod, "node": binding.node, "attempt": attempt}
            log.warning("binding failed: %s", error, extra=fields)
            return _Outcome.REFUSED if isinstance(error, _FINAL) else _Outcome.AGAIN
        self._refused.pop(binding.uid, None)
        self._bound(binding)
        return _Outcome.BOUND

    async def _settle(self, binding: Binding) -> None:
        """Wait until the watch has had time to show why a binding was refused."""
        times = self._refused.get(binding.uid, 0)
        self._refused[binding.uid] = times + 1
        await asyncio.sleep(min(LONGEST_SETTLE_S, SETTLE_S * 2 ** min(times, 10)))
        pod = self._state.pods.get(binding.pod)
        if pod is None or pod.uid != binding.uid:
            del self._refused[binding.uid]
