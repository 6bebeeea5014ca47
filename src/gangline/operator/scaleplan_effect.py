"""Computes how a ScalePlan changes the stored state of an ElasticJob, or why it cannot.

A plan is applied completely or not at all. A removed rank stays empty: the other ranks keep their
numbers. New resources apply to pods that are created later; ``migratePods`` replaces its pods
immediately.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from gangline.api.checks.parts import MOST_REPLICAS
from gangline.api.elastic import (
    CONTAINER,
    MASTER,
    PS,
    WORKER,
    ElasticMemory,
    PodMeta,
    RoleRecord,
    ScalePlanSpec,
)
from gangline.api.fielderror import FieldError, child
from gangline.api.resourcelist import amounts, quantity_of
from gangline.operator.frameworks import elastic_memory
from gangline.operator.frameworks import elastic_nodes as nodes
from gangline.operator.frameworks.elastic_pod import pod_name
from gangline.operator.frameworks.elastic_rules import ElasticRules
from gangline.operator.job import Role, TrainingJob


@dataclass(frozen=True, slots=True)
class Refused:
    """The reasons why a plan cannot be applied."""

    errors: tuple[FieldError, ...]

    def __str__(self) -> str:
        return "; ".join(map(str, self.errors))


def carried_out(
    spec: ScalePlanSpec, job: TrainingJob, memory: ElasticMemory
) -> ElasticMemory | Refused:
    """Return the status of a job as changed by a plan, or the reasons why that is impossible.

    Args:
        spec: the requested changes.
        job: the job as specified.
        memory: its status.
    """
    draft = _Draft(job, memory)
    errors = tuple(draft.errors(spec))
    if errors:
        return Refused(errors)
    hosts = spec.ps_hosts or memory.ps_hosts
    return replace(memory, roles={**memory.roles, **draft.changed}, ps_hosts=hosts)


class _Draft:
    """The records of a job's roles while a plan changes them."""

    def __init__(self, job: TrainingJob, memory: ElasticMemory) -> None:
        rules = job.rules
        assert isinstance(rules, ElasticRules)
        self.job, self.rules = job, rules
        self.specified = {role.name: role.replicas for role in job.roles}
        recalled = rules.recalled(job, memory).rules
        assert isinstance(recalled, ElasticRules)
        self.records = dict(recalled.records)
        self.changed: dict[str, RoleRecord] = {}

    def errors(self, spec: ScalePlanSpec) -> Iterator[FieldError]:
        """Apply all changes of the plan and yield those that are impossible."""
        for name, scale in spec.replica_resource_specs.items():
            path, role = child("spec.replicaResourceSpecs", name), name.lower()
            if role not in self.records:
                yield self._no_role(path, name)
                continue
            if scale.resource:
                merged = {**self.records[role].resources, **scale.resource}
                self._put(role, replace(self.records[role], resources=merged))
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
                    yield self._no_role(f"{path}.type", pod.type)
                else:
                    yield from change(role, pod, path)
        if spec.ps_hosts and PS not in self.records:
            yield FieldError("spec.psHosts", None, "the job has no parameter servers")
        yield from self._bounds()

    def _resize(self, role: str, wanted: int, path: str) -> Iterator[FieldError]:
        """Set the number of ranks: the highest ranks are removed, the lowest free ones added."""
        if wanted > MOST_REPLICAS:
            yield FieldError(path, wanted, f"is more than {MOST_REPLICAS}")
            return
        there = sorted(self._ranks(role))[:wanted]
        rank = 0
        known = set(there)
        while len(known) < wanted:
            known.add(rank)
            rank += 1
        self._have(role, known)

    def _remove(self, role: str, pod: PodMeta, path: str) -> Iterator[FieldError]:
        rank = self._find(role, pod)
        if rank is None:
            yield _no_pod(path, pod)
        else:
            self._have(role, self._ranks(role) - {rank})

    def _migrate(self, role: str, pod: PodMeta, path: str) -> Iterator[FieldError]:
        rank = self._find(role, pod)
        if rank is None:
            yield _no_pod(path, pod)
            return
        record = nodes.relaunched(self.records[role], {rank: nodes.Loss()})
        self._put(role, _with_resources(record, rank, pod))

    def _create(self, role: str, pod: PodMeta, path: str) -> Iterator[FieldError]:
        there = self._ranks(role)
        rank = pod.rank_index
        if rank is None:
            rank = next(index for index in range(len(there) + 1) if index not in there)
        if rank in there:
            yield FieldError(f"{path}.rankIndex", rank, "already has a pod")
            return
        if rank >= MOST_REPLICAS:
            yield FieldError(f"{path}.rankIndex", rank, f"is more than {MOST_REPLICAS}")
            return
        self._have(role, there | {rank})
        self._put(role, _with_resources(self.records[role], rank, pod))

    def _bounds(self) -> Iterator[FieldError]:
        """Check that the job can still train and stays within its limits."""
        counts = {role: len(self._ranks(role)) for role in self.records if role != MASTER}
        least = self.rules.node_range.least if self.rules.node_range else 1
        workers = counts.get(WORKER)
        if workers is not None and WORKER in self.changed and workers < least:
            problem = f"leaves {workers} workers, and the job needs at least {least}"
            yield FieldError("spec", None, problem)
        elif not sum(counts.values()):
            yield FieldError("spec", None, "leaves no replica that trains")
        yield from self._over_limits()

    def _over_limits(self) -> Iterator[FieldError]:
        limits = amounts(self.rules.spec.resource_limits)
        if not limits or not self.changed:
            return
        roles = {
            role.name: Role(
                role.name,
                nodes.size(self.records[role.name], role.replicas),
                role.restart,
                role.template,
                role.least,
            )
            for role in self.job.roles
            if role.name != MASTER
        }
        total = elastic_memory.total(roles, self.records, CONTAINER)
        for resource, most in limits.items():
            if total.get(resource, 0) > most:
                asked = quantity_of(resource, total[resource])
                given = self.rules.spec.resource_limits[resource]
                problem = (
                    f"requests {asked} of {resource} in total; the job's resourceLimits: {given}"
                )
                yield FieldError("spec", None, problem)

    def _find(self, role: str, pod: PodMeta) -> int | None:
        """Find the rank of a pod that a plan names; None if the job has no such pod."""
        record, there = self.records[role], self._ranks(role)
        for rank in there:
            number = nodes.node(record, rank).id
            named = not pod.name or pod.name == pod_name(self.job.name, role, number)
            numbered = pod.id in (None, number)
            ranked = pod.rank_index in (None, rank)
            if named and numbered and ranked:
                return rank
        return None

    def _ranks(self, role: str) -> frozenset[int]:
        return nodes.ranks(self.records[role], self.specified[role])

    def _have(self, role: str, ranks: set[int] | frozenset[int]) -> None:
        record = nodes.resized(self.records[role], ranks, self.specified[role])
        self._put(role, nodes.extended(record, nodes.size(record, self.specified[role])))

    def _put(self, role: str, record: RoleRecord) -> None:
        self.records[role] = self.changed[role] = record

    def _no_role(self, path: str, name: str) -> FieldError:
        known = ", ".join(role for role in self.records if role != MASTER)
        return FieldError(path, name, "is not a role of the job", f"it has {known}")


def _with_resources(record: RoleRecord, rank: int, pod: PodMeta) -> RoleRecord:
    return nodes.changed(record, rank, resources=pod.resource) if pod.resource else record


def _no_pod(path: str, pod: PodMeta) -> FieldError:
    field, value = next(
        (
            (name, value)
            for name, value in (("name", pod.name), ("id", pod.id), ("rankIndex", pod.rank_index))
            if value not in (None, "")
        ),
        ("name", None),
    )
    return FieldError(f"{path}.{field}", value, "is not a pod of the job")
