"""ReplicaSet controller: watches ReplicaSets and pods, and writes pods and status."""

import asyncio
import contextlib

from gangline.api.core.pod import Pod
from gangline.api.core.pod_status import TERMINAL_PHASES
from gangline.api.resources import PODS
from gangline.kube.controller.controller import Controller, ReconcileDone, ReconcileResult
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
    namespace_of,
    object_reference,
    owner_uids,
    patch_status,
    requeue_at,
)
from gangline.local.controllers.replica_sets.plan import (
    RAW_REPLICA_SETS,
    RawReplicaSet,
    build_pod,
    controller_reference,
    is_pod_active,
    plan_replica_set,
    with_failure,
)
from gangline.local.controllers.replica_sets.pod_creation import (
    Expectations,
    claim_objects,
    create_pods,
)


class ReplicaSetController(QueueLoop):
    def __init__(self, context: ControllerContext) -> None:
        self._client = context.client
        self._recorder = context.recorder
        by_namespace = {BY_NAMESPACE: namespace_of}
        self._sets = context.informers.informer(RAW_REPLICA_SETS, indexes=by_namespace)
        self._pods = context.informers.informer(
            PODS, indexes={BY_OWNER: owner_uids, **by_namespace}
        )
        self._expected: Expectations[ObjectKey] = Expectations()
        self._controller: Controller[ObjectKey] = Controller("replicasets", self._reconcile)
        self._sets.add_listener(enqueue_changes(self._controller))
        self._pods.add_listener(enqueue_owners(self._controller, RAW_REPLICA_SETS, self._sets))

    async def _reconcile(self, key: ObjectKey) -> ReconcileResult:
        replica_set = self._sets.get(key.namespace, key.name)
        if replica_set is None:
            self._expected.forget(key)
            return ReconcileDone()
        seen = self._pods.by_index(BY_OWNER, replica_set.metadata.uid)
        pods = self._expected.apply(key, seen)
        if await self._claim(replica_set):
            return ReconcileDone()  # The watch delivers the change and triggers another pass.
        uids = {pod.metadata.uid for pod in pods if pod.metadata.deletion_timestamp is None}
        leaving = [
            pod
            for pod in seen
            if pod.metadata.uid not in uids and pod.status.phase not in TERMINAL_PHASES
        ]
        now, error = current_time(), None
        plan = plan_replica_set(replica_set, pods, now, leaving=len(leaving))
        try:
            await self._create(key, replica_set, plan.create)
            await asyncio.gather(*(self._delete(key, replica_set, pod) for pod in plan.delete))
        except ApiError as refused:
            error = refused
            raise
        finally:
            counts = with_failure(plan.status, error, now)
            if counts != replica_set.status:
                patch = {"status": complete_status(counts)}
                await patch_status(self._client, RAW_REPLICA_SETS, replica_set, patch)
        return requeue_at(plan.requeue_at)

    async def _claim(self, replica_set: RawReplicaSet) -> bool:
        reference = controller_reference(RAW_REPLICA_SETS, replica_set)
        pods = self._pods.by_index(BY_NAMESPACE, replica_set.metadata.namespace)
        return await claim_objects(
            self._client,
            PODS,
            [pod for pod in pods if pod.metadata.controller is not None or is_pod_active(pod)],
            replica_set,
            (replica_set.spec.selector, reference),
        )

    async def _create(self, key: ObjectKey, replica_set: RawReplicaSet, count: int) -> None:
        reference = object_reference(RAW_REPLICA_SETS, replica_set)

        def note_creation(pod: Pod) -> None:
            self._expected.expect_creation(key, pod)
            message = f"Created pod: {pod.metadata.name}"
            self._recorder.event(reference, "Normal", "SuccessfulCreate", message)

        bodies = [build_pod(replica_set)] * count
        try:
            await create_pods(self._client, key.namespace, bodies, note_creation)
        except Exception as error:
            self._recorder.event(reference, "Warning", "FailedCreate", str(error))
            raise

    async def _delete(self, key: ObjectKey, replica_set: RawReplicaSet, pod: Pod) -> None:
        with contextlib.suppress(NotFound):
            await self._client.delete(PODS, pod.metadata.name, key.namespace, uid=pod.metadata.uid)
        self._expected.expect_deletion(key, pod)
        message = f"Deleted pod: {pod.metadata.name}"
        self._recorder.event(
            object_reference(RAW_REPLICA_SETS, replica_set), "Normal", "SuccessfulDelete", message
        )
