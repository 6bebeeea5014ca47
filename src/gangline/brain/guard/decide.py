"""From advice to decision, and how states change when a decision is carried out."""

import msgspec

from gangline.brain.advisers.advice import (
    Advice,
    Baseline,
    Choice,
    GuardAction,
    Reason,
    Verdict,
)
from gangline.brain.guard.checks import (
    CHECKS,
    WITHOUT_RESTART,
    Case,
    Target,
    limited_target,
    not_fit_to_act,
    not_permitted,
)
from gangline.brain.guard.policy import Permission
from gangline.brain.guard.state import (
    DEFAULTS,
    AdviceStreak,
    ClusterState,
    GuardJobState,
    GuardSettings,
    RollbackBlock,
)

_HOUR_MS = 3600 * 1000
_DAY_MS = 24 * _HOUR_MS


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Whether to act, with which value; or why not."""

    act: bool
    value: float | None = None
    """What to set: the advised value, or what limits leave of it."""
    predicted: Choice | None = None
    gain: float | None = None
    limited_by: str = ""
    """As in ``Target``."""
    held_because: Reason | None = None
    """None if ``act``."""


def observe(job: GuardJobState, advice: list[Advice], now_ms: int) -> GuardJobState:
    """Count how often each value was advised. Called once for each evaluation, before ``decide``.

    A field that is not advised any more, or with another value, begins again.
    """
    streaks_before = {streak.key: streak for streak in job.streaks}
    streaks = []
    for item in advice:
        old = streaks_before.get(item.key)
        if old is not None and old.value == item.value:
            # A clock that was ahead for a while must not hold the advice until that time.
            since_ms = min(old.since_ms, now_ms)
            streaks.append(msgspec.structs.replace(old, count=old.count + 1, since_ms=since_ms))
        else:
            streaks.append(AdviceStreak(key=item.key, value=item.value, count=1, since_ms=now_ms))
    return msgspec.structs.replace(job, streaks=tuple(streaks))


def decide(
    advice: Advice, job: GuardJobState, cluster: ClusterState, permission: Permission, now_ms: int
) -> Decision:
    """Decide whether ``advice`` is applied now. The first check that holds is the reason."""
    target = limited_target(advice, job, permission)
    case = Case(advice, target, job, cluster, permission, now_ms)
    for check in CHECKS:
        reason = check(case)
        if reason is not None:
            return Decision(act=False, held_because=reason, limited_by=target.limited_by)
    return Decision(
        act=True,
        value=target.value,
        predicted=target.choice,
        gain=target.gain,
        limited_by=target.limited_by,
    )


def decide_rollback(
    action: GuardAction,
    job: GuardJobState,
    cluster: ClusterState,
    permission: Permission,
    now_ms: int,
) -> Decision:
    """Decide whether to take ``action`` back. No budget holds it, but both keys are needed.

    There is one rollback of an action at most, and none of a rollback. Bounds are not checked: the
    job had the value before. It does not wait for segments, because a world that does not form
    closes none, nor for an open plan, which may be the one that does not succeed.
    """
    advice = Advice(
        what=action.what,
        role=action.role,
        target=action.target,
        was=action.after,
        value=action.before,
        reason=Reason(code="RollBack"),
        urgent=True,
    )
    target = Target(value=action.before, choice=None, gain=None, gain_low=None)
    recent = msgspec.structs.replace(job, last_segment_ms=now_ms)
    case = Case(advice, target, recent, cluster, permission, now_ms)
    reason = not_permitted(case) or not_fit_to_act(case)
    if reason is None and (action.rolled_back or action.rollback_of):
        reason = Reason(code="RolledBackOnce")
    if reason is not None:
        return Decision(act=False, held_because=reason)
    return Decision(act=True, value=action.before)


def begin_action(
    advice: Advice,
    decision: Decision,
    job: GuardJobState,
    now_ms: int,
    baseline: Baseline | None = None,
) -> GuardAction:
    """Return the action of a decision to act."""
    return GuardAction(
        job=job.uid,
        family=job.family,
        what=advice.what,
        role=advice.role,
        target=advice.target,
        at_ms=now_ms,
        before=advice.was,
        after=decision.value,
        predicted=decision.predicted,
        floor=advice.floor,
        probe=advice.probe,
        rank=advice.rank,
        between_failures_s=_between_failures_s(advice),
        baseline=baseline,
    )


def begin_rollback(action: GuardAction, now_ms: int) -> GuardAction:
    """Return the action that takes ``action`` back."""
    return GuardAction(
        job=action.job,
        family=action.family,
        what=action.what,
        role=action.role,
        target=action.target,
        rank=action.rank,
        at_ms=now_ms,
        before=action.after,
        after=action.before,
        rollback_of=action.id,
        verdict=Verdict.KEPT,
    )


def started(
    action: GuardAction, job: GuardJobState, cluster: ClusterState
) -> tuple[GuardJobState, ClusterState]:
    """Return the states once the plan of an action is written."""
    now_ms = action.at_ms
    kept = tuple(old for old in job.actions if now_ms - old.at_ms < _DAY_MS)
    probes = job.probes + action.probe
    job = msgspec.structs.replace(job, actions=(*kept, action), plan_open=True, probes=probes)
    if action.what in WITHOUT_RESTART:
        return job, cluster
    times = tuple(at for at in cluster.resizes_ms if now_ms - at < _HOUR_MS)
    cluster = msgspec.structs.replace(
        cluster,
        resizes_under_way=cluster.resizes_under_way + 1,
        resizes_ms=(*times, now_ms),
        gpus_in_restart=cluster.gpus_in_restart + job.gpus,
    )
    return job, cluster


def with_action(job: GuardJobState, action: GuardAction) -> GuardJobState:
    """Return the job with a new state of an action."""
    actions = tuple(action if old.id == action.id else old for old in job.actions)
    return msgspec.structs.replace(job, actions=actions)


def block_direction(
    cluster: ClusterState, action: GuardAction, now_ms: int, settings: GuardSettings = DEFAULTS
) -> ClusterState:
    """Block what was rolled back for the family: 30 min, doubled each time, a day at most.

    The count starts again after a day without a rollback.
    """
    key = (action.family, action.what, action.direction)
    others, count = [], 0
    for block in cluster.blocks:
        if (block.family, block.what, block.direction) == key:
            count = block.count if now_ms - block.until_ms < _DAY_MS else 0
        elif now_ms - block.until_ms < _DAY_MS:
            others.append(block)
    length_s = min(settings.block_s * 2**count, settings.block_most_s)
    new = RollbackBlock(
        family=action.family,
        what=action.what,
        direction=action.direction,
        until_ms=now_ms + round(length_s * 1000),
        count=count + 1,
    )
    return msgspec.structs.replace(cluster, blocks=(*others, new))


def _between_failures_s(advice: Advice) -> float | None:
    written = advice.reason.arguments.get("between_failures")
    return float(written) if isinstance(written, int | float) else None
