"""What an ElasticJob can do without: how many of a role, which ranks, after how many failures."""

from collections.abc import Mapping
from dataclasses import dataclass

from gangline.api import elastic as api
from gangline.api.elastic import CHIEF, EVALUATOR, MASTER, PS, WORKER, ElasticJobSpec
from gangline.api.elastic_words import CriticalRanks, NodeRange, critical_ranks
from gangline.operator import template
from gangline.operator.frameworks.elastic_pod import spec_of
from gangline.operator.job import Role

RESTARTS = 3
"""How often a rank is made anew after failures, if nobody says."""
MASTER_RESTARTS = 30
"""The same for the master. Workers go on without it meanwhile, so there is time."""

_WHEN_NEEDED, _ANY = "1", "2"
"""DLRover's words for: waiting ends a job that lacks pods; it does always."""
_TOGETHER = (PS, CHIEF, MASTER)
"""Roles without any of whose replicas nothing goes on."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What one job can do without."""

    spec: ElasticJobSpec
    node_range: NodeRange | None

    @property
    def strategy(self) -> str:
        """How the replicas train together."""
        return self.spec.distribution_strategy or api.PARAMETER_SERVER

    def leave_together(self, name: str) -> bool:
        """Whether the first of a role to end well is followed by all: none may come after that.

        Who started then would find nobody to train with, and begin alone.
        """
        elastic = self.node_range is not None and self.node_range.least < self.node_range.most
        return name == WORKER and elastic and self.strategy == api.ALLREDUCE

    def needed(self, role: Role) -> int:
        """How many replicas of a role the others cannot do without."""
        if role.name == EVALUATOR:
            return 0
        if role.name in _TOGETHER or self.strategy != api.PARAMETER_SERVER:
            return role.least
        return 1

    def critical(self, name: str) -> CriticalRanks:
        """The ranks of a role without which the job fails."""
        written = spec_of(self.spec, name)
        given = written.critical_nodes if written else None
        if given:
            return critical_ranks(given) or CriticalRanks(False, {})
        first = name == WORKER and self.strategy == api.PARAMETER_SERVER
        return CriticalRanks(False, {0: None} if first else {})

    def budget(self, name: str, rank: int) -> int:
        """How often a rank may be made anew after failures."""
        written = spec_of(self.spec, name)
        given = written.restart_count if written else None
        if name == MASTER:
            return max(given or 0, MASTER_RESTARTS)
        own = self.critical(name).ranks.get(rank)
        return own if own is not None else RESTARTS if given is None else given

    def waiting_limit(self, name: str, notes: Mapping[str, str]) -> tuple[int, str]:
        """How many seconds pods of a role may wait for a node, 0 for ever; and who says so.

        The annotations are about pods that train: these go on without a master.

        Args:
            name: the role.
            notes: the job's annotations.
        """
        written = spec_of(self.spec, name)
        if written and written.restart_timeout:
            return written.restart_timeout, "restartTimeout"
        strategy = notes.get(api.PENDING_STRATEGY_ANNOTATION, _WHEN_NEEDED)
        seconds = notes.get(api.PENDING_TIMEOUT_ANNOTATION, "")
        patient = strategy not in (_WHEN_NEEDED, _ANY)
        if patient or name == MASTER or not seconds.isdecimal():
            return 0, ""
        return int(seconds), api.PENDING_TIMEOUT_ANNOTATION

    def must_be_at_work(self, role: Role, wanted: int, notes: Mapping[str, str]) -> int:
        """How many of a role must be at work for the others to be allowed to wait."""
        if notes.get(api.PENDING_STRATEGY_ANNOTATION) == _ANY:
            return wanted
        return max(1, self.needed(role))

    def always(self, role: Role) -> bool:
        """Whether every failure makes a pod anew."""
        written = spec_of(self.spec, role.name)
        inside = template.pod_spec(role.template).get("restartPolicy")
        policy = (written and written.restart_policy) or inside
        return policy in ("Always", "OnFailure")
