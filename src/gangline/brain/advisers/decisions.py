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


class Verdict(StrEnum):
    """How the trial of an action ended."""

    KEPT = "kept"
    ROLLED_BACK = "rolled_back"
    UNCLEAR = "unclear"
    """Kept, because it was not worse, but not shown to be better."""
    OVERTAKEN = "overtaken"
    """The job ended, or a person acted, before the trial did."""


class ActionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One change of one job by the Brain. It is open until it has a verdict."""

    id: int = 0
    """Given by the store. The name of the ScalePlan contains it."""
    cluster: str
    uid: str
    advice_id: int | None = None
    what: str
    plan: str = ""
    """Name of the ScalePlan; empty: the store makes it, ``JOB-brain-ID``."""
    at_ms: int
    before: dict[str, float] = {}
    """Numbers by name before the change, as the next two."""
    predicted: dict[str, float] = {}
    after: dict[str, float] = {}
    verdict: Verdict | None = None
    judged_ms: int | None = None
    cost_ms: int | None = None
    """Training time that the change took: restart, lost steps and warm-up."""
