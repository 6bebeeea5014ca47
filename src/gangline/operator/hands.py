"""Executes plans: deletes, then patches, then creates.

Every write can be repeated. The names of created objects are deterministic, so a repeated creation
fails with AlreadyExists and is recognised by its owner. Deletions carry the uid that was observed.
A refusal that concerns one object (an occupied name, a quota, a webhook) is a ``problem`` of the
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
from gangline.kube.client import Client, PatchKind
from gangline.kube.errors import (
    AlreadyExists,
    BadRequest,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
)
from gangline.operator import adoption, metrics
from gangline.operator.cache import EXTRAS, PODS, SERVICES, Cache, Sight, job_resource
from gangline.operator.decision import (
    RANDOM,
    UNSEEN,
    Creation,
    Decision,
    Deletion,
    Event,
    Patch,
    Target,
)
from gangline.operator.gate import Gate
from gangline.operator.job import Manifest, StartsLater, TrainingJob, offers
from gangline.operator.recent import RecentObjects

log = logging.getLogger(__name__)

_T = TypeVar("_T")

_NAMED = 3
"""Number of problems in a message; a refused template fails in the same way for each of its pods.
"""

_RANDOM_BYTES = 32

_HANDICAP_S = {Target.SERVICE: 2.0}
"""Delay of services behind pods: a pod must be scheduled and started before its name is of use."""

_RESOURCES: dict[Target, Resource[Any]] = {
    Target.POD: PODS,
    Target.SERVICE: SERVICES,
    Target.POD_GROUP: POD_GROUPS,
    **EXTRAS,
}

_DISPENSABLE = frozenset({Target.AUTOSCALER})
"""Kinds that a job does without if the cluster lacks them."""

ASK_AGAIN_S = 300.0
"""Seconds before a kind that the cluster lacks is tried again."""


@dataclass(slots=True)
class Outcome:
    """The results of a plan's writes."""

    made: list[str] = field(default_factory=list)
    """Names of created pods."""
    removed: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def events(self) -> list[Event]:
        """Return one event for all created and one for all deleted pods."""
        events = []
        if self.made:
            events.append(Event("SuccessfulCreatePod", f"Created {_listed(self.made)}"))
        if self.removed:
            events.append(Event("SuccessfulDeletePod", f"Deleted {_listed(self.removed)}"))
        return events

    def problem(self) -> str:
        """Return the refused objects with their reasons; empty if there are none."""
        more = len(self.problems) - _NAMED
        rest = f"; and {more} more" if more > 0 else ""
        return "; ".join(sorted(self.problems)[:_NAMED]) + rest


class Hands:
    """Sends the planned writes, with a limit on concurrency."""

    def __init__(self, client: Client, cache: Cache, writes_in_flight: int) -> None:
        self._client = client
        self._cache = cache
        self._gate = Gate(writes_in_flight)
        self._unknown_until: dict[Target, float] = {}
        self._recent: dict[Target, RecentObjects[Any]] = {
            Target.POD: cache.recent_pods,
            Target.SERVICE: cache.recent_services,
            Target.POD_GROUP: cache.recent_groups,
            **cache.recent_extras,
        }

    @property
    def crowded(self) -> bool:
        """True if writes wait for each other."""
        return self._gate.crowded

    async def carry_out(self, observation: Sight, plan: Decision) -> Outcome:
        """Execute a plan, except for its status.

        Raises:
            ApiError: a request failed for a reason that does not concern the job.
        """
        job, result = observation.observed.job, Outcome()
        # Deletions first: they free names and quota for the creations.
        await self._all(self._delete(job, deletion, result) for deletion in plan.deletions)
        await self._all(self._patch(job, patch) for patch in plan.patches)
        needed = {Target.POD_GROUP, *EXTRAS}
        first = [creation for creation in plan.creations if creation.target in needed]
        await self._all(self._create(job, creation, result) for creation in first)
        if not result.problems:
            # Pods of a gang whose group was refused would only wait for it, and pods that read
            # another owner's ConfigMap would start with wrong settings.
            rest = [creation for creation in plan.creations if creation.target not in needed]
            await self._all(self._create(job, creation, result) for creation in rest)
        return result

    async def _all(self, writes: Iterable[Coroutine[Any, Any, None]]) -> None:
        """Run writes concurrently; all of them finish before the first error is raised."""
        results = await asyncio.gather(*writes, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _create(self, job: TrainingJob, creation: Creation, result: Outcome) -> None:
        resource, namespace = _RESOURCES[creation.target], job.meta.namespace
        # Kinds whose pods wait for services need these as urgently as the pods.
        urgent = offers(job.rules, StartsLater)
        handicap_s = 0.0 if urgent else _HANDICAP_S.get(creation.target, 0.0)
        async with self._gate.passage(handicap_s):
            if time.monotonic() < self._unknown_until.get(creation.target, 0.0):
                return
            if len(result.problems) >= _NAMED:
                return  # A refused template is refused for every replica: stop.
            metrics.WRITES.labels(creation.target, "create").inc()
            try:
                item = await self._client.create(resource, _drawn(creation.manifest), namespace)
                if creation.target is Target.POD:
                    result.made.append(creation.name)
            except AlreadyExists as error:
                if creation.target in UNSEEN:
                    return
                found = await self._existing(job, creation, result, error)
                if found is None:
                    return
                item = found
            except (Forbidden, Invalid, BadRequest, NotFound) as error:
                if creation.target in _DISPENSABLE and isinstance(error, NotFound):
                    log.warning("the job continues without its %s: %s", creation.target, error)
                    self._unknown_until[creation.target] = time.monotonic() + ASK_AGAIN_S
                    return
                result.problems.append(f"{creation.target} {creation.name} was refused: {error}")
                return
        if creation.target not in UNSEEN:
            self._note_made(creation.target, item)

    async def _existing(
        self, job: TrainingJob, creation: Creation, result: Outcome, error: AlreadyExists
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

    def _note_made(self, target: Target, item: Object) -> None:
        cache, meta = self._cache, item.metadata
        followed: dict[Target, Any] = {
            Target.POD: cache.pods,
            Target.SERVICE: cache.services,
            Target.POD_GROUP: cache.groups,
            **cache.extras,
        }
        informer = followed.get(target)
        seen = informer.get(meta.namespace, meta.name) if informer else None
        self._recent[target].made(item, seen)

    async def _delete(self, job: TrainingJob, deletion: Deletion, result: Outcome) -> None:
        is_job = deletion.target is Target.JOB
        resource = job_resource(job.kind) if is_job else _RESOURCES[deletion.target]
        async with self._gate.passage():
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
        self._recent[deletion.target].deleted(deletion.uid)
        if deletion.target is Target.POD:
            result.removed.append(deletion.name)

    async def _patch(self, job: TrainingJob, patch: Patch) -> None:
        is_job = patch.target is Target.JOB
        resource = job_resource(job.kind) if is_job else _RESOURCES[patch.target]
        async with self._gate.passage():
            metrics.WRITES.labels(patch.target, "patch").inc()
            # A deleted object needs no patch; if it is required, the next pass creates it again.
            with suppress(NotFound):
                await self._client.patch(
                    resource, patch.name, patch.operations, job.meta.namespace, kind=PatchKind.JSON
                )


def _drawn(manifest: Manifest) -> Manifest:
    """Replace the placeholders in a Secret by random values."""
    written = manifest.get("stringData")
    if not written or RANDOM not in written.values():
        return manifest
    values = {
        key: secrets.token_hex(_RANDOM_BYTES) if value == RANDOM else value
        for key, value in written.items()
    }
    return {**manifest, "stringData": values}


def _listed(names: list[str]) -> str:
    ordered = sorted(names)
    more = len(ordered) - _NAMED
    noun = "pod" if len(ordered) == 1 else "pods"
    rest = f" and {more} more" if more > 0 else ""
    return f"{noun} {', '.join(ordered[:_NAMED])}{rest}"
