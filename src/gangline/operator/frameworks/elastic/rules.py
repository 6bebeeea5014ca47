"""The rules of ElasticJobs: success and failure, replacement, and what the status stores.

Workers of an AllreduceStrategy train as long as the minimum of their node range is active. A worker
that failed permanently is then tolerated. When no worker runs any more, the job has succeeded if
one of them has. The master does not count: it is replaced, and nothing else changes. So DLRover's
phase, which is that of its master pod, is here a function of the conditions.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import msgspec
from msgspec import structs

from gangline.api.jobs.elastic import (
    CHIEF,
    CONTAINER,
    EVALUATOR,
    MASTER,
    PS,
    WORKER,
    ElasticJobRecord,
    ElasticJobSpec,
    RoleRecord,
    WorkerRange,
)
from gangline.api.jobs.kubeflow import JobStatus
from gangline.api.meta.conditions import is_condition_true
from gangline.operator.frameworks.elastic import master, nodes
from gangline.operator.frameworks.elastic import pods as elastic_pods
from gangline.operator.frameworks.elastic.pods import ID_LABEL, ElasticReplica, ElasticTolerance
from gangline.operator.model import conditions, labels
from gangline.operator.model.job import Manifest, NormalizedJob, ReplicaRole
from gangline.operator.model.replicas import ObservedPod, PodPhase, ReplicaGang
from gangline.operator.policies import gang_restart, restart
from gangline.operator.policies.replica_tracker import ReplicaTracker

COMMON_FIELDS = tuple(status_field.name for status_field in msgspec.structs.fields(JobStatus))
_COMMON_WIRE = frozenset(
    status_field.encode_name for status_field in msgspec.structs.fields(JobStatus)
)
STATUS_DECODER = msgspec.json.Decoder(ElasticJobRecord)

_PHASES = (
    conditions.SUCCEEDED,
    conditions.FAILED,
    conditions.SUSPENDED,
    conditions.RUNNING,
)


_MAX_LISTED_PODS = 5
"""Number of pods that a message names."""


@dataclass(frozen=True, slots=True)
class ElasticRules(ReplicaTracker):
    """The rules of one job, and the tracker of its replicas."""

    spec: ElasticJobSpec
    node_range: WorkerRange | None = None
    """The range of workers that may train; None if the job sets none."""
    memory: ElasticJobRecord = field(default_factory=ElasticJobRecord)
    records: Mapping[str, RoleRecord] = field(default_factory=dict)
    """The stored record of each role, with a node number for each rank."""

    @property
    def tolerance(self) -> ElasticTolerance:
        return ElasticTolerance(self.spec, self.node_range)

    # Pods and objects

    def environment(
        self, job: NormalizedJob, role: ReplicaRole, index: int, gang: ReplicaGang
    ) -> list[Manifest]:
        return self._replica(job, role, index).environment()

    def shape_pod(
        self, job: NormalizedJob, role: ReplicaRole, index: int, pod: Manifest, gang: ReplicaGang
    ) -> Manifest:
        return self._replica(job, role, index).shape(pod)

    def service_overrides(
        self, job: NormalizedJob, role: ReplicaRole, index: int
    ) -> Manifest | None:
        """Declare DLRover's port; the master's service publishes only ready pods."""
        port = elastic_pods.PORTS[role.name]
        fields: Manifest = {"ports": [{"name": "elastic", "port": port, "targetPort": port}]}
        return fields | ({"publishNotReadyAddresses": None} if role.name == MASTER else {})

    def owned_objects(self, job: NormalizedJob, gang: ReplicaGang) -> list[Manifest]:
        return master.master_objects(job)

    def pod_name(self, job: NormalizedJob, role: ReplicaRole, index: int) -> str:
        return elastic_pods.pod_name(job.name, role.name, self._node_id(role.name, index))

    def service_name(self, job: NormalizedJob, role: ReplicaRole, index: int) -> str:
        return elastic_pods.service_name(job.name, role.name, index)

    def is_master(self, job: NormalizedJob, role: ReplicaRole, index: int) -> bool:
        """The chief is the master replica, or worker 0 without one."""
        leader = CHIEF if job.find_role(CHIEF) else WORKER
        return (role.name, index) == (leader, 0)

    # Success and failure

    def has_succeeded(self, job: NormalizedJob, gang: ReplicaGang) -> bool:
        """All training roles have succeeded; of an elastic job's workers some, with none active."""
        deciding = [name for name in (CHIEF, WORKER) if gang[name].desired] or [
            role.name for role in job.roles if role.name != MASTER and gang[role.name].desired
        ]
        return bool(deciding) and all(self._is_done(job, name, gang) for name in deciding)

    def is_running(self, job: NormalizedJob, gang: ReplicaGang) -> bool:
        return any(gang[name].active for name in (WORKER, CHIEF, PS, EVALUATOR))

    def tolerates_failures(self, job: NormalizedJob, role: ReplicaRole) -> bool:
        """A single failure never ends the job: ``failure_reason`` decides."""
        return True

    def failure_reason(self, job: NormalizedJob, gang: ReplicaGang) -> str:
        """Return which ranks failed permanently, if the job cannot continue without them."""
        if gang_restart.restarts_gang(job):
            return ""
        for role in job.roles:
            lost = self._permanently_failed(job, role, gang)
            critical = self.tolerance.critical_ranks(role.name)
            missed = [rank for rank in lost if rank in critical]
            left = gang[role.name].desired - len(lost)
            if not lost or (not missed and left >= self.tolerance.min_needed(role)):
                continue
            needed = self.tolerance.min_needed(role)
            why = (
                f"rank {min(missed)} of {role.name} is critical"
                if missed
                else f"{needed} of {role.name} are needed and {left} left"
            )
            ended = _describe_failed_ranks(lost, missed or list(lost))
            again = self.tolerance.restart_budget(role.name, min(missed or lost))
            return (
                f"ElasticJob {job.name} has failed because {ended}, "
                f"and {why}. A rank may be replaced {again} times, if that can help."
            )
        return ""

    def pending_timeout(
        self, job: NormalizedJob, gang: ReplicaGang, now: datetime
    ) -> tuple[timedelta | None, str]:
        waits = [
            wait for role in job.roles if (wait := self._role_pending_timeout(job, role, gang, now))
        ]
        return min(waits, key=lambda wait: wait[0]) if waits else (None, "")

    def status_fields(self, job: NormalizedJob, gang: ReplicaGang, status: JobStatus) -> Manifest:
        written: Manifest = msgspec.to_builtins(status)
        own = {name: value for name, value in written.items() if name not in _COMMON_WIRE}
        there = any(slots.present for name, slots in gang.roles.items() if name != MASTER)
        phases = (type_ for type_ in _PHASES if is_condition_true(status.conditions, type_))
        return {**own, "phase": next(phases, "Pending" if there else "Created")}

    # Stored state

    def restore_from_status(self, job: NormalizedJob, status: JobStatus) -> NormalizedJob:
        memory = status if isinstance(status, ElasticJobRecord) else ElasticJobRecord()
        roles, records = [], {}
        for role in job.roles:
            record = nodes.drop_outdated_size(
                memory.roles.get(role.name, RoleRecord()), role.replicas
            )
            size = nodes.rank_count(record, role.replicas)
            removed = sum(rank < size for rank in nodes.removed_ranks(record))
            fewest = self.node_range.min_nodes if self.node_range and role.name == WORKER else size
            least = min(fewest, size - removed)
            roles.append(replace(role, replicas=size, min_replicas=least))
            records[role.name] = nodes.assign_node_ids(record, size)
        rules = replace(self, memory=memory, records=records)
        return replace(job, roles=roles, rules=rules)

    def save_to_status(self, job: NormalizedJob, gang: ReplicaGang, status: JobStatus) -> JobStatus:
        memory = structs.replace(
            status if isinstance(status, ElasticJobRecord) else self.memory,
            **{name: getattr(status, name) for name in COMMON_FIELDS},
        )
        faults = dict(memory.node_faults)
        records = dict(memory.roles)
        for role in job.roles:
            losses: dict[int, nodes.NodeLoss] = {}
            for rank, pod in self._to_replace(job, role, gang):
                if pod is None or not pod.failed:
                    ended = role.name == MASTER and self._has_ended_master(gang)
                    losses[rank] = nodes.NodeLoss(counts_as_failure=ended)
                else:
                    ending = elastic_pods.classify_pod_failure(pod, CONTAINER)
                    more = self._grown_memory(job, role.name, rank) if ending.out_of_memory else ""
                    losses[rank] = nodes.NodeLoss(ending.counts_as_restart, more or "")
                    node = pod.spec.node_name
                    # The node does not cause a lack of memory.
                    if node and ending.counts_as_restart and not ending.out_of_memory:
                        faults[node] = elastic_pods.count_node_failure(faults.get(node), ending)
            record = nodes.relaunch(self.records[role.name], losses)
            if self.tolerance.ends_with_first_success(role.name):
                record = nodes.record_leaving(record, gang[role.name])
            records[role.name] = self._with_created_ranks(role, gang, record)
        return structs.replace(memory, roles=records, node_faults=faults)

    def is_current(self, job: NormalizedJob, pod: ObservedPod) -> bool:
        """Return whether a pod has the current node number of its rank.

        False for a master that has ended although the job has not.
        """
        role, rank = labels.parse_replica_labels(pod.metadata) or ("", 0)
        return self._has_current_number(pod) and not (
            role == MASTER and pod.succeeded and self._may_restart(role, rank)
        )

    def is_awaited(self, job: NormalizedJob, pod: ObservedPod, gang: ReplicaGang) -> bool:
        """A migrated parameter server runs until its successor runs."""
        role, rank = labels.parse_replica_labels(pod.metadata) or ("", 0)
        slots = gang[role]
        if role != PS or not pod.is_active or rank >= len(slots.pods) or rank in slots.excluded:
            return False
        heir = slots.pods[rank]
        return not (heir and heir.is_active)

    def may_create(self, job: NormalizedJob, role: ReplicaRole, index: int) -> bool:
        """An observed pod is never created again under its name: it gets the next number."""
        record = self.records[role.name]
        return not record.leaving and index not in nodes.created_ranks(record)

    def excluded_indexes(self, job: NormalizedJob, role: ReplicaRole) -> frozenset[int]:
        """The ranks that a plan removed, and those that start when others have finished."""
        record = self.records[role.name]
        return nodes.removed_ranks(record) | nodes.late_ranks(record, role.replicas)

    def is_replaced(
        self, job: NormalizedJob, role: ReplicaRole, index: int, pod: ObservedPod
    ) -> bool:
        """Return whether a failed pod is replaced: a restart can help, and the budget allows it."""
        ended = elastic_pods.classify_pod_failure(pod, CONTAINER)
        if not ended.counts_as_restart:
            return True
        if not self._may_restart(role.name, index):
            return False
        if role.name == MASTER:
            return True
        if ended.out_of_memory:
            return self._grown_memory(job, role.name, index) is not None
        return not ended.is_permanent or self.tolerance.always_restarts(role)

    # Helpers

    def _replica(self, job: NormalizedJob, role: ReplicaRole, index: int) -> ElasticReplica:
        return ElasticReplica(job, self.spec, self.records, self.memory, role, index)

    def _has_current_number(self, pod: ObservedPod) -> bool:
        role, rank = labels.parse_replica_labels(pod.metadata) or ("", 0)
        number = pod.metadata.labels.get(ID_LABEL, "")
        return role in self.records and number == str(self._node_id(role, rank))

    def _has_ended_master(self, gang: ReplicaGang) -> bool:
        """Return whether the current master exited with 0 and must be replaced."""
        return any(
            pod.succeeded and self._has_current_number(pod)
            for pod in gang.surplus
            if labels.parse_replica_labels(pod.metadata) == (MASTER, 0)
        )

    def _node_id(self, role: str, rank: int) -> int:
        return nodes.node_of_rank(self.records[role], rank).id

    def _may_restart(self, role: str, rank: int) -> bool:
        failures = nodes.node_of_rank(self.records[role], rank).failures
        return failures < self.tolerance.restart_budget(role, rank)

    def _is_done(self, job: NormalizedJob, name: str, gang: ReplicaGang) -> bool:
        slots, role = gang[name], job.find_role(name)
        if role is None or slots.all_succeeded:
            return role is not None
        lost = len(self._permanently_failed(job, role, gang))
        if not slots.succeeded or slots.active:
            return False
        if self.tolerance.ends_with_first_success(name):
            return True
        return bool(lost) and slots.succeeded + lost == slots.desired

    def _permanently_failed(
        self, job: NormalizedJob, role: ReplicaRole, gang: ReplicaGang
    ) -> dict[int, ObservedPod]:
        return {
            rank: pod
            for rank, pod in enumerate(gang[role.name].pods)
            if pod and pod.failed and not self.is_replaced(job, role, rank, pod)
        }

    def _grown_memory(self, job: NormalizedJob, role: str, rank: int) -> str | None:
        roles = {role.name: role for role in job.roles if role.name != MASTER}
        if role not in roles:
            return ""
        limits = self.spec.resource_limits
        return nodes.grown_memory(roles, self.records, limits, role, rank, CONTAINER)

    def _to_replace(
        self, job: NormalizedJob, role: ReplicaRole, gang: ReplicaGang
    ) -> Iterator[tuple[int, ObservedPod | None]]:
        """Yield the ranks whose pod was deleted, is terminating, or failed and is replaced."""
        slots, made = gang[role.name], nodes.created_ranks(self.records[role.name])
        if role.name == MASTER and self._has_ended_master(gang):
            made = made | {0}
        # After the first success no rank starts again: it would find no peers.
        if self.records[role.name].leaving:
            return
        for rank, pod in enumerate(slots.pods):
            if rank in slots.completed or rank in slots.excluded:
                continue
            is_deleted = pod is None and rank in made
            failed = pod and pod.failed and self.is_replaced(job, role, rank, pod)
            if is_deleted or failed or (pod and pod.is_terminating):
                yield rank, pod

    def _with_created_ranks(
        self, role: ReplicaRole, gang: ReplicaGang, record: RoleRecord
    ) -> RoleRecord:
        """Record the created pods only with other changes or when complete, which saves writes."""
        slots = gang[role.name]
        present = {
            rank
            for rank, pod in enumerate(slots.pods)
            if pod and self._node_id(role.name, rank) == nodes.node_of_rank(record, rank).id
        }
        news = record != self.memory.roles.get(role.name)
        complete = len(present | slots.completed) == slots.desired
        return nodes.record_created_ranks(record, present) if news or complete else record

    def _role_pending_timeout(
        self, job: NormalizedJob, role: ReplicaRole, gang: ReplicaGang, now: datetime
    ) -> tuple[timedelta, str] | None:
        notes, slots = job.meta.annotations, gang[role.name]
        limit, source = self.tolerance.pending_limit(role.name, notes)
        needed = self.tolerance.min_running(role, slots.desired, notes)
        if not limit or slots.active + slots.succeeded >= needed:
            return None
        pods = [
            pod
            for pod in slots.present
            if pod.status.phase == PodPhase.PENDING
            and not pod.spec.node_name
            and not pod.is_terminating
        ]
        created = (pod.metadata.creation_timestamp for pod in pods)
        first = min((when for when in created if when is not None), default=None)
        if first is None:
            return None
        why = (
            f"ElasticJob {job.name} has failed because {len(pods)} {role.name} pod(s), such as "
            f"{min(pod.name for pod in pods)}, waited for a node longer than the {source} "
            f"of {limit} s, and {needed} are needed."
        )
        return first + timedelta(seconds=limit) - now, why


def _describe_failed_ranks(lost: Mapping[int, ObservedPod], ranks: list[int]) -> str:
    """Describe how the pods of these ranks ended; of many only the first."""
    named = (
        restart.describe_pod_failure(lost[rank], CONTAINER).rstrip(".")
        for rank in ranks[:_MAX_LISTED_PODS]
    )
    more = len(ranks) - _MAX_LISTED_PODS
    return "; ".join(named) + (f"; and {more} more" if more > 0 else "")
