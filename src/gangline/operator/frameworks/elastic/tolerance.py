"""What an ElasticJob tolerates: missing replicas and ranks, and the number of failures."""

from collections.abc import Mapping
from dataclasses import dataclass

from gangline.api.jobs import elastic as api
from gangline.api.jobs.elastic import CHIEF, EVALUATOR, MASTER, PS, WORKER, ElasticJobSpec
from gangline.api.jobs.elastic_fields import CriticalRanks, NodeRange, parse_critical_ranks
from gangline.operator.frameworks.elastic.pods import replica_spec_of
from gangline.operator.model import pod_template
from gangline.operator.model.job import ReplicaRole

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
    """What one job tolerates."""

    spec: ElasticJobSpec
    node_range: NodeRange | None

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
        """Return how many replicas of a role the others require."""
        if role.name == EVALUATOR:
            return 0
        if role.name in _ALL_REQUIRED or self.strategy != api.PARAMETER_SERVER:
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
        """Return how many seconds pods of a role may be pending, 0 for ever, and the source of the
        limit.

        The annotations apply to training pods only: these continue without a master.

        Args:
            name: the role.
            notes: the job's annotations.
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
