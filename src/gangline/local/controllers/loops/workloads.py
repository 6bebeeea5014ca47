"""ReplicaSet and Deployment controllers."""

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any

import msgspec

from gangline.api.meta import Object
from gangline.api.pod import Pod
from gangline.api.reference import ObjectReference
from gangline.api.resources import PODS
from gangline.api.selectors import from_object
from gangline.kube.client import PatchKind
from gangline.kube.controller import After, Controller, Done, Result
from gangline.kube.errors import AlreadyExists, NotFound
from gangline.kube.informer import Key, key_of
from gangline.local.controllers import replicas, rollout
from gangline.local.controllers.context import Context, now
from gangline.local.controllers.loops.adoption import adopt, release
from gangline.local.controllers.loops.expectations import Expectations
from gangline.local.controllers.replicas import SETS, Set
from gangline.local.controllers.rollout import DEPLOYMENTS, REVISION, Deployment

BY_OWNER = "owner"
BY_NAMESPACE = "namespace"


def owners(found: Object) -> Iterable[str]:
    """The uid of the object's controller, for an index."""
    controller = found.metadata.controller
    return [controller.uid] if controller else []


def _reference(found: Set | Deployment) -> ObjectReference:
    resource = SETS if isinstance(found, Set) else DEPLOYMENTS
    return ObjectReference(
        api_version=resource.api_version,
        kind=resource.kind,
        namespace=found.metadata.namespace,
        name=found.metadata.name,
        uid=found.metadata.uid,
    )


class ReplicaSetsLoop:
    """Creates and deletes the pods of ReplicaSets."""

    def __init__(self, context: Context) -> None:
        self._client = context.client
        self._recorder = context.recorder
        self._sets = context.informers.informer(
            SETS, indexes={BY_NAMESPACE: lambda found: [found.metadata.namespace]}
        )
        self._pods = context.informers.informer(
            PODS,
            indexes={BY_OWNER: owners, BY_NAMESPACE: lambda pod: [pod.metadata.namespace]},
        )
        self._expected: Expectations[Key] = Expectations()
        self._controller: Controller[Key] = Controller("replicasets", self._reconcile)
        self._sets.add_listener(self._set_changed)
        self._pods.add_listener(self._pod_changed)

    async def run(self) -> None:
        await self._controller.run()

    def _set_changed(self, old: Set | None, new: Set | None) -> None:
        found = new or old
        assert found is not None
        self._controller.queue.add(key_of(found))

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        for pod in (old, new):
            owner = pod.metadata.controller if pod is not None else None
            if pod is not None and owner is not None and owner.kind == SETS.kind:
                self._controller.queue.add(Key(pod.metadata.namespace, owner.name))
        if new is not None and new.metadata.controller is None:
            for found in self._sets.by_index(BY_NAMESPACE, new.metadata.namespace):
                if from_object(found.spec.selector).matches(new.metadata.labels):
                    self._controller.queue.add(key_of(found))

    async def _reconcile(self, key: Key) -> Result:
        found = self._sets.get(key.namespace, key.name)
        if found is None:
            self._expected.forget(key)
            return Done()
        seen = self._pods.by_index(BY_OWNER, found.metadata.uid)
        pods = self._expected.apply(key, seen)
        if await self._claim(found):
            return Done()  # The watch delivers the change and triggers another pass.
        plan = replicas.plan(found, pods, now())
        try:
            await self._carry_out(key, found, plan)
        finally:
            if plan.status != found.status:
                await self._write_status(found, plan)
        if plan.look_again is not None:
            return After(max(0.1, (plan.look_again - now()).total_seconds()))
        return Done()

    async def _claim(self, found: Set) -> bool:
        """Adopt matching pods without a controller, release owned pods that no longer match."""
        if found.metadata.deletion_timestamp is not None:
            return False
        selector = from_object(found.spec.selector)
        reference = replicas.controller_reference(SETS.api_version, SETS.kind, found)
        changed = False
        for pod in self._pods.by_index(BY_NAMESPACE, found.metadata.namespace):
            if pod.metadata.deletion_timestamp is not None:
                continue
            controller, fits = pod.metadata.controller, selector.matches(pod.metadata.labels)
            if controller is None and fits and replicas.counts(pod):
                await adopt(self._client, PODS, pod, reference)
                changed = True
            elif controller is not None and controller.uid == found.metadata.uid and not fits:
                await release(self._client, PODS, pod, found.metadata.uid)
                changed = True
        return changed

    async def _carry_out(self, key: Key, found: Set, plan: replicas.Plan) -> None:
        # In growing batches, as kube-controller-manager does (slow start): if the server refuses
        # a pod, it is refused once and not a hundred times.
        missing, batch = plan.create, 1
        while missing:
            batch = min(batch, missing)
            await self._create(key, found, batch)
            missing, batch = missing - batch, batch * 2
        await asyncio.gather(*(self._delete(key, found, pod) for pod in plan.delete))

    async def _create(self, key: Key, found: Set, count: int) -> None:
        """Create pods concurrently; raises the first error after all creations were recorded."""
        body = replicas.pod_body(found)
        creations = [self._client.create(PODS, body, key.namespace) for _ in range(count)]
        errors: list[BaseException] = []
        for made in await asyncio.gather(*creations, return_exceptions=True):
            if isinstance(made, BaseException):
                errors.append(made)
                continue
            self._expected.created(key, made)
            message = f"Created pod: {made.metadata.name}"
            self._recorder.event(_reference(found), "Normal", "SuccessfulCreate", message)
        if errors:
            self._recorder.event(_reference(found), "Warning", "FailedCreate", str(errors[0]))
            raise errors[0]

    async def _delete(self, key: Key, found: Set, pod: Pod) -> None:
        with contextlib.suppress(NotFound):
            await self._client.delete(PODS, pod.metadata.name, key.namespace, uid=pod.metadata.uid)
        self._expected.deleted(key, pod)
        message = f"Deleted pod: {pod.metadata.name}"
        self._recorder.event(_reference(found), "Normal", "SuccessfulDelete", message)

    async def _write_status(self, found: Set, plan: replicas.Plan) -> None:
        meta = found.metadata
        status = msgspec.to_builtins(plan.status)
        counts = ("replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas")
        patch = {"status": {**dict.fromkeys(counts, 0), **status}}
        with contextlib.suppress(NotFound):
            await self._client.patch(
                SETS, meta.name, patch, meta.namespace, kind=PatchKind.MERGE, subresource="status"
            )


class DeploymentsLoop:
    """Creates, scales and deletes the ReplicaSets of Deployments."""

    def __init__(self, context: Context) -> None:
        self._client = context.client
        self._recorder = context.recorder
        self._deployments = context.informers.informer(DEPLOYMENTS)
        self._sets = context.informers.informer(SETS, indexes={BY_OWNER: owners})
        self._controller: Controller[Key] = Controller("deployments", self._reconcile)
        self._deployments.add_listener(self._deployment_changed)
        self._sets.add_listener(self._set_changed)

    async def run(self) -> None:
        await self._controller.run()

    def _deployment_changed(self, _: Deployment | None, new: Deployment | None) -> None:
        if new is not None:
            self._controller.queue.add(key_of(new))

    def _set_changed(self, old: Set | None, new: Set | None) -> None:
        for found in (old, new):
            owner = found.metadata.controller if found is not None else None
            if found is not None and owner is not None and owner.kind == DEPLOYMENTS.kind:
                self._controller.queue.add(Key(found.metadata.namespace, owner.name))

    async def _reconcile(self, key: Key) -> Result:
        found = self._deployments.get(key.namespace, key.name)
        if found is None:
            return Done()
        owned = self._sets.by_index(BY_OWNER, found.metadata.uid)
        plan = rollout.plan(found, owned, now())
        await self._carry_out(found, plan)
        await self._write(found, plan)
        return Done()

    async def _carry_out(self, found: Deployment, plan: rollout.Plan) -> None:
        namespace = found.metadata.namespace
        if plan.create is not None:
            # The name follows from the template: a repeated creation fails with AlreadyExists.
            try:
                made = await self._client.create(SETS, plan.create, namespace)
            except AlreadyExists:
                await self._adopt_set(found, plan.create)
            else:
                self._tell_scaled(found, made.metadata.name, made.wanted)
        for name, size in plan.scale.items():
            await self._patch_set(namespace, name, {"spec": {"replicas": size}})
            self._tell_scaled(found, name, size)
        for name, revision in plan.mark.items():
            mark: dict[str, object] = {"metadata": {"annotations": {REVISION: revision}}}
            await self._patch_set(namespace, name, mark)
        for name in plan.delete:
            with contextlib.suppress(NotFound):
                await self._client.delete(SETS, name, namespace)

    async def _adopt_set(self, found: Deployment, desired: dict[str, Any]) -> None:
        """Adopt the existing ReplicaSet with our name if it has no controller."""
        present = await self._client.get(
            SETS, desired["metadata"]["name"], found.metadata.namespace
        )
        controller = present.metadata.controller
        if controller is None:
            await adopt(self._client, SETS, present, desired["metadata"]["ownerReferences"][0])
        elif controller.uid != found.metadata.uid:
            message = f"ReplicaSet {present.metadata.name} belongs to {controller.name}"
            self._recorder.event(_reference(found), "Warning", "ReplicaSetTaken", message)

    async def _patch_set(self, namespace: str, name: str, patch: dict[str, object]) -> None:
        with contextlib.suppress(NotFound):
            await self._client.patch(SETS, name, patch, namespace, kind=PatchKind.MERGE)

    def _tell_scaled(self, found: Deployment, name: str, size: int) -> None:
        message = f"Scaled replica set {name} to {size}"
        self._recorder.event(_reference(found), "Normal", "ScalingReplicaSet", message)

    async def _write(self, found: Deployment, plan: rollout.Plan) -> None:
        meta = found.metadata
        with contextlib.suppress(NotFound):
            if plan.revision and meta.annotations.get(REVISION) != plan.revision:
                patch: dict[str, object] = {"metadata": {"annotations": {REVISION: plan.revision}}}
                await self._client.patch(
                    DEPLOYMENTS, meta.name, patch, meta.namespace, kind=PatchKind.MERGE
                )
            if plan.status != found.status:
                await self._client.patch(
                    DEPLOYMENTS,
                    meta.name,
                    {"status": _full(plan)},
                    meta.namespace,
                    kind=PatchKind.MERGE,
                    subresource="status",
                )


def _full(plan: rollout.Plan) -> dict[str, object]:
    """The status with explicit zeros: a merge patch could not lower a count to zero otherwise."""
    counts = (
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
        "unavailableReplicas",
    )
    return {**dict.fromkeys(counts, 0), **msgspec.to_builtins(plan.status)}
