"""ReplicaSet and Deployment controllers."""

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any

import msgspec

from gangline.api.core.pod import Pod
from gangline.api.core.reference import ObjectReference
from gangline.api.meta.objects import Object
from gangline.api.meta.selectors import selector_from_object
from gangline.api.resources import PODS
from gangline.kube.client.client import PatchKind
from gangline.kube.controller.controller import (
    Controller,
    ReconcileDone,
    ReconcileResult,
    RequeueAfter,
)
from gangline.kube.errors import AlreadyExists, NotFound
from gangline.kube.informers.informer import ObjectKey, object_key
from gangline.local.controllers.context import ControllerContext, current_time
from gangline.local.controllers.deployments import plan as rollout
from gangline.local.controllers.deployments.plan import (
    RAW_DEPLOYMENTS,
    REVISION_ANNOTATION,
    RawDeployment,
)
from gangline.local.controllers.replica_sets import plan as replicas
from gangline.local.controllers.replica_sets.adoption import adopt_object, release_object
from gangline.local.controllers.replica_sets.expectations import Expectations
from gangline.local.controllers.replica_sets.plan import RAW_REPLICA_SETS, RawReplicaSet

BY_OWNER = "owner"
BY_NAMESPACE = "namespace"


def owner_uids(found: Object) -> Iterable[str]:
    """The uid of the object's controller, for an index."""
    controller = found.metadata.controller
    return [controller.uid] if controller else []


def _reference(found: RawReplicaSet | RawDeployment) -> ObjectReference:
    resource = RAW_REPLICA_SETS if isinstance(found, RawReplicaSet) else RAW_DEPLOYMENTS
    return ObjectReference(
        api_version=resource.api_version,
        kind=resource.kind,
        namespace=found.metadata.namespace,
        name=found.metadata.name,
        uid=found.metadata.uid,
    )


class ReplicaSetController:
    """Creates and deletes the pods of ReplicaSets."""

    def __init__(self, context: ControllerContext) -> None:
        self._client = context.client
        self._recorder = context.recorder
        self._sets = context.informers.informer(
            RAW_REPLICA_SETS, indexes={BY_NAMESPACE: lambda found: [found.metadata.namespace]}
        )
        self._pods = context.informers.informer(
            PODS,
            indexes={BY_OWNER: owner_uids, BY_NAMESPACE: lambda pod: [pod.metadata.namespace]},
        )
        self._expected: Expectations[ObjectKey] = Expectations()
        self._controller: Controller[ObjectKey] = Controller("replicasets", self._reconcile)
        self._sets.add_listener(self._set_changed)
        self._pods.add_listener(self._pod_changed)

    async def run(self) -> None:
        await self._controller.run()

    def _set_changed(self, old: RawReplicaSet | None, new: RawReplicaSet | None) -> None:
        found = new or old
        assert found is not None
        self._controller.queue.add(object_key(found))

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        for pod in (old, new):
            owner = pod.metadata.controller if pod is not None else None
            if pod is not None and owner is not None and owner.kind == RAW_REPLICA_SETS.kind:
                self._controller.queue.add(ObjectKey(pod.metadata.namespace, owner.name))
        if new is not None and new.metadata.controller is None:
            for found in self._sets.by_index(BY_NAMESPACE, new.metadata.namespace):
                if selector_from_object(found.spec.selector).matches(new.metadata.labels):
                    self._controller.queue.add(object_key(found))

    async def _reconcile(self, key: ObjectKey) -> ReconcileResult:
        found = self._sets.get(key.namespace, key.name)
        if found is None:
            self._expected.forget(key)
            return ReconcileDone()
        seen = self._pods.by_index(BY_OWNER, found.metadata.uid)
        pods = self._expected.apply(key, seen)
        if await self._claim(found):
            return ReconcileDone()  # The watch delivers the change and triggers another pass.
        plan = replicas.plan_replica_set(found, pods, current_time())
        try:
            await self._execute(key, found, plan)
        finally:
            if plan.status != found.status:
                await self._write_status(found, plan)
        if plan.requeue_at is not None:
            return RequeueAfter(max(0.1, (plan.requeue_at - current_time()).total_seconds()))
        return ReconcileDone()

    async def _claim(self, found: RawReplicaSet) -> bool:
        """Adopt matching pods without a controller, release owned pods that no longer match."""
        if found.metadata.deletion_timestamp is not None:
            return False
        selector = selector_from_object(found.spec.selector)
        reference = replicas.controller_reference(
            RAW_REPLICA_SETS.api_version, RAW_REPLICA_SETS.kind, found
        )
        changed = False
        for pod in self._pods.by_index(BY_NAMESPACE, found.metadata.namespace):
            if pod.metadata.deletion_timestamp is not None:
                continue
            controller, fits = pod.metadata.controller, selector.matches(pod.metadata.labels)
            if controller is None and fits and replicas.is_pod_active(pod):
                await adopt_object(self._client, PODS, pod, reference)
                changed = True
            elif controller is not None and controller.uid == found.metadata.uid and not fits:
                await release_object(self._client, PODS, pod, found.metadata.uid)
                changed = True
        return changed

    async def _execute(
        self, key: ObjectKey, found: RawReplicaSet, plan: replicas.ReplicaSetPlan
    ) -> None:
        # In growing batches, as kube-controller-manager does (slow start): if the server refuses
        # a pod, it is refused once and not a hundred times.
        missing, batch = plan.create, 1
        while missing:
            batch = min(batch, missing)
            await self._create(key, found, batch)
            missing, batch = missing - batch, batch * 2
        await asyncio.gather(*(self._delete(key, found, pod) for pod in plan.delete))

    async def _create(self, key: ObjectKey, found: RawReplicaSet, count: int) -> None:
        """Create pods concurrently; raises the first error after all creations were recorded."""
        body = replicas.build_pod(found)
        creations = [self._client.create(PODS, body, key.namespace) for _ in range(count)]
        errors: list[BaseException] = []
        for made in await asyncio.gather(*creations, return_exceptions=True):
            if isinstance(made, BaseException):
                errors.append(made)
                continue
            self._expected.expect_creation(key, made)
            message = f"Created pod: {made.metadata.name}"
            self._recorder.event(_reference(found), "Normal", "SuccessfulCreate", message)
        if errors:
            self._recorder.event(_reference(found), "Warning", "FailedCreate", str(errors[0]))
            raise errors[0]

    async def _delete(self, key: ObjectKey, found: RawReplicaSet, pod: Pod) -> None:
        with contextlib.suppress(NotFound):
            await self._client.delete(PODS, pod.metadata.name, key.namespace, uid=pod.metadata.uid)
        self._expected.expect_deletion(key, pod)
        message = f"Deleted pod: {pod.metadata.name}"
        self._recorder.event(_reference(found), "Normal", "SuccessfulDelete", message)

    async def _write_status(self, found: RawReplicaSet, plan: replicas.ReplicaSetPlan) -> None:
        meta = found.metadata
        status = msgspec.to_builtins(plan.status)
        counts = ("replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas")
        patch = {"status": {**dict.fromkeys(counts, 0), **status}}
        with contextlib.suppress(NotFound):
            await self._client.patch(
                RAW_REPLICA_SETS,
                meta.name,
                patch,
                meta.namespace,
                kind=PatchKind.MERGE,
                subresource="status",
            )


class DeploymentController:
    """Creates, scales and deletes the ReplicaSets of Deployments."""

    def __init__(self, context: ControllerContext) -> None:
        self._client = context.client
        self._recorder = context.recorder
        self._deployments = context.informers.informer(RAW_DEPLOYMENTS)
        self._sets = context.informers.informer(RAW_REPLICA_SETS, indexes={BY_OWNER: owner_uids})
        self._controller: Controller[ObjectKey] = Controller("deployments", self._reconcile)
        self._deployments.add_listener(self._deployment_changed)
        self._sets.add_listener(self._set_changed)

    async def run(self) -> None:
        await self._controller.run()

    def _deployment_changed(self, _: RawDeployment | None, new: RawDeployment | None) -> None:
        if new is not None:
            self._controller.queue.add(object_key(new))

    def _set_changed(self, old: RawReplicaSet | None, new: RawReplicaSet | None) -> None:
        for found in (old, new):
            owner = found.metadata.controller if found is not None else None
            if found is not None and owner is not None and owner.kind == RAW_DEPLOYMENTS.kind:
                self._controller.queue.add(ObjectKey(found.metadata.namespace, owner.name))

    async def _reconcile(self, key: ObjectKey) -> ReconcileResult:
        found = self._deployments.get(key.namespace, key.name)
        if found is None:
            return ReconcileDone()
        owned = self._sets.by_index(BY_OWNER, found.metadata.uid)
        plan = rollout.plan_deployment(found, owned, current_time())
        await self._execute(found, plan)
        await self._write(found, plan)
        return ReconcileDone()

    async def _execute(self, found: RawDeployment, plan: rollout.DeploymentPlan) -> None:
        namespace = found.metadata.namespace
        if plan.create is not None:
            # The name follows from the template: a repeated creation fails with AlreadyExists.
            try:
                made = await self._client.create(RAW_REPLICA_SETS, plan.create, namespace)
            except AlreadyExists:
                await self._adopt_set(found, plan.create)
            else:
                self._record_scaling(found, made.metadata.name, made.desired_replicas)
        for name, size in plan.scale.items():
            await self._patch_set(namespace, name, {"spec": {"replicas": size}})
            self._record_scaling(found, name, size)
        for name, revision in plan.revisions.items():
            mark: dict[str, object] = {"metadata": {"annotations": {REVISION_ANNOTATION: revision}}}
            await self._patch_set(namespace, name, mark)
        for name in plan.delete:
            with contextlib.suppress(NotFound):
                await self._client.delete(RAW_REPLICA_SETS, name, namespace)

    async def _adopt_set(self, found: RawDeployment, desired: dict[str, Any]) -> None:
        """Adopt the existing ReplicaSet with our name if it has no controller."""
        present = await self._client.get(
            RAW_REPLICA_SETS, desired["metadata"]["name"], found.metadata.namespace
        )
        controller = present.metadata.controller
        if controller is None:
            await adopt_object(
                self._client, RAW_REPLICA_SETS, present, desired["metadata"]["ownerReferences"][0]
            )
        elif controller.uid != found.metadata.uid:
            message = f"ReplicaSet {present.metadata.name} belongs to {controller.name}"
            self._recorder.event(_reference(found), "Warning", "ReplicaSetTaken", message)

    async def _patch_set(self, namespace: str, name: str, patch: dict[str, object]) -> None:
        with contextlib.suppress(NotFound):
            await self._client.patch(RAW_REPLICA_SETS, name, patch, namespace, kind=PatchKind.MERGE)

    def _record_scaling(self, found: RawDeployment, name: str, size: int) -> None:
        message = f"Scaled replica set {name} to {size}"
        self._recorder.event(_reference(found), "Normal", "ScalingReplicaSet", message)

    async def _write(self, found: RawDeployment, plan: rollout.DeploymentPlan) -> None:
        meta = found.metadata
        with contextlib.suppress(NotFound):
            if plan.revision and meta.annotations.get(REVISION_ANNOTATION) != plan.revision:
                patch: dict[str, object] = {
                    "metadata": {"annotations": {REVISION_ANNOTATION: plan.revision}}
                }
                await self._client.patch(
                    RAW_DEPLOYMENTS, meta.name, patch, meta.namespace, kind=PatchKind.MERGE
                )
            if plan.status != found.status:
                await self._client.patch(
                    RAW_DEPLOYMENTS,
                    meta.name,
                    {"status": _status_with_zeros(plan)},
                    meta.namespace,
                    kind=PatchKind.MERGE,
                    subresource="status",
                )


def _status_with_zeros(plan: rollout.DeploymentPlan) -> dict[str, object]:
    """The status with explicit zeros: a merge patch could not lower a count to zero otherwise."""
    counts = (
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
        "unavailableReplicas",
    )
    return {**dict.fromkeys(counts, 0), **msgspec.to_builtins(plan.status)}
