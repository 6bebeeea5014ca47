"""What the Brain may do for a job, and what the guard remembers; all times are in ms UTC.

The Brain may do the lesser of an administrator's policy and the job's own wish. A policy is a list
of rules; the first that matches a job decides. Without a matching rule the Brain advises and
changes nothing. ``--dry-run`` is a ceiling of ``advise`` over all rules.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase

import msgspec

from gangline.brain.advisers.advice import GuardAction, What
from gangline.brain.facts.records import Mode, RecordedJob

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


FACTS_DELAY_S = 6 * 60
"""A segment closes after 5 minutes and is published within a minute."""


class GuardSettings(msgspec.Struct, frozen=True, kw_only=True):
    segment_age_s: float = 7 * 60
    stable_evaluations: int = 3
    stable_s: float = 60
    gain_low: float = 0.03
    gain: float = 0.10
    probe_gain: float = 0.25
    probe_age_s: float = 3600
    size_change: float = 0.10
    """Least relative change of memory and CPU; the next two are the least absolute ones."""
    memory_change_bytes: int = 256 * 2**20
    cpu_change_millis: int = 250
    worth: float = 3
    """A change must save this many times its cost."""
    cooldown_s: float = 300
    cooldown_restarts: float = 20
    server_pause_s: float = 3600
    """Between two changes of parameter servers."""
    person_hold_s: float = 3600
    block_s: float = 30 * 60
    block_most_s: float = 24 * 3600
    factor: float = 2
    """Largest step of workers and memory, up or down."""
    tolerance: float = 0.97
    """Goodput relative to the baseline that is not worse."""
    trial_s: float = 15 * 60
    trial_steps: int = 200
    trial_segments: int = 3
    watch_s: float = 3600
    watch_segments: int = 4
    """The latest segments, by which a change that was kept is watched."""
    last_gpus: float = 0.8
    """Share of the floor below which the last GPUs of a job are given up."""
    form_s: float = 120
    """Time to form a world, where it is not known how long that takes."""


DEFAULTS = GuardSettings()


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
    wishes = job.wishes
    matching = (
        rule
        for rule in policy.rules
        if _matches(rule.include, job, labels)
        and not any(_matches(selector, job, labels) for selector in rule.exclude)
    )
    rule = next(matching, BrainPolicyRule())
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


UNOBSERVED_RESTART_S = 60.0
"""Cost of a restart before the first one was observed."""


class PersonAct(msgspec.Struct, frozen=True, kw_only=True):
    """A person changed a field: the specification was edited, or a manual plan was made."""

    what: What
    role: str = ""
    at_ms: int
    before: float | None = None
    value: float | None = None


class AdviceStreak(msgspec.Struct, frozen=True, kw_only=True):
    """For how many evaluations the same value was advised."""

    key: tuple[str, str, int, str]
    value: float | None
    count: int
    since_ms: int


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """The values that a field may take: limits of the user, of the job's kind, of the queue."""

    what: What
    role: str = ""
    low: float | None = None
    high: float | None = None
    written: float | None = None
    """What the user wrote."""
    name: str = "bound"
    """How the limit is called where it is the reason."""


class GuardJobState(msgspec.Struct, frozen=True, kw_only=True):
    """A job, as the guard sees it."""

    uid: str
    family: str
    kind: str = "ElasticJob"
    started_ms: int
    last_segment_ms: int | None = None
    """End of the last closed segment."""
    good_segments: int | None = None
    """Good segments with the present settings; None: not counted."""
    bounds: tuple[Bound, ...] = ()
    streaks: tuple[AdviceStreak, ...] = ()
    actions: tuple[GuardAction, ...] = ()
    """Those that changed it in the last 24 hours, oldest first."""
    void: tuple[GuardAction, ...] = ()
    """Those of the last 24 hours that were not carried out."""
    person_acts: tuple[PersonAct, ...] = ()
    """Of the job's life."""
    plan_open: bool = False
    """A ScalePlan of the job is not finished."""
    failing: bool = False
    restart_cost_s: float | None = None
    """Restart, lost steps and warm-up, as observed; before the first restart an expectation."""
    remaining_s: float | None = None
    gpus: int = 0
    probes: int = 0
    tunable: frozenset[What] | None = None
    """Fields whose tuning the running program applies; None: not known."""

    @property
    def change_cost_s(self) -> float:
        """Cost of a change: that of a restart, or a minute where nothing is expected."""
        return UNOBSERVED_RESTART_S if self.restart_cost_s is None else self.restart_cost_s


class ClusterState(msgspec.Struct, frozen=True, kw_only=True):
    """The Brain and the cluster, as the guard sees them."""

    leader: bool = False
    knows_time: bool = False
    """The clock agrees with that of the API server."""
    database_up: bool = True
    resizes_under_way: int = 0
    resizes_ms: tuple[int, ...] = ()
    """Starts of the resizes of the last hour."""
    gpus: int = 0
    gpus_in_restart: int = 0
    rolled_back: tuple[GuardAction, ...] = ()
    """Those of all jobs of the last 24 hours, in the order in which they were judged."""
