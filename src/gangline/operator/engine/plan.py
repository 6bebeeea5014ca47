"""Plans one reconcile pass: a function of the observed job and the time.

The function is total and deterministic: the same observation and time give the same plan, whatever
the order of events was. The first stage that applies decides:

1. *ignored*: the job is being deleted (owner references do the rest) or has another controller;
2. *finished*: clean up by policy, and delete the job when its TTL is over;
3. *invalid*, and no earlier specification is known: report the errors, change nothing else;
4. *suspended*: delete pods, services and pod group; a resumed job starts when those pods are gone;
5. *ending*: success, a fatal failure, the backoff limit or a timeout: write that to the status;
6. *live*: replace, add and remove replicas.

Two invariants make it safe to stop the operator between any two writes:

- The end of a job is stored before anything is cleaned up. Otherwise a job whose master pod was
  deleted would look like one that never ran.
- A failed pod is counted in the stored status before it is deleted. Otherwise its restart would be
  lost.

Both cost one more pass, and no additional request.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice

from msgspec import structs

from gangline.api.failure import is_node_refusal
from gangline.api.job_names import LAST_VALID_SPEC_IN_FORCE, NOT_ALL_PODS_RAN, is_interrupted
from gangline.api.jobs.kubeflow import MANAGED_BY_US, JobStatus
from gangline.api.meta.conditions import (
    TRUE,
    find_condition,
    is_condition_true,
    remove_condition,
)
from gangline.operator.engine import manifests
from gangline.operator.engine.slots import (
    assign_slots,
    classify_failures,
    earliest,
    plan_deletions,
    time_to_force_delete,
)
from gangline.operator.engine.status import (
    count_replicas,
    describe_failures,
    failure_message,
    mark_failed,
    mark_gang_restarting,
    mark_interrupted,
    mark_invalid,
    mark_restarting,
    mark_running,
    mark_stalled,
    mark_started,
    mark_succeeded,
    mark_suspended,
    remove_finalizers,
    store_version,
)
from gangline.operator.model import conditions
from gangline.operator.model.job import (
    ExtendsStatus,
    OrdersStartup,
    ReplicaRole,
    RetainsObjects,
    ToleratesFailures,
    implements,
)
from gangline.operator.model.plan import (
    EngineSettings,
    ObservedJob,
    PlannedCreation,
    PlannedDeletion,
    PlannedPatch,
    ReconcilePlan,
    TargetKind,
)
from gangline.operator.model.replicas import ObservedPod, ReplicaGang
from gangline.operator.policies import (
    backoff,
    cleanup,
    eviction_saves,
    gang_restart,
    interruption,
    lost_rank,
    pod_group,
    restart,
)
from gangline.operator.policies.replica_tracker import tracker_of

MAX_CREATIONS = 500
"""A larger job is created in several passes, so that other jobs are reconciled in between."""

_ZERO = timedelta(0)


def plan_reconcile(observed: ObservedJob, now: datetime, settings: EngineSettings) -> ReconcilePlan:
    """Plan the writes for one job, and the time of the next pass."""
    tracker = tracker_of(observed.job)
    observed = replace(observed, job=tracker.restore_from_status(observed.job, observed.status))
    plan, gang = _plan(observed, now, settings)
    job, rules = observed.job, observed.job.rules
    if patch := store_version(job):
        plan = replace(plan, patches=(*plan.patches, patch))
    if job.is_deleting or job.policy.managed_by not in (None, MANAGED_BY_US):
        return plan
    if not conditions.is_finished(plan.status.conditions):
        plan = replace(plan, status=_report_spec(observed, plan.status, now))
    if not implements(rules, ExtendsStatus):
        return plan
    if gang is None:
        gang = assign_slots(observed, plan.status)
    return replace(plan, kind_status=rules.status_fields(job, gang, plan.status))


def _report_spec(observed: ObservedJob, status: JobStatus, now: datetime) -> JobStatus:
    """Report the errors in the specification, or record that it is valid."""
    status = structs.replace(status, last_valid_spec=observed.last_valid_spec)
    if not observed.spec_errors:
        valid = remove_condition(status.conditions, conditions.INVALID_SPEC)
        return structs.replace(status, conditions=valid)
    errors = observed.spec_errors
    if observed.has_earlier_spec:
        errors = f"{errors.rstrip('.')}. Until this is corrected, {LAST_VALID_SPEC_IN_FORCE}."
    return mark_invalid(observed.job, status, errors, now.replace(microsecond=0))


def _plan(
    observed: ObservedJob, now: datetime, settings: EngineSettings
) -> tuple[ReconcilePlan, ReplicaGang | None]:
    """Return the plan, and its slots where they are those of the status in the plan."""
    if plan := _plan_inactive(observed, now, settings):
        return plan, None
    reconcile_pass = _Pass(observed, now, now.replace(microsecond=0), settings)
    plan = reconcile_pass.plan_end() or reconcile_pass.plan_live()
    # A gang restart resets the completed indexes, which the slots depend on.
    return plan, None if reconcile_pass.restart else reconcile_pass.gang


def _plan_inactive(
    observed: ObservedJob, now: datetime, settings: EngineSettings
) -> ReconcilePlan | None:
    """Return the plan of a job that must not run; None if it may."""
    job = observed.job
    if job.policy.managed_by not in (None, MANAGED_BY_US):
        return ReconcilePlan(observed.status)
    if job.is_deleting:
        return ReconcilePlan(observed.status, patches=remove_finalizers(job))
    if conditions.is_finished(observed.status.conditions):
        return _plan_finished(observed, now, settings)
    # Kubernetes' timestamps have a resolution of one second.
    stamp = now.replace(microsecond=0)
    if observed.spec_errors and not observed.has_earlier_spec:
        return ReconcilePlan(observed.status)
    if job.policy.suspended:
        return _plan_suspended(observed, now, stamp, settings)
    # Suspended is stored after the deletions of the former pods, and pods of the resumed job are
    # created after this check: until Suspended is False, a terminating pod is one of the former.
    was_suspended = is_condition_true(observed.status.conditions, conditions.SUSPENDED)
    if was_suspended and any(pod.is_terminating for pod in observed.pods):
        return _plan_resumption(observed, now, stamp, settings)
    return None


def _plan_finished(observed: ObservedJob, now: datetime, settings: EngineSettings) -> ReconcilePlan:
    job, policy = observed.job, observed.job.policy
    left = cleanup.time_left(observed.status.completion_time, policy.ttl, now)
    if cleanup.has_passed(left):
        deletion = PlannedDeletion(TargetKind.JOB, job.name, job.meta.uid)
        return ReconcilePlan(observed.status, deletions=(deletion,))
    failed = is_condition_true(observed.status.conditions, conditions.FAILED)
    clean = policy.clean_policy_after_end(failure=failed)
    pods = cleanup.pods_to_remove(clean, observed.pods)
    services = cleanup.services_to_remove(clean, observed.services, observed.pods)
    unneeded = manifests.obsolete_after_end(clean, observed.owned_objects)
    return ReconcilePlan(
        observed.status,
        deletions=plan_deletions(observed, pods, services, now, settings, extras=unneeded),
        requeue_after=earliest(left, time_to_force_delete(observed, now, settings)),
    )


def _plan_suspended(
    observed: ObservedJob, now: datetime, stamp: datetime, settings: EngineSettings
) -> ReconcilePlan:
    # As for a Kubernetes Job: suspension does not discard the result of pods that have succeeded.
    job, gang = observed.job, assign_slots(observed, observed.status)
    if job.rules.has_succeeded(job, gang):
        status = mark_started(job, observed.status, stamp)
        return ReconcilePlan(mark_succeeded(job, count_replicas(job, status, gang), stamp))
    status = mark_suspended(job, observed.status, stamp)
    rules, extras = job.rules, observed.owned_objects
    if implements(rules, RetainsObjects):
        extras = [item for item in extras if not rules.is_retained(item.metadata.name)]
    return ReconcilePlan(
        status,
        creations=_created_early(observed, status),
        deletions=plan_deletions(
            observed, observed.pods, observed.services, now, settings, extras=extras
        ),
        requeue_after=time_to_force_delete(observed, now, settings),
    )


def _created_early(observed: ObservedJob, status: JobStatus) -> tuple[PlannedCreation, ...]:
    rules = observed.job.rules
    if not implements(rules, RetainsObjects):
        return ()
    desired = manifests.desired_objects(observed.job, assign_slots(observed, status))
    missing = manifests.missing_objects(desired, observed.owned_objects)
    return tuple(
        creation
        for creation in missing
        if rules.is_needed_early(creation.name)
        and (creation.target, creation.name) not in observed.occupied
    )


def _plan_resumption(
    observed: ObservedJob, now: datetime, stamp: datetime, settings: EngineSettings
) -> ReconcilePlan:
    """Wait for the former pods: they must not train beside new ones, whose placement may differ."""
    return ReconcilePlan(
        mark_suspended(observed.job, observed.status, stamp, resumes=True),
        deletions=plan_deletions(observed, (), (), now, settings, with_group=False),
        requeue_after=time_to_force_delete(observed, now, settings),
    )


class _Pass:
    """One reconcile pass over an unfinished job: derived values, computed once."""

    def __init__(
        self, observed: ObservedJob, now: datetime, stamp: datetime, settings: EngineSettings
    ) -> None:
        self.observed = observed
        self.job = observed.job
        self.tracker = tracker_of(self.job)
        self.now, self.stamp, self.settings = now, stamp, settings
        # Each value depends on those before it.
        # 1. The slots, from the stored status: completed indexes and the generation of the gang.
        self.gang = assign_slots(observed, observed.status)
        # 2. What has gone wrong.
        self.failures = [classify_failures(self.job, role, self.gang) for role in self.job.roles]
        self._lost_rank = lost_rank.find_lost_rank(self.job, self.gang)
        certain = self._lost_rank is not None and self._lost_rank.is_certain(now)
        self.stalled = self._lost_rank.message() if self._lost_rank and certain else ""
        # 3. Whether all replicas restart because of it.
        self.restart = self._gang_restart_reason()
        self.desired_extras = manifests.desired_objects(self.job, self.gang)
        # 4. The status to store: it counts the failures before their pods are deleted.
        self.status = self._status()
        # 5. The delays of replacements, from the *new* counts: failures of this pass delay already.
        self._delays = self._replacement_delays()

    def plan_end(self) -> ReconcilePlan | None:
        """Return the plan that ends the job, or None. The next pass cleans up."""
        status, now = self.status, self.stamp
        if self.job.rules.has_succeeded(self.job, self.gang):
            return ReconcilePlan(mark_succeeded(self.job, status, now))
        message = (
            self._fatal_failure_message()
            or self._kind_failure_message()
            or self._stalled_failure_message()
            or self._backoff_limit_message()
            or self._timeout_message()
        )
        return ReconcilePlan(mark_failed(self.job, status, message, now)) if message else None

    def plan_live(self) -> ReconcilePlan:
        missing = self._missing_objects()
        pause = earliest(*self._delays.values())
        there_is_more = len(missing) == MAX_CREATIONS
        status = self.status
        if self.stalled and not self.restart:
            status = mark_stalled(self.job, status, self.stalled, self.stamp)
        elif (
            not missing
            and pause is None
            # A refused pod that is still being deleted counts: the next one may be refused too.
            and not any(is_node_refusal(pod.status.reason) for pod in self.gang.pods)
        ):
            stalled = remove_condition(status.conditions, conditions.STALLED)
            status = structs.replace(status, conditions=stalled)
        return ReconcilePlan(
            status,
            creations=manifests.prepend_unwatched(self.desired_extras, missing),
            deletions=self._deletions(),
            patches=self._patches(),
            requeue_after=earliest(
                _ZERO if there_is_more else pause,
                self._time_to_deadline(),
                self._pending_timeout()[0],
                lost_rank.time_to_certainty(self._lost_rank, self.now),
                pod_group.time_to_schedule_timeout(self.job, self.gang, status, self.now),
                time_to_force_delete(self.observed, self.now, self.settings),
            ),
        )

    def _gang_restart_reason(self) -> str:
        """Return why all replicas restart together in this pass; empty if they do not."""
        if gang_restart.restarts_gang(self.job):
            for failure in self.failures:
                if failure.replaced and not failure.fatal:
                    return describe_failures(failure.role.name, self._describe(failure.replaced))
            if lost := gang_restart.externally_deleted(self.gang):
                return interruption.describe_lost_pods(lost)
        if gang_restart.restarts_on_resize(self.job) and gang_restart.was_resized(
            self.job, self.gang
        ):
            return f"its replicas are now {gang_restart.format_replicas(self.job)}."
        restarts = lost_rank.stalled_policy(self.job) == lost_rank.RESTART
        return self.stalled if restarts else ""

    def _status(self) -> JobStatus:
        """Count replicas and restarts and set the conditions, for a job that does not end."""
        job, stamp = self.job, self.stamp
        status = mark_started(job, self.observed.status, stamp)
        status = count_replicas(job, status, self.gang)
        if self.restart and self._restart_exceeds_limit():
            return status
        if self.restart:
            failed = bool(self.stalled) or any(failure.replaced for failure in self.failures)
            return mark_gang_restarting(
                job, status, self.restart, stamp, failed=failed, counted=self._counts_restart()
            )
        replaced = {pod.uid for failure in self.failures for pod in failure.replaced}
        before = status.restarts
        # Invariant: a failure counts in the status before its pod is deleted (see _deletions).
        pods = [*self.gang.pods, *self.gang.surplus]
        record = backoff.count_restarts(before, pods, frozenset(replaced), self._limited_roles())
        fresh = {uid for uid in replaced if uid not in self._counted_failures()}
        ranks = [key for key, pod in self._failed_ranks() if pod.uid in fresh]
        refused = {key: pod.uid for key, pod in self._refused() if not self._is_counted(key, pod)}
        if ranks or refused:
            record = backoff.record_rank_failures(record, ranks, refused, stamp)
        status = structs.replace(status, restarts=record)
        for failure in self.failures:
            if any(pod.uid in fresh for pod in failure.replaced):
                failures = self._describe(failure.replaced)
                status = mark_restarting(job, status, failure.role.name, failures, stamp)
            if any(pod.uid in refused.values() for pod in failure.refused.values()):
                listed = self._describe(failure.refused.values())
                why = describe_failures(failure.role.name, listed, "were refused by their nodes")
                status = mark_stalled(job, status, why, stamp)
        if not replaced:
            status = self._report_running(status)
        return self.tracker.save_to_status(job, self.gang, status)

    def _report_running(self, status: JobStatus) -> JobStatus:
        """Report whether the job runs now; once it has run, also which of its pods are missing."""
        runs = self._is_running(status)
        before = find_condition(status.conditions, conditions.RUNNING)
        lost = interruption.lost_pods(self.gang, self.observed.disrupted, status.restarts.pods)
        interrupted = before is not None and (is_interrupted(before) or bool(lost))
        if before is None or (runs and (not interrupted or self.gang.all_running_or_succeeded)):
            return mark_running(self.job, status, self.stamp) if runs else status
        if not interrupted and (before.status != TRUE or not self._lacks_role()):
            return status
        missing = interruption.missing_pods(self.gang, lost, self._unschedulable())
        return mark_interrupted(self.job, status, missing, self.stamp, runs=runs)

    def _lacks_role(self) -> bool:
        """Return whether no pod of a role runs that has not succeeded."""
        return any(
            slots.desired and not slots.active and not slots.all_succeeded
            for slots in self.gang.roles.values()
        )

    def _unschedulable(self) -> str:
        """Return why the scheduler does not place pods; empty if it has not reported a reason."""
        return pod_group.pending_reason(self.observed.pod_group or self.observed.given_group)

    def _counts_restart(self) -> bool:
        return bool(self.stalled) or any(
            self.tracker.counts_restart(self.job, failure.role, pod)
            for failure in self.failures
            for pod in failure.replaced
        )

    def _restart_exceeds_limit(self) -> bool:
        """Return whether the job ends instead of a restart of all replicas, which is not counted.

        Invariant: no restart is recorded that does not happen, so the stored generation is that of
        the pods whose failure ended the job.
        """
        limit, restarts = self.job.policy.backoff_limit, self.observed.status.restarts.total
        return limit is not None and restarts >= limit and self._counts_restart()

    def _limited_roles(self) -> dict[str, str]:
        """The roles that have a limit of their own, by the uids of their pods."""
        return {
            pod.uid: role.name
            for role in self.job.roles
            if role.backoff_limit is not None
            for pod in self.gang[role.name].present
        }

    def _failed_ranks(self) -> Iterator[tuple[str, ObservedPod]]:
        """The ranks whose failed pod is replaced, by the key of the rank."""
        for failure in self.failures:
            pods = {pod.uid for pod in failure.replaced}
            for index, pod in enumerate(self.gang[failure.role.name].pods):
                if pod and pod.uid in pods:
                    yield backoff.rank_key(failure.role, index), pod

    def _refused(self) -> list[tuple[str, ObservedPod]]:
        return [
            (backoff.rank_key(failure.role, index), pod)
            for failure in self.failures
            for index, pod in failure.refused.items()
        ]

    def _is_counted(self, key: str, pod: ObservedPod) -> bool:
        rank = self.observed.status.restarts.ranks.get(key)
        return rank is not None and rank.refused_pod == pod.uid

    def _replacement_delays(self) -> dict[str, timedelta]:
        """The ranks that lack a pod and must wait for the next one, and for how long."""
        record = self.status.restarts
        pause = backoff.time_to_gang_restart(record, self.now)
        delays: dict[str, timedelta] = {}
        if pause <= _ZERO and not record.ranks:
            return delays
        for role in self.job.roles:
            for index in self.gang[role.name].missing:
                key = backoff.rank_key(role, index)
                own = backoff.time_to_rank_replacement(record, key, self.now)
                if (wait := max(pause, own)) > _ZERO:
                    delays[key] = wait
        return delays

    def _is_running(self, status: JobStatus) -> bool:
        """A job that was restarting is running again only when all its replicas are."""
        back = self.gang.all_running_or_succeeded or not is_condition_true(
            status.conditions, conditions.RESTARTING
        )
        return back and self.job.rules.is_running(self.job, self.gang)

    def _counted_failures(self) -> frozenset[str]:
        """The failed pods whose failure the stored status already counts."""
        record = self.observed.status.restarts
        return frozenset(
            pod.uid
            for failure in self.failures
            for pod in failure.replaced
            if record.pods.get(pod.uid, 0) > backoff.count_in_place_restarts(pod)
        )

    def _fatal_failure_message(self) -> str:
        fatal = [pod for failure in self.failures for pod in failure.fatal]
        if not fatal:
            return ""
        root = restart.by_cause(fatal, self.job.kind.container)[0]
        failure = next(failure for failure in self.failures if root in failure.fatal)
        return failure_message(self.job, failure.role.name, self._describe(failure.fatal))

    def _describe(self, pods: Iterable[ObservedPod]) -> list[str]:
        """Return how each of some failed pods failed, the cause of the others first."""
        container = self.job.kind.container
        ordered = restart.by_cause(pods, container)
        return [restart.describe_pod_failure(pod, container) for pod in ordered]

    def _kind_failure_message(self) -> str:
        rules = self.job.rules
        if not implements(rules, ToleratesFailures):
            return ""
        return rules.failure_reason(self.job, self.gang)

    def _stalled_failure_message(self) -> str:
        if not self.stalled or lost_rank.stalled_policy(self.job) != lost_rank.FAIL:
            return ""
        return f"{self.job.kind.kind} {self.job.name} has failed because {self.stalled}"

    def _backoff_limit_message(self) -> str:
        record = self.status.restarts
        exceeded = backoff.find_exceeded_limit(
            record, self.job.policy.backoff_limit, self.job.roles
        )
        if exceeded is None and self.restart and self._restart_exceeds_limit():
            limit = self.job.policy.backoff_limit or 0
            exceeded = backoff.ExceededLimit("", record.total + 1, limit)
        if exceeded is None:
            return ""
        limited = f"its role {exceeded.role}" if exceeded.role else "it"
        container = self.job.kind.container
        failed = [pod for pod in self.gang.pods if restart.failure_of(pod, container)]
        last = f" {self._describe(failed)[0]}" if failed else ""
        return (
            f"{self.job.kind.kind} {self.job.name} has failed because {limited} failed "
            f"{_count(exceeded.failures, 'time')}: its backoff limit allows "
            f"{_count(exceeded.limit, 'restart')}.{last}"
        )

    def _time_to_deadline(self) -> timedelta | None:
        return cleanup.time_left(self.status.start_time, self.job.policy.active_deadline, self.now)

    def _pending_timeout(self) -> tuple[timedelta | None, str]:
        return self.tracker.pending_timeout(self.job, self.gang, self.now)

    def _timeout_message(self) -> str:
        left, message = self._pending_timeout()
        if cleanup.has_passed(left):
            return message
        name = f"{self.job.kind.kind} {self.job.name}"
        if cleanup.has_passed(self._time_to_deadline()):
            limit = self.job.policy.active_deadline
            text = f"{name} has failed because it was active longer than its deadline of {limit}."
            pending = interruption.pending_reason(self.gang, self._unschedulable())
            return f"{text}{NOT_ALL_PODS_RAN}{pending}" if pending else text
        if cleanup.has_passed(
            pod_group.time_to_schedule_timeout(self.job, self.gang, self.status, self.now)
        ):
            reason = self._unschedulable() or "no scheduler has reported a reason."
            limit = self.job.policy.scheduling.timeout
            return f"{name} has failed because it could not be placed within {limit}: {reason}"
        return ""

    def _missing_objects(self) -> tuple[PlannedCreation, ...]:
        """The objects that are desired, do not exist, and whose names are free."""
        occupied = self.observed.occupied | {
            (TargetKind.POD, pod.name) for pod in self.gang.surplus
        }
        free = (
            creation
            for creation in self._desired_objects()
            if (creation.target, creation.name) not in occupied
        )
        return tuple(islice(free, MAX_CREATIONS))

    def _desired_objects(self) -> Iterator[PlannedCreation]:
        job = self.job
        group = self.observed.pod_group or self.observed.given_group
        if self.settings.gang_scheduling and group is None and job.size:
            yield pod_group.create_pod_group(job, kubernetes=self.settings.kubernetes_groups)
        yield from manifests.missing_objects(self.desired_extras, self.observed.owned_objects)
        services = {service.metadata.name for service in self.observed.services}
        for role in job.roles:
            for index in self._desired_indexes(role):
                if self.tracker.service_name(job, role, index) not in services:
                    service = manifests.build_service(job, role, index)
                    yield from (service,) if service else ()
        # New pods wait until the last pod of an earlier generation is gone: two generations must
        # not train side by side.
        if not self.gang.previous_generation and not self.restart:
            yield from self._desired_pods()

    def _desired_pods(self) -> Iterator[PlannedCreation]:
        job, rules = self.job, self.job.rules
        generation = self.status.restarts.generation
        for role in job.roles:
            for index in self.gang[role.name].missing:
                if implements(rules, OrdersStartup) and not rules.can_start(
                    job, role, index, self.gang
                ):
                    continue
                if self._delays and backoff.rank_key(role, index) in self._delays:
                    continue
                if not self.tracker.may_create(job, role, index):
                    continue
                yield manifests.build_pod(job, role, index, self.settings, self.gang, generation)

    def _desired_indexes(self, role: ReplicaRole) -> list[int]:
        absent = self.gang[role.name].excluded
        return [index for index in range(role.replicas) if index not in absent]

    def _deletions(self) -> tuple[PlannedDeletion, ...]:
        """Surplus replicas, and failed ones that the stored status counts."""
        # Write-ahead: only failures in the *stored* status, not in the one this pass writes.
        # In a gang restart the new generation in the status replaces all pods.
        counted = frozenset() if gang_restart.restarts_gang(self.job) else self._counted_failures()
        failed = [
            pod for failure in self.failures for pod in failure.replaced if pod.uid in counted
        ]
        failed += [pod for key, pod in self._refused() if self._is_counted(key, pod)]
        names = {
            self.tracker.service_name(self.job, role, index)
            for role in self.job.roles
            for index in self._desired_indexes(role)
        }
        return plan_deletions(
            self.observed,
            [*self.gang.surplus, *self.gang.previous_generation, *failed],
            [service for service in self.observed.services if service.metadata.name not in names],
            self.now,
            self.settings,
            with_group=not self.settings.gang_scheduling or not self.job.size,
            extras=manifests.obsolete_objects(self.desired_extras, self.observed.owned_objects),
        )

    def _patches(self) -> tuple[PlannedPatch, ...]:
        updates = manifests.update_patches(self.desired_extras, self.observed.owned_objects)
        group = self.observed.pod_group
        if group is None or not self.settings.gang_scheduling or not self.job.size:
            return tuple(updates)
        updates += filter(None, [pod_group.update_pod_group(self.job, group)])
        if self.restart:
            # The nodes of these replicas stay reserved until the restart should be over.
            pause = max(backoff.time_to_gang_restart(self.status.restarts, self.now), _ZERO)
            until = self.stamp + pause + pod_group.PREVIOUS_NODES_TTL
            places = pod_group.record_previous_nodes(group, self.gang.pods, until)
            updates += filter(None, [places])
        saves = eviction_saves.mirror_saves(group, self.observed.owned_objects)
        return (*updates, *filter(None, [saves]))


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
