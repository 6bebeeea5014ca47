"""Computes how a ScalePlan changes the stored state of an ElasticJob, or why it cannot.

A plan is applied completely or not at all. A removed rank stays empty: the other ranks keep their
numbers. New resources apply to pods that are created later; ``migratePods`` replaces its pods
immediately.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from gangline.api.jobs.elastic import (
    CONTAINER,
    MASTER,
    PS,
    WORKER,
    ElasticJobRecord,
    PodMeta,
    RoleRecord,
    ScalePlanSpec,
)
from gangline.api.resource_list import format_resource, parse_resources
from gangline.api.schema.field_error import FieldError, child_path
from gangline.api.validation.common_rules import MAX_JOB_REPLICAS
from gangline.operator.frameworks.elastic import memory as elastic_memory
from gangline.operator.frameworks.elastic import nodes
from gangline.operator.frameworks.elastic.pods import pod_name
from gangline.operator.frameworks.elastic.rules import ElasticRules
from gangline.operator.model.job import NormalizedJob, ReplicaRole


@dataclass(frozen=True, slots=True)
class RejectedScalePlan:
    """The reasons why a plan cannot be applied."""

    errors: tuple[FieldError, ...]

    def __str__(self) -> str:
        return "; ".join(map(str, self.errors))


def apply_scale_plan(
    spec: ScalePlanSpec, job: NormalizedJob, memory: ElasticJobRecord
) -> ElasticJobRecord | RejectedScalePlan:
    """Return the status of a job as changed by a plan, or the reasons why that is impossible.

    Args:
        spec: the requested changes.
        job: the job as specified.
        memory: its status.
    """
    draft = _ScalePlanDraft(job, memory)
    errors = tuple(draft.errors(spec))
    if errors:
        return RejectedScalePlan(errors)
    hosts = spec.ps_hosts or memory.ps_hosts
    return replace(memory, roles={**memory.roles, **draft.changed}, ps_hosts=hosts)


class _ScalePlanDraft:
    """The records of a job's roles while a plan changes them."""

    def __init__(self, job: NormalizedJob, memory: ElasticJobRecord) -> None:
        rules = job.rules
        assert isinstance(rules, ElasticRules)
        self.job, self.rules = job, rules
        self.specified = {role.name: role.replicas for role in job.roles}
        recalled = rules.restore_from_status(job, memory).rules
        assert isinstance(recalled, ElasticRules)
        self.records = dict(recalled.records)
        self.changed: dict[str, RoleRecord] = {}

    def errors(self, spec: ScalePlanSpec) -> Iterator[FieldError]:
        """Apply all changes of the plan and yield those that are impossible."""
        for name, scale in spec.replica_resource_specs.items():
            path, role = child_path("spec.replicaResourceSpecs", name), name.lower()
            if role not in self.records:
                yield self._unknown_role(path, name)
                continue
            if scale.resource:
                merged = {**self.records[role].resources, **scale.resource}
                self._set_record(role, replace(self.records[role], resources=merged))
            if scale.replicas is not None:
                yield from self._resize(role, scale.replicas, f"{path}.replicas")
        for field, change in (
            ("removePods", self._remove),
            ("migratePods", self._migrate),
            ("createPods", self._create),
        ):
            pods: list[PodMeta] = {
                "removePods": spec.remove_pods,
                "migratePods": spec.migrate_pods,
                "createPods": spec.create_pods,
            }[field]
            for place, pod in enumerate(pods):
                path, role = f"spec.{field}[{place}]", pod.type.lower() or WORKER
                if role not in self.records:
                    yield self._unknown_role(f"{path}.type", pod.type)
                else:
                    yield from change(role, pod, path)
        if spec.ps_hosts and PS not in self.records:
            yield FieldError("spec.psHosts", None, "the job has no parameter servers")
        yield from self._bound_errors()

    def _resize(self, role: str, replicas: int, path: str) -> Iterator[FieldError]:
        """Set the number of ranks: the highest ranks are removed, the lowest free ones added."""
        if replicas > MAX_JOB_REPLICAS:
            yield FieldError(path, replicas, f"is more than {MAX_JOB_REPLICAS}")
            return
        there = sorted(self._ranks(role))[:replicas]
        rank = 0
        known = set(there)
        while len(known) < replicas:
            known.add(rank)
            rank += 1
        self._set_ranks(role, known)

    def _remove(self, role: str, pod: PodMeta, path: str) -> Iterator[FieldError]:
        rank = self._find_rank(role, pod)
        if rank is None:
            yield _unknown_pod(path, pod)
        else:
            self._set_ranks(role, self._ranks(role) - {rank})

    def _migrate(self, role: str, pod: PodMeta, path: str) -> Iterator[FieldError]:
        rank = self._find_rank(role, pod)
        if rank is None:
            yield _unknown_pod(path, pod)
            return
        record = nodes.relaunch(self.records[role], {rank: nodes.NodeLoss()})
        self._set_record(role, _with_resources(record, rank, pod))

    def _create(self, role: str, pod: PodMeta, path: str) -> Iterator[FieldError]:
        there = self._ranks(role)
        rank = pod.rank_index
        if rank is None:
            rank = next(index for index in range(len(there) + 1) if index not in there)
        if rank in there:
            yield FieldError(f"{path}.rankIndex", rank, "already has a pod")
            return
        if rank >= MAX_JOB_REPLICAS:
            yield FieldError(f"{path}.rankIndex", rank, f"is more than {MAX_JOB_REPLICAS}")
            return
        self._set_ranks(role, there | {rank})
        self._set_record(role, _with_resources(self.records[role], rank, pod))

    def _bound_errors(self) -> Iterator[FieldError]:
        """Check that the job can still train and stays within its limits."""
        counts = {role: len(self._ranks(role)) for role in self.records if role != MASTER}
        least = self.rules.node_range.min_nodes if self.rules.node_range else 1
        workers = counts.get(WORKER)
        if workers is not None and WORKER in self.changed and workers < least:
            problem = f"leaves {workers} workers, and the job needs at least {least}"
            yield FieldError("spec", None, problem)
        elif not sum(counts.values()):
            yield FieldError("spec", None, "leaves no replica that trains")
        yield from self._limit_errors()

    def _limit_errors(self) -> Iterator[FieldError]:
        limits = parse_resources(self.rules.spec.resource_limits)
        if not limits or not self.changed:
            return
        roles = {
            role.name: ReplicaRole(
                role.name,
                nodes.rank_count(self.records[role.name], role.replicas),
                role.restart,
                role.template,
                role.min_replicas,
            )
            for role in self.job.roles
            if role.name != MASTER
        }
        total = elastic_memory.total_requests(roles, self.records, CONTAINER)
        for resource, most in limits.items():
            if total.get(resource, 0) > most:
                asked = format_resource(resource, total[resource])
                given = self.rules.spec.resource_limits[resource]
                problem = (
                    f"requests {asked} of {resource} in total; the job's resourceLimits: {given}"
                )
                yield FieldError("spec", None, problem)

    def _find_rank(self, role: str, pod: PodMeta) -> int | None:
        """Find the rank of a pod that a plan names; None if the job has no such pod."""
        record, there = self.records[role], self._ranks(role)
        for rank in there:
            number = nodes.node_of_rank(record, rank).id
            named = not pod.name or pod.name == pod_name(self.job.name, role, number)
            numbered = pod.id in (None, number)
            ranked = pod.rank_index in (None, rank)
            if named and numbered and ranked:
                return rank
        return None

    def _ranks(self, role: str) -> frozenset[int]:
        return nodes.active_ranks(self.records[role], self.specified[role])

    def _set_ranks(self, role: str, ranks: set[int] | frozenset[int]) -> None:
        record = nodes.resize(self.records[role], ranks, self.specified[role])
        self._set_record(
            role, nodes.assign_node_ids(record, nodes.rank_count(record, self.specified[role]))
        )

    def _set_record(self, role: str, record: RoleRecord) -> None:
        self.records[role] = self.changed[role] = record

    def _unknown_role(self, path: str, name: str) -> FieldError:
        known = ", ".join(role for role in self.records if role != MASTER)
        return FieldError(path, name, "is not a role of the job", f"it has {known}")


def _with_resources(record: RoleRecord, rank: int, pod: PodMeta) -> RoleRecord:
    return nodes.update_node(record, rank, resources=pod.resource) if pod.resource else record


def _unknown_pod(path: str, pod: PodMeta) -> FieldError:
    field, value = next(
        (
            (name, value)
            for name, value in (("name", pod.name), ("id", pod.id), ("rankIndex", pod.rank_index))
            if value not in (None, "")
        ),
        ("name", None),
    )
    return FieldError(f"{path}.{field}", value, "is not a pod of the job")
