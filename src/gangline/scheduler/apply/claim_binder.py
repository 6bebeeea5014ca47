"""Writes the devices that a cycle has chosen into the claims of pods, before the pods are bound.

A claim gets a finalizer, so that it stays while pods use it, then its allocation together with the
pod that it is reserved for. Every write carries the claim's resourceVersion: another writer's
change leads to another attempt, and a claim that got other devices to a refusal. If a pod of the
gang cannot have its devices, or its binding fails, its reservations are given back; a claim without
reservations loses its devices. A scheduler that dies in between leaves claims whose consumers are
all pending; the next cycle overwrites them.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from gangline.api.core.devices import (
    FINALIZER,
    RESOURCE_CLAIMS,
    DeviceConfiguration,
    ExactDeviceRequest,
    RequestedDevices,
    ResourceClaim,
    ResourceClaimStatus,
)
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import Conflict, KubeError, NotFound
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.types import ClaimAllocation, NodeTerm, PodBinding

log = logging.getLogger(__name__)
MAX_CONFLICTS = 5
"""Attempts to write a claim that others change at the same time."""
AT_ONCE = 16
"""Number of claims that are written concurrently."""


class DeviceClaimBinder:
    """Allocates and reserves the claims of devices of pods that are being bound.

    Args:
        configuration: what the devices of a class are configured with.
    """

    def __init__(
        self,
        client: ApiClient,
        state: SchedulerCache,
        tasks: asyncio.TaskGroup,
        configuration: Callable[[str], Sequence[DeviceConfiguration]],
    ) -> None:
        self._client, self._state, self._tasks = client, state, tasks
        self._configuration = configuration
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def prepare(self, gang: Sequence[PodBinding]) -> str:
        """Write the claims of these pods; return why that is not possible.

        Raises:
            KubeError: a claim cannot be written.
        """
        users: dict[str, list[PodBinding]] = {}
        for binding in gang:
            pod = self._state.pods.get(binding.pod)
            if pod is None or pod.uid != binding.uid or pod.is_terminating:
                return f"pod {binding.pod} was deleted before its devices were allocated"
            for claim in pod.device_claims:
                users.setdefault(claim, []).append(binding)
        written = await asyncio.gather(
            *(self._reserve(claim, pods) for claim, pods in users.items()), return_exceptions=True
        )
        for outcome in written:
            if isinstance(outcome, BaseException):
                raise outcome
        return next(filter(None, (why for why in written if isinstance(why, str))), "")

    def release(self, binding: PodBinding) -> None:
        """Give back, in the background, what was reserved for a pod whose binding has failed."""
        pod = self._state.pods.get(binding.pod)
        for claim in pod.device_claims if pod is not None and pod.uid == binding.uid else ():
            self._tasks.create_task(self._release(claim, binding.uid), name=f"release {claim}")

    async def _reserve(self, key: str, pods: Sequence[PodBinding]) -> str:
        namespace, _, name = key.partition("/")
        consumers = [
            {"resource": "pods", "name": binding.pod.partition("/")[2], "uid": binding.uid}
            for binding in pods
        ]
        allocation = self._state.devices.allocation_of(key)
        if allocation is None:
            return f"no devices were chosen for claim {key}"
        for attempt in range(1, MAX_CONFLICTS + 1):
            try:
                async with self._slots:
                    claim = await self._client.get(RESOURCE_CLAIMS, name, namespace)
                    if claim.metadata.deletion_timestamp is not None:
                        return f"claim {key} is being deleted"
                    return await self._write(claim, allocation, consumers)
            except NotFound:
                return f"claim {key} was deleted"
            except Conflict:
                if attempt == MAX_CONFLICTS:
                    raise
        return ""

    async def _write(
        self, claim: ResourceClaim, allocation: ClaimAllocation, consumers: list[dict[str, str]]
    ) -> str:
        metadata, status = claim.metadata, claim.status
        key = f"{metadata.namespace}/{metadata.name}"
        uids = {consumer["uid"] for consumer in consumers}
        others = [user for user in status.reserved_for if user.uid not in uids]
        has_chosen = _devices(status) == set(allocation.devices)
        revision = metadata.resource_version
        if status.allocation is not None and not has_chosen:
            if not all(self._is_pending(key, user.uid) for user in others):
                return f"claim {key} got other devices than those chosen for it"
            # Devices that a failed binding has left: an allocation cannot be replaced by another.
            others, former = [], {"allocation": None, "reservedFor": None}
            body = {"metadata": {"resourceVersion": revision}, "status": former}
            changed = await self._patch(claim, body, subresource="status")
            revision = changed.metadata.resource_version
        if FINALIZER not in metadata.finalizers:
            finalizers = [*metadata.finalizers, FINALIZER]
            body = {"metadata": {"resourceVersion": revision, "finalizers": finalizers}}
            changed = await self._patch(claim, body)
            revision = changed.metadata.resource_version
        new: dict[str, Any] = {"reservedFor": [*msgspec.to_builtins(others), *consumers]}
        if not has_chosen:
            new["allocation"] = self._allocation(claim, allocation)
        body = {"metadata": {"resourceVersion": revision}, "status": new}
        await self._patch(claim, body, subresource="status")
        return ""

    def _is_pending(self, claim: str, uid: str) -> bool:
        users = self._state.devices.users.get(claim, {}).values()
        return any(pod.uid == uid and pod.is_pending for pod in users)

    async def _patch(self, claim: ResourceClaim, body: Any, subresource: str = "") -> ResourceClaim:
        metadata = claim.metadata
        return await self._client.patch(
            RESOURCE_CLAIMS, metadata.name, body, metadata.namespace, subresource=subresource
        )

    def _allocation(self, claim: ResourceClaim, chosen: ClaimAllocation) -> dict[str, Any]:
        """Return the allocation of a claim as drivers read it, with their configuration."""
        devices = claim.spec.devices
        options: dict[str, RequestedDevices] = {
            name: option
            for request in devices.requests
            for name, option in (
                [(f"{request.name}/{sub.name}", sub) for sub in request.first_available]
                if request.exactly is None
                else [(request.name, request.exactly)]
            )
        }
        results: list[dict[str, Any]] = []
        for request, (driver, pool, device) in chosen.devices:
            one: dict[str, Any] = {"request": request, "driver": driver}
            one |= {"pool": pool, "device": device}
            option = options[request]
            if option.tolerations:
                one["tolerations"] = msgspec.to_builtins(option.tolerations)
            if isinstance(option, ExactDeviceRequest) and option.admin_access:
                one["adminAccess"] = True
            results.append(one)
        taken = dict.fromkeys(request for request, _ in chosen.devices)
        config = [
            _configuration("FromClass", [request], one)
            for request in taken
            for one in self._configuration(options[request].device_class_name)
        ]
        for own in devices.config:
            # A configuration of a request is that of all of its alternatives.
            requests = [n for n in taken if {n, n.partition("/")[0]} & {*own.requests}]
            if requests or not own.requests:
                config.append(_configuration("FromClaim", requests, own))
        result: dict[str, Any] = {"results": results, **({"config": config} if config else {})}
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        allocation: dict[str, Any] = {"devices": result, "allocationTimestamp": now}
        if chosen.terms is not None:
            terms = list(map(_selector_term, chosen.terms))
            allocation["nodeSelector"] = {"nodeSelectorTerms": terms}
        return allocation

    async def _release(self, key: str, uid: str) -> None:
        namespace, _, name = key.partition("/")
        for _ in range(MAX_CONFLICTS):
            try:
                claim = await self._client.get(RESOURCE_CLAIMS, name, namespace)
                users = claim.status.reserved_for
                left = [user for user in users if user.uid != uid]
                if len(left) == len(users) or self._has_node(key, uid):
                    return
                new: dict[str, Any] = {"reservedFor": msgspec.to_builtins(left) or None}
                if not left:
                    new["allocation"] = None
                metadata = {"resourceVersion": claim.metadata.resource_version}
                body = {"metadata": metadata, "status": new}
                await self._patch(claim, body, subresource="status")
            except Conflict:
                continue
            except KubeError as error:
                # The next binding overwrites it; else the cluster's controller cleans up.
                log.debug("devices were not given back: %s", error, extra={"claim": key})
            return

    def _has_node(self, claim: str, uid: str) -> bool:
        """Return whether a pod has been assigned to a node again."""
        return any(pod.uid == uid for pod in self._state.devices.placed_users(claim))


def _devices(status: ResourceClaimStatus) -> set[tuple[str, tuple[str, str, str]]]:
    results = status.allocation.devices.results if status.allocation is not None else []
    return {(one.request, (one.driver, one.pool, one.device)) for one in results}


def _configuration(source: str, requests: list[str], one: DeviceConfiguration) -> dict[str, Any]:
    named = {"requests": requests} if requests else {}
    return {"source": source, **named, "opaque": msgspec.to_builtins(one.opaque)}


def _selector_term(term: NodeTerm) -> dict[str, Any]:
    parts = {"matchExpressions": term.labels, "matchFields": term.fields}
    return {
        name: [
            {"key": e.key, "operator": e.operator, "values": list(e.values)} for e in expressions
        ]
        for name, expressions in parts.items()
        if expressions
    }
