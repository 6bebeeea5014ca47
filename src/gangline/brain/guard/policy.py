"""What the Brain may do for a job: the lesser of an administrator's policy and the job's own wish.

A policy is a list of rules; the first that matches a job decides. Without a matching rule the Brain
advises and changes nothing. ``--dry-run`` is a ceiling of ``advise`` over all rules.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase

import msgspec

from gangline.brain.advisers.advice import What
from gangline.brain.facts.records import Mode, RecordedJob
from gangline.brain.guard.state import DEFAULTS, GuardSettings

FIELDS = {
    What.WORKERS: "workers",
    What.MEMORY: "memory",
    What.CPU: "cpu",
    What.MICRO_BATCH: "batch",
    What.GLOBAL_BATCH: "batch",
    What.LOADER_WORKERS: "batch",
    What.CHECKPOINT_INTERVAL: "checkpoints",
    What.PS_COUNT: "ps",
    What.PS_CPU: "ps",
    What.PS_MEMORY: "ps",
    What.NODE: "placement",
}
"""The name of each field in ``gangline.dev/brain-may``. Warnings have none: nothing can be set."""
BY_HAND = frozenset({What.GLOBAL_BATCH, What.NODE})
"""Fields that are only advised: neither a plan nor the tuning of a job sets them."""

_ORDER = (Mode.OFF, Mode.ADVISE, Mode.APPLY)


class Budgets(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much the Brain may change. Names of a policy's ``budgets``."""

    actions_per_day: int = 4
    """Of one job in 24 hours, without rollbacks."""
    wall_share: float = 0.05
    """Share of a job's wall time that its actions may cost."""
    resizes_under_way: int = 2
    resizes_per_hour: int = 20
    restart_gpu_share: float = 0.10
    """Share of the cluster's GPUs that may restart at one time. One job alone may always."""


class JobSelector(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Jobs by their properties; an empty tuple matches all. Names may contain ``*`` and ``?``."""

    namespaces: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    """All of them must be equal."""


class BrainPolicyRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rule: the jobs it is about, the highest mode, the fields that may be changed."""

    include: JobSelector = JobSelector()
    exclude: tuple[JobSelector, ...] = ()
    mode: Mode = Mode.ADVISE
    may: frozenset[str] | None = None
    """Names as in ``gangline.dev/brain-may``; None: all."""
    budgets: Budgets = Budgets()
    guard: GuardSettings = DEFAULTS
    """Pauses, trials and least gains."""


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rules of a cluster, in order."""

    rules: tuple[BrainPolicyRule, ...] = ()


class Permission(msgspec.Struct, frozen=True, kw_only=True):
    """What the Brain may do for one job now."""

    mode: Mode = Mode.ADVISE
    may: frozenset[str] | None = None
    """None: all fields."""
    named: frozenset[str] = frozenset()
    """Fields that the job names itself: only these may be set below what the user wrote."""
    budgets: Budgets = Budgets()
    guard: GuardSettings = DEFAULTS
    limited_by: str = "policy"
    """``policy``, ``job`` or ``dry-run``: what keeps the mode from being higher."""

    def may_change(self, what: What) -> bool:
        """Return whether ``what`` may be applied, as far as modes and fields are concerned."""
        field = FIELDS.get(what)
        if self.mode is not Mode.APPLY or field is None:
            return False
        return self.may is None or field in self.may


def effective_permission(
    policy: Policy, job: RecordedJob, labels: Mapping[str, str], *, dry_run: bool = False
) -> Permission:
    """Return the lesser of policy and wish. A missing wish is ``advise``."""
    wishes, rule = job.wishes, _first_match(policy, job, labels)
    ceilings = {"policy": rule.mode} | ({"dry-run": Mode.ADVISE} if dry_run else {})
    ceilings["job"] = wishes.mode
    limited_by = min(ceilings, key=lambda name: _ORDER.index(ceilings[name]))
    named = [fields for fields in (rule.may, wishes.may) if fields is not None]
    return Permission(
        mode=ceilings[limited_by],
        may=frozenset.intersection(*named) if named else None,
        named=wishes.named,
        budgets=rule.budgets,
        guard=rule.guard,
        limited_by=limited_by,
    )


def _first_match(policy: Policy, job: RecordedJob, labels: Mapping[str, str]) -> BrainPolicyRule:
    for rule in policy.rules:
        excluded = any(_matches(selector, job, labels) for selector in rule.exclude)
        if _matches(rule.include, job, labels) and not excluded:
            return rule
    return BrainPolicyRule()


def _matches(selector: JobSelector, job: RecordedJob, labels: Mapping[str, str]) -> bool:
    pairs = (
        (selector.namespaces, job.namespace),
        (selector.owners, job.owner),
        (selector.kinds, job.kind),
        (selector.queues, job.queue),
    )
    return all(
        not patterns or any(fnmatchcase(value, pattern) for pattern in patterns)
        for patterns, value in pairs
    ) and all(labels.get(key) == value for key, value in selector.labels.items())
