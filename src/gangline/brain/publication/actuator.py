"""Carries actions out: creates plans, writes tuning, deletes outdated plans.

An action has a number from the store before anything is written, and the plan is named by it. So a
Brain that is killed at any point, and its successor, create one plan for each action: the second
creation collides with the first.
"""

import logging
from collections.abc import Iterable
from datetime import datetime

import msgspec

from gangline.api.jobs.elastic import ScalePlan
from gangline.api.jobs.training_facts import TUNING_KEY, JobTuning, tuning_name
from gangline.api.meta.objects import Object
from gangline.api.resources import CONFIG_MAPS, SCALE_PLANS
from gangline.brain.publication.plans import (
    PLANNED,
    PlannedChange,
    is_outdated,
    next_tuning,
    scale_plan,
)
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import AlreadyExists, ApiError, NotFound

log = logging.getLogger(__name__)

ACTION_ANNOTATION = "gangline.dev/brain-action"
"""On the ConfigMap with the tuning: the action that wrote it last."""


class Actuator:
    """Writes what actions change. Every method is safe to repeat."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def carry_out(self, job: Object, change: PlannedChange) -> bool:
        """Create the plan of an action, or write its tuning. Returns whether it is in place.

        Raises:
            ApiError: the API server did not take it; it is repeated in the next cycle.
        """
        if change.what in PLANNED:
            return await self._create_plan(job, change)
        return await self._tune(job, change)

    async def _create_plan(self, job: Object, change: PlannedChange) -> bool:
        plan = scale_plan(job, change)
        if plan is None:
            return False
        try:
            await self._client.create(SCALE_PLANS, plan, job.metadata.namespace)
        except AlreadyExists:
            log.info("the plan exists already", extra={"plan": plan.metadata.name})
        else:
            log.info("plan created", extra={"plan": plan.metadata.name, "what": change.what})
        return True

    async def _tune(self, job: Object, change: PlannedChange) -> bool:
        name, namespace = tuning_name(job.metadata.name), job.metadata.namespace
        try:
            stored = await self._client.get(CONFIG_MAPS, name, namespace)
        except NotFound:
            return False
        done = stored.metadata.annotations.get(ACTION_ANNOTATION) == str(change.action_id)
        if done:
            return True
        tuning = next_tuning(_read_tuning(stored.data.get(TUNING_KEY, "")), change)
        if tuning is None:
            return False
        patch = {
            "metadata": {
                # Two Brains must not both raise the version of one state.
                "resourceVersion": stored.metadata.resource_version,
                "annotations": {ACTION_ANNOTATION: str(change.action_id)},
            },
            "data": {TUNING_KEY: msgspec.json.encode(tuning).decode()},
        }
        await self._client.patch(CONFIG_MAPS, name, patch, namespace)
        return True

    async def delete_outdated(self, plans: Iterable[ScalePlan], now: datetime) -> int:
        """Delete finished plans of the Brain after a day. Returns their number."""
        deleted = 0
        for plan in plans:
            if not is_outdated(plan, now):
                continue
            meta = plan.metadata
            try:
                await self._client.delete(SCALE_PLANS, meta.name, meta.namespace, uid=meta.uid)
                deleted += 1
            except NotFound:
                continue
            except ApiError as error:
                log.info("cannot delete a plan: %s", error, extra={"plan": meta.name})
        return deleted


def _read_tuning(text: str) -> JobTuning | None:
    try:
        return msgspec.json.decode(text, type=JobTuning) if text else None
    except msgspec.DecodeError:
        return None
