"""The ScalePlan controller: watches plans, and writes the status of the job and then of the plan.

It runs beside the engine, with a queue of its own. Both write the status of a job. Each write
carries the version that it is based on, so of two concurrent writes the later fails and is planned
again.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime

import msgspec

from gangline.api.jobs.elastic import ElasticJobRecord, ScalePlan
from gangline.api.jobs.kubeflow import MANAGED_BY_US
from gangline.api.meta.objects import Object
from gangline.api.resources import SCALE_PLANS
from gangline.kube.client.client import ApiClient, PatchKind
from gangline.kube.controller.controller import (
    Controller,
    ReconcileDone,
    ReconcileResult,
    RequeueAfter,
)
from gangline.kube.controller.event_recorder import EventRecorder
from gangline.kube.errors import NotFound
from gangline.kube.informers.informer import Informer
from gangline.operator import metrics
from gangline.operator.engine import manifests
from gangline.operator.engine.observe import ClusterCache, JobKey, JobObservation, job_resource
from gangline.operator.frameworks.elastic.framework import KIND
from gangline.operator.model.job import Manifest
from gangline.operator.scaleplan.plan import ScalePlanStep, is_plan_finished, next_step, open_plans

log = logging.getLogger(__name__)

SCALE_PLAN_WORKERS = 4
_JOB = "job"


class ScalePlanController:
    """Applies ScalePlans. Call ``run`` in a task, and ``job_changed`` for each change of a job."""

    def __init__(
        self,
        client: ApiClient,
        cache: ClusterCache,
        events: EventRecorder,
        namespaces: Sequence[str],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._cache = cache
        self._events = events
        self._clock = clock
        self._plans = Informer(client, SCALE_PLANS, namespaces, indexes={_JOB: _job_of})
        self._controller: Controller[JobKey] = Controller(
            "scale-plans", self._reconcile, workers=SCALE_PLAN_WORKERS
        )
        self._plans.add_listener(self._changed)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._plans.run())
            tasks.create_task(self._controller.run())

    def job_changed(self, key: JobKey) -> None:
        if key.kind == KIND.identity and self._open_plans_of(key):
            self._controller.queue.add(key)

    def _changed(self, old: ScalePlan | None, new: ScalePlan | None) -> None:
        plan = new or old
        if plan is not None and plan.job_name:
            key = JobKey(KIND.identity, plan.metadata.namespace, plan.job_name)
            self._controller.queue.add(key)
        elif new is not None and not is_plan_finished(new):
            # A plan without a job's name belongs to no queue of plans: it fails on its own.
            self._controller.queue.add(JobKey(KIND.identity, new.metadata.namespace, ""))

    def _open_plans_of(self, key: JobKey) -> list[ScalePlan]:
        plans = self._plans.by_index(_JOB, f"{key.namespace}/{key.name}")
        return open_plans(plan for plan in plans if plan.metadata.deletion_timestamp is None)

    async def _reconcile(self, key: JobKey) -> ReconcileResult:
        """Execute the next step of the job's first unfinished plan."""
        observation = self._cache.observe(key) if key.name else None
        if observation and observation.job_state.job.policy.managed_by not in (None, MANAGED_BY_US):
            return ReconcileDone()
        next_write = next_step(
            self._open_plans_of(key), observation.job_state if observation else None, self._clock()
        )
        if next_write is None:
            return ReconcileDone()
        # The plan was deleted: no status can be reported.
        with suppress(NotFound):
            await self._apply(next_write, observation)
        wait = next_write.requeue_after
        return ReconcileDone() if wait is None else RequeueAfter(wait.total_seconds())

    async def _apply(self, next_write: ScalePlanStep, observation: JobObservation | None) -> None:
        plan = next_write.plan
        uids = [owner.uid for owner in plan.metadata.owner_references]
        if observation is not None and observation.stored.metadata.uid not in uids:
            plan = await self._set_owner(plan, observation)
        if observation is not None and next_write.memory is not None:
            await self._store_job_status(observation, next_write.memory)
            message = f"ScalePlan {plan.metadata.name}"
            self._events.event(observation.stored, "Normal", "ScalePlanCarriedOut", message)
        if next_write.status == plan.status:
            return
        metrics.WRITES.labels(SCALE_PLANS.kind, "status").inc()
        await self._client.patch(
            SCALE_PLANS,
            plan.metadata.name,
            _operations(plan, "/status", next_write.status),
            plan.metadata.namespace,
            kind=PatchKind.JSON,
            subresource="status",
        )
        fields = {"plan": plan.metadata.name, "phase": next_write.status.phase}
        log.info("scale plan", extra=fields)

    async def _set_owner(self, plan: ScalePlan, observation: JobObservation) -> ScalePlan:
        """Make the job the owner of the plan, so that the plan is deleted with it.

        Otherwise it would be applied to a later job of the same name.
        """
        owner = {
            name: value
            for name, value in manifests.owner_reference(observation.job_state.job).items()
            if name not in ("controller", "blockOwnerDeletion")
        }
        owners = [*msgspec.to_builtins(plan.metadata.owner_references), owner]
        metrics.WRITES.labels(SCALE_PLANS.kind, "patch").inc()
        return await self._client.patch(
            SCALE_PLANS,
            plan.metadata.name,
            _operations(plan, "/metadata/ownerReferences", owners),
            plan.metadata.namespace,
            kind=PatchKind.JSON,
        )

    async def _store_job_status(
        self, observation: JobObservation, memory: ElasticJobRecord
    ) -> None:
        """Write the plan's changes and its uid in one status write."""
        stored = observation.stored
        status = msgspec.json.decode(stored.status) | msgspec.to_builtins(memory)
        metrics.WRITES.labels("Job", "status").inc()
        after = await self._client.patch(
            job_resource(KIND),
            stored.metadata.name,
            _operations(stored, "/status", status),
            stored.metadata.namespace,
            kind=PatchKind.JSON,
            subresource="status",
        )
        self._cache.written_statuses.record_write(stored, after)


def _operations(item: Object, path: str, value: object) -> list[Manifest]:
    """Set a field, provided that the object still has the version that was read."""
    version = item.metadata.resource_version
    return [
        {"op": "replace", "path": "/metadata/resourceVersion", "value": version},
        {"op": "add", "path": path, "value": value},
    ]


def _job_of(plan: ScalePlan) -> Iterable[str]:
    return (f"{plan.metadata.namespace}/{plan.job_name}",)
