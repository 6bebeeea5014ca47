"""The pods of an ElasticJob, what their failures mean, and which of them the job can miss.

Names, labels and variables are DLRover's; ``GANGLINE_…`` variables give agents the master's address
and the job's secret. Every pod has the restart policy Never: a failure replaces the complete pod.
The rules, by the table of causes (``api.failure``) and the exit codes of DLRover's agents, are the
same for every strategy:

- a failure caused by the cluster (eviction, preemption, lost node) never counts;
- a failed program is restarted only if that can help, or if the restart policy always restarts;
- a pod that ran out of memory gets twice as much, within the job's ``resourceLimits``;
- nodes are avoided: preferably after two failures, strictly after two that the node caused.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from gangline.api import failure
from gangline.api.core.pod import Pod
from gangline.api.failure import Blame, Remedy
from gangline.api.job_names import RELAUNCH_COUNT_LABEL
from gangline.api.jobs import elastic as api
from gangline.api.jobs.elastic import (
    CHIEF,
    EVALUATOR,
    MASTER,
    PS,
    WORKER,
    CriticalRanks,
    ElasticJobSpec,
    NodeFaults,
    RoleRecord,
    WorkerRange,
    master_name,
    parse_critical_ranks,
    priority_class,
)
from gangline.operator.frameworks import kubeflow
from gangline.operator.frameworks.elastic import nodes
from gangline.operator.model import pod_template
from gangline.operator.model.job import Manifest, NormalizedJob, ReplicaRole
from gangline.operator.model.replicas import ObservedPod

DEFAULT_RESTARTS = 3
"""Default number of replacements of a rank after failures."""
MASTER_RESTARTS = 30
"""The same for the master. It is high because workers continue while the master is down."""

_WHEN_NEEDED, _ALWAYS = "1", "2"
"""DLRover's values: pending pods fail the job if they are required; they always do."""
_ALL_REQUIRED = (PS, CHIEF, MASTER)
"""Roles of which all replicas are required."""


@dataclass(frozen=True, slots=True)
class ElasticTolerance:
    spec: ElasticJobSpec
    node_range: WorkerRange | None

    @property
    def strategy(self) -> str:
        return self.spec.distribution_strategy or api.PARAMETER_SERVER

    def ends_with_first_success(self, name: str) -> bool:
        """Return whether no replica of the role may start after the first has succeeded.

        A replica that starts later would find no peers and train alone from the beginning.
        """
        elastic = (
            self.node_range is not None and self.node_range.min_nodes < self.node_range.max_nodes
        )
        return name == WORKER and elastic and self.strategy == api.ALLREDUCE

    def min_needed(self, role: ReplicaRole) -> int:
        if role.name == EVALUATOR:
            return 0
        # A launcher waits for its minimum of nodes under every strategy.
        has_minimum = role.name == WORKER and (
            self.node_range is not None
            or api.needs_all_nodes(pod_template.main_container(role.template, api.CONTAINER))
        )
        if role.name in _ALL_REQUIRED or has_minimum or self.strategy != api.PARAMETER_SERVER:
            return role.min_replicas
        return 1

    def critical_ranks(self, name: str) -> CriticalRanks:
        """Return the ranks of a role without which the job fails."""
        written = replica_spec_of(self.spec, name)
        given = written.critical_nodes if written else None
        if given:
            return parse_critical_ranks(given) or CriticalRanks(False, {})
        first = name == WORKER and self.strategy == api.PARAMETER_SERVER
        return CriticalRanks(False, {0: None} if first else {})

    def restart_budget(self, name: str, rank: int) -> int:
        """Return how often a rank may be replaced after failures."""
        written = replica_spec_of(self.spec, name)
        given = written.restart_count if written else None
        if name == MASTER:
            return max(given or 0, MASTER_RESTARTS)
        own = self.critical_ranks(name).ranks.get(rank)
        return own if own is not None else DEFAULT_RESTARTS if given is None else given

    def pending_limit(self, name: str, notes: Mapping[str, str]) -> tuple[int, str]:
        """Return how many seconds pods of a role may be pending (0: for ever), and what sets that
        limit.

        The annotations apply to training pods only: these continue without a master.
        """
        written = replica_spec_of(self.spec, name)
        if written and written.restart_timeout:
            return written.restart_timeout, "restartTimeout"
        strategy = notes.get(api.PENDING_STRATEGY_ANNOTATION, _WHEN_NEEDED)
        seconds = notes.get(api.PENDING_TIMEOUT_ANNOTATION, "")
        patient = strategy not in (_WHEN_NEEDED, _ALWAYS)
        if patient or name == MASTER or not seconds.isdecimal():
            return 0, ""
        return int(seconds), api.PENDING_TIMEOUT_ANNOTATION

    def min_running(self, role: ReplicaRole, desired: int, notes: Mapping[str, str]) -> int:
        """Return how many replicas of a role must be active so that the others may be pending."""
        if notes.get(api.PENDING_STRATEGY_ANNOTATION) == _ALWAYS:
            return desired
        return max(1, self.min_needed(role))

    def always_restarts(self, role: ReplicaRole) -> bool:
        written = replica_spec_of(self.spec, role.name)
        inside = pod_template.pod_spec(role.template).get("restartPolicy")
        policy = (written and written.restart_policy) or inside
        return policy in ("Always", "OnFailure")


HARDWARE_EXIT_CODES = frozenset({14, 201, 202})
"""Exit codes with which agents report a broken node."""
OUT_OF_MEMORY_EXIT_CODE = 247
"""Exit code with which agents report a process that was killed because memory ran out."""
OUT_OF_MEMORY = "OutOfMemory"

AVOID_AFTER_FAILURES = 2


@dataclass(frozen=True, slots=True)
class PodFailure:
    counts_as_restart: bool
    """The failure counts against the restart budget of the rank."""
    is_permanent: bool
    """A restart cannot help."""
    out_of_memory: bool
    is_node_fault: bool
    """The node caused the failure, and it was no eviction."""


def classify_pod_failure(failed: ObservedPod, container: str) -> PodFailure:
    complete = msgspec.convert(msgspec.to_builtins(failed), Pod)
    pod_failure = failure.failure_of_pod(complete, container)
    if pod_failure is None:
        return PodFailure(False, False, False, False)
    # The exit code of a container whose node stopped is made up.
    code = None if pod_failure.cause == failure.NODE_LOST else pod_failure.exit_code
    broken = code in HARDWARE_EXIT_CODES
    starved = pod_failure.cause == OUT_OF_MEMORY or code == OUT_OF_MEMORY_EXIT_CODE
    return PodFailure(
        counts_as_restart=code is not None or pod_failure.remedy is Remedy.STOP,
        is_permanent=pod_failure.remedy is Remedy.STOP and not broken and not starved,
        out_of_memory=starved,
        is_node_fault=broken or (code is not None and pod_failure.blame is Blame.NODE),
    )


def count_node_failure(faults: NodeFaults | None, ended: PodFailure) -> NodeFaults:
    counts = faults or NodeFaults()
    return replace(counts, failures=counts.failures + 1, faults=counts.faults + ended.is_node_fault)


PORT = 50001
"""The port of the master."""
PORTS: Mapping[str, int] = {WORKER: 3333, CHIEF: 3333, EVALUATOR: 3333, PS: 2222, MASTER: PORT}

_DESCRIPTIVE_LABELS = {"app": "dlrover", "app.kubernetes.io/name": "elasticjob"}
"""Labels that select nothing, so that those of a template stay."""
ID_LABEL = "elasticjob.dlrover/replica-index"
RANK_LABEL = "elasticjob.dlrover/rank-index"
_HOST_LABEL = "kubernetes.io/hostname"
_MAX_AVOIDED_NODES = 100
SECRET_KEY = "secret"
_SECRET_VARIABLE = "GANGLINE_JOB_SECRET"
_SECRET_DIGITS = 10


def secret_name(job: NormalizedJob) -> str:
    """Return the name of the Secret with which the job's processes authenticate each other.

    It contains the job's uid, so it cannot collide with another job's, and the operator needs no
    right to read it.
    """
    digest = hashlib.sha256(job.meta.uid.encode()).hexdigest()[:_SECRET_DIGITS]
    return f"{job.name}-edljob-secret-{digest}"


def pod_name(job: str, role: str, number: int) -> str:
    if role == MASTER:
        return f"{master_name(job)}-{number}"
    return f"{job}-edljob-{role}-{number}"


def service_name(job: str, role: str, rank: int) -> str:
    """Return the name of a rank's service, which selects the rank's current pod."""
    return master_name(job) if role == MASTER else f"{job}-edljob-{role}-{rank}"


@dataclass(frozen=True, slots=True)
class ElasticReplica:
    job: NormalizedJob
    spec: ElasticJobSpec
    records: Mapping[str, RoleRecord]
    memory: api.ElasticJobRecord
    role: ReplicaRole
    rank: int

    @property
    def number(self) -> int:
        """The node number of its current pod."""
        return nodes.node_of_rank(self.records[self.role.name], self.rank).id

    def environment(self) -> list[Manifest]:
        fields = [
            kubeflow.field_variable("POD_IP", "status.podIP"),
            kubeflow.field_variable("NODE_IP", "status.hostIP"),
            kubeflow.field_variable("POD_NAME", "metadata.name"),
        ]
        key = {"name": secret_name(self.job), "key": SECRET_KEY}
        secret = {"name": _SECRET_VARIABLE, "valueFrom": {"secretKeyRef": key}}
        return [*fields, secret, *kubeflow.env_vars(self._variables())]

    def shape(self, pod: Manifest) -> Manifest:
        """Add DLRover's labels, the resources, the priority class and the nodes to avoid."""
        pod = pod_template.with_metadata(pod, dict(self._labels()), {})
        container = pod_template.main_container(pod, self.job.kind.container)
        record = self.records[self.role.name]
        node = nodes.node_of_rank(record, self.rank)
        if record.resources or node.resources or node.memory:
            asked = nodes.pod_resources(container, record, node)
            resources = {**(container.get("resources") or {}), **asked}
            pod = pod_template.with_container(pod, self.job.kind.container, resources=resources)
        return self._with_priority(self._with_node_avoidance(pod))

    def _labels(self) -> Iterator[tuple[str, str]]:
        node = nodes.node_of_rank(self.records[self.role.name], self.rank)
        given = (self.role.template.get("metadata") or {}).get("labels") or {}
        for key, value in _DESCRIPTIVE_LABELS.items():
            yield key, given.get(key) or value
        yield "elasticjob.dlrover/name", self.job.name
        yield "elasticjob.dlrover/replica-type", self.role.name
        yield ID_LABEL, str(node.id)
        yield RANK_LABEL, str(self.rank)
        yield RELAUNCH_COUNT_LABEL, str(node.relaunches)

    def _variables(self) -> Iterator[tuple[str, object]]:
        job, role = self.job, self.role
        count = len(self._ranks(role))
        yield "ELASTIC_JOB_NAME", job.name
        yield "JOB_UID", job.meta.uid
        yield "NODE_TYPE", role.name
        yield "NODE_ID", self.number
        yield "NODE_RANK", self.rank
        yield "NODE_NUM", count
        yield "GRPC_ENABLE_FORK_SUPPORT", "false"
        if role.name == MASTER:
            if self.spec.brain_service:
                yield "DLROVER_BRAIN_SERVICE_ADDR", self.spec.brain_service
            return
        master = f"{master_name(job.name)}:{PORT}"
        yield "GANGLINE_MASTER_ADDR", master
        yield "DLROVER_MASTER_ADDR", master
        yield "DLROVER_MASTER_SERVICE_TYPE", "http"
        mode = job.meta.annotations.get(api.ELASTIC_MODE_ANNOTATION, "base")
        yield "DLROVER_TRAINING_ELASTIC_MODE", mode
        yield "MONITOR_ENABLED", "true"
        yield "WORKER_TYPE", role.name
        yield "WORKER_ID", self.number
        yield "WORKER_NUM", count
        yield "WORKER_RANK", self.rank
        match self.spec.distribution_strategy or api.PARAMETER_SERVER:
            case api.ALLREDUCE:
                yield "WORLD_SIZE", count
                yield "RANK", self.rank
            case api.PARAMETER_SERVER:
                yield "TF_CONFIG", self._tf_config()

    def _tf_config(self) -> str:
        """Return TensorFlow's cluster description; evaluators are not part of the cluster."""
        cluster: dict[str, list[str]] = {}
        for role in self.job.roles:
            hosts = [self._address(role.name, rank) for rank in self._ranks(role)]
            if role.name in (PS, WORKER, CHIEF) and hosts:
                cluster[role.name] = hosts
        if self.memory.ps_hosts:
            cluster[PS] = self.memory.ps_hosts
        index = self._ranks(self.role).index(self.rank)
        config = {"cluster": cluster, "task": {"type": self.role.name, "index": index}}
        return json.dumps(config, separators=(",", ":"))

    def _address(self, role: str, rank: int) -> str:
        name = service_name(self.job.name, role, rank)
        return f"{name}.{self.job.meta.namespace}.svc:{PORTS[role]}"

    def _ranks(self, role: ReplicaRole) -> list[int]:
        absent = nodes.removed_ranks(self.records[role.name])
        return [rank for rank in range(role.replicas) if rank not in absent]

    def _with_priority(self, pod: Manifest) -> Manifest:
        written = replica_spec_of(self.spec, self.role.name)
        if written is None or not written.priority or self.role.name == MASTER:
            return pod
        if pod_template.pod_spec(pod).get("priorityClassName"):
            return pod
        name = priority_class(written.priority, self.rank, self.role.replicas)
        return pod_template.with_spec(pod, priorityClassName=name)

    def _with_node_avoidance(self, pod: Manifest) -> Manifest:
        never, rather_not = [], []
        for name, counts in sorted(self.memory.node_faults.items()):
            if counts.faults >= AVOID_AFTER_FAILURES:
                never.append(name)
            elif counts.faults or counts.failures >= AVOID_AFTER_FAILURES:
                rather_not.append(name)
        rather_not = rather_not[:_MAX_AVOIDED_NODES]
        if not never and not rather_not:
            return pod
        affinity = pod_template.pod_spec(pod).get("affinity") or {}
        node_affinity = _with_avoided_nodes(affinity.get("nodeAffinity") or {}, never, rather_not)
        return pod_template.with_spec(pod, affinity={**affinity, "nodeAffinity": node_affinity})


def _with_avoided_nodes(affinity: Manifest, never: list[str], rather_not: list[str]) -> Manifest:
    """Add the nodes to avoid to each of the user's terms, because any of the terms suffices."""
    required, preferred = (
        "requiredDuringSchedulingIgnoredDuringExecution",
        "preferredDuringSchedulingIgnoredDuringExecution",
    )
    merged = dict(affinity)
    if never:
        terms = (affinity.get(required) or {}).get("nodeSelectorTerms") or [{}]
        expressions = ([*(term.get("matchExpressions") or []), _not_in(never)] for term in terms)
        pairs = zip(terms, expressions, strict=True)
        merged[required] = {
            "nodeSelectorTerms": [{**term, "matchExpressions": listed} for term, listed in pairs]
        }
    if rather_not:
        wish = {"weight": 100, "preference": {"matchExpressions": [_not_in(rather_not)]}}
        merged[preferred] = [*(affinity.get(preferred) or []), wish]
    return merged


def _not_in(names: list[str]) -> Manifest:
    return {"key": _HOST_LABEL, "operator": "NotIn", "values": names}


def replica_spec_of(spec: ElasticJobSpec, role: str) -> api.ElasticReplicaSpec | None:
    """Find the specification of a role; case-insensitive."""
    names = {MASTER, api.LEGACY_MASTER} if role == MASTER else {role}
    specs = {name.lower(): replica_spec for name, replica_spec in spec.replica_specs.items()}
    return next((specs[name] for name in sorted(names) if name in specs), None)
