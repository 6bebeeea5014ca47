"""One piece of advice: a number for one field of one job, with its range, reason and evidence.

Also the actions that applied it, and what became of them.
"""

from enum import StrEnum
from typing import TypeAlias

import msgspec


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


Argument: TypeAlias = str | int | float
Arguments: TypeAlias = dict[str, Argument]


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """Why, as data: ``code`` chooses the sentence, ``arguments`` are its numbers and names."""

    code: str
    """CamelCase, as the reasons of conditions: ``HighestPeak``, ``ThroughputModel``, ..."""
    arguments: Arguments = {}


def because(code: str, /, **arguments: Argument) -> Reason:
    return Reason(code=code, arguments=arguments)


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


class Verdict(StrEnum):
    """What became of an action."""

    PENDING = "pending"
    KEPT = "kept"
    ROLLED_BACK = "rolled_back"
    UNCLEAR = "unclear"
    """Kept, because it is not worse; whether it is better is not known."""
    OVERTAKEN = "overtaken"
    """A person or another change came first: nothing can be concluded."""
    VOID = "void"
    """It was not carried out: there was nothing to write it to. The job has not changed by it."""


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """Goodput of good segments: moments of its natural logarithm, one observation a segment."""

    mean: float
    count: int
    m2: float = 0.0
    """Sum of squared deviations from the mean."""


class GuardAction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change of a job by the Brain, and its trial, as guard and history have it."""

    id: int = 0
    """Given by the history. The name of the ScalePlan contains it."""
    job: str
    """UID of the job."""
    family: str
    what: What
    role: str = ""
    target: str = ""
    at_ms: int
    before: float | None = None
    after: float | None = None
    predicted: Choice | None = None
    floor: float = 0.0
    """Least goodput of an added GPU, relative to the others, that justified a growth."""
    baseline: Baseline | None = None
    probe: bool = False
    """True if it was made to learn."""
    rank: int | None = None
    """The only rank that is changed; None: all of the role."""
    between_failures_s: float | None = None
    """Expected time between failures, of a change of the interval between checkpoints."""
    rollback_of: int = 0
    """ID of the action that this one takes back."""
    verdict: Verdict = Verdict.PENDING
    why: Reason | None = None
    """Why it was judged so."""
    judged_ms: int | None = None
    cost_ms: int | None = None
    """Time that the job lost by it: restart, lost steps and warm-up; None while not known."""
    surprise: float | None = None
    """Logarithm of measured goodput by the nearest end of the predicted range, 0 within it."""
    rolled_back: bool = False
    """True once the plan that takes it back exists. There is one at most."""

    @property
    def direction(self) -> int:
        """1 for more, -1 for less, 0 if it is not a number."""
        return direction(self.before, self.after)


def direction(before: float | None, after: float | None) -> int:
    """Return 1 for a growth, -1 for a decrease, 0 if equal or not known."""
    if before is None or after is None:
        return 0
    return (after > before) - (after < before)
