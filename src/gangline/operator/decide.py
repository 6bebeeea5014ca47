"""Plans one reconcile pass: a function of the observed job and the time.

The function is total and deterministic: the same observation and time give the same plan, whatever
the order of events was. The first stage that applies decides:

1. *ignored*: the job is being deleted (owner references do the rest) or has another controller;
2. *finished*: clean up by policy, and delete the job when its TTL is over;
3. *invalid*: report the errors, change nothing else;
4. *suspended*: delete pods, services and pod group;
5. *ending*: success, a fatal failure, the backoff limit or a timeout: write that to the status;
6. *live*: replace, add and remove replicas.

Two invariants make it safe to stop the operator between any two writes:

- The end of a job is stored before anything is cleaned up. Otherwise a job whose master pod was
  deleted would look like one that never ran.
- A failed pod is counted in the stored status before it is deleted. Otherwise its restart would
  be lost.

Both cost one more pass, and no additional request.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice

from msgspec import structs

from gangline.api.kubeflow import MANAGED_BY_US, JobStatus
from gangline.api.scheduling import PodGroup
from gangline.operator import build, conditions, extras
from gangline.operator.decision import (
    Creation,
    Decision,
    Deletion,
    EngineSettings,
    Observed,
    Patch,
    Target,
)
from gangline.operator.job import (
    KeepsNodes,
    Manifest,
    OutlivesFailures,
    Role,
    ShowsStatus,
    StartsLater,
    TrainingJob,
    offers,
)
from gangline.operator.places import arranged, judged
from gangline.operator.policies import (
    backoff,
    cleanup,
    deadline,
    gang,
    pace,
    restart,
    together,
)
from gangline.operator.removals import force_left, removals, soonest
from gangline.operator.replicas import Pod
from gangline.operator.story import (
    counted,
    failed,
    failure_message,
    invalid,
    restarting,
    restarting_together,
    running,
    started,
    succeeded,
    suspended,
    why_failed,
)

MOST_CREATIONS = 500
"""A larger job is created in several passes, so that other jobs are reconciled in between."""

_ZERO = timedelta(0)


def decide(observed: Observed, now: datetime, settings: EngineSettings) -> Decision:
    """Plan the writes for one job, and the time of the next pass."""
    rules = observed.job.rules
    if offers(rules, KeepsNodes):
        observed = replace(observed, job=rules.recalled(observed.job, observed.status))
    plan = _decide(observed, now, settings)
    job, rules = observed.job, observed.job.rules
    if job.deleting or not offers(rules, ShowsStatus):
        return plan
    replicas = arranged(observed, plan.status)
    return replace(plan, fields=rules.status_fields(job, replicas, plan.status))


def _decide(observed: Observed, now: datetime, settings: EngineSettings) -> Decision:
    job = observed.job
    if job.policy.managed_by not in (None, MANAGED_BY_US):
        return Decision(observed.status)
    if job.deleting:
        return Decision(observed.status, patches=_let_go(job))
    if conditions.is_finished(observed.status.conditions):
        return _after_the_end(observed, now, settings)
    # Kubernetes' timestamps have a resolution of one second.
    stamp = now.replace(microsecond=0)
    if observed.mistakes:
        return Decision(invalid(job, observed.status, observed.mistakes, stamp))
    if job.policy.suspended:
        return _suspend(observed, now, stamp, settings)
    view = _View(observed, now, stamp, settings)
    return view.end() or view.go_on()


def _after_the_end(observed: Observed, now: datetime, settings: EngineSettings) -> Decision:
    job, policy = observed.job, observed.job.policy
    left = deadline.left(observed.status.completion_time, policy.ttl, now)
    if deadline.is_over(left):
        return Decision(observed.status, deletions=(_delete_job(job),))
    failed = conditions.holds(observed.status.conditions, conditions.FAILED)
    clean = policy.clean_after(failure=failed)
    pods = cleanup.pods_to_remove(clean, observed.pods)
    services = cleanup.services_to_remove(clean, observed.services, observed.pods)
    spare = extras.unwanted_after_end(clean, observed.extras)
    return Decision(
        observed.status,
        deletions=removals(observed, pods, services, now, settings, extras=spare),
        requeue_after=soonest(left, force_left(observed, now, settings)),
    )


def _suspend(
    observed: Observed, now: datetime, stamp: datetime, settings: EngineSettings
) -> Decision:
    return Decision(
        suspended(observed.job, observed.status, stamp),
        deletions=removals(
            observed,
            observed.pods,
            observed.services,
            now,
            settings,
            extras=observed.extras,
        ),
        requeue_after=force_left(observed, now, settings),
    )


def _let_go(job: TrainingJob) -> tuple[Patch, ...]:
    """Remove the finalizers of an upstream operator that may not run any more."""
    found = job.meta.finalizers
    remaining = [name for name in found if name not in job.kind.finalizers]
    if len(remaining) == len(found):
        return ()
    path = "/metadata/finalizers"
    operations: list[Manifest] = [
        {"op": "test", "path": path, "value": list(found)},
        {"op": "replace", "path": path, "value": remaining},
    ]
    return (Patch(Target.JOB, job.name, operations),)


class _View:
    """One reconcile pass over an unfinished job: derived values, computed once."""

    def __init__(
        self, observed: Observed, now: datetime, stamp: datetime, settings: EngineSettings
    ) -> None:
        self.observed = observed
        self.job = observed.job
        self.now, self.stamp, self.settings = now, stamp, settings
        self.gang = arranged(observed, observed.status)
        self.failures = [judged(self.job, role, self.gang) for role in self.job.roles]
        self.restart = self._restart()
        self.extras = extras.wanted(self.job, self.gang)
        self.status = self._status()

    def end(self) -> Decision | None:
        """Return the plan that ends the job, or None. The next pass cleans up."""
        status, now = self.status, self.stamp
        if self.job.rules.has_succeeded(self.job, self.gang):
            return Decision(succeeded(self.job, status, now))
        why = (
            self._fatal_failure() or self._hopeless() or self._limit_reached() or self._time_is_up()
        )
        return Decision(failed(self.job, status, why, now)) if why else None

    def go_on(self) -> Decision:
        """Plan the changes that lead to the specified replicas."""
        missing = self._missing()
        pause = pace.wait(self.status.restarts, self.now)
        paused = bool(missing) and pause > _ZERO
        there_is_more = len(missing) == MOST_CREATIONS
        status = self.status
        if not missing:
            stalled = conditions.drop(status.conditions, conditions.STALLED)
            status = structs.replace(status, conditions=stalled)
        return Decision(
            status,
            creations=extras.with_unseen(self.extras, self._unhurt(missing) if paused else missing),
            deletions=self._deletions(),
            patches=self._patches(),
            requeue_after=soonest(
                pause if paused else _ZERO if there_is_more else None,
                self._time_left(),
                self._patience()[0],
                gang.time_left(self.job, self.gang, status, self.now),
                force_left(self.observed, self.now, self.settings),
            ),
        )

    def _restart(self) -> str:
        """Return why all replicas restart together in this pass; empty if they do not."""
        name = self.job.kind.container
        if together.restarts(self.job):
            for failure in self.failures:
                if failure.replaced and not failure.fatal:
                    failures = [restart.describe(pod, name) for pod in failure.replaced]
                    return why_failed(failure.role.name, failures)
            if lost := together.taken_away(self.gang):
                return f"{lost[0].name} was deleted."
        if together.resizes(self.job) and together.outgrown(self.job, self.gang):
            return f"its replicas are now {together.world(self.job)}."
        return ""

    def _status(self) -> JobStatus:
        """Count replicas and restarts and set the conditions, for a job that does not end."""
        job, stamp = self.job, self.stamp
        status = started(job, self.observed.status, stamp)
        status = counted(job, status, self.gang)
        if self.restart:
            failed = any(failure.replaced for failure in self.failures)
            return restarting_together(job, status, self.restart, stamp, counted=failed)
        replaced = {pod.uid for failure in self.failures for pod in failure.replaced}
        before = status.restarts
        # Invariant: a failure counts in the status before its pod is deleted (see _deletions).
        record = backoff.count(before, self._current(), frozenset(replaced))
        fresh = {uid for uid in replaced if uid not in self._counted()}
        if fresh:
            record = pace.note(record, stamp)
        status = structs.replace(status, restarts=record)
        for failure in self.failures:
            if any(pod.uid in fresh for pod in failure.replaced):
                failures = [restart.describe(pod, job.kind.container) for pod in failure.replaced]
                status = restarting(job, status, failure.role.name, failures, stamp)
        if not replaced and self._runs(status):
            status = running(job, status, stamp)
        if offers(job.rules, KeepsNodes):
            status = job.rules.remembered(job, self.gang, status)
        return status

    def _current(self) -> list[Pod]:
        """The pods of this generation, with a slot or without."""
        return [*self.gang.pods, *self.gang.surplus]

    def _runs(self, status: JobStatus) -> bool:
        """A job that was restarting is running again only when all its replicas are."""
        back = self.gang.all_up or not conditions.holds(status.conditions, conditions.RESTARTING)
        return back and self.job.rules.is_running(self.job, self.gang)

    def _counted(self) -> frozenset[str]:
        """The failed pods whose failure the stored status already counts."""
        record = self.observed.status.restarts
        return frozenset(
            pod.uid
            for failure in self.failures
            for pod in failure.replaced
            if record.pods.get(pod.uid, 0) > backoff.in_place(pod)
        )

    def _fatal_failure(self) -> str:
        for failure in self.failures:
            if failure.fatal:
                failures = [restart.describe(pod, self.job.kind.container) for pod in failure.fatal]
                return failure_message(self.job, failure.role.name, failures)
        return ""

    def _hopeless(self) -> str:
        rules = self.job.rules
        return rules.has_failed(self.job, self.gang) if offers(rules, OutlivesFailures) else ""

    def _limit_reached(self) -> str:
        limit, record = self.job.policy.backoff_limit, self.status.restarts
        if not backoff.is_exceeded(record, limit):
            return ""
        return (
            f"{self.job.kind.kind} {self.job.name} has failed because it has reached its backoff "
            f"limit: {record.total} restarts, {limit} allowed."
        )

    def _time_left(self) -> timedelta | None:
        return deadline.left(self.status.start_time, self.job.policy.active_deadline, self.now)

    def _patience(self) -> tuple[timedelta | None, str]:
        rules = self.job.rules
        if not offers(rules, KeepsNodes):
            return None, ""
        return rules.patience(self.job, self.gang, self.now)

    def _time_is_up(self) -> str:
        left, why = self._patience()
        if deadline.is_over(left):
            return why
        name = f"{self.job.kind.kind} {self.job.name}"
        if deadline.is_over(self._time_left()):
            limit = self.job.policy.active_deadline
            return f"{name} has failed because it was active longer than its deadline of {limit}."
        if deadline.is_over(gang.time_left(self.job, self.gang, self.status, self.now)):
            reason = gang.waiting_reason(self.observed.pod_group)
            limit = self.job.policy.scheduling.timeout
            return f"{name} has failed because it could not be placed within {limit}: {reason}"
        return ""

    def _missing(self) -> tuple[Creation, ...]:
        """The objects that are desired, do not exist, and whose names are free."""
        occupied = self.observed.taken | {(Target.POD, pod.name) for pod in self.gang.surplus}
        free = (
            creation
            for creation in self._wanted()
            if (creation.target, creation.name) not in occupied
        )
        return tuple(islice(free, MOST_CREATIONS))

    def _wanted(self) -> Iterator[Creation]:
        job = self.job
        if self.settings.gang and self.observed.pod_group is None and job.size:
            yield gang.create(job)
        yield from extras.missing(self.extras, self.observed.extras)
        services = {service.metadata.name for service in self.observed.services}
        for role in job.roles:
            for index in self._indexes(role):
                if build.service_name(job, role, index) not in services:
                    service = build.service(job, role, index)
                    yield from (service,) if service else ()
        # New pods wait until the last pod of an earlier generation is gone: two generations must
        # not train side by side.
        if not self.gang.former and not self.restart:
            yield from self._wanted_pods()

    def _wanted_pods(self) -> Iterator[Creation]:
        job, rules = self.job, self.job.rules
        generation = self.status.restarts.generation
        for role in job.roles:
            for index in self.gang[role.name].missing:
                if offers(rules, StartsLater) and not rules.can_start(job, role, index, self.gang):
                    continue
                if offers(rules, KeepsNodes) and not rules.may_make(job, role, index):
                    continue
                yield build.pod(job, role, index, self.settings, self.gang, generation)

    def _indexes(self, role: Role) -> list[int]:
        absent = self.gang[role.name].absent
        return [index for index in range(role.replicas) if index not in absent]

    def _unhurt(self, missing: tuple[Creation, ...]) -> tuple[Creation, ...]:
        """Creations that are allowed during the backoff delay: replicas that have not failed.

        Only kinds that track nodes know which replicas have failed before.
        """
        rules = self.job.rules
        if not offers(rules, KeepsNodes):
            return ()
        waiting = {
            build.pod_name(self.job, role, index)
            for role in self.job.roles
            for index in self.gang[role.name].missing
            if rules.has_failed_before(self.job, role, index)
        }
        return tuple(each for each in missing if each.name not in waiting)

    def _deletions(self) -> tuple[Deletion, ...]:
        """Surplus replicas, and failed ones that the stored status counts."""
        # Write-ahead: only failures in the *stored* status, not in the one this pass writes.
        # In a gang restart the new generation in the status replaces all pods.
        counted = frozenset() if together.restarts(self.job) else self._counted()
        failed = [
            pod for failure in self.failures for pod in failure.replaced if pod.uid in counted
        ]
        names = {
            build.service_name(self.job, role, index)
            for role in self.job.roles
            for index in self._indexes(role)
        }
        services = [
            service for service in self.observed.services if service.metadata.name not in names
        ]
        return removals(
            self.observed,
            [*self.gang.surplus, *self.gang.former, *failed],
            services,
            self.now,
            self.settings,
            with_group=not self.settings.gang or not self.job.size,
            extras=extras.unwanted(self.extras, self.observed.extras),
        )

    def _patches(self) -> tuple[Patch, ...]:
        updates = extras.updates(self.extras, self.observed.extras)
        group = self.observed.pod_group
        if group is None or not self.settings.gang or not self.job.size:
            return tuple(updates)
        patch = gang.update(self.job, group)
        places = self._places(group) if self.restart else None
        return (*updates, *(each for each in (patch, places) if each))

    def _places(self, group: PodGroup) -> Patch | None:
        """Reserve the nodes of replicas that restart together, until the restart should be over."""
        pause = pace.wait(self.status.restarts, self.now)
        until = self.stamp + max(pause, timedelta(0)) + gang.KEEP_PLACES
        return gang.keep_places(group, self.gang.pods, until)


def _delete_job(job: TrainingJob) -> Deletion:
    return Deletion(Target.JOB, job.name, job.meta.uid)
