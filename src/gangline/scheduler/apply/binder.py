"""The binder: binds complete gangs concurrently, and retries failed bindings.

A pod stays assumed on its node while its binding is tried. So no other pod takes the node, and the
gang is completed rather than split. Once the API server refuses, the pod is pending again and its
node free. Its gang is tried again after a pause, and then comes first if its other pods run.

Workers take bindings from one queue: a task per binding would cost a tenth of the binding. Slow
work (volumes, retries) continues in a task of its own. A pod's claims are bound before the pod: an
existing volume is reserved, or one is provisioned for the node.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from gangline.api.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import BadRequest, Conflict, Forbidden, Invalid, KubeError, NotFound
from gangline.scheduler.apply.throttle import BindingsInFlight
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.convert import SELECTED_NODE
from gangline.scheduler.plugins.volumes import ClaimInfo, VolumeInfo
from gangline.scheduler.types import PodBinding, RefusedBinding

log = logging.getLogger(__name__)
FIRST_RETRY_S, LAST_RETRY_S = 0.1, 5.0
MAX_ATTEMPTS = 6
"""Attempts before the pod becomes pending again: its node may be the cause."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
"""After a refusal the pod is not tried for so long, so that the watch can show the cause. The pause
doubles each time.
"""
_FINAL_ERRORS = (NotFound, Conflict, Invalid, BadRequest, Forbidden)
"""Errors that a retry would only repeat."""
VOLUME_TIMEOUT_S = 600.0
"""Timeout for provisioning and binding a volume; kube-scheduler uses the same."""
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"


class _FailedAttempt(NamedTuple):
    """Why an attempt has failed, and whether a retry would fail too."""

    message: str
    is_refusal: bool


class Binder:
    """Binds pods concurrently; its tasks run in the task group of the caller."""

    def __init__(  # noqa: PLR0913 - callbacks
        self,
        client: ApiClient,
        state: SchedulerCache,
        tasks: asyncio.TaskGroup,
        *,
        at_once: int,
        bound: Callable[[PodBinding], None],
        released: Callable[[float], None],
        prepare: Callable[[PodBinding], Awaitable[bool]] | None = None,
        in_flight: BindingsInFlight | None = None,
    ) -> None:
        self._client = client
        self._state = state
        self._tasks = tasks
        self._at_once = at_once
        self._slots = asyncio.Semaphore(at_once)
        self._prepare, self._bound, self._released = prepare, bound, released
        self._queue: deque[PodBinding] = deque()
        """Bindings that wait for a free worker."""
        self._workers = 0
        self._drained = asyncio.Event()
        """Set while the queue is shorter than the number of workers."""
        self._drained.set()
        self.in_flight = in_flight or BindingsInFlight()

    def bind(self, bindings: Iterable[PodBinding]) -> None:
        """Assume the pods on their nodes now, and bind them in the background."""
        for binding in bindings:
            # Assumed before the first await: the next cycle must not see these resources as free.
            self._state.assume(binding.pod, binding.node)
            self.in_flight.binding_started()
            if self._prepare is not None and self._state.pods[binding.pod].claims:
                self._continue_in_task(binding, 1)
            else:
                self._queue.append(binding)
        for _ in range(min(self._at_once - self._workers, len(self._queue))):
            self._workers += 1
            self._tasks.create_task(self._work(), name="bind")
        if len(self._queue) > 2 * self._at_once:
            self._drained.clear()

    async def wait_until_drained(self, timeout_s: float) -> None:
        """Wait until the workers need further bindings soon, for at most ``timeout_s`` seconds.

        Until then further bindings would only wait in the queue.
        """
        if not self._drained.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._drained.wait()

    async def _work(self) -> None:
        """Try each binding of the queue once."""
        while self._queue:
            binding = self._queue.popleft()
            if len(self._queue) == self._at_once:
                self._drained.set()
            failure = await self._attempt(binding, 1)
            if failure is None:
                self.in_flight.binding_ended()
            else:
                self._continue_in_task(binding, 2, failure)
        self._workers -= 1

    def _continue_in_task(
        self, binding: PodBinding, attempt: int, failure: _FailedAttempt | None = None
    ) -> None:
        """Continue a binding in a task of its own; ``failure`` is that of the attempt before."""
        work = self._bind_with_retries(binding, attempt, failure)
        self._tasks.create_task(work, name=f"bind {binding.pod}")

    async def _bind_with_retries(
        self, binding: PodBinding, attempt: int, failure: _FailedAttempt | None
    ) -> None:
        """Try until the pod is bound or refused; make it pending if it is refused."""
        try:
            wait_s = FIRST_RETRY_S
            while attempt <= MAX_ATTEMPTS and not (failure and failure.is_refusal):
                if attempt > 1:
                    await asyncio.sleep(wait_s)
                    wait_s = min(LAST_RETRY_S, wait_s * 2)
                failure = await self._attempt(binding, attempt)
                if failure is None:
                    break
                attempt += 1
        finally:
            self.in_flight.binding_ended()
        if failure is not None:
            pause_s = self._refuse(binding, failure.message)
            self._state.forget_assumed(binding.pod, binding.uid)
            self._released(pause_s)

    async def _attempt(self, binding: PodBinding, attempt: int) -> _FailedAttempt | None:
        """Bind a pod after its volumes are bound; return None if it is bound."""
        namespace, _, name = binding.pod.partition("/")
        try:
            # Volumes are bound outside of the semaphore: other pods are bound meanwhile.
            if self._prepare is not None and not await self._prepare(binding):
                return _FailedAttempt("its volume claims cannot be bound for this node", True)
            async with self._slots:
                await self._client.bind(name, namespace, binding.node, uid=binding.uid)
        except KubeError as error:
            fields = {"pod": binding.pod, "node": binding.node, "attempt": attempt}
            log.warning("binding failed: %s", error, extra=fields)
            return _FailedAttempt(str(error), isinstance(error, _FINAL_ERRORS))
        self._state.refused_bindings.pop(binding.pod, None)
        self._bound(binding)
        return None

    def _refuse(self, binding: PodBinding, error: str) -> float:
        """Record that a binding was refused; return for how many seconds the pod is not tried."""
        pod = self._state.pods.get(binding.pod)
        if pod is None or pod.uid != binding.uid:
            return 0.0
        former = self._state.refused_bindings.get(binding.pod)
        times = former.times if former is not None and former.uid == binding.uid else 0
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(times, 10))
        self._state.refused_bindings[binding.pod] = RefusedBinding(
            binding.uid,
            times + 1,
            time.time() + pause_s,
            f"Binding {binding.pod} to {binding.node} was refused: {error}. It is tried again, "
            f"with pauses of up to {LONGEST_PAUSE_S:g} s.",
        )
        return pause_s


class VolumeBinder:
    """Binds the claims of pods on the nodes that a cycle has chosen."""

    def __init__(self, client: ApiClient, state: SchedulerCache) -> None:
        self._client, self._state = client, state
        self._changed = asyncio.Event()

    def notify_changed(self) -> None:
        """Check again: claims or volumes have changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def prepare(self, binding: PodBinding) -> bool:
        """Wait until all claims of a pod are bound; return whether they are.

        False means that they cannot be bound on this node: the pod becomes pending again.

        Raises:
            KubeError: a claim or volume cannot be written.
        """
        pod = self._state.pods.get(binding.pod)
        if pod is None or not pod.claims or not self._state.storage.synced:
            return True
        for claim in self._state.storage.unbound_claims(pod):
            if not await self._choose(claim, binding):
                return False
        try:
            async with asyncio.timeout(VOLUME_TIMEOUT_S):
                return await self._wait_until_bound(binding)
        except TimeoutError:
            log.warning("volumes not bound in time", extra={"pod": binding.pod})
            return False

    async def _choose(self, claim: ClaimInfo, binding: PodBinding) -> bool:
        """Reserve a free volume for a claim, or request one; False: neither is possible."""
        row = self._state.nodes.rows.get(binding.node)
        node = self._state.nodes.infos[row] if row is not None else None
        if node is None:
            return False
        storage = self._state.storage
        if (volume := storage.volume_for(claim, node)) is not None:
            return volume.claim == claim.key or await self._reserve_volume(volume, claim)
        if not storage.can_provision(claim):
            return False
        if claim.selected_node != binding.node:
            namespace, _, name = claim.key.partition("/")
            metadata = {"uid": claim.uid, "annotations": {SELECTED_NODE: binding.node}}
            await self._client.patch(
                PERSISTENT_VOLUME_CLAIMS, name, {"metadata": metadata}, namespace
            )
        return True

    async def _reserve_volume(self, volume: VolumeInfo, claim: ClaimInfo) -> bool:
        """Reserve a volume for a claim; the cluster's volume controller binds the two.

        Return False if another writer was faster.
        """
        namespace, _, name = claim.key.partition("/")
        current = await self._client.get(PERSISTENT_VOLUMES, volume.name)
        taken = current.spec.claim_ref
        if taken is not None:
            return (taken.namespace, taken.name) == (namespace, name)
        owner = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": namespace,
            "name": name,
            "uid": claim.uid,
        }
        body = {
            # A conflict if another writer has changed the volume since.
            "metadata": {
                "resourceVersion": current.metadata.resource_version,
                "annotations": {BOUND_BY_CONTROLLER: "yes"},
            },
            "spec": {"claimRef": owner},
        }
        await self._client.patch(PERSISTENT_VOLUMES, volume.name, body)
        return True

    async def _wait_until_bound(self, binding: PodBinding) -> bool:
        """Wait until all claims of a pod are bound; return False if the pod or the node selection
        is gone.
        """
        asked: set[str] = set()
        while True:
            # Taken before the state is read, so that no change in between is missed.
            changed = self._changed
            pod = self._state.pods.get(binding.pod)
            if pod is None or pod.uid != binding.uid:
                return False
            pending = self._state.storage.unbound_claims(pod)
            if not pending and all(key in self._state.storage.claims for key in pod.claims):
                return True
            for claim in pending:
                if claim.selected_node == binding.node:
                    asked.add(claim.key)
                elif claim.key in asked:
                    # A provisioner removes the selected node if it cannot provision there.
                    return False
            await changed.wait()
