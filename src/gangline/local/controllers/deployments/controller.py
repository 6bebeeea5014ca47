"""Deployment controller: watches Deployments and ReplicaSets, and writes both."""

import contextlib

from gangline.kube.errors import AlreadyExists, NotFound
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
from gangline.local.controllers.deployments.plan import (
    RAW_DEPLOYMENTS,
    REVISION_ANNOTATION,
    DeploymentPlan,
    RawDeployment,
    plan_deployment,
    progress_check_time,
)
from gangline.local.controllers.replica_sets.controller import OwnerLoop
from gangline.local.controllers.replica_sets.plan import RAW_REPLICA_SETS


class DeploymentController(OwnerLoop):
    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context, RAW_DEPLOYMENTS)
        by_namespace = {BY_NAMESPACE: namespace_of}
        self._deployments = context.informers.informer(RAW_DEPLOYMENTS, indexes=by_namespace)
        self._sets = context.informers.informer(
            RAW_REPLICA_SETS, indexes={BY_OWNER: owner_uids, **by_namespace}
        )
        queue = self._add_queue("deployments", self._reconcile)
        self._deployments.add_listener(enqueue_changes(queue))
        self._sets.add_listener(enqueue_owners(queue, RAW_DEPLOYMENTS, self._deployments))

    async def _reconcile(self, key: ObjectKey) -> float | None:
        deployment = self._deployments.get(key.namespace, key.name)
        if deployment is None:
            return None
        sets = self._sets.by_index(BY_NAMESPACE, key.namespace)
        if await self._claim(deployment, RAW_REPLICA_SETS, sets):
            return None  # The watch delivers the change and triggers another pass.
        owned = self._sets.by_index(BY_OWNER, deployment.metadata.uid)
        plan = plan_deployment(deployment, owned, current_time())
        await self._execute(deployment, plan)
        await self._write(deployment, plan)
        return seconds_until(progress_check_time(deployment, plan.status))

    async def _execute(self, deployment: RawDeployment, plan: DeploymentPlan) -> None:
        namespace = deployment.metadata.namespace
        if plan.create is not None:
            # The name follows from the template: a repeated creation fails with AlreadyExists.
            try:
                made = await self._client.create(RAW_REPLICA_SETS, plan.create, namespace)
            except AlreadyExists:
                await self._report_taken_name(deployment, plan.create["metadata"]["name"])
            else:
                self._record_scaling(deployment, made.metadata.name, made.desired_replicas)
        for name, patch in plan.patches.items():
            with contextlib.suppress(NotFound):
                await self._client.patch(RAW_REPLICA_SETS, name, patch, namespace)
            if "replicas" in patch.get("spec", {}):
                self._record_scaling(deployment, name, patch["spec"]["replicas"])
        for name in plan.delete:
            with contextlib.suppress(NotFound):
                await self._client.delete(RAW_REPLICA_SETS, name, namespace)

    async def _report_taken_name(self, deployment: RawDeployment, name: str) -> None:
        present = await self._client.get(RAW_REPLICA_SETS, name, deployment.metadata.namespace)
        controller = present.metadata.controller
        if controller is not None and controller.uid != deployment.metadata.uid:
            message = f"ReplicaSet {name} belongs to {controller.name}"
            self._note(deployment, "Warning", "ReplicaSetTaken", message)

    def _record_scaling(self, deployment: RawDeployment, name: str, size: int) -> None:
        message = f"Scaled replica set {name} to {size}"
        self._note(deployment, "Normal", "ScalingReplicaSet", message)

    async def _write(self, deployment: RawDeployment, plan: DeploymentPlan) -> None:
        meta = deployment.metadata
        with contextlib.suppress(NotFound):
            if plan.revision and meta.annotations.get(REVISION_ANNOTATION) != plan.revision:
                patch: dict[str, object] = {
                    "metadata": {"annotations": {REVISION_ANNOTATION: plan.revision}}
                }
                await self._client.patch(RAW_DEPLOYMENTS, meta.name, patch, meta.namespace)
        if plan.status != deployment.status:
            patch = {"status": complete_status(plan.status)}
            await patch_status(self._client, RAW_DEPLOYMENTS, deployment, patch)
