"""Executes plans: deletes, then patches, then creates; limits and delays writes.

Pods are created after everything that they need: a refused service would leave ranks that run and
never meet.

- ``PlanExecutor``: every write can be repeated: created objects have deterministic names, so that
  AlreadyExists is recognised by the owner, and deletions carry the observed uid. A refusal that
  concerns one object (an occupied name, a quota, a webhook) is reported in the job's status; any
  other error is raised, and the pass is repeated.
- Delays of status writes merge changes: the pods of a gang start and end within moments, and a
  status write costs as much as the creation of a pod.
- Values of Secrets are made on creation: plans contain placeholders only.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gangline.api.meta.objects import Object
from gangline.kube.client.client import ApiClient, PatchKind
from gangline.kube.errors import (
    AlreadyExists,
    BadRequest,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
)
from gangline.operator import metrics
from gangline.operator.engine import adoption
from gangline.operator.engine.observe import (
    OWNED_RESOURCES,
    ClusterCache,
    JobObservation,
    job_resource,
)
from gangline.operator.model.job import Manifest, NormalizedJob
from gangline.operator.model.plan import (
    RANDOM_VALUE,
    SSH_PRIVATE_KEY,
    SSH_PUBLIC_KEY,
    UNWATCHED,
    PlannedCreation,
    PlannedDeletion,
    PlannedEvent,
    PlannedPatch,
    ReconcilePlan,
    TargetKind,
)

_RANDOM_BYTES = 32
_PLACEHOLDERS = frozenset({RANDOM_VALUE, SSH_PRIVATE_KEY, SSH_PUBLIC_KEY})


def with_values(manifest: Manifest) -> Manifest:
    """Replace the placeholders in a Secret by new values; other manifests are returned as is."""
    written = manifest.get("stringData") or {}
    used = _PLACEHOLDERS & set(written.values())
    if not used:
        return manifest
    pair = _ssh_key_pair() if used & {SSH_PRIVATE_KEY, SSH_PUBLIC_KEY} else {}
    values = {
        key: secrets.token_hex(_RANDOM_BYTES) if value == RANDOM_VALUE else pair.get(value, value)
        for key, value in written.items()
    }
    return {**manifest, "stringData": values}


def _ssh_key_pair() -> dict[str, str]:
    """Make the two keys of a pair, by their placeholders: ECDSA on P-521, as mpi-operator's."""
    key = ec.generate_private_key(ec.SECP521R1())
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return {SSH_PRIVATE_KEY: private.decode(), SSH_PUBLIC_KEY: f"{public.decode()}\n"}


MINOR_STATUS_INTERVAL_S = 1.0
"""Seconds between writes of minor changes of one job."""

RUNNING_STATUS_DELAY_S = 0.5
"""Delay of the first Running condition, until the remaining pods of the gang run."""

MINOR_STATUS_MAX_DELAY_S = 30.0
"""Longest delay of minor changes while pod creations are queued."""

SATURATED_REQUEUE_S = 10.0
"""Seconds between passes over a job in that time. Each pass costs as much as a pod creation."""

CREATED_REQUEUE_S = 1.0
"""Seconds until the next pass over a job for which objects were created."""


def running_status_delay(waited_s: float) -> float | None:
    """Return the remaining delay of the first Running condition; None: store it now."""
    return RUNNING_STATUS_DELAY_S - waited_s if waited_s < RUNNING_STATUS_DELAY_S else None


def minor_status_delay(
    waited_s: float, since_stored_s: float, *, is_saturated: bool
) -> float | None:
    """Return the time until a minor change is checked again; None: store it now."""
    if is_saturated and waited_s < MINOR_STATUS_MAX_DELAY_S:
        return min(SATURATED_REQUEUE_S, MINOR_STATUS_MAX_DELAY_S - waited_s)
    recent_s = min(waited_s, since_stored_s)
    return MINOR_STATUS_INTERVAL_S - recent_s if recent_s < MINOR_STATUS_INTERVAL_S else None


def requeue_delay(*, is_saturated: bool) -> float:
    return SATURATED_REQUEUE_S if is_saturated else CREATED_REQUEUE_S


log = logging.getLogger(__name__)

_LISTED = 3
"""Number of problems in a message; a refused template fails in the same way for each of its pods.
"""

_STAGES: tuple[frozenset[TargetKind], ...] = (
    frozenset({TargetKind.POD_GROUP, TargetKind.SERVICE, *OWNED_RESOURCES})
    - {TargetKind.ROLE_BINDING},
    frozenset({TargetKind.ROLE_BINDING}),
    frozenset({TargetKind.POD}),
)
"""The order of creations; a refusal ends it."""

_OPTIONAL = frozenset({TargetKind.AUTOSCALER})
"""Kinds that a job does without if the cluster lacks them."""

ROLE_TRIES = 6
ROLE_RETRY_S = 0.25
"""Kubernetes checks a binding by its cache of roles, which has a new role some moments later."""

UNKNOWN_KIND_RETRY_S = 300.0
"""Seconds before a kind that the cluster lacks is tried again."""


@dataclass(slots=True)
class ExecutionResult:
    created_pods: list[str] = field(default_factory=list)
    """Names of created pods."""
    deleted_pods: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def events(self) -> list[PlannedEvent]:
        return [
            PlannedEvent(f"Successful{verb}Pod", f"{verb}d {_list_pods(names)}")
            for verb, names in (("Create", self.created_pods), ("Delete", self.deleted_pods))
            if names
        ]

    def problem_message(self) -> str:
        """Return the refused objects with their reasons; empty if there are none."""
        more = len(self.problems) - _LISTED
        rest = f"; and {more} more" if more > 0 else ""
        return "; ".join(sorted(self.problems)[:_LISTED]) + rest


class PlanExecutor:
    def __init__(
        self,
        client: ApiClient,
        cache: ClusterCache,
        writes_in_flight: int,
        on_unknown_groups: Callable[[], None] = lambda: None,
    ) -> None:
        """Call ``on_unknown_groups`` when the API server does not find the kind PodGroup."""
        self._client = client
        self._on_unknown_groups = on_unknown_groups
        self._cache = cache
        self._limiter = asyncio.Semaphore(writes_in_flight)
        self._unknown_until: dict[TargetKind, float] = {}

    @property
    def is_saturated(self) -> bool:
        return self._limiter.locked()

    async def execute(self, observation: JobObservation, plan: ReconcilePlan) -> ExecutionResult:
        """Execute a plan, except for its status."""
        job, result = observation.job_state.job, ExecutionResult()
        # Deletions first: they free names and quota for the creations.
        await self._gather(self._delete(job, deletion, result) for deletion in plan.deletions)
        await self._gather(self._patch(observation, patch) for patch in plan.patches)
        # Pods of a gang whose group was refused would only wait for it, pods whose services were
        # refused would never meet, and pods that read another owner's ConfigMap would start with
        # wrong settings.
        for stage in _STAGES:
            if result.problems:
                break
            creations = [creation for creation in plan.creations if creation.target in stage]
            await self._gather(self._create(job, creation, result) for creation in creations)
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
        namespace = job.meta.namespace
        async with self._limiter:
            if time.monotonic() < self._unknown_until.get(creation.target, 0.0):
                return
            if len(result.problems) >= _LISTED:
                return  # A refused template is refused for every replica: stop.
            metrics.WRITES.labels(creation.target, "create").inc()
            try:
                item = await self._send(creation, namespace)
                if creation.target is TargetKind.POD:
                    result.created_pods.append(creation.name)
            except AlreadyExists as error:
                if creation.target in UNWATCHED:
                    return
                existing = await self._existing(job, creation, result, error)
                if existing is None:
                    return
                item = existing
            except (Forbidden, Invalid, BadRequest, NotFound) as error:
                if creation.target in _OPTIONAL and isinstance(error, NotFound):
                    log.warning("the job continues without its %s: %s", creation.target, error)
                    self._unknown_until[creation.target] = time.monotonic() + UNKNOWN_KIND_RETRY_S
                    return
                if creation.target is TargetKind.POD_GROUP and isinstance(error, NotFound):
                    self._on_unknown_groups()
                result.problems.append(f"{creation.target} {creation.name} was refused: {error}")
                return
        if creation.target not in UNWATCHED:
            self._record_created(creation.target, item)

    async def _send(self, creation: PlannedCreation, namespace: str) -> Object:
        resource = self._cache.resources[creation.target]
        manifest = with_values(creation.manifest)
        tries = ROLE_TRIES if creation.target is TargetKind.ROLE_BINDING else 1
        for _ in range(tries - 1):
            with suppress(NotFound):
                created: Object = await self._client.create(resource, manifest, namespace)
                return created
            await asyncio.sleep(ROLE_RETRY_S)
        return await self._client.create(resource, manifest, namespace)

    async def _existing(
        self,
        job: NormalizedJob,
        creation: PlannedCreation,
        result: ExecutionResult,
        error: AlreadyExists,
    ) -> Object | None:
        """Resolve a name conflict: the object may be our own earlier creation or another owner's.
        Raises AlreadyExists: the existing object is being deleted or adopted, so a retry will
        succeed.
        """
        resource = self._cache.resources[creation.target]
        try:
            item: Object = await self._client.get(resource, creation.name, job.meta.namespace)
        except NotFound:
            raise error from None
        owner = item.metadata.controller
        if owner and owner.uid == job.meta.uid:
            if adoption.is_foreign(item.metadata):
                raise error  # It gets a slot once it has our labels.
            return item
        if owner and job.kind.is_kind_of(owner) and owner.name == job.name:
            # A job of this name was deleted and created again: wait for the garbage collector.
            raise error
        if creation.target is TargetKind.POD_GROUP and owner is None:
            return None  # A user's own group: the next pass observes it and uses it.
        whose = f"{owner.kind} {owner.name}" if owner else "no controller"
        result.problems.append(
            f"{creation.target} {creation.name} exists already and belongs to {whose}; "
            "delete it or give the job another name"
        )
        return None

    def _record_created(self, target: TargetKind, item: Object) -> None:
        informer, meta = self._cache.informers.get(target), item.metadata
        seen = informer.get(meta.namespace, meta.name) if informer else None
        self._cache.unobserved[target].record_created(item, seen)

    async def _delete(
        self, job: NormalizedJob, deletion: PlannedDeletion, result: ExecutionResult
    ) -> None:
        is_job = deletion.target is TargetKind.JOB
        resource = job_resource(job.kind) if is_job else self._cache.resources[deletion.target]
        async with self._limiter:
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
        self._cache.unobserved[deletion.target].record_deleted(deletion.uid)
        if deletion.target is TargetKind.POD:
            result.deleted_pods.append(deletion.name)

    async def _patch(self, observation: JobObservation, patch: PlannedPatch) -> None:
        job = observation.job_state.job
        is_job = patch.target is TargetKind.JOB
        resource = job_resource(job.kind) if is_job else self._cache.resources[patch.target]
        async with self._limiter:
            metrics.WRITES.labels(patch.target, "patch").inc()
            # A deleted object needs no patch; if it is required, the next pass creates it again.
            with suppress(NotFound):
                after = await self._client.patch(
                    resource, patch.name, patch.operations, job.meta.namespace, kind=PatchKind.JSON
                )
                if is_job and not job.is_deleting:
                    # The status write of this pass must be based on the new version.
                    self._cache.written_statuses.record_write(observation.stored, after)


def _list_pods(names: list[str]) -> str:
    ordered = sorted(names)
    more = len(ordered) - _LISTED
    noun = "pod" if len(ordered) == 1 else "pods"
    rest = f" and {more} more" if more > 0 else ""
    return f"{noun} {', '.join(ordered[:_LISTED])}{rest}"
