"""What became of advice: its state, and the actions that applied it. The store keeps both."""

from enum import StrEnum

import msgspec

from gangline.brain.advisers.advice import Advice
from gangline.brain.facts.records import Mode


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
