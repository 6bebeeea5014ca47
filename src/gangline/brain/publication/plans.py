"""Carries actions out: a ScalePlan, or the tuning of a job; deletes outdated plans.

An action has a number from the store before anything is written, and the plan is named by it. So a
Brain that is killed at any point, and its successor, create one plan for each action: the second
creation collides with the first.
"""

import contextlib
import logging
from collections.abc import Iterable
from datetime import datetime, timedelta

import msgspec
from msgspec.structs import replace

from gangline.api.jobs.elastic import (
    AUTO,
    PHASE_FAILED,
    PHASE_SUCCEEDED,
    PS,
    SCALE_TYPE_LABEL,
    WORKER,
    PodMeta,
    RoleScale,
    ScalePlan,
    ScalePlanSpec,
)
from gangline.api.jobs.training_facts import (
    FACTS_VERSION,
    TUNING_KEY,
    CheckpointTuning,
    JobTuning,
    LoaderTuning,
    tuning_name,
)
from gangline.api.meta.field_doc import ResourceList
from gangline.api.meta.objects import Object, ObjectMeta, OwnerReference
from gangline.api.resource_list import CPU, MEMORY, format_resource
from gangline.api.resources import CONFIG_MAPS, SCALE_PLANS
from gangline.brain.advisers.advice import GuardAction, What
from gangline.brain.guard.policy import FIELDS
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import AlreadyExists, ApiError, NotFound

REASON_ANNOTATION = "gangline.dev/brain-reason"
"""On a plan of the Brain: why it was made."""
BRAIN_PLAN_LABEL = "gangline.dev/brain"
"""On a plan of the Brain: ``true``. Only these are deleted by it."""
PLAN_RETENTION = timedelta(hours=24)
UNDER_WAY = timedelta(minutes=15)
"""A plan that is open for longer does not succeed; the trial of its action has ended."""

_RESOURCES = {What.MEMORY: MEMORY, What.PS_MEMORY: MEMORY, What.CPU: CPU, What.PS_CPU: CPU}
PLANNED = frozenset({What.WORKERS, What.PS_COUNT, *_RESOURCES})
"""Fields that a ScalePlan changes."""
_LOADER_FIELDS = {What.MICRO_BATCH: "batch_size", What.LOADER_WORKERS: "num_workers"}
PRIOR_FAILURES = 4.0
"""Failures for which the expected rate counts beside those that the trainer observes itself."""


def plan_name(job: str, action_id: int) -> str:
    """Return the name of the plan of an action: a repeated creation collides."""
    return f"{job}-brain-{action_id}"


def reference_to(job: Object) -> OwnerReference:
    meta = job.metadata
    return OwnerReference(job.api_version, job.kind, meta.name, meta.uid)


def scale_plan(
    job: Object, action: GuardAction, sentence: str = "", servers: Iterable[int] = ()
) -> ScalePlan | None:
    """Return the plan that carries an action out; None if no plan can.

    More CPU for all parameter servers moves those that run, whose ranks are ``servers``.
    """
    spec = _spec(job.metadata.name, action)
    if spec is None:
        return None
    if action.what is What.PS_CPU and action.direction > 0 and not spec.migrate_pods:
        (size,), ranks = spec.replica_resource_specs.values(), sorted(servers)
        moved = [PodMeta(type=PS, rank_index=rank, resource=size.resource) for rank in ranks]
        spec = replace(spec, migrate_pods=moved)
    meta = job.metadata
    return ScalePlan(
        api_version=SCALE_PLANS.api_version,
        kind=SCALE_PLANS.kind,
        metadata=ObjectMeta(
            name=plan_name(meta.name, action.id),
            namespace=meta.namespace,
            labels={SCALE_TYPE_LABEL: AUTO, BRAIN_PLAN_LABEL: "true"},
            annotations={REASON_ANNOTATION: sentence},
            owner_references=[reference_to(job)],
        ),
        spec=spec,
    )


def _spec(job: str, action: GuardAction) -> ScalePlanSpec | None:
    if action.after is None or action.what not in PLANNED:
        return None
    count = round(action.after)
    role = action.role or (PS if FIELDS[action.what] == "ps" else WORKER)
    resource = _RESOURCES.get(action.what)
    if resource is None:
        size = RoleScale(replicas=count)
    else:
        amount: ResourceList = {resource: format_resource(resource, count)}
        if action.rank is not None:
            pod = PodMeta(type=role, rank_index=action.rank, resource=amount)
            return ScalePlanSpec(owner_job=job, migrate_pods=[pod])
        size = RoleScale(resource=amount)
    return ScalePlanSpec(owner_job=job, replica_resource_specs={role: size})


def next_tuning(before: JobTuning | None, action: GuardAction) -> JobTuning | None:
    """Return the tuning with a change, under the next version; None if tuning cannot carry it.

    ``target`` of the action is the device model that it is meant for; empty: all of them.
    """
    tuning = before or JobTuning(v=FACTS_VERSION, version=0)
    if action.what is What.CHECKPOINT_INTERVAL:
        # The trainer computes the interval itself, from its own observations on top of this one.
        expected_s = action.between_failures_s
        prior = expected_s and CheckpointTuning(PRIOR_FAILURES, PRIOR_FAILURES * expected_s)
        return replace(tuning, version=tuning.version + 1, checkpoint=prior or None)
    field = _LOADER_FIELDS.get(action.what)
    if action.after is None or field is None:
        return None
    old = tuning.devices.get(action.target) if action.target else tuning.dataloader
    loader = replace(old or LoaderTuning(), **{field: round(action.after)})
    tuning = replace(tuning, version=tuning.version + 1)
    if action.target:
        return replace(tuning, devices={**tuning.devices, action.target: loader})
    return replace(tuning, dataloader=loader)


def failed_plans(plans: Iterable[ScalePlan]) -> set[str]:
    """Return the names of the plans that failed."""
    return {plan.metadata.name for plan in plans if plan.status.phase == PHASE_FAILED}


def is_under_way(plan: ScalePlan, now: datetime) -> bool:
    """Return whether a plan is being carried out.

    One whose pods do not start stays open for ever. It must not hold other changes for as long.
    """
    if plan.status.phase in (PHASE_SUCCEEDED, PHASE_FAILED):
        return False
    created = plan.metadata.creation_timestamp
    return created is None or now - created < UNDER_WAY


def is_outdated(plan: ScalePlan, now: datetime) -> bool:
    """Return whether a plan of the Brain finished long ago."""
    is_ours = plan.metadata.labels.get(BRAIN_PLAN_LABEL) == "true"
    ended = plan.status.finish_time or plan.metadata.creation_timestamp
    if not is_ours or ended is None or plan.status.phase not in (PHASE_SUCCEEDED, PHASE_FAILED):
        return False
    return now - ended > PLAN_RETENTION


log = logging.getLogger(__name__)

ACTION_ANNOTATION = "gangline.dev/brain-action"
"""On the ConfigMap with the tuning: the action that wrote it last."""


class Actuator:
    """Writes what actions change. Every method is safe to repeat."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def carry_out(
        self, job: Object, action: GuardAction, sentence: str = "", servers: Iterable[int] = ()
    ) -> bool:
        """Create the plan of an action, or write its tuning. Returns whether it is in place.

        ``servers`` are the ranks of the running parameter servers.

        Raises:
            ApiError: the API server did not take it; it is repeated in the next cycle.
        """
        if action.what in PLANNED:
            return await self._create_plan(job, scale_plan(job, action, sentence, servers))
        return await self._tune(job, action)

    async def _create_plan(self, job: Object, plan: ScalePlan | None) -> bool:
        if plan is None:
            return False
        done = "plan created"
        try:
            await self._client.create(SCALE_PLANS, plan, job.metadata.namespace)
        except AlreadyExists:
            done = "the plan exists already"
        log.info(done, extra={"plan": plan.metadata.name})
        return True

    async def _tune(self, job: Object, action: GuardAction) -> bool:
        name, namespace = tuning_name(job.metadata.name), job.metadata.namespace
        try:
            stored = await self._client.get(CONFIG_MAPS, name, namespace)
        except NotFound:
            return False
        if stored.metadata.annotations.get(ACTION_ANNOTATION) == str(action.id):
            return True
        before = None
        with contextlib.suppress(msgspec.DecodeError):
            before = msgspec.json.decode(stored.data.get(TUNING_KEY, ""), type=JobTuning)
        tuning = next_tuning(before, action)
        if tuning is None:
            return False
        patch = {
            "metadata": {
                # Two Brains must not both raise the version of one state.
                "resourceVersion": stored.metadata.resource_version,
                "annotations": {ACTION_ANNOTATION: str(action.id)},
            },
            "data": {TUNING_KEY: msgspec.json.encode(tuning).decode()},
        }
        await self._client.patch(CONFIG_MAPS, name, patch, namespace)
        return True

    async def delete_outdated(self, plans: Iterable[ScalePlan], now: datetime) -> int:
        """Delete finished plans of the Brain after a day. Returns their number."""
        deleted = 0
        for meta in [plan.metadata for plan in plans if is_outdated(plan, now)]:
            try:
                await self._client.delete(SCALE_PLANS, meta.name, meta.namespace, uid=meta.uid)
                deleted += 1
            except ApiError as error:
                log.info("cannot delete a plan: %s", error, extra={"plan": meta.name})
        return deleted
