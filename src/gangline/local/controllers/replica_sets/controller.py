"""ReplicaSet controller, and what controllers of owners share: adoption, and creation of pods.

`OwnerLoop` creates pods in growing batches. Expectations are own writes that the watch has not
shown yet, so that they are not repeated.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from gangline.api.core.pod import Pod
from gangline.api.core.pod_status import TERMINAL_PHASES
from gangline.api.core.reference import ObjectReference
from gangline.api.meta.objects import Object, OwnerReference
from gangline.api.meta.resource import Resource
from gangline.api.meta.selectors import selector_from_object
from gangline.api.resources import PODS
from gangline.kube.errors import ApiError, NotFound
from gangline.kube.informers.informer import ObjectKey
from gangline.local.controllers.context import (
    BY_NAMESPACE,
    BY_OWNER,
    ControllerContext,
    QueueLoop,
    complete_status,
    current_time,
    enqueue_changes,
    enqueue_owners,
    namespace_ends,
    namespace_of,
    owner_uids,
    patch_metadata,
    patch_status,
    seconds_until,
)
from gangline.local.controllers.replica_sets.plan import (
    RAW_REPLICA_SETS,
    RawReplicaSet,
    build_pod,
    is_pod_active,
    owner_reference,
    plan_replica_set,
    with_failure,
)

EXPECTATIONS_TIMEOUT_S = 30.0


class Expectations:
    """Pods created or deleted for each owner, until the watch has shown the change."""

    def __init__(self) -> None:
        self._created: dict[ObjectKey, dict[str, tuple[Pod, float]]] = defaultdict(dict)
        self._deleted: dict[ObjectKey, dict[str, float]] = defaultdict(dict)

    def expect_creation(self, key: ObjectKey, pod: Pod) -> None:
        self._created[key][pod.metadata.uid] = (pod, _clock())

    def expect_deletion(self, key: ObjectKey, pod: Pod) -> None:
        self._deleted[key][pod.metadata.uid] = _clock()

    def apply(self, key: ObjectKey, seen: Sequence[Pod]) -> list[Pod]:
        """Return the pods as the watch will show them once it has caught up."""
        expired = _clock() - EXPECTATIONS_TIMEOUT_S
        uids = {pod.metadata.uid for pod in seen}
        created = self._created.pop(key, {})
        waiting = {u: e for u, e in created.items() if u not in uids and e[1] > expired}
        if waiting:
            self._created[key] = waiting
        deleted = self._deleted.pop(key, {})
        ending = {u: since for u, since in deleted.items() if u in uids and since > expired}
        if ending:
            self._deleted[key] = ending
        remaining = [pod for pod in seen if pod.metadata.uid not in ending]
        return remaining + [pod for pod, _ in waiting.values()]

    def forget(self, key: ObjectKey) -> None:
        self._created.pop(key, None)
        self._deleted.pop(key, None)


def _clock() -> float:
    return asyncio.get_running_loop().time()


T = TypeVar("T", bound=Object)


class OwnerLoop(QueueLoop):
    """The controller of a kind whose objects own others, which they select by their labels."""

    def __init__(self, context: ControllerContext, kind: Resource[Any]) -> None:
        super().__init__(context)
        self._kind = kind
        self._expected = Expectations()

    def _note(self, owner: Object, type_: str, reason: str, message: str) -> None:
        meta = owner.metadata
        reference = ObjectReference(
            self._kind.kind, meta.namespace, meta.name, meta.uid, self._kind.api_version
        )
        self._recorder.event(reference, type_, reason, message)

    async def _claim(
        self, owner: Any, kind: Resource[T], objects: Iterable[T], *, finalizer: str = ""
    ) -> bool:
        """Adopt matching objects without a controller, and release owned ones that do not match.

        An owner that is being deleted does neither: what it leaves is for the garbage collector. A
        released object also loses ``finalizer``. Returns True if something was written; the watch
        will show it.

        Raises:
            Conflict: an object has changed since it was read.
        """
        if owner.metadata.deletion_timestamp is not None:
            return False
        selector, changed = selector_from_object(owner.spec.selector), False
        for obj in objects:
            meta = obj.metadata
            matches = selector.matches(meta.labels)
            if meta.deletion_timestamp is not None or matches == (meta.controller is not None):
                continue
            owners = meta.owner_references
            if matches:
                references = _encode([*owners, owner_reference(self._kind, owner)])
                await patch_metadata(self._client, kind, obj, ownerReferences=references)
            elif meta.controller is not None and meta.controller.uid == owner.metadata.uid:
                rest = _encode([one for one in owners if one.uid != owner.metadata.uid])
                left = [name for name in meta.finalizers if name != finalizer] or None
                await patch_metadata(self._client, kind, obj, ownerReferences=rest, finalizers=left)
            else:
                continue
            changed = True
        return changed

    async def _create_pods(
        self, key: ObjectKey, owner: Object, bodies: Sequence[Mapping[str, Any]]
    ) -> None:
        """Create pods in growing batches, as kube-controller-manager does (slow start).

        If the server refuses a pod, it is refused once and not a hundred times. Raises the first
        error of a batch, after all creations of that batch were recorded.
        """
        missing, batch = bodies, 1
        while missing:
            creations = [self._client.create(PODS, body, key.namespace) for body in missing[:batch]]
            errors: list[BaseException] = []
            for made in await asyncio.gather(*creations, return_exceptions=True):
                if isinstance(made, ApiError) and namespace_ends(made):
                    return
                if isinstance(made, BaseException):
                    errors.append(made)
                    continue
                self._expected.expect_creation(key, made)
                message = f"Created pod: {made.metadata.name}"
                self._note(owner, "Normal", "SuccessfulCreate", message)
            if errors:
                self._note(owner, "Warning", "FailedCreate", f"Error creating: {errors[0]}")
                raise errors[0]
            missing, batch = missing[batch:], batch * 2

    async def _delete_pod(self, owner: Object, pod: Pod) -> None:
        meta = pod.metadata
        with contextlib.suppress(NotFound):
            await self._client.delete(PODS, meta.name, meta.namespace, uid=meta.uid)
            self._note(owner, "Normal", "SuccessfulDelete", f"Deleted pod: {meta.name}")


def _encode(owners: Sequence[OwnerReference]) -> list[dict[str, Any]]:
    return msgspec.to_builtins(owners)  # type: ignore[no-any-return]


class ReplicaSetController(OwnerLoop):
    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context, RAW_REPLICA_SETS)
        by_namespace = {BY_NAMESPACE: namespace_of}
        self._sets = context.informers.informer(RAW_REPLICA_SETS, indexes=by_namespace)
        self._pods = context.informers.informer(
            PODS, indexes={BY_OWNER: owner_uids, **by_namespace}
        )
        queue = self._add_queue("replicasets", self._reconcile)
        self._sets.add_listener(enqueue_changes(queue))
        self._pods.add_listener(enqueue_owners(queue, RAW_REPLICA_SETS, self._sets))

    async def _reconcile(self, key: ObjectKey) -> float | None:
        replica_set = self._sets.get(key.namespace, key.name)
        if replica_set is None:
            self._expected.forget(key)
            return None
        seen = self._pods.by_index(BY_OWNER, replica_set.metadata.uid)
        pods = self._expected.apply(key, seen)
        present = self._pods.by_index(BY_NAMESPACE, key.namespace)
        candidates = [
            pod for pod in present if pod.metadata.controller is not None or is_pod_active(pod)
        ]
        if await self._claim(replica_set, PODS, candidates):
            return None  # The watch delivers the change and triggers another pass.
        uids = {pod.metadata.uid for pod in pods if pod.metadata.deletion_timestamp is None}
        leaving = [
            pod
            for pod in seen
            if pod.metadata.uid not in uids and pod.status.phase not in TERMINAL_PHASES
        ]
        now, error = current_time(), None
        plan = plan_replica_set(replica_set, pods, now, leaving=len(leaving))
        try:
            await self._create_pods(key, replica_set, [build_pod(replica_set)] * plan.create)
            await asyncio.gather(*(self._delete(key, replica_set, pod) for pod in plan.delete))
        except ApiError as refused:
            error = refused
            raise
        finally:
            counts = with_failure(plan.status, error, now)
            if counts != replica_set.status:
                patch = {"status": complete_status(counts)}
                await patch_status(self._client, RAW_REPLICA_SETS, replica_set, patch)
        return seconds_until(plan.requeue_at)

    async def _delete(self, key: ObjectKey, replica_set: RawReplicaSet, pod: Pod) -> None:
        await self._delete_pod(replica_set, pod)
        self._expected.expect_deletion(key, pod)
