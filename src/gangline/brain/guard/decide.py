"""From advice to decision, and how states change when a decision is carried out."""

import msgspec

from gangline.brain.advisers.advice import Advice, Choice, Reason
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
    Baseline,
    ClusterState,
    GuardAction,
    GuardJobState,
    GuardSettings,
    RollbackBlock,
    Verdict,
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
    """``bound``, ``person``, ``step`` or ``written``; empty: nothing limits the value."""
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
            streaks.append(msgspec.structs.replace(old, count=old.count + 1))
        else:
            streaks.append(AdviceStreak(key=item.key, value=item.value, count=1, since_ms=now_ms))
    return msgspec.structs.replace(job, streaks=tuple(streaks))


def decide(
    advice: Advice,
    job: GuardJobState,
    cluster: ClusterState,
    permission: Permission,
    now_ms: int,
    settings: GuardSettings = DEFAULTS,
) -> Decision:
    """Decide whether ``advice`` is applied now. The first check that holds is the reason."""
    target = limited_target(advice, job, permission, settings)
    case = Case(
        advice=advice,
        target=target,
        job=job,
        cluster=cluster,
        permission=permission,
        settings=settings,
        now_ms=now_ms,
    )
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
    settings: GuardSettings = DEFAULTS,
) -> Decision:
    """Decide whether to take ``action`` back. No budget holds it, but both keys are needed.

    There is one rollback of an action at most, and none of a rollback. Bounds are not checked: the
    job had the value before.
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
    case = Case(
        advice=advice,
        target=target,
        job=job,
        cluster=cluster,
        permission=permission,
        settings=settings,
        now_ms=now_ms,
    )
    reason = not_permitted(case) or not_fit_for_rollback(case, action)
    if reason is not None:
        return Decision(act=False, held_because=reason)
    return Decision(act=True, value=action.before)


def not_fit_for_rollback(case: Case, action: GuardAction) -> Reason | None:
    """A rollback does not wait for segments: a world that does not form closes none."""
    recent = msgspec.structs.replace(case.job, last_segment_ms=case.now_ms)
    reason = not_fit_to_act(msgspec.structs.replace(case, job=recent))
    if reason is not None:
        return reason
    if action.rolled_back or action.rollback_of:
        return Reason(code="RolledBackOnce")
    # An open plan is no obstacle: it may be the one that does not succeed.
    return None


def begin_action(  # noqa: PLR0913 - what an action is made of, by name
    action_id: str,
    advice: Advice,
    decision: Decision,
    job: GuardJobState,
    cluster: ClusterState,
    now_ms: int,
    *,
    baseline: Baseline | None = None,
    efficiency: float = 1.0,
) -> tuple[GuardAction, GuardJobState, ClusterState]:
    """Return the action of a decision to act, and the states once its plan is written."""
    action = GuardAction(
        id=action_id,
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
        efficiency=efficiency,
    )
    return action, *_started(action, job, cluster, now_ms, probes=int(advice.probe))


def begin_rollback(
    action_id: str, action: GuardAction, job: GuardJobState, cluster: ClusterState, now_ms: int
) -> tuple[GuardAction, GuardJobState, ClusterState]:
    """Return the action that takes ``action`` back, and the states once its plan is written."""
    back = GuardAction(
        id=action_id,
        job=job.uid,
        family=job.family,
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
    taken = msgspec.structs.replace(action, rolled_back=True, verdict=Verdict.ROLLED_BACK)
    job = _replaced(job, taken)
    return back, *_started(back, job, cluster, now_ms)


def end_action(
    action: GuardAction,
    verdict: Verdict,
    job: GuardJobState,
    now_ms: int,
    *,
    cost_ms: int | None = None,
    surprise: float | None = None,
) -> tuple[GuardAction, GuardJobState]:
    """Return the judged action, and the job with it."""
    judged = msgspec.structs.replace(
        action,
        verdict=verdict,
        judged_ms=now_ms,
        cost_ms=cost_ms or action.cost_ms,
        surprise=action.surprise if surprise is None else surprise,
    )
    return judged, _replaced(job, judged)


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


def _replaced(job: GuardJobState, action: GuardAction) -> GuardJobState:
    actions = tuple(action if old.id == action.id else old for old in job.actions)
    return msgspec.structs.replace(job, actions=actions)


def _started(
    action: GuardAction, job: GuardJobState, cluster: ClusterState, now_ms: int, probes: int = 0
) -> tuple[GuardJobState, ClusterState]:
    kept = tuple(old for old in job.actions if now_ms - old.at_ms < _DAY_MS)
    job = msgspec.structs.replace(
        job, actions=(*kept, action), plan_open=True, probes=job.probes + probes
    )
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
