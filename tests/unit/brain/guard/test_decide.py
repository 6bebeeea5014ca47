"""The guard's table: each reason to hold, in order, and what never happens."""

from itertools import product
from typing import Any

import msgspec
import pytest

from brain_records import a_running_job, not_none
from gangline.api.meta.objects import Object, ObjectMeta
from gangline.brain.advisers.advice import Advice, Reason, Verdict, What
from gangline.brain.advisers.explain import published_reason
from gangline.brain.facts.records import Mode, Wishes
from gangline.brain.guard.decide import (
    begin_action,
    decide,
    decide_rollback,
    observe,
    started,
)
from gangline.brain.guard.policy import (
    BY_HAND,
    FIELDS,
    Bound,
    BrainPolicyRule,
    Budgets,
    JobSelector,
    Permission,
    PersonAct,
    Policy,
    effective_permission,
)
from gangline.brain.publication import PLANNED, next_tuning, scale_plan
from unit.brain.guard.builders import (
    ALLOWED,
    HOUR,
    MINUTE,
    NOW,
    make_action,
    make_advice,
    make_cluster,
    make_job,
)

OPEN_POLICY = Policy(rules=(BrainPolicyRule(mode=Mode.APPLY),))
UNKNOWN_GAIN = msgspec.structs.replace(make_advice(), gain=None, gain_low=None, choices=())
SUBJECT = a_running_job(namespace="team", kind="ElasticJob", owner="ann", queue="research")


def permission_of(
    policy: Policy,
    wishes: Wishes = Wishes(),  # noqa: B008 - frozen
    dry_run: bool = False,
    labels: Any = (),
    **job: Any,
) -> Permission:
    """What policy and wishes allow for a job like ``SUBJECT``."""
    subject = msgspec.structs.replace(SUBJECT, wishes=wishes, **job)
    return effective_permission(policy, subject, dict(labels), dry_run=dry_run)


def held(
    advice: Advice | None = None,
    permission: Permission = ALLOWED,
    cluster: dict[str, Any] | None = None,
    **job: Any,
) -> str:
    """The code of the reason to hold; empty if the guard acts."""
    advice = advice or make_advice()
    decision = decide(
        advice, make_job(advice, **job), make_cluster(**(cluster or {})), permission, NOW
    )
    assert decision.act == (decision.held_because is None)
    if decision.held_because is None:
        return ""
    reason = decision.held_because
    published_reason(reason)
    return reason.code


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        pytest.param({"permission": Permission(mode=Mode.ADVISE)}, "PolicyForbids", id="mode"),
        pytest.param(
            {"permission": Permission(mode=Mode.APPLY, may=frozenset({"memory"}))},
            "FieldNotAllowed",
            id="field",
        ),
        pytest.param({"kind": "PyTorchJob"}, "KindNotElastic", id="kind"),
        pytest.param({"cluster": {"leader": False}}, "NotLeader", id="leader"),
        pytest.param({"cluster": {"knows_time": False}}, "ClockWrong", id="clock"),
        pytest.param({"cluster": {"database_up": False}}, "DatabaseDown", id="database"),
        pytest.param({"last_segment_ms": None}, "NoSegments", id="no segments"),
        pytest.param({"last_segment_ms": NOW - 8 * MINUTE}, "SegmentsOld", id="old segments"),
        pytest.param({"good_segments": 2}, "TooFewSegments", id="no baseline"),
        pytest.param({"streaks": ()}, "NotStable", id="stability"),
        pytest.param({"advice": make_advice(gain=0.09)}, "GainTooSmall", id="gain"),
        pytest.param(
            {"advice": make_advice(gain_low=0.02, choices=())}, "GainTooSmall", id="low end"
        ),
        pytest.param({"advice": UNKNOWN_GAIN}, "GainUnknown", id="no gain"),
        pytest.param({"remaining_s": 300.0}, "NotWorthIt", id="worth"),
        pytest.param({"remaining_s": None}, "RestUnknown", id="rest unknown"),
        pytest.param(
            {"actions": (make_action(at_ms=NOW - 19 * MINUTE),)}, "CoolDown", id="cool-down"
        ),
        pytest.param(
            {"person_acts": (PersonAct(what=What.MEMORY, at_ms=NOW - MINUTE),)},
            "CoolDown",
            id="cool-down after a person",
        ),
        pytest.param({"actions": (make_action(),) * 4}, "JobActionsSpent", id="actions"),
        pytest.param({"actions": (make_action(cost_ms=31 * MINUTE),)}, "JobTimeSpent", id="time"),
        pytest.param(
            {"actions": (make_action(), make_action()), "started_ms": NOW - 39 * MINUTE},
            "JobTimeSpent",
            id="time of changes that nothing was reported of",
        ),
        pytest.param(
            {"void": (make_action(at_ms=NOW - 4 * MINUTE, verdict=Verdict.VOID),)},
            "NothingToWrite",
            id="nothing to write to",
        ),
        pytest.param({"cluster": {"resizes_under_way": 2}}, "ClusterBusy", id="under way"),
        pytest.param(
            {"cluster": {"resizes_ms": (NOW - 59 * MINUTE,) * 20}},
            "ClusterActionsSpent",
            id="an hour",
        ),
        pytest.param({"cluster": {"gpus_in_restart": 93}}, "ClusterRestarting", id="restarting"),
        pytest.param(
            {"person_acts": (PersonAct(what=What.WORKERS, at_ms=NOW - 59 * MINUTE),)},
            "PersonActed",
            id="person",
        ),
        pytest.param(
            {"cluster": {"rolled_back": (make_action(judged_ms=NOW - 29 * MINUTE),)}},
            "RolledBackBefore",
            id="rolled back",
        ),
        pytest.param({"plan_open": True}, "PlanOpen", id="plan"),
        pytest.param(
            {"actions": (make_action(verdict=Verdict.PENDING),)}, "TrialPending", id="trial"
        ),
        pytest.param(
            {
                "actions": (make_action(verdict=Verdict.PENDING, at_ms=NOW - 20 * MINUTE),),
                "started_ms": NOW - 21 * MINUTE + 90_000,
            },
            "TrialPending",
            id="trial of a job that is younger than its change is expensive",
        ),
        pytest.param({"failing": True}, "Failing", id="failing"),
    ],
)
def test_each_check_of_the_table_holds(changes: dict[str, Any], code: str) -> None:
    assert held(**changes) == code


def test_the_first_check_of_the_table_is_the_reason() -> None:
    everything = {
        "cluster": {"leader": False, "resizes_under_way": 2},
        "streaks": (),
        "plan_open": True,
    }
    assert held(**everything) == "NotLeader"
    everything["cluster"] = {"resizes_under_way": 2}
    assert held(**everything) == "NotStable"
    del everything["streaks"]
    assert held(**everything) == "ClusterBusy"


def test_restarting_devices_do_not_hold_the_only_job_of_a_small_cluster() -> None:
    assert held(cluster={"gpus": 8}) == ""


def test_w12_the_step_limit_holds_whatever_is_advised() -> None:
    for was, value, expected in ((4, 60, 8), (40, 2, 20), (1, 9, 2), (4, 5, 5)):
        advice = make_advice(was, value, gain=8.0 if value > was else 0.0)
        decision = decide(advice, make_job(advice), make_cluster(), ALLOWED, NOW)
        assert decision.value == expected
        assert decision.predicted is not None
        assert decision.predicted.value == expected


def a_size(what: What, was: int, value: int, **more: Any) -> Advice:
    """Advice on memory or CPU, which has no gain."""
    return Advice(what=what, was=was, value=value, reason=Reason(code="HighestPeak"), **more)


def test_memory_is_at_most_doubled() -> None:
    advice = a_size(What.MEMORY, 2**30, 10 * 2**30, role="worker")
    assert decide(advice, make_job(advice), make_cluster(), ALLOWED, NOW).value == 2 * 2**30


def test_a_size_that_the_user_wrote_is_lowered_only_if_the_job_names_the_field() -> None:
    advice = a_size(What.MEMORY, 32 * 2**30, 10 * 2**30, role="worker")
    written = Bound(
        what=What.MEMORY, role="worker", low=16 * 2**30, high=64 * 2**30, written=32 * 2**30
    )
    job = make_job(advice, bounds=(written,))
    silent = Permission(mode=Mode.APPLY)
    reason = not_none(decide(advice, job, make_cluster(), silent, NOW).held_because)
    assert reason.code == "AtLimit"
    assert decide(advice, job, make_cluster(), ALLOWED, NOW).value == 16 * 2**30


def test_w13_a_persons_number_holds_for_an_hour_and_binds_until_the_end() -> None:
    advice = make_advice(4, 8)
    recent = PersonAct(what=What.WORKERS, role="worker", at_ms=NOW - 30 * MINUTE, before=8, value=6)
    assert held(advice, person_acts=(recent,)) == "PersonActed"
    old = msgspec.structs.replace(recent, at_ms=NOW - 5 * HOUR)
    job = make_job(advice, person_acts=(old,))
    assert decide(advice, job, make_cluster(), ALLOWED, NOW).value == 6
    scaled_to_3 = msgspec.structs.replace(old, before=5, value=3)
    assert held(make_advice(3, 8), person_acts=(scaled_to_3,)) == "AtLimit"


def test_w16_no_plan_without_both_keys() -> None:
    """All combinations of policy, wish, fields, switches and kinds of advice."""
    fields = (None, frozenset[str](), frozenset({"memory"}), frozenset({"workers"}))
    switches = tuple(product((False, True), repeat=4))
    acted = 0
    for policy, wish, may, what in product((None, *Mode), (None, *Mode), fields, What):
        for dry_run, urgent, probe, rollback in switches:
            rules = () if policy is None else (BrainPolicyRule(mode=policy),)
            wishes = Wishes() if wish is None else Wishes(mode=wish, may=may)
            permission = permission_of(Policy(rules=rules), wishes, dry_run)
            advice = make_advice(what=what, urgent=urgent, probe=probe)
            job = make_job(advice)
            if rollback:
                action = make_action(what=what)
                acts = decide_rollback(action, job, make_cluster(), permission, NOW).act
            else:
                acts = decide(advice, job, make_cluster(), permission, NOW).act
            keys = policy is Mode.APPLY and wish is Mode.APPLY and not dry_run
            allowed = what is not What.WARNING and (may is None or FIELDS[what] in may)
            assert not acts or (keys and allowed)
            acted += acts
            if keys and allowed and what is What.WORKERS and not probe:
                assert acts
    assert acted


def test_the_first_rule_that_matches_decides() -> None:
    policy = Policy(
        rules=(
            BrainPolicyRule(include=JobSelector(namespaces=("prod-*",)), mode=Mode.OFF),
            BrainPolicyRule(
                include=JobSelector(owners=("ann",)),
                exclude=(JobSelector(labels={"frozen": "yes"}),),
                mode=Mode.APPLY,
                budgets=Budgets(actions_per_day=1),
            ),
        )
    )
    wish = Wishes(mode=Mode.APPLY)
    assert permission_of(policy, wish).budgets.actions_per_day == 1
    assert permission_of(policy, wish, namespace="prod-1").mode is Mode.OFF
    assert permission_of(policy, wish, labels={"frozen": "yes"}).mode is Mode.ADVISE


def test_g11_a_hundred_jobs_that_want_to_grow_start_two_at_a_time_and_twenty_an_hour() -> None:
    advice = make_advice()
    jobs = {f"j{i}": make_job(advice, uid=f"j{i}", family=f"f{i}") for i in range(100)}
    cluster = make_cluster()
    most, begun = 0, []
    for minute in range(60):
        now = NOW + minute * MINUTE
        if minute % 2 == 0:
            cluster = make_cluster(resizes_ms=cluster.resizes_ms)
        for name, job in jobs.items():
            fresh = make_job(
                advice, uid=name, family=job.family, actions=job.actions, last_segment_ms=now
            )
            fresh = observe(fresh, [advice], now)
            decision = decide(advice, fresh, cluster, ALLOWED, now)
            if decision.act:
                action = begin_action(advice, decision, fresh, now)
                jobs[name], cluster = started(action, fresh, cluster)
                begun.append(now)
            most = max(most, cluster.resizes_under_way)
    assert most == 2
    assert len(begun) == 20


def test_a_rollback_needs_no_budget() -> None:
    action = make_action(verdict=Verdict.PENDING)
    job = make_job(actions=(action,) * 5, remaining_s=1.0, last_segment_ms=None)
    cluster = make_cluster(resizes_under_way=9, resizes_ms=(NOW,) * 30)
    decision = decide_rollback(action, job, cluster, ALLOWED, NOW)
    assert decision.act
    assert decision.value == 4


def test_w9_a_direction_is_blocked_for_half_an_hour_then_twice_as_long_up_to_a_day() -> None:
    up, down = make_advice(), make_advice(8, 4, gain=-0.02)
    lengths = [30, 60, 120, 240, 480, 960, 1440, 1440]
    for count, length in enumerate(lengths):
        for age, code in ((length - 1, "RolledBackBefore"), (length, "")):
            # Each rollback but the last is judged when the block of the former ends.
            ages = [age + sum(lengths[first:count]) for first in range(count + 1)]
            back = tuple(make_action(judged_ms=NOW - minutes * MINUTE) for minutes in ages)
            assert held(up, cluster={"rolled_back": back}) == code
            assert held(down, cluster={"rolled_back": back}) == ""


def test_advice_is_stable_after_three_evaluations_and_a_minute() -> None:
    advice, other = make_advice(), make_advice(value=7)
    job = make_job()
    for index, item in enumerate([advice, other, advice, advice, advice]):
        job = observe(job, [item], NOW - 5 * MINUTE + index * 20_000)
    assert job.streaks[0].count == 3
    reason = not_none(decide(advice, job, make_cluster(), ALLOWED, NOW - 4 * MINUTE).held_because)
    assert reason.code == "NotStable"
    assert decide(advice, job, make_cluster(), ALLOWED, NOW).act


def test_one_probe_in_the_first_hour() -> None:
    probe = make_advice(gain=0.4, gain_low=-0.3, probe=True, choices=make_advice().choices[-1:])
    young = {"started_ms": NOW - 30 * MINUTE}
    assert held(probe, **young) == ""
    assert held(probe, probes=1, **young) == "ProbeMade"
    assert held(probe) == "ProbeTooLate"


def test_parameter_servers_change_an_hour_apart() -> None:
    advice = a_size(What.PS_CPU, 10_000, 17_000, role="ps", rank=0)
    recent = make_action(what=What.PS_CPU, role="ps", at_ms=NOW - 59 * MINUTE)
    assert held(advice, actions=(recent,)) == "CoolDown"
    older = make_action(what=What.PS_CPU, role="ps", at_ms=NOW - 61 * MINUTE)
    assert held(advice, actions=(older,)) == ""


def test_an_urgent_advice_does_not_wait_for_gain_or_cool_down() -> None:
    advice = make_advice(8, 4, gain=-0.5, urgent=True)
    recent = {"actions": (make_action(at_ms=NOW - MINUTE),) * 4, "streaks": ()}
    assert held(advice, **recent) == ""
    assert held(make_advice(8, 4, gain=-0.5), **recent) == "NotStable"
    assert held(advice, plan_open=True) == "PlanOpen"


def test_global_batch_and_nodes_are_advised_and_never_set() -> None:
    advice = make_advice(4, 8, what=What.GLOBAL_BATCH)
    assert held(advice, permission=Permission(mode=Mode.APPLY)) == "FieldNotNamed"
    assert held(advice) == "ByHand"
    assert held(make_advice(what=What.NODE)) == "ByHand"


@pytest.mark.parametrize("what", [what for what in What if what in FIELDS and what not in BY_HAND])
def test_all_other_fields_have_a_plan_or_a_tuning(what: What) -> None:
    change = make_action(id=1, what=what, after=2.0)
    planned = scale_plan(Object(metadata=ObjectMeta(name="j", namespace="n")), change)
    assert (planned is not None) is (what in PLANNED)
    assert planned is not None or next_tuning(None, change) is not None


def test_advice_first_seen_while_the_clock_was_ahead_is_not_held_until_then() -> None:
    advice = make_advice()
    job = observe(make_job(), [advice], NOW + HOUR)
    for second in (0, 30, 61):
        job = observe(job, [advice], NOW + second * 1000)
    assert decide(advice, job, make_cluster(), ALLOWED, NOW + 61_000).act
    later = NOW + 30 * 24 * HOUR
    ahead = make_action(at_ms=later, what=What.MEMORY)
    act = PersonAct(what=What.WORKERS, role="worker", at_ms=NOW + 2 * HOUR)
    block = make_action(judged_ms=later)
    assert held(advice, actions=(ahead,) * 4) == ""
    assert held(advice, person_acts=(act,)) == ""
    assert held(advice, void=(make_action(at_ms=later),)) == ""
    assert held(advice, cluster={"rolled_back": (block,), "resizes_ms": (later,) * 20}) == ""
