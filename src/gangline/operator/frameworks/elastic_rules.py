"""The rules of ElasticJobs: success and failure, replacement, and what the status stores.

Workers of an AllreduceStrategy train as long as the minimum of their node range is active. A worker
that failed permanently is then tolerated. When no worker runs any more, the job has succeeded if
one of them has. The master does not count: it is replaced, and nothing else changes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from msgspec import structs

from gangline.api.elastic import (
    CHIEF,
    CONTAINER,
    EVALUATOR,
    MASTER,
    PS,
    WORKER,
    ElasticJobSpec,
    ElasticMemory,
    NodeFaults,
    RoleRecord,
)
from gangline.api.elastic_words import NodeRange
from gangline.api.kubeflow import JobStatus
from gangline.operator import labels
from gangline.operator.frameworks import (
    elastic_failures,
    elastic_master,
    elastic_memory,
    elastic_pod,
    elastic_status,
)
from gangline.operator.frameworks import elastic_nodes as nodes
from gangline.operator.frameworks.elastic_pod import ID_LABEL, Replica
from gangline.operator.frameworks.elastic_tolerance import Tolerance
from gangline.operator.job import Manifest, Role, TrainingJob
from gangline.operator.policies import restart, together
from gangline.operator.replicas import Gang, Phase, Pod

_NAMED = 5
"""Number of pods that a message names."""


@dataclass(frozen=True, slots=True)
class ElasticRules:
    """The rules of one job."""

    spec: ElasticJobSpec
    node_range: NodeRange | None = None
    """The range of workers that may train; None if the job sets none."""
    memory: ElasticMemory = field(default_factory=ElasticMemory)
    records: Mapping[str, RoleRecord] = field(default_factory=dict)
    """The stored record of each role, with a node number for each rank."""

    @property
    def tolerance(self) -> Tolerance:
        return Tolerance(self.spec, self.node_range)

    # Pods and objects

    def environment(self, job: TrainingJob, role: Role, index: int, gang: Gang) -> list[Manifest]:
        return self._replica(job, role, index, gang).environment()

    def shape_pod(
        self, job: TrainingJob, role: Role, index: int, pod: Manifest, gang: Gang
    ) -> Manifest:
        return self._replica(job, role, index, gang).shaped(pod)

    def service(self, job: TrainingJob, role: Role, index: int) -> Manifest | None:
        """Declare DLRover's port; the master's service publishes only ready pods."""
        port = elastic_pod.PORTS[role.name]
        fields: Manifest = {"ports": [{"name": "elastic", "port": port, "targetPort": port}]}
        return fields | ({"publishNotReadyAddresses": None} if role.name == MASTER else {})

    def objects(self, job: TrainingJob, gang: Gang) -> list[Manifest]:
        return elastic_master.objects(job, gang)

    def pod_name(self, job: TrainingJob, role: Role, index: int) -> str:
        return elastic_pod.pod_name(job.name, role.name, self._node_id(role.name, index))

    def service_name(self, job: TrainingJob, role: Role, index: int) -> str:
        return elastic_pod.service_name(job.name, role.name, index)

    def is_master(self, job: TrainingJob, role: Role, index: int) -> bool:
        """The chief is the master replica, or worker 0 without one."""
        leader = CHIEF if job.role(CHIEF) else WORKER
        return (role.name, index) == (leader, 0)

    # Success and failure

    def has_succeeded(self, job: TrainingJob, gang: Gang) -> bool:
        """All training roles have succeeded; of an elastic job's workers some, with none active."""
        deciding = [name for name in (CHIEF, WORKER) if gang[name].wanted] or [
            role.name for role in job.roles if role.name != MASTER and gang[role.name].wanted
        ]
        return bool(deciding) and all(self._is_done(job, name, gang) for name in deciding)

    def is_running(self, job: TrainingJob, gang: Gang) -> bool:
        return any(gang[name].active for name in (WORKER, CHIEF, PS, EVALUATOR))

    def tolerates(self, job: TrainingJob, role: Role) -> bool:
        """A single failure never ends the job: ``has_failed`` decides."""
        return True

    def has_failed(self, job: TrainingJob, gang: Gang) -> str:
        """Return which ranks failed permanently, if the job cannot continue without them."""
        if together.restarts(job):
            return ""
        for role in job.roles:
            lost = self._lost(job, role, gang)
            critical = self.tolerance.critical(role.name)
            missed = [rank for rank in lost if rank in critical]
            left = gang[role.name].wanted - len(lost)
            if not lost or (not missed and left >= self.tolerance.needed(role)):
                continue
            needed = self.tolerance.needed(role)
            why = (
                f"rank {min(missed)} of {role.name} is critical"
                if missed
                else f"{needed} of {role.name} are needed and {left} left"
            )
            again = self.tolerance.budget(role.name, min(missed or lost))
            return (
                f"ElasticJob {job.name} has failed because {_told(lost, missed or list(lost))}, "
                f"and {why}. A rank may be replaced {again} times, if that can help."
            )
        return ""

    def patience(self, job: TrainingJob, gang: Gang, now: datetime) -> tuple[timedelta | None, str]:
        """Return how long pods may still wait for a node while too few are active."""
        waits = [wait for role in job.roles if (wait := self._waiting(job, role, gang, now))]
        return min(waits, key=lambda wait: wait[0]) if waits else (None, "")

    def status_fields(self, job: TrainingJob, gang: Gang, status: JobStatus) -> Manifest:
        return elastic_status.fields(gang, status)

    # Stored state

    def recalled(self, job: TrainingJob, status: JobStatus) -> TrainingJob:
        """Return the job with the sizes, node numbers and resources from its status."""
        memory = status if isinstance(status, ElasticMemory) else ElasticMemory()
        roles, records = [], {}
        for role in job.roles:
            record = nodes.current(memory.roles.get(role.name, RoleRecord()), role.replicas)
            size = nodes.size(record, role.replicas)
            gone = sum(rank < size for rank in nodes.absent(record))
            fewest = self.node_range.least if self.node_range and role.name == WORKER else size
            least = min(fewest, size - gone)
            roles.append(replace(role, replicas=size, least=least))
            records[role.name] = nodes.extended(record, size)
        rules = replace(self, memory=memory, records=records)
        return replace(job, roles=roles, rules=rules)

    def remembered(self, job: TrainingJob, gang: Gang, status: JobStatus) -> JobStatus:
        """Return the status with new node numbers for replaced ranks."""
        memory = structs.replace(
            status if isinstance(status, ElasticMemory) else self.memory,
            **{name: getattr(status, name) for name in elastic_status.COMMON},
        )
        faults = dict(memory.node_faults)
        records = dict(memory.roles)
        for role in job.roles:
            losses: dict[int, nodes.Loss] = {}
            for rank, pod in self._to_replace(job, role, gang):
                if pod is None or not pod.failed:
                    ended = role.name == MASTER and self._ended_master(gang)
                    losses[rank] = nodes.Loss(counted=ended)
                else:
                    ending = elastic_failures.ending(pod, CONTAINER)
                    losses[rank] = self._loss(job, role, rank, ending)
                    _blame(faults, pod, ending)
            record = nodes.relaunched(self.records[role.name], losses)
            if self.tolerance.leave_together(role.name):
                record = nodes.with_leaving(record, gang[role.name])
            records[role.name] = self._with_seen(role, gang, record)
        return structs.replace(memory, roles=records, node_faults=faults)

    def is_present(self, job: TrainingJob, pod: Pod) -> bool:
        """Return whether a pod has the current node number of its rank.

        False for a master that has ended although the job has not.
        """
        role, rank = labels.replica_of(pod.metadata) or ("", 0)
        return self._is_newest(pod) and not (
            role == MASTER
            and pod.succeeded
            and nodes.node(self.records[role], rank).failures < self.tolerance.budget(role, rank)
        )

    def is_awaited(self, job: TrainingJob, pod: Pod, gang: Gang) -> bool:
        """A migrated parameter server runs until its successor runs."""
        role, rank = labels.replica_of(pod.metadata) or ("", 0)
        slots = gang[role]
        if role != PS or not pod.active or rank >= len(slots.pods) or rank in slots.absent:
            return False
        heir = slots.pods[rank]
        return not (heir and heir.active)

    def may_make(self, job: TrainingJob, role: Role, index: int) -> bool:
        """An observed pod is never created again under its name: it gets the next number."""
        record = self.records[role.name]
        return not record.leaving and index not in nodes.made(record)

    def absent(self, job: TrainingJob, role: Role) -> frozenset[int]:
        """The ranks that a plan removed, and those that start when others have finished."""
        record = self.records[role.name]
        return nodes.absent(record) | nodes.late(record, role.replicas)

    def is_replaced(self, job: TrainingJob, role: Role, index: int, pod: Pod) -> bool:
        """Return whether a failed pod is replaced: a restart can help, and the budget allows it."""
        ended = elastic_failures.ending(pod, CONTAINER)
        if not ended.counted:
            return True
        if nodes.node(self.records[role.name], index).failures >= self.tolerance.budget(
            role.name, index
        ):
            return False
        if role.name == MASTER:
            return True
        if ended.out_of_memory:
            return self._more_memory(job, role.name, index) is not None
        return not ended.hopeless or self.tolerance.always(role)

    def has_failed_before(self, job: TrainingJob, role: Role, index: int) -> bool:
        """Return whether a rank has failed: other ranks are not delayed by the backoff."""
        return nodes.node(self.records[role.name], index).failures > 0

    # Helpers

    def _replica(self, job: TrainingJob, role: Role, index: int, gang: Gang) -> Replica:
        return Replica(job, self.spec, self.records, self.memory, role, index, gang)

    def _is_newest(self, pod: Pod) -> bool:
        role, rank = labels.replica_of(pod.metadata) or ("", 0)
        number = pod.metadata.labels.get(ID_LABEL, "")
        return role in self.records and number == str(self._node_id(role, rank))

    def _ended_master(self, gang: Gang) -> bool:
        """Return whether the current master exited with 0 and must be replaced."""
        return any(
            pod.succeeded and self._is_newest(pod)
            for pod in gang.surplus
            if labels.replica_of(pod.metadata) == (MASTER, 0)
        )

    def _node_id(self, role: str, rank: int) -> int:
        return nodes.node(self.records[role], rank).id

    def _is_done(self, job: TrainingJob, name: str, gang: Gang) -> bool:
        slots, role = gang[name], job.role(name)
        if role is None or slots.all_succeeded:
            return role is not None
        lost = len(self._lost(job, role, gang))
        if not slots.succeeded or slots.active:
            return False
        if self.tolerance.leave_together(name):
            return True
        return bool(lost) and slots.succeeded + lost == slots.wanted

    def _lost(self, job: TrainingJob, role: Role, gang: Gang) -> dict[int, Pod]:
        return {
            rank: pod
            for rank, pod in enumerate(gang[role.name].pods)
            if pod and pod.failed and not self.is_replaced(job, role, rank, pod)
        }

    def _more_memory(self, job: TrainingJob, role: str, rank: int) -> str | None:
        roles = {each.name: each for each in job.roles if each.name != MASTER}
        if role not in roles:
            return ""
        limits = self.spec.resource_limits
        return elastic_memory.with_more(roles, self.records, limits, role, rank, CONTAINER)

    def _to_replace(
        self, job: TrainingJob, role: Role, gang: Gang
    ) -> Iterator[tuple[int, Pod | None]]:
        """Yield the ranks whose pod was deleted, is terminating, or failed and is replaced."""
        slots, made = gang[role.name], nodes.made(self.records[role.name])
        if role.name == MASTER and self._ended_master(gang):
            made = made | {0}
        # After the first success no rank starts again: it would find no peers.
        if self.records[role.name].leaving:
            return
        for rank, pod in enumerate(slots.pods):
            if rank in slots.completed or rank in slots.absent:
                continue
            gone = pod is None and rank in made
            failed = pod and pod.failed and self.is_replaced(job, role, rank, pod)
            if gone or failed or (pod and pod.terminating):
                yield rank, pod

    def _loss(
        self, job: TrainingJob, role: Role, rank: int, ending: elastic_failures.Ending
    ) -> nodes.Loss:
        more = self._more_memory(job, role.name, rank) if ending.out_of_memory else None
        return nodes.Loss(counted=ending.counted, memory=more or "")

    def _with_seen(self, role: Role, gang: Gang, record: RoleRecord) -> RoleRecord:
        """Record the created pods only with other changes or when complete, which saves writes."""
        slots = gang[role.name]
        present = {
            rank
            for rank, pod in enumerate(slots.pods)
            if pod and self._node_id(role.name, rank) == nodes.node(record, rank).id
        }
        news = record != self.memory.roles.get(role.name)
        complete = len(present | slots.completed) == slots.wanted
        return nodes.with_seen(record, present) if news or complete else record

    def _waiting(
        self, job: TrainingJob, role: Role, gang: Gang, now: datetime
    ) -> tuple[timedelta, str] | None:
        notes, slots = job.meta.annotations, gang[role.name]
        limit, source = self.tolerance.waiting_limit(role.name, notes)
        needed = self.tolerance.must_be_at_work(role, slots.wanted, notes)
        if not limit or slots.active + slots.succeeded >= needed:
            return None
        pods = [pod for pod in slots.present if _waits(pod)]
        since = [pod.metadata.creation_timestamp for pod in pods]
        known = [when for when in since if when is not None]
        if not known:
            return None
        why = (
            f"ElasticJob {job.name} has failed because {len(pods)} {role.name} pod(s), such as "
            f"{min(pod.name for pod in pods)}, waited for a node longer than the {source} "
            f"of {limit} s, and {needed} are needed."
        )
        return min(known) + timedelta(seconds=limit) - now, why


def _told(lost: Mapping[int, Pod], ranks: list[int]) -> str:
    """Describe how the pods of these ranks ended; of many only the first."""
    named = (restart.describe(lost[rank], CONTAINER).rstrip(".") for rank in ranks[:_NAMED])
    more = len(ranks) - _NAMED
    return "; ".join(named) + (f"; and {more} more" if more > 0 else "")


def _blame(faults: dict[str, NodeFaults], pod: Pod, ending: elastic_failures.Ending) -> None:
    """Count a failure on its node, unless memory ran out, which the node does not cause."""
    node = pod.spec.node_name
    if node and ending.counted and not ending.out_of_memory:
        faults[node] = elastic_failures.blamed(faults.get(node), ending)


def _waits(pod: Pod) -> bool:
    return pod.status.phase == Phase.PENDING and not pod.spec.node_name and not pod.terminating
