"""From advice to decision, and how states change when a decision is carried out.

The guard's table: the reasons to hold an advice, in order. The first that holds is reported. Before
the table the value is limited: by bounds of the user and of persons, and by the largest step. The
sentences of the codes are in ``explain``.
"""

import math
import operator
from collections.abc import Callable, Iterable

import msgspec
from msgspec.structs import replace

from gangline.brain.advisers.advice import (
    Advice,
    Baseline,
    Choice,
    GuardAction,
    Reason,
    Verdict,
    What,
    because,
    direction,
)
from gangline.brain.facts.records import Mode
from gangline.brain.guard.policy import (
    BY_HAND,
    FACTS_DELAY_S,
    FIELDS,
    AdviceStreak,
    Bound,
    ClusterState,
    GuardJobState,
    GuardSettings,
    Permission,
)

_STEPPED = frozenset({What.WORKERS, What.MEMORY, What.PS_MEMORY})


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The value to set; or why not."""

    value: float | None = None
    """The advised value, or what limits leave of it."""
    predicted: Choice | None = None
    gain: float | None = None
    gain_low: float | None = None
    limited_by: str = ""
    """``bound``, ``capacity``, ``person``, ``step`` or ``written``; empty: the advised value."""
    held_because: Reason | None = None

    @property
    def act(self) -> bool:
        return self.held_because is None


def _limit_value(advice: Advice, job: GuardJobState, permission: Permission) -> Decision:
    """The value nearest to the advised one that bounds and steps allow."""
    value, limited_by = advice.value, ""
    if advice.value is not None and advice.was is not None:
        low, high, by = _interval(advice, job, permission)
        value = min(max(advice.value, low), high)
        limited_by = "" if value == advice.value else by[value]
        if advice.choices:
            return _chosen(advice, low, high, limited_by)
    return Decision(value=value, gain=advice.gain, gain_low=advice.gain_low, limited_by=limited_by)


def _interval(
    advice: Advice, job: GuardJobState, permission: Permission
) -> tuple[float, float, dict[float, str]]:
    """The least and the largest value, and the name of the limit behind each."""
    was, factor = advice.was or 0.0, permission.guard.factor
    limits = list(job.bounds)
    for act in job.person_acts:
        # A person who made it smaller set the largest value, one who made it larger the least.
        moved = direction(act.before, act.value)
        low, high = act.value if moved >= 0 else None, act.value if moved <= 0 else None
        limits.append(Bound(what=act.what, role=act.role, low=low, high=high, name="person"))
    if advice.what in _STEPPED:
        low = was / factor if advice.what is What.WORKERS else None
        limits.append(
            Bound(what=advice.what, role=advice.role, low=low, high=was * factor, name="step")
        )
    limits = [one for one in limits if (one.what, one.role) == (advice.what, advice.role)]
    lows = [(limit.low, limit.name) for limit in limits if limit.low is not None]
    highs = [(limit.high, limit.name) for limit in limits if limit.high is not None]
    if advice.what in (What.MEMORY, What.CPU) and FIELDS[advice.what] not in permission.named:
        lows += [(one.written, "written") for one in limits if one.written is not None]
    least, low_by = max(lows, key=lambda pair: pair[0], default=(-math.inf, ""))
    most, high_by = min(highs, key=lambda pair: pair[0], default=(math.inf, ""))
    # Where limits contradict each other, the upper one is the safe one.
    return min(least, most), most, {least: low_by, most: high_by}


def _chosen(advice: Advice, low: float, high: float, limited_by: str) -> Decision:
    """The choice farthest from the present value on the way to the advised one."""
    was = advice.was or 0.0
    up = direction(advice.was, advice.value)
    within = (choice for choice in advice.choices if low <= choice.value <= high)
    possible = (choice for choice in within if direction(was, choice.value) == up)
    choice = max(possible, key=lambda choice: abs(choice.value - was), default=None)
    if choice is None:
        return Decision(value=was, limited_by=limited_by)
    # Fewer workers are judged by goodput per worker, more by goodput.
    size = min(choice.value / was, 1.0) if advice.what is What.WORKERS else 1.0
    return Decision(
        value=choice.value,
        predicted=choice,
        # A probe is made for what is possible, not for what is likely.
        gain=advice.gain if advice.probe else choice.goodput / size - 1,
        gain_low=choice.low / size - 1,
        limited_by="" if choice.value == advice.value else limited_by,
    )


_HOUR_MS = 3600 * 1000
_DAY_MS = 24 * _HOUR_MS
_SIZES = frozenset({What.MEMORY, What.CPU, What.PS_CPU, What.PS_MEMORY})
WITHOUT_RESTART = frozenset({What.CHECKPOINT_INTERVAL, What.LOADER_WORKERS})
"""Changes that no world restarts for: neither a gain nor a budget of the cluster is asked."""
TUNED = frozenset({What.CHECKPOINT_INTERVAL, What.LOADER_WORKERS, What.MICRO_BATCH})
"""Changes that the running program reads from the tuning of its job, if it does."""
_MODE_LIMITS = {"policy": "PolicyForbids", "job": "JobForbids", "dry-run": "DryRun"}


class Case(msgspec.Struct, frozen=True):
    advice: Advice
    target: Decision
    job: GuardJobState
    cluster: ClusterState
    permission: Permission
    now_ms: int

    @property
    def settings(self) -> GuardSettings:
        return self.permission.guard


def not_permitted(case: Case) -> Reason | None:
    """Both keys: the policy's and the job's."""
    permission, advice = case.permission, case.advice
    if permission.mode is not Mode.APPLY:
        return because(_MODE_LIMITS[permission.limited_by], mode=permission.mode.value)
    if advice.what not in FIELDS:
        return because("NothingToSet")
    if not permission.may_change(advice.what):
        return because("FieldNotAllowed", field=FIELDS[advice.what])
    if advice.what is What.GLOBAL_BATCH and FIELDS[advice.what] not in permission.named:
        # It changes what is learned, so silence is not consent.
        return because("FieldNotNamed", field=FIELDS[advice.what])
    if advice.what in BY_HAND:
        return because("ByHand", field=advice.what.value)
    if case.job.kind != "ElasticJob":
        return because("KindNotElastic", kind=case.job.kind)
    tunable = case.job.tunable
    if advice.what in TUNED and tunable is not None and advice.what not in tunable:
        return because("NotTunable", field=FIELDS[advice.what])
    return None


def not_fit_to_act(case: Case) -> Reason | None:
    """The Brain leads, its clock is right, and what it knows of the job is recent."""
    cluster, settings = case.cluster, case.settings
    if not cluster.leader:
        return because("NotLeader")
    if not cluster.knows_time:
        return because("ClockWrong")
    if not cluster.database_up:
        return because("DatabaseDown")
    last = case.job.last_segment_ms
    if last is None:
        return because("NoSegments")
    if case.now_ms - last > settings.segment_age_s * 1000:
        return because("SegmentsOld", age=round((case.now_ms - last) / 1000))
    good = case.job.good_segments
    if good is not None and good < settings.trial_segments and not case.advice.urgent:
        # Without a baseline no trial could show whether the change helps.
        return because("TooFewSegments", count=good, needed=settings.trial_segments)
    return None


def not_stable(case: Case) -> Reason | None:
    """The same value in three evaluations and for a minute."""
    if case.advice.urgent:
        return None
    subject = (case.advice.key, case.advice.value)
    streak = next((s for s in case.job.streaks if (s.key, s.value) == subject), None)
    count, since_ms = (streak.count, streak.since_ms) if streak else (0, case.now_ms)
    settings = case.settings
    if count < settings.stable_evaluations or case.now_ms - since_ms < settings.stable_s * 1000:
        return because("NotStable", count=count, needed=settings.stable_evaluations)
    return None


def too_little(case: Case) -> Reason | None:
    """Hysteresis: the gain, or the change of a size, is too little."""
    advice, target, settings = case.advice, case.target, case.settings
    if target.value == advice.was:
        return because("AtLimit", limit=target.limited_by or "step")
    if advice.urgent or advice.what in WITHOUT_RESTART:
        return None
    if advice.what in _SIZES:
        return _small_change(case)
    gain, low = target.gain, target.gain_low
    if gain is None or low is None:
        return because("GainUnknown")
    if advice.probe:
        return _unfit_probe(case, gain)
    if gain < settings.gain or low < settings.gain_low:
        return because("GainTooSmall", gain=gain, low=low)
    return None


def _small_change(case: Case) -> Reason | None:
    advice, settings = case.advice, case.settings
    if case.target.value is None or advice.was is None:
        return None
    change = abs(case.target.value - advice.was)
    memory = advice.what in (What.MEMORY, What.PS_MEMORY)
    least = settings.memory_change_bytes if memory else settings.cpu_change_millis
    if change < least or change < settings.size_change * advice.was:
        return because("ChangeTooSmall", change=change / advice.was if advice.was else 0.0)
    return None


def _unfit_probe(case: Case, gain: float) -> Reason | None:
    settings, job = case.settings, case.job
    if job.probes > 0:
        return because("ProbeMade")
    if case.now_ms - job.started_ms > settings.probe_age_s * 1000:
        return because("ProbeTooLate")
    return because("GainTooSmall", gain=gain, low=gain) if gain < settings.probe_gain else None


def not_worth_it(case: Case) -> Reason | None:
    """The time that is saved is less than three times the time that the change costs."""
    if case.advice.urgent or case.advice.what in WITHOUT_RESTART or case.advice.what in _SIZES:
        return None
    gain = case.target.gain or 0.0
    if case.job.remaining_s is None:
        return because("RestUnknown")
    saved, cost_s = case.job.remaining_s * gain / (1 + gain), case.job.change_cost_s
    if saved < case.settings.worth * cost_s:
        return because("NotWorthIt", saved=max(saved, 0.0), cost=cost_s)
    return None


def _left_s(case: Case, pause_s: float, times: Iterable[int]) -> float | None:
    """Return what is left of a pause after the latest of some times; None if it is over.

    A time of later is that of a clock that was wrong.
    """
    last_ms = max((at_ms for at_ms in times if at_ms <= case.now_ms), default=None)
    left_s = 0.0 if last_ms is None else pause_s - (case.now_ms - last_ms) / 1000
    return round(left_s, 3) if left_s > 0 else None


def cooling_down(case: Case) -> Reason | None:
    """Some time since the last change, also one that a person made."""
    if case.advice.urgent:
        return None
    job, settings = case.job, case.settings
    pause_s = max(settings.cooldown_s, settings.cooldown_restarts * case.job.change_cost_s)
    if FIELDS.get(case.advice.what) == "ps":
        pause_s = max(pause_s, settings.server_pause_s)
    times = [action.at_ms for action in job.actions] + [act.at_ms for act in job.person_acts]
    left_s = _left_s(case, pause_s, times)
    return because("CoolDown", left=left_s) if left_s else None


def job_budget_spent(case: Case) -> Reason | None:
    """Actions in a day, and the share of the job's time that they have cost."""
    if case.advice.urgent:
        return None
    budgets = case.permission.budgets
    recent = [
        action
        for action in case.job.actions
        if 0 <= case.now_ms - action.at_ms < _DAY_MS and not action.rollback_of
    ]
    if len(recent) >= budgets.actions_per_day:
        return because("JobActionsSpent", count=len(recent))
    # What a change under trial costs is not known yet, and ``in_flight`` holds all others.
    judged = (action for action in case.job.actions if action.verdict is not Verdict.PENDING)
    spent_ms = sum(_cost_ms(action, case) for action in judged)
    wall_ms = max(case.now_ms - case.job.started_ms, 1)
    if spent_ms > budgets.wall_share * wall_ms:
        return because("JobTimeSpent", share=min(spent_ms / wall_ms, 1.0))
    return None


def _cost_ms(action: GuardAction, case: Case) -> float:
    """Time that a change has cost: what it was judged with, or a restart as one costs today."""
    if action.what in WITHOUT_RESTART:
        return 0
    return 1000 * case.job.change_cost_s if action.cost_ms is None else action.cost_ms


def cluster_budget_spent(case: Case) -> Reason | None:
    """Resizes under way, in the last hour, and GPUs that restart."""
    if case.advice.what in WITHOUT_RESTART:
        return None
    budgets, cluster = case.permission.budgets, case.cluster
    if cluster.resizes_under_way >= budgets.resizes_under_way:
        return because("ClusterBusy", count=cluster.resizes_under_way)
    recent = [at for at in cluster.resizes_ms if 0 <= case.now_ms - at < 3600 * 1000]
    if len(recent) >= budgets.resizes_per_hour:
        return because("ClusterActionsSpent", count=len(recent))
    restarting, most = cluster.gpus_in_restart, budgets.restart_gpu_share * cluster.gpus
    if restarting and restarting + case.job.gpus > most:
        return because("ClusterRestarting", count=restarting)
    return None


def person_acted(case: Case) -> Reason | None:
    """A person changed this field in the last hour."""
    field = FIELDS.get(case.advice.what)
    acts = (act.at_ms for act in case.job.person_acts if FIELDS.get(act.what) == field)
    left_s = _left_s(case, case.settings.person_hold_s, acts)
    return because("PersonActed", left=left_s) if left_s else None


def blocked(case: Case) -> Reason | None:
    """The family was rolled back in this direction: 30 min, doubled each time, a day at most.

    The count starts again after a day without a rollback.
    """
    key = (case.job.family, case.advice.what, direction(case.advice.was, case.target.value))
    count, until_ms, length_s, settings = 0, 0, 0.0, case.settings
    for action in case.cluster.rolled_back:
        if (action.family, action.what, action.direction) == key and action.judged_ms is not None:
            count = count + 1 if action.judged_ms - until_ms < _DAY_MS else 1
            length_s = min(settings.block_s * 2.0 ** (count - 1), settings.block_most_s)
            until_ms = action.judged_ms + round(length_s * 1000)
    left_s = (until_ms - case.now_ms) / 1000
    # A block of longer than it lasts is that of a clock that was ahead.
    return because("RolledBackBefore", left=left_s) if 0 < left_s <= length_s else None


def nothing_to_write(case: Case) -> Reason | None:
    """A short time ago there was nothing that a change of this field could be written to."""
    field = _field(case.advice)
    void = (action.at_ms for action in case.job.void if _field(action) == field)
    left_s = _left_s(case, case.settings.cooldown_s, void)
    return because("NothingToWrite", left=left_s) if left_s else None


def in_flight(case: Case) -> Reason | None:
    """Another change is under way, or the job is not in a state to be changed."""
    job = case.job
    if job.plan_open:
        return because("PlanOpen")
    if any(action.verdict is Verdict.PENDING for action in job.actions):
        return because("TrialPending")
    if job.failing:
        return because("Failing")
    return None


def already_changed(case: Case) -> Reason | None:
    """The value is set already, or the advice starts from the value before the last change.

    The present number of workers is that of the last segment. Until a segment of the new world
    closes, the advice compares sizes with one that the job does not have any more.
    """
    last = _last_change(case)
    if last is None or case.advice.was == last.after:
        return None
    if case.target.value == last.after:
        return because("AlreadySet")
    # A change that has no effect in this time has none later: the facts show what is so.
    wait_s = 2 * case.settings.form_s + FACTS_DELAY_S
    recent = 0 <= case.now_ms - last.at_ms < wait_s * 1000
    if recent and case.advice.was == last.before:
        return because("ChangeNotSeen")
    return None


def _last_change(case: Case) -> GuardAction | None:
    """The last action on the field; None if none set it, or a person did so later."""
    field, what = _field(case.advice), case.advice.what
    acted_ms = max((act.at_ms for act in case.job.person_acts if act.what is what), default=0)
    for action in reversed(case.job.actions):
        is_set = action.verdict is not Verdict.OVERTAKEN and action.after is not None
        if is_set and _field(action) == field:
            return action if acted_ms <= action.at_ms else None
    return None


_SUBJECT = ("what", "role", "target", "rank")
"""Fields that say what is changed: an action has them as its advice has them."""
_field = operator.attrgetter(*_SUBJECT)


CHECKS: tuple[Callable[[Case], Reason | None], ...] = (
    not_permitted,
    not_fit_to_act,
    not_stable,
    too_little,
    not_worth_it,
    cooling_down,
    job_budget_spent,
    cluster_budget_spent,
    person_acted,
    blocked,
    nothing_to_write,
    in_flight,
    already_changed,
)


def observe(job: GuardJobState, advice: list[Advice], now_ms: int) -> GuardJobState:
    """Count how often each value was advised. Called once for each evaluation, before ``decide``.

    A field that is not advised any more, or with another value, begins again.
    """
    before = {(streak.key, streak.value): streak for streak in job.streaks}
    streaks = []
    for item in advice:
        new = AdviceStreak(key=item.key, value=item.value, count=0, since_ms=now_ms)
        old = before.get((item.key, item.value), new)
        # A clock that was ahead for a while must not hold the advice until that time.
        since_ms = min(old.since_ms, now_ms)
        streaks.append(replace(old, count=old.count + 1, since_ms=since_ms))
    return replace(job, streaks=tuple(streaks))


def decide(
    advice: Advice, job: GuardJobState, cluster: ClusterState, permission: Permission, now_ms: int
) -> Decision:
    """Decide whether ``advice`` is applied now. The first check that holds is the reason."""
    target = _limit_value(advice, job, permission)
    case = Case(advice, target, job, cluster, permission, now_ms)
    reasons = (check(case) for check in CHECKS)
    reason = next((reason for reason in reasons if reason is not None), None)
    return target if reason is None else Decision(held_because=reason)


def decide_rollback(
    action: GuardAction,
    job: GuardJobState,
    cluster: ClusterState,
    permission: Permission,
    now_ms: int,
) -> Decision:
    """Decide whether to take ``action`` back. No budget holds it, but both keys are needed.

    Bounds are not checked: the job had the value before. It does not wait for segments, because a
    world that does not form closes none, nor for an open plan, which may be the one that does not
    succeed.
    """
    reason = because("RollBack")
    advice = Advice(what=action.what, role=action.role, reason=reason, urgent=True)
    back = Decision(value=action.before)
    recent = replace(job, last_segment_ms=now_ms)
    case = Case(advice, back, recent, cluster, permission, now_ms)
    held = not_permitted(case) or not_fit_to_act(case)
    return back if held is None else Decision(held_because=held)


def begin_action(
    advice: Advice,
    decision: Decision,
    job: GuardJobState,
    now_ms: int,
    baseline: Baseline | None = None,
) -> GuardAction:
    failure_s = advice.reason.arguments.get("between_failures")
    return GuardAction(
        job=job.uid,
        family=job.family,
        at_ms=now_ms,
        before=advice.was,
        after=decision.value,
        predicted=decision.predicted,
        between_failures_s=failure_s if isinstance(failure_s, int | float) else None,
        baseline=baseline,
        **{name: getattr(advice, name) for name in (*_SUBJECT, "floor", "probe")},
    )


def begin_rollback(action: GuardAction, now_ms: int) -> GuardAction:
    return GuardAction(
        at_ms=now_ms,
        before=action.after,
        after=action.before,
        rollback_of=action.id,
        verdict=Verdict.KEPT,
        **{name: getattr(action, name) for name in ("job", "family", *_SUBJECT)},
    )


def started(
    action: GuardAction, job: GuardJobState, cluster: ClusterState
) -> tuple[GuardJobState, ClusterState]:
    now_ms = action.at_ms
    kept = tuple(old for old in job.actions if now_ms - old.at_ms < _DAY_MS)
    probes = job.probes + action.probe
    job = replace(job, actions=(*kept, action), plan_open=True, probes=probes)
    if action.what in WITHOUT_RESTART:
        return job, cluster
    times = tuple(at for at in cluster.resizes_ms if now_ms - at < _HOUR_MS)
    cluster = replace(
        cluster,
        resizes_under_way=cluster.resizes_under_way + 1,
        resizes_ms=(*times, now_ms),
        gpus_in_restart=cluster.gpus_in_restart + job.gpus,
    )
    return job, cluster


def with_action(job: GuardJobState, action: GuardAction) -> GuardJobState:
    actions = tuple(action if old.id == action.id else old for old in job.actions)
    return replace(job, actions=actions)
