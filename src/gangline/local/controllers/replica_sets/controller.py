"""ReplicaSet controller: watches ReplicaSets and pods, and writes pods and status."""

import asyncio

from gangline.api.core.pod import Pod
from gangline.api.core.pod_status import TERMINAL_PHASES
from gangline.api.resources import PODS
from gangline.kube.errors import ApiError
from gangline.kube.informers.informer import ObjectKey
from gangline.local.controllers.context import (
    BY_NAMESPACE,
    BY_OWNER,
    ControllerContext,
    complete_status,
    current_time,
    enqueue_changes,
    enqueue_owners,
    namespace_of,
    owner_uids,
    patch_status,
    seconds_until,
)
from gangline.local.controllers.replica_sets.plan import (
    RAW_REPLICA_SETS,
    RawReplicaSet,
    build_pod,
    is_pod_active,
    plan_replica_set,
    with_failure,
)
from gangline.local.controllers.replica_sets.pod_creation import OwnerLoop


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
