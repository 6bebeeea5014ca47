"""One piece of advice: a number for one field of one job, with its range, reason and evidence.

Also what became of it: its state, and the actions that applied it. The store has both.
"""

from enum import StrEnum

import msgspec

from gangline.brain.facts.records import Mode


class What(StrEnum):
    """The fields that advice is about."""

    WORKERS = "workers"
    MEMORY = "memory"
    CPU = "cpu"
    MICRO_BATCH = "micro_batch"
    GLOBAL_BATCH = "global_batch"
    LOADER_WORKERS = "loader_workers"
    CHECKPOINT_INTERVAL = "checkpoint_interval"
    PS_COUNT = "ps_count"
    PS_CPU = "ps_cpu"
    PS_MEMORY = "ps_memory"
    NODE = "node"
    """Not a number: a node to check or to leave."""
    WARNING = "warning"
    """Nothing to set: what will happen if nothing changes."""


class Unit(StrEnum):
    """The unit of ``was``, ``value``, ``low`` and ``high``."""

    COUNT = "count"
    BYTES = "bytes"
    MILLICORES = "millicores"
    SECONDS = "seconds"


class Confidence(StrEnum):
    """How much the advice rests on."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """Why, as data: ``code`` chooses the sentence, ``arguments`` are all numbers and names in it.

    Sentences are derived from this and parse back to it; so ``-o json`` and the sentence agree.
    """

    code: str
    """CamelCase, as the reasons of conditions: ``HighestPeak``, ``ThroughputModel``, ..."""
    arguments: dict[str, str | int | float | list[str]] = {}


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One value of the field, with the goodput that is predicted for it.

    Goodput is relative to the present: 1.0 is unchanged, 1.4 is 40 % more.
    """

    value: float
    goodput: float
    low: float
    """The ends of the range of 80 % of ``goodput``."""
    high: float


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What one field should be. ``gain`` and ``choices`` serve the guard."""

    what: What
    role: str = ""
    """Empty for the job as one."""
    rank: int | None = None
    """Set if only this rank of the role is meant."""
    target: str = ""
    """The node, for ``What.NODE``; the device model, if the advice is for one of several; the code
    of the reason, for ``What.WARNING``, so that several warnings about one role do not exclude each
    other."""
    unit: Unit = Unit.COUNT
    was: float | None = None
    value: float | None = None
    low: float | None = None
    high: float | None = None
    reason: Reason
    evidence: tuple[str, ...] = ()
    """UIDs of the runs that it rests on."""
    confidence: Confidence = Confidence.MEDIUM
    gain: float | None = None
    """Expected gain, 0.1 for 10 %; None where that is not the measure (memory, CPU).

    Of goodput for what makes a job faster; of goodput per GPU for fewer workers.
    """
    gain_low: float | None = None
    """Lower end of the range of 80 % of ``gain``."""
    extrapolated: bool = False
    """True if it rests on settings that were never run."""
    probe: bool = False
    """True if it is made to learn, and not because it is known to be better."""

    floor: float = 0.0
    """Least gain of an added worker, relative to the average one, that justifies a growth."""
    urgent: bool = False
    """True if another job waits for it: neither hysteresis nor a cool-down delays it."""
    choices: tuple[Choice, ...] = ()
    """The values from the present one to ``value`` that may be set on the way, for step limits."""

    @property
    def key(self) -> tuple[str, str, int, str]:
        """Identifies the subject: two pieces of advice with one key exclude each other."""
        return (self.what, self.role, -1 if self.rank is None else self.rank, self.target)


class AdviceState(StrEnum):
    """Where a piece of advice is. ``OPEN`` and ``HELD`` are current, the others are final."""

    OPEN = "open"
    HELD = "held"
    """The guard does not let it be applied now."""
    APPLIED = "applied"
    SUPERSEDED = "superseded"
    """Newer advice about the same subject has replaced it."""
    REFUSED = "refused"
    """A policy, the job or a person is against it."""
    EXPIRED = "expired"


CURRENT_STATES = frozenset({AdviceState.OPEN, AdviceState.HELD})


class AdviceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Advice for one job, as the history holds it."""

    id: int = 0
    """Given by the store."""
    cluster: str
    uid: str
    """UID of the job."""
    advice: Advice
    at_ms: int
    expires_ms: int
    mode: Mode = Mode.ADVISE
    state: AdviceState = AdviceState.OPEN
    held_because: str = ""


PENDING = "pending"
"""The verdict of an action whose trial goes on."""


class ActionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One change of one job by the Brain, as the history holds it."""

    id: int = 0
    """Given by the store. The name of the ScalePlan contains it."""
    cluster: str
    uid: str
    """UID of the job."""
    advice_id: int | None = None
    what: str
    plan: str = ""
    """Name of the ScalePlan; the store makes it, ``JOB-brain-ID``."""
    at_ms: int
    verdict: str = PENDING
    """As the guard gives it: ``pending``, ``kept``, ``rolled_back``, ``unclear``, ``overtaken``,
    ``void``."""
    judged_ms: int | None = None
    cost_ms: int | None = None
    """Training time that the change took: restart, lost steps and warm-up."""
    body: str = "{}"
    """JSON of the guard's action: baseline, prediction, what was measured."""
