"""Executes plans: deletes, then patches, then creates.

Every write can be repeated. The names of created objects are deterministic, so a repeated creation
fails with AlreadyExists and is recognised by its owner. Deletions carry the uid that was observed.
A refusal that concerns one object (an occupied name, a quota, a webhook) is a ``problem_message`` of the
job and is reported in its status. Any other error is raised, and the pass is repeated.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gangline.api.meta import Object
from gangline.api.resource import Resource
from gangline.api.resources import POD_GROUPS
from gangline.kube.client import ApiClient, PatchKind
from gangline.kube.errors import (
    AlreadyExists,
    BadRequest,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
)
from gangline.operator import adoption, metrics
from gangline.operator.cache import (
    OWNED_RESOURCES,
    PODS,
    SERVICES,
    ClusterCache,
    Observation,
    job_resource,
)
from gangline.operator.decision import (
    RANDOM_VALUE,
    UNWATCHED,
    PlannedCreation,
    ReconcilePlan,
    PlannedDeletion,
    PlannedEvent,
    PlannedPatch,
    TargetKind,
)
from gangline.operator.gate import WriteLimiter
from gangline.operator.job import Manifest, OrdersStartup, NormalizedJob, implements
from gangline.operator.recent import UnobservedWrites

log = logging.getLogger(__name__)

_T = TypeVar("_T")

_LISTED = 3
"""Number of problems in a message; a refused template fails in the same way for each of its pods.
"""

_RANDOM_BYTES = 32

_WRITE_DELAY_S = {TargetKind.SERVICE: 2.0}
"""Delay of services behind pods: a pod must be scheduled and started before its name is of use."""

_RESOURCES: dict[TargetKind, Resource[Any]] = {
    TargetKind.POD: PODS,
    TargetKind.SERVICE: SERVICES,
    TargetKind.POD_GROUP: POD_GROUPS,
    **OWNED_RESOURCES,
}

_OPTIONAL = frozenset({TargetKind.AUTOSCALER})
"""Kinds that a job does without if the cluster lacks them."""

UNKNOWN_KIND_RETRY_S = 300.0
"""Seconds before a kind that the cluster lacks is tried again."""


@dataclass(slots=True)
class ExecutionResult:
    """The results of a plan's writes."""

    created_pods: list[str] = field(default_factory=list)
    """Names of created pods."""
    deleted_pods: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def events(self) -> list[PlannedEvent]:
        """Return one event for all created and one for all deleted pods."""
        events = []
        if self.created_pods:
            events.append(
                PlannedEvent("SuccessfulCreatePod", f"Created {_list_pods(self.created_pods)}")
            )
        if self.deleted_pods:
            events.append(
                PlannedEvent("SuccessfulDeletePod", f"Deleted {_list_pods(self.deleted_pods)}")
            )
        return events

    def problem_message(self) -> str:
        """Return the refused objects with their reasons; empty if there are none."""
        more = len(self.problems) - _LISTED
        rest = f"; and {more} more" if more > 0 else ""
        return "; ".join(sorted(self.problems)[:_LISTED]) + rest


class PlanExecutor:
    """Sends the planned writes, with a limit on concurrency."""

    def __init__(self, client: ApiClient, cache: ClusterCache, writes_in_flight: int) -> None:
        self._client = client
        self._cache = cache
        self._limiter = WriteLimiter(writes_in_flight)
        self._unknown_until: dict[TargetKind, float] = {}
        self._unobserved: dict[TargetKind, UnobservedWrites[Any]] = {
            TargetKind.POD: cache.unobserved_pods,
            TargetKind.SERVICE: cache.unobserved_services,
            TargetKind.POD_GROUP: cache.unobserved_groups,
            **cache.unobserved_objects,
        }

    @property
    def is_saturated(self) -> bool:
        """True if writes wait for each other."""
        return self._limiter.is_saturated

    async def execute(self, observation: Observation, plan: ReconcilePlan) -> ExecutionResult:
        """Execute a plan, except for its status.

        Raises:
            ApiError: a request failed for a reason that does not concern the job.
        """
        job, result = observation.job_state.job, ExecutionResult()
        # Deletions first: they free names and quota for the creations.
        await self._gather(self._delete(job, deletion, result) for deletion in plan.deletions)
        await self._gather(self._patch(job, patch) for patch in plan.patches)
        needed = {TargetKind.POD_GROUP, *OWNED_RESOURCES}
        first = [creation for creation in plan.creations if creation.target in needed]
        await self._gather(self._create(job, creation, result) for creation in first)
        if not result.problems:
            # Pods of a gang whose group was refused would only wait for it, and pods that read
            # another owner's ConfigMap would start with wrong settings.
            rest = [creation for creation in plan.creations if creation.target not in needed]
            await self._gather(self._create(job, creation, result) for creation in rest)
        return result

    async def _gather(self, writes: Iterable[Coroutine[Any, Any, None]]) -> None:
        """Run writes concurrently; all of them finish before the first error is raised."""
        results = await asyncio.gather(*writes, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _create(
        self, job: NormalizedJob, creation: PlannedCreation, result: ExecutionResult
    ) -> None:
        resource, namespace = _RESOURCES[creation.target], job.meta.namespace
        # Kinds whose pods wait for services need these as urgently as the pods.
        urgent = implements(job.rules, OrdersStartup)
        handicap_s = 0.0 if urgent else _WRITE_DELAY_S.get(creation.target, 0.0)
        async with self._limiter.acquire(handicap_s):
            if time.monotonic() < self._unknown_until.get(creation.target, 0.0):
                return
            if len(result.problems) >= _LISTED:
                return  # A refused template is refused for every replica: stop.
            metrics.WRITES.labels(creation.target, "create").inc()
            try:
                item = await self._client.create(
                    resource, _with_random_values(creation.manifest), namespace
                )
                if creation.target is TargetKind.POD:
                    result.created_pods.append(creation.name)
            except AlreadyExists as error:
                if creation.target in UNWATCHED:
                    return
                found = await self._existing(job, creation, result, error)
                if found is None:
                    return
                item = found
            except (Forbidden, Invalid, BadRequest, NotFound) as error:
                if creation.target in _OPTIONAL and isinstance(error, NotFound):
                    log.warning("the job continues without its %s: %s", creation.target, error)
                    self._unknown_until[creation.target] = time.monotonic() + UNKNOWN_KIND_RETRY_S
                    return
                result.problems.append(f"{creation.target} {creation.name} was refused: {error}")
                return
        if creation.target not in UNWATCHED:
            self._record_created(creation.target, item)

    async def _existing(
        self,
        job: NormalizedJob,
        creation: PlannedCreation,
        result: ExecutionResult,
        error: AlreadyExists,
    ) -> Object | None:
        """Resolve a name conflict: the object may be our own earlier creation or another owner's.

        Raises:
            AlreadyExists: the existing object is being deleted or adopted, so a retry will succeed.
        """
        resource = _RESOURCES[creation.target]
        try:
            item: Object = await self._client.get(resource, creation.name, job.meta.namespace)
        except NotFound:
            raise error from None
        owner = item.metadata.controller
        if owner and owner.uid == job.meta.uid:
            if adoption.is_foreign(item.metadata):
                raise error  # It gets a slot once it has our labels.
            return item
        if owner and (owner.kind, owner.name) == (job.kind.kind, job.name):
            # A job of this name was deleted and created again: wait for the garbage collector.
            raise error
        whose = f"{owner.kind} {owner.name}" if owner else "no controller"
        result.problems.append(
            f"{creation.target} {creation.name} exists already and belongs to {whose}; "
            "delete it or give the job another name"
        )
        return None

    def _record_created(self, target: TargetKind, item: Object) -> None:
        cache, meta = self._cache, item.metadata
        followed: dict[TargetKind, Any] = {
            TargetKind.POD: cache.pods,
            TargetKind.SERVICE: cache.services,
            TargetKind.POD_GROUP: cache.groups,
            **cache.owned_objects,
        }
        informer = followed.get(target)
        seen = informer.get(meta.namespace, meta.name) if informer else None
        self._unobserved[target].record_created(item, seen)

    async def _delete(
        self, job: NormalizedJob, deletion: PlannedDeletion, result: ExecutionResult
    ) -> None:
        is_job = deletion.target is TargetKind.JOB
        resource = job_resource(job.kind) if is_job else _RESOURCES[deletion.target]
        async with self._limiter.acquire():
            metrics.WRITES.labels(deletion.target, "delete").inc()
            # Deleted, or replaced by another object: in both cases the observed one is gone.
            with suppress(NotFound, Conflict):
                await self._client.delete(
                    resource,
                    deletion.name,
                    job.meta.namespace,
                    grace_seconds=0 if deletion.force else None,
                    propagation="Background",
                    uid=deletion.uid,
                )
        if is_job:
            metrics.count_deleted(job)
            return
        self._unobserved[deletion.target].record_deleted(deletion.uid)
        if deletion.target is TargetKind.POD:
            result.deleted_pods.append(deletion.name)

    async def _patch(self, job: NormalizedJob, patch: PlannedPatch) -> None:
        is_job = patch.target is TargetKind.JOB
        resource = job_resource(job.kind) if is_job else _RESOURCES[patch.target]
        async with self._limiter.acquire():
            metrics.WRITES.labels(patch.target, "patch").inc()
            # A deleted object needs no patch; if it is required, the next pass creates it again.
            with suppress(NotFound):
                await self._client.patch(
                    resource, patch.name, patch.operations, job.meta.namespace, kind=PatchKind.JSON
                )


def _with_random_values(manifest: Manifest) -> Manifest:
    """Replace the placeholders in a Secret by random values."""
    written = manifest.get("stringData")
    if not written or RANDOM_VALUE not in written.values():
        return manifest
    values = {
        key: secrets.token_hex(_RANDOM_BYTES) if value == RANDOM_VALUE else value
        for key, value in written.items()
    }
    return {**manifest, "stringData": values}


def _list_pods(names: list[str]) -> str:
    ordered = sorted(names)
    more = len(ordered) - _LISTED
    noun = "pod" if len(ordered) == 1 else "pods"
    rest = f" and {more} more" if more > 0 else ""
    return f"{noun} {', '.join(ordered[:_LISTED])}{rest}"
