"""The binder: binds complete gangs concurrently, and retries failed bindings.

A pod stays assumed on its node while its binding is tried. So no other pod takes the node, and the
gang is completed rather than split. Once the API server refuses, the pod is pending again and its
node free. Its gang is tried again after a pause, and then comes first if its other pods run.

Workers take bindings from one queue: a task per binding would cost a tenth of the binding. Slow
work (volumes, retries) continues in a task of its own.

The claims of all pods of a gang are bound before any of its pods: the volume that the cycle has
chosen is reserved, or one is provisioned for the node. The volume that was really bound is compared
with the node, because another controller may have bound the claim to another one. If a pod cannot
have its volumes on its node, or its devices (``apply.claim_binder``), all pods of the gang that are
bound with it are pending again.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from gangline.api.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import BadRequest, Conflict, Forbidden, Invalid, KubeError, NotFound
from gangline.scheduler.apply.throttle import BindingsInFlight
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.convert import SELECTED_NODE
from gangline.scheduler.plugins.volumes import ClaimInfo
from gangline.scheduler.types import (
    GangId,
    NodeInfo,
    PodBinding,
    RefusedBinding,
    single_pod_id,
)

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
_NO_VOLUMES: Mapping[str, str] = {}


Attempt = Callable[[int], Awaitable["_FailedAttempt | None"]]
"""Makes the attempt of this number."""


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
        prepare: Callable[[Sequence[PodBinding]], Awaitable[str]] | None = None,
        give_back: Callable[[PodBinding], None] | None = None,
        in_flight: BindingsInFlight | None = None,
    ) -> None:
        self._client = client
        self._state = state
        self._tasks = tasks
        self._at_once = at_once
        self._slots = asyncio.Semaphore(at_once)
        self._prepare, self._bound, self._released = prepare, bound, released
        self._devices_given_back = give_back
        self._queue: deque[PodBinding] = deque()
        """Bindings that wait for a free worker."""
        self._workers = 0
        self._drained = asyncio.Event()
        """Set while the queue is shorter than the number of workers."""
        self._drained.set()
        self.in_flight = in_flight or BindingsInFlight()

    def bind(
        self, bindings: Iterable[PodBinding], volumes: Mapping[str, str] = _NO_VOLUMES
    ) -> None:
        """Assume the pods on their nodes now, and bind them in the background.

        Args:
            volumes: the chosen volumes by claim (``CycleResult.volumes``).
        """
        with_claims: dict[GangId, list[PodBinding]] = {}
        listed = list(bindings)
        for binding in listed:
            # Assumed before the first await: the next cycle must not see these resources as free.
            self._state.assume(binding.pod, binding.node, volumes)
            self.in_flight.binding_started()
            pod = self._state.pods[binding.pod]
            if self._prepare is not None and (pod.claims or pod.device_claims):
                with_claims[_gang_of(binding)] = []
        for binding in listed:
            if with_claims and (gang := with_claims.get(_gang_of(binding))) is not None:
                gang.append(binding)
            else:
                self._queue.append(binding)
        for gang in with_claims.values():
            self._tasks.create_task(self._bind_after_volumes(gang), name=f"volumes {gang[0].pod}")
        self._start_workers()

    def _start_workers(self) -> None:
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
            failure = await _retry(lambda n: self._attempt(binding, n), attempt, failure)
        finally:
            self.in_flight.binding_ended()
        if failure is not None:
            self._give_back(binding, failure.message)

    async def _bind_after_volumes(self, gang: list[PodBinding]) -> None:
        """Bind the pods of a gang once all of their claims are bound, or none of them."""
        failure: _FailedAttempt | None = _FailedAttempt("stopped", True)
        try:
            failure = await _retry(lambda n: self._attempt_volumes(gang, n))
        finally:
            if failure is not None:
                for _ in gang:
                    self.in_flight.binding_ended()
        if failure is None:
            self._queue += gang
            self._start_workers()
        else:
            for binding in gang:
                self._give_back(binding, failure.message)

    async def _attempt_volumes(
        self, gang: Sequence[PodBinding], attempt: int
    ) -> _FailedAttempt | None:
        assert self._prepare is not None
        try:
            # Outside of the semaphore: other pods are bound meanwhile.
            why = await self._prepare(gang)
        except KubeError as error:
            return _failed_attempt(error, gang[0], attempt)
        return _FailedAttempt(why, True) if why else None

    async def _attempt(self, binding: PodBinding, attempt: int) -> _FailedAttempt | None:
        """Bind a pod; return None if it is bound."""
        namespace, _, name = binding.pod.partition("/")
        try:
            async with self._slots:
                await self._client.bind(name, namespace, binding.node, uid=binding.uid)
        except KubeError as error:
            return _failed_attempt(error, binding, attempt)
        self._state.refused_bindings.pop(binding.pod, None)
        self._bound(binding)
        return None

    def _give_back(self, binding: PodBinding, error: str) -> None:
        """Make a pod pending again: its node is free."""
        pause_s = self._refuse(binding, error)
        self._state.forget_assumed(binding.pod, binding.uid)
        if self._devices_given_back is not None:
            self._devices_given_back(binding)
        self._released(pause_s)

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


def _gang_of(binding: PodBinding) -> GangId:
    return GangId(binding.group) if binding.group is not None else single_pod_id(binding.pod)


async def _retry(
    attempt: Attempt, number: int = 1, failure: _FailedAttempt | None = None
) -> _FailedAttempt | None:
    """Try until it succeeds or is refused; return the last failure, None after success.

    Args:
        number: the number of the next attempt.
        failure: that of the attempt before.
    """
    wait_s = FIRST_RETRY_S
    while number <= MAX_ATTEMPTS and not (failure and failure.is_refusal):
        if number > 1:
            await asyncio.sleep(wait_s)
            wait_s = min(LAST_RETRY_S, wait_s * 2)
        failure = await attempt(number)
        if failure is None:
            return None
        number += 1
    return failure


def _failed_attempt(error: KubeError, binding: PodBinding, attempt: int) -> _FailedAttempt:
    fields = {"pod": binding.pod, "node": binding.node, "attempt": attempt}
    log.warning("binding failed: %s", error, extra=fields)
    return _FailedAttempt(str(error), isinstance(error, _FINAL_ERRORS))


class VolumeBinder:
    """Binds the claims of gangs on the nodes, and to the volumes, that a cycle has chosen."""

    def __init__(self, client: ApiClient, state: SchedulerCache) -> None:
        self._client, self._state = client, state
        self._changed = asyncio.Event()

    def notify_changed(self) -> None:
        """Check again: claims or volumes have changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def prepare(self, gang: Sequence[PodBinding]) -> str:
        """Wait until all claims of these pods are bound; return why they cannot be.

        An empty text means that they are, to volumes that the nodes of the pods reach.

        Raises:
            KubeError: a claim or volume cannot be written.
        """
        if not self._state.storage.synced:
            return ""
        progress = _VolumeProgress(self._state, gang)
        # Compared before anything is written: claims may have been bound since the cycle.
        if why := progress.refusal():
            return why
        for claim in progress.unbound_claims():
            if why := await self._choose(claim):
                return why
        try:
            async with asyncio.timeout(VOLUME_TIMEOUT_S):
                while True:
                    # Taken before the state is read, so that no change in between is missed.
                    changed = self._changed
                    if (why := progress.refusal()) or progress.is_complete():
                        return why
                    await changed.wait()
        except TimeoutError:
            names = ", ".join(claim.key for claim in progress.unbound_claims())
            return f"its volume claims were not bound within {VOLUME_TIMEOUT_S:g} s: {names}"

    async def _choose(self, claim: ClaimInfo) -> str:
        """Reserve the chosen volume for a claim, or request one for the node; return why it cannot
        be reserved.
        """
        assumed = self._state.storage.assumed.get(claim.key)
        namespace, _, name = claim.key.partition("/")
        if assumed is None:
            return f"no volume was chosen for claim {claim.key}"
        if assumed.volume:
            return await self._reserve_volume(assumed.volume, claim)
        if not claim.selected_node:
            metadata = {"uid": claim.uid, "annotations": {SELECTED_NODE: assumed.node}}
            await self._client.patch(
                PERSISTENT_VOLUME_CLAIMS, name, {"metadata": metadata}, namespace
            )
        return ""

    async def _reserve_volume(self, volume: str, claim: ClaimInfo) -> str:
        """Reserve a volume for a claim; the cluster's volume controller binds the two."""
        namespace, _, name = claim.key.partition("/")
        current = await self._client.get(PERSISTENT_VOLUMES, volume)
        taken = current.spec.claim_ref
        if taken is not None:
            if (taken.namespace, taken.name) == (namespace, name) and taken.uid in ("", claim.uid):
                return ""
            return f"volume {volume} was taken by claim {taken.namespace}/{taken.name}"
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
        await self._client.patch(PERSISTENT_VOLUMES, volume, body)
        return ""


class _VolumeProgress:
    """The claims of the pods of a gang, while they are being bound."""

    def __init__(self, state: SchedulerCache, gang: Sequence[PodBinding]) -> None:
        self._state, self._gang = state, gang
        self._asked: set[str] = set()
        """Claims that had a selected node, or their volume: a controller may withdraw it."""

    def unbound_claims(self) -> list[ClaimInfo]:
        return [claim for claim in self._claims() if not claim.volume]

    def is_complete(self) -> bool:
        """Return whether all claims are bound to existing volumes."""
        return all(claim.volume in self._state.storage.volumes for claim in self._claims())

    def _claims(self) -> list[ClaimInfo]:
        """Return the claims of all pods, each once."""
        state = self._state
        pods = [pod for b in self._gang if (pod := state.pods.get(b.pod)) is not None]
        keys = dict.fromkeys(key for pod in pods for key in pod.claims)
        return [state.storage.claims[key] for key in keys if key in state.storage.claims]

    def refusal(self) -> str:
        """Return why a pod cannot have its volumes on its node; empty: it may still have them."""
        for binding in self._gang:
            pod = self._state.pods.get(binding.pod)
            if pod is None or pod.uid != binding.uid or pod.is_terminating:
                return f"pod {binding.pod} was deleted before its volumes were bound"
            row = self._state.nodes.rows.get(binding.node)
            node = self._state.nodes.infos[row] if row is not None else None
            if node is None:
                return f"node {binding.node} was removed before its volumes were bound"
            for key in pod.claims:
                if why := self._claim_refusal(key, node):
                    return why
        return ""

    def _claim_refusal(self, key: str, node: NodeInfo) -> str:
        storage = self._state.storage
        claim, assumed = storage.claims.get(key), storage.assumed.get(key)
        if claim is None:
            return f"volume claim {key} was deleted"
        if claim.volume:
            volume = storage.volumes.get(claim.volume)
            if volume is None or volume.is_reachable_from(node):
                return ""
            return (
                f"volume claim {key} was bound to volume {volume.name}, which is not reached from "
                f"node {node.name}"
            )
        volume = storage.volumes.get(assumed.volume) if assumed is not None else None
        if volume is not None and volume.claim not in ("", key):
            return f"volume {volume.name} was taken by claim {volume.claim}"
        if claim.selected_node or (volume is not None and volume.claim == key):
            self._asked.add(key)
        elif key in self._asked:
            # A provisioner removes the selected node if it cannot provision there; the volume
            # controller removes the claim from a volume that it cannot bind.
            return f"no volume for claim {key} could be bound on node {node.name}"
        return ""
