"""The engine's centre: what is seen of a job, and the time, decide what is written.

Pure and total: the same observation and time give the same decision, in whatever order events
came. Stages, of which the first that applies decides:

1. *ignored*: being deleted (owner references do the rest) or run by another controller;
2. *finished*: clean up by policy, remove the job when its time to live is over, nothing else ever;
3. *invalid*: say what is wrong, touch nothing;
4. *suspended*: remove pods, services and group;
5. *ended just now*: success, a fatal failure, too many restarts, too little time: write that;
6. *live*: replace, add and remove replicas.

Two rules make it safe to be killed between any two writes. An end is stored before anything is
cleaned up, so that a job whose master's pod has gone is not mistaken for one that never ran. And
a failed pod is counted in the stored status before it is deleted, so that no restart is forgotten.
Both cost a pass, and no further request.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice

from msgspec.structs import replace

from gangline.api.kubeflow import JobStatus
from gangline.api.meta import Object
from gangline.operator import build, conditions, indexes, story
from gangline.operator.decision import (
    Creation,
    Decision,
    Deletion,
    EngineSettings,
    Observed,
    Patch,
    Target,
)
from gangline.operator.job import Role, TrainingJob
from gangline.operator.labels import replica_name
from gangline.operator.policies import backoff, cleanup, deadline, gang, pace, restart, stuck
from gangline.operator.replicas import Gang, Pod, Service, arrange

MANAGED_BY_US = "kubeflow.org/training-operator"

MOST_CREATIONS = 500
"""A larger job is made in several passes, so that others get their turn in between."""

_ZERO = timedelta(0)


def decide(observed: Observed, now: datetime, settings: EngineSettings) -> Decision:
    """Decide what to write for one job, and when to look again."""
    job = observed.job
    if job.deleting or job.policy.managed_by not in (None, MANAGED_BY_US):
        return Decision(observed.status)
    if conditions.is_finished(observed.status.conditions):
        return _after_the_end(observed, now, settings)
    # What is written carries whole seconds, as Kubernetes' times do.
    stamp = now.replace(microsecond=0)
    if observed.mistakes:
        return Decision(story.invalid(job, observed.status, observed.mistakes, stamp))
    if job.policy.suspended:
        return _suspend(observed, now, stamp, settings)
    view = _View(observed, now, stamp, settings)
    return view.end() or view.go_on()


def _after_the_end(observed: Observed, now: datetime, settings: EngineSettings) -> Decision:
    job, policy = observed.job, observed.job.policy
    left = deadline.left(observed.status.completion_time, policy.ttl, now)
    if deadline.is_over(left):
        return Decision(observed.status, deletions=(_delete_job(job),))
    pods = cleanup.pods_to_remove(policy.clean_pods, observed.pods)
    services = cleanup.services_to_remove(policy.clean_pods, observed.services, observed.pods)
    return Decision(
        observed.status,
        deletions=_removals(observed, pods, services, now, settings),
        requeue_after=_soonest(left, _force_left(observed, now, settings)),
    )


def _suspend(
    observed: Observed, now: datetime, stamp: datetime, settings: EngineSettings
) -> Decision:
    return Decision(
        story.suspended(observed.job, observed.status, stamp),
        deletions=_removals(observed, observed.pods, observed.services, now, settings),
        requeue_after=_force_left(observed, now, settings),
    )


@dataclass(frozen=True, slots=True)
class _Failures:
    """Failed replicas of one role."""

    role: Role
    fatal: list[Pod]
    replaced: list[Pod]


class _View:
    """One look at a job that has not finished: what is derived from it, computed once."""

    def __init__(
        self, observed: Observed, now: datetime, stamp: datetime, settings: EngineSettings
    ) -> None:
        self.observed = observed
        self.job = observed.job
        self.now, self.stamp, self.settings = now, stamp, settings
        sizes = [(role.name, role.replicas) for role in self.job.roles]
        completed = {
            role: indexes.read(status.completed_indexes)
            for role, status in observed.status.replica_statuses.items()
        }
        self.gang = arrange(sizes, observed.pods, completed)
        self.failures = [_judge(self.job, role, self.gang) for role in self.job.roles]
        self.status = self._status()

    def end(self) -> Decision | None:
        """Decide that the job ends here, if it does. The next pass cleans up."""
        status, now = self.status, self.stamp
        if self.job.rules.has_succeeded(self.job, self.gang):
            return Decision(story.succeeded(self.job, status, now))
        why = self._fatal_failure() or self._limit_reached() or self._time_is_up()
        return Decision(story.failed(self.job, status, why, now)) if why else None

    def go_on(self) -> Decision:
        """Decide how to bring the replicas to what is asked for."""
        missing = self._missing()
        pause = pace.wait(self.status.restarts, self.now)
        paused = bool(missing) and pause > _ZERO
        there_is_more = len(missing) == MOST_CREATIONS
        status = self.status
        if not missing:
            stalled = conditions.drop(status.conditions, conditions.STALLED)
            status = replace(status, conditions=stalled)
        return Decision(
            status,
            creations=() if paused else missing,
            deletions=self._deletions(),
            patches=self._patches(),
            requeue_after=_soonest(
                pause if paused else _ZERO if there_is_more else None,
                self._time_left(),
                gang.time_left(self.job, self.gang, status, self.now),
                _force_left(self.observed, self.now, self.settings),
            ),
        )

    def _status(self) -> JobStatus:
        """Count replicas and restarts and say whether the job runs, as if it goes on."""
        job, stamp = self.job, self.stamp
        status = story.started(job, self.observed.status, stamp)
        status = story.counted(job, status, self.gang)
        replaced = {pod.uid for failure in self.failures for pod in failure.replaced}
        before = status.restarts
        record = backoff.count(before, self.observed.pods, frozenset(replaced))
        fresh = {uid for uid in replaced if uid not in self._counted()}
        if fresh:
            record = pace.note(record, stamp)
        status = replace(status, restarts=record)
        for failure in self.failures:
            if any(pod.uid in fresh for pod in failure.replaced):
                told = [restart.describe(pod, job.kind.container) for pod in failure.replaced]
                status = story.restarting(job, status, failure.role.name, told, stamp)
        if not replaced and self._runs(status):
            status = story.running(job, status, stamp)
        return status

    def _runs(self, status: JobStatus) -> bool:
        """A job that was restarting runs again only once all of its replicas are back."""
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
                told = [restart.describe(pod, self.job.kind.container) for pod in failure.fatal]
                return story.failure_message(self.job, failure.role.name, told)
        return ""

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

    def _time_is_up(self) -> str:
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
        """The group, the services and the pods that are wanted and whose names are free."""
        occupied = self.observed.taken | {(Target.POD, pod.name) for pod in self.gang.surplus}
        free = (
            creation
            for creation in self._wanted()
            if (creation.target, creation.name) not in occupied
        )
        return tuple(islice(free, MOST_CREATIONS))

    def _wanted(self) -> Iterator[Creation]:
        job = self.job
        services = {service.metadata.name for service in self.observed.services}
        if self.settings.gang and self.observed.pod_group is None and job.size:
            yield gang.create(job)
        for role in job.roles:
            for index in range(role.replicas):
                if replica_name(job.name, role.name, index) not in services:
                    yield build.service(job, role, index)
        for role in job.roles:
            for index in self.gang[role.name].missing:
                yield build.pod(job, role, index, self.settings)

    def _deletions(self) -> tuple[Deletion, ...]:
        """Surplus replicas, and failed ones that the stored status counts."""
        counted = self._counted()
        failed = [
            pod for failure in self.failures for pod in failure.replaced if pod.uid in counted
        ]
        names = {
            replica_name(self.job.name, role.name, index)
            for role in self.job.roles
            for index in range(role.replicas)
        }
        services = [
            service for service in self.observed.services if service.metadata.name not in names
        ]
        leaving = [*self.gang.surplus, *failed]
        group = not self.settings.gang or not self.job.size
        return _removals(
            self.observed, leaving, services, self.now, self.settings, with_group=group
        )

    def _patches(self) -> tuple[Patch, ...]:
        if self.observed.pod_group is None or not self.settings.gang or not self.job.size:
            return ()
        patch = gang.update(self.job, self.observed.pod_group)
        return (patch,) if patch else ()


def _judge(job: TrainingJob, role: Role, seen: Gang) -> _Failures:
    fatal: list[Pod] = []
    replaced: list[Pod] = []
    verdicts = {restart.Judgement.FATAL: fatal, restart.Judgement.REPLACE: replaced}
    for pod in seen[role.name].present:
        if pod.failed:
            verdicts[restart.judge(role.restart, pod, job.kind.container)].append(pod)
    return _Failures(role, fatal, replaced)


def _removals(
    observed: Observed,
    pods: Iterable[Pod],
    services: Iterable[Service],
    now: datetime,
    settings: EngineSettings,
    *,
    with_group: bool = True,
) -> tuple[Deletion, ...]:
    """List what to delete: what is not on its way out yet, and by force what is stuck there."""
    patience = settings.force_delete_after
    stuck_pods = sorted(stuck.overdue(observed.pods, observed.lost_nodes, patience, now), key=_name)
    groups = [observed.pod_group] if with_group and observed.pod_group else []
    unmarked = [pod for pod in pods if not pod.terminating]
    others: list[tuple[Target, Iterable[Object]]] = [
        (Target.SERVICE, services),
        (Target.POD_GROUP, groups),
    ]
    return (
        *(Deletion(Target.POD, pod.name, pod.uid) for pod in sorted(unmarked, key=_name)),
        *(Deletion(Target.POD, pod.name, pod.uid, force=True) for pod in stuck_pods),
        *(
            Deletion(target, item.metadata.name, item.metadata.uid)
            for target, items in others
            for item in sorted(items, key=_name)
            if item.metadata.deletion_timestamp is None
        ),
    )


def _name(item: Object) -> str:
    return item.metadata.name


def _force_left(observed: Observed, now: datetime, settings: EngineSettings) -> timedelta | None:
    lost, patience = observed.lost_nodes, settings.force_delete_after
    times = (stuck.time_left(pod, lost, patience, now) for pod in observed.pods)
    return _soonest(*(left for left in times if left is not None and left > _ZERO))


def _delete_job(job: TrainingJob) -> Deletion:
    return Deletion(Target.JOB, job.name, job.meta.uid)


def _soonest(*times: timedelta | None) -> timedelta | None:
    known = [time for time in times if time is not None]
    return max(min(known), _ZERO) if known else None
