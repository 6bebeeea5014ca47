"""Publication: what the Brain writes to the API server.

Nothing else is written, and never a pod, a binding or the specification of a job.

Actions become a ScalePlan, or the tuning of a job. An action has a number from the store before
anything is written, and the plan is named by it. So a Brain that is killed at any point, and its
successor, create one plan for each action: the second creation collides with the first.

Advice becomes JobAdvice objects and the events of their changes; run times are learned. An object
is written only if its content changed, so that a cycle without news costs no request. Events follow
from the difference to the stored object and come after its write. So a Brain that is restarted
repeats none of them.
"""

import logging
import operator
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from statistics import median

import msgspec
from msgspec.structs import replace

from gangline.api.brain.job_advice import (
    APPLIED,
    HELD,
    RUN_TIME_ESTIMATE_ANNOTATION,
    AdviceEvidence,
    AdviceItem,
    JobAdvice,
    JobAdviceStatus,
)
from gangline.api.figures import plain_number
from gangline.api.job_resources import find_job_kind
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
from gangline.api.resources import CONFIG_MAPS, JOB_ADVICE, POD_GROUPS, SCALE_PLANS
from gangline.api.volcano.scheduling import PodGroup
from gangline.brain.advisers.advice import Advice, GuardAction, Unit, What
from gangline.brain.advisers.view import SimilarRuns
from gangline.brain.facts.records import Run
from gangline.brain.guard.policy import FIELDS
from gangline.kube.client.client import ApiClient
from gangline.kube.controller.event_recorder import EventRecorder
from gangline.kube.errors import AlreadyExists, ApiError, NotFound
from gangline.kube.informers.informer import Informer, object_key

log = logging.getLogger(__name__)

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
        with suppress(msgspec.DecodeError):
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


LEAST_RUNS = 3
MAX_LEVEL = 2
"""The run time of jobs that only share an image says nothing."""
RELATIVE_CHANGE = 0.1


def run_time_estimate_s(similar: SimilarRuns) -> int | None:
    """Return the median run time of the family; None if too few runs are known."""
    if similar.level > MAX_LEVEL:
        return None
    times = [seconds for run in similar.runs if (seconds := _run_time_s(run)) is not None]
    return round(median(times)) if len(times) >= LEAST_RUNS else None


def _run_time_s(run: Run) -> float | None:
    if run.job.finished_ms is None or run.job.started_ms is None:
        return None
    return max(0, run.job.finished_ms - run.job.started_ms) / 1000


async def write_estimate(client: ApiClient, group: PodGroup, seconds: int | None) -> None:
    """Write the estimate on a group if it moved noticeably."""
    written = group.metadata.annotations.get(RUN_TIME_ESTIMATE_ANNOTATION, "")
    if seconds is None or _is_close(written, seconds):
        return
    patch = {"metadata": {"annotations": {RUN_TIME_ESTIMATE_ANNOTATION: str(seconds)}}}
    meta = group.metadata
    try:
        await client.patch(POD_GROUPS, meta.name, patch, meta.namespace)
    except ApiError as error:
        log.debug("cannot write an estimate: %s", error, extra={"podgroup": meta.name})


def _is_close(written: str, seconds: int) -> bool:
    if not (written.isascii() and written.isdecimal()):
        return False
    return abs(int(written) - seconds) <= RELATIVE_CHANGE * seconds


def remaining_s(similar: SimilarRuns, age_s: float) -> float | None:
    """Return the median rest of comparable runs that lasted longer than this; None if none did."""
    times = map(_run_time_s, similar.runs)
    rests = [seconds - age_s for seconds in times if seconds is not None and seconds > age_s]
    return median(rests) if rests else None


ADVISED, APPLIED_EVENT, HELD_EVENT = "Advised", "AdviceApplied", "AdviceHeld"
ROLLED_BACK_EVENT = "AdviceRolledBack"


LEAST_CHANGE: dict[str, int] = {
    Unit.BYTES: 256 * 2**20,
    Unit.MILLICORES: 250,
    Unit.COUNT: 1,
    Unit.SECONDS: 1,
}
_GIB, _MIB = 2**30, 2**20
_AMOUNT = re.compile(r"\d[\d.,]*( ?(%|[A-Za-z]+))?")

_SHARED = [
    name
    for name in AdviceItem.__struct_fields__
    if name in Advice.__struct_fields__ and name not in ("reason", "evidence")
]
"""Fields that an item has as its advice has them."""


def format_amount(value: float | None, unit: str) -> str:
    """Return a number as users write it: ``11.3Gi``, ``2500m``, ``146s``, ``8``."""
    if value is None:
        return ""
    match unit:
        case Unit.BYTES:
            gib = f"{plain_number(value / _GIB, 3)}Gi"
            return gib if value >= _GIB else f"{value / _MIB:.0f}Mi"
        case Unit.MILLICORES:
            return plain_number(value / 1000) if value % 1000 == 0 else f"{value:.0f}m"
        case Unit.SECONDS:
            return f"{value:.0f}s"
    return plain_number(value, 6)


def advice_item(
    advice: Advice, sentence: str, evidence: AdviceEvidence, state: str, held_because: str = ""
) -> AdviceItem:
    return AdviceItem(
        **{name: getattr(advice, name) for name in _SHARED},
        now=format_amount(advice.was, advice.unit),
        advised=format_amount(advice.value, advice.unit) or advice.target,
        sentence=sentence,
        reason=advice.reason.code,
        arguments=dict(advice.reason.arguments),
        evidence=evidence,
        state=state,
        held_because=held_because,
    )


def ordered(items: Iterable[AdviceItem]) -> list[AdviceItem]:
    """Order items by subject, so that the same advice is always the same list."""
    order = list(map(str, What))
    return sorted(
        items, key=lambda item: (order.index(item.what), item.role, item.rank or 0, item.target)
    )


def with_summary(status: JobAdviceStatus) -> JobAdviceStatus:
    first = status.items[0] if status.items else None
    names = dict.fromkeys(f"{item.role} {item.what}".strip() for item in status.items)
    return replace(
        status,
        what=", ".join(names),
        now=first.now if first else "",
        advised=first.advised if first else "",
        why=first.sentence if first else "",
    )


def settled(old: Iterable[AdviceItem], new: Iterable[AdviceItem]) -> list[AdviceItem]:
    """Return the items to store: an old one where the new one differs too little from it."""
    kept = {_subject(item): item for item in new}
    kept |= {
        at: item for item in old if (at := _subject(item)) in kept and not _differs(item, kept[at])
    }
    return ordered(kept.values())


def changes(old: Iterable[AdviceItem], new: Iterable[AdviceItem]) -> Iterator[tuple[str, str]]:
    """Yield reasons and messages of what is new in ``new``, which is ``settled``: each once."""
    stored = {_subject(item): item for item in old}
    for item in new:
        before = stored.get(_subject(item))
        if before == item:
            continue
        if item.state == APPLIED:
            if before is None or before.state != APPLIED or before.value != item.value:
                yield APPLIED_EVENT, item.sentence
        elif before is None or _moved(before, item) or before.reason != item.reason:
            yield ADVISED, item.sentence
        if item.state == HELD and (before is None or _hold(before) != _hold(item)):
            yield HELD_EVENT, f"{item.what}: {item.held_because}"


def _hold(item: AdviceItem) -> str:
    """Why an item is held, without the amounts: they change in each evaluation."""
    return _AMOUNT.sub("#", item.held_because)


def _subject(item: AdviceItem) -> tuple[str, str, int, str]:
    return item.what, item.role, -1 if item.rank is None else item.rank, item.target


def _differs(old: AdviceItem, new: AdviceItem) -> bool:
    fixed = operator.attrgetter("state", "reason", "was", "confidence", "unit")
    return fixed(old) != fixed(new) or _hold(old) != _hold(new) or _moved(old, new)


def _moved(old: AdviceItem, new: AdviceItem) -> bool:
    if old.value is None or new.value is None:
        return old.value != new.value or (old.value is None and old.sentence != new.sentence)
    difference = abs(new.value - old.value)
    relative = 0.0 if new.unit == Unit.COUNT else RELATIVE_CHANGE
    return difference >= max(LEAST_CHANGE.get(new.unit, 0), relative * abs(old.value))


EXPIRES = timedelta(hours=1)
"""Advice without a newer confirmation is outdated after this time."""
REFRESH = timedelta(minutes=30)
"""An unchanged object is written again after this time, which moves its expiry."""


class Publisher:
    """Keeps one JobAdvice for each job with advice, while its informer ``stored`` runs."""

    def __init__(self, client: ApiClient, events: EventRecorder) -> None:
        self._client, self._events = client, events
        self._written: dict[str, JobAdvice] = {}
        """Writes by uid of the job, until the informer shows them."""
        self.stored: Informer[JobAdvice] = Informer(client, JOB_ADVICE, indexes={"job": _job_uids})
        self.stored.add_listener(self._on_stored)

    def advice_of(self, job: Object) -> JobAdvice | None:
        written = self._written.get(job.metadata.uid)
        return written or next(iter(self.stored.by_index("job", job.metadata.uid)), None)

    async def publish(
        self, job: Object, mode: str, items: Iterable[AdviceItem], history: str = ""
    ) -> None:
        """Store the items of a job, if they have changed or their expiry is due."""
        stored = self.advice_of(job)
        before = stored.status if stored else JobAdviceStatus()
        old, now = before.items, datetime.now(UTC).replace(microsecond=0)
        refresh = before.updated is None or now - before.updated >= REFRESH
        # A refresh takes all news, also those below the hysteresis of an extra write.
        new = ordered(items) if refresh else settled(old, items)
        written = (old, before.mode, before.history, before.job_generation)
        is_due = refresh or written != (new, mode, history, job.metadata.generation)
        if not (new if stored is None else is_due):
            return
        status = with_summary(
            JobAdviceStatus(
                job_kind=job.kind,
                job_generation=job.metadata.generation,
                mode=mode,
                updated=now,
                expires=now + EXPIRES,
                history=history,
                items=new,
            )
        )
        if await self._write(job, stored, status):
            for reason, message in changes(old, new):
                self._events.event(job, "Normal", reason, message)

    async def withdraw(self, job: Object) -> None:
        if (stored := self.advice_of(job)) is not None:
            await self._delete(stored)
            self._written.pop(job.metadata.uid, None)

    async def withdraw_ended(self, ended: Collection[str]) -> None:
        """Delete the advice of jobs, given by uid, that have ended: nothing can be set any more."""
        for advice in list(self.stored.items()):
            if any(uid in ended for uid in _job_uids(advice)):
                await self._delete(advice)

    async def _delete(self, advice: JobAdvice) -> None:
        meta = advice.metadata
        with suppress(NotFound):
            await self._client.delete(JOB_ADVICE, meta.name, meta.namespace, uid=meta.uid)

    def _on_stored(self, old: JobAdvice | None, new: JobAdvice | None) -> None:
        for uid in _job_uids(new or old):
            written = self._written.get(uid)
            if written and (new is None or _is_as_new(new.metadata, written.metadata)):
                del self._written[uid]

    async def _write(self, job: Object, stored: JobAdvice | None, status: JobAdviceStatus) -> bool:
        target = stored or await self._create(job)
        if target is None:
            return False
        meta = target.metadata
        body = {"status": _complete(status)}
        try:
            written = await self._client.patch(
                JOB_ADVICE, meta.name, body, meta.namespace, subresource="status"
            )
        except NotFound:
            # A user deleted it: it is created again in the next cycle.
            self._written.pop(job.metadata.uid, None)
            return False
        self._written[job.metadata.uid] = written
        return True

    async def _create(self, job: Object) -> JobAdvice | None:
        meta = job.metadata
        # Jobs of two kinds may have one name: the second gets its kind, as in flags, as suffix.
        kind = find_job_kind(job.api_version, job.kind)
        suffix = kind.trainer if kind else job.kind.lower()
        for name in (meta.name, f"{meta.name}.{suffix}"):
            advice = JobAdvice(
                api_version=JOB_ADVICE.api_version,
                kind=JOB_ADVICE.kind,
                metadata=ObjectMeta(
                    name=name, namespace=meta.namespace, owner_references=[reference_to(job)]
                ),
            )
            try:
                return await self._client.create(JOB_ADVICE, advice, meta.namespace)
            except AlreadyExists:
                stored = await self._client.get(JOB_ADVICE, name, meta.namespace)
                if meta.uid in _job_uids(stored):
                    return stored
        log.warning("the names for advice are in use", extra={"job": str(object_key(job))})
        return None


def _job_uids(advice: JobAdvice | None) -> list[str]:
    return [owner.uid for owner in advice.metadata.owner_references] if advice else []


def _is_as_new(seen: ObjectMeta, written: ObjectMeta) -> bool:
    """Return whether the informer shows the write, or a later state of the object."""
    first, second = seen.resource_version, written.resource_version
    if first.isdecimal() and second.isdecimal():
        return int(first) >= int(second)
    return first == second


def _complete(status: JobAdviceStatus) -> dict[str, object]:
    """Return all fields, also the empty ones: a merge patch would keep the former values."""
    names = [field.encode_name for field in msgspec.structs.fields(JobAdviceStatus)]
    written: dict[str, object] = msgspec.to_builtins(status)
    return dict.fromkeys(names) | written | {"items": msgspec.to_builtins(status.items)}
