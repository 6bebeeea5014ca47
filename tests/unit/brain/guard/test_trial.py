"""Judgement of actions by segments: kept, rolled back, unclear; and how many mistakes it makes."""

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from gangline.api.jobs.training_facts import WARM_UP
from gangline.brain.advisers.advice import Baseline, Choice, Verdict, What
from gangline.brain.advisers.explain import published_reason
from gangline.brain.guard.policy import DEFAULTS
from gangline.brain.guard.trial import (
    Judgement,
    TrialEvents,
    baseline,
    judge,
    sequential_radius,
)
from unit.brain.guard.builders import HOUR, MINUTE, NOW, make_action, make_segments

BEFORE = Baseline(mean=math.log(100.0), count=6)
PENDING = make_action(verdict=Verdict.PENDING, judged_ms=None, at_ms=NOW, baseline=BEFORE)
WARM = NOW + 2 * MINUTE


VERDICTS = {
    "TrialAsPredicted": Verdict.KEPT,
    "TrialUnclear": Verdict.UNCLEAR,
    "TrialPending": Verdict.PENDING,
    "TrialOvertaken": Verdict.OVERTAKEN,
} | dict.fromkeys(("TrialWorse", "TrialNotWorthPrice", "TrialOutOfMemory"), Verdict.ROLLED_BACK)


def judge_rates(
    *rates: float, action=PENDING, now: int | None = None, form_s: float = 120.0, **events
) -> Judgement:
    segments = make_segments(rates, WARM)
    at = now or WARM + len(rates) * 5 * MINUTE
    result = judge(
        action,
        segments,
        at,
        TrialEvents(**events),
        msgspec.structs.replace(DEFAULTS, form_s=form_s),
    )
    published_reason(result.why)
    return result


FREE = msgspec.structs.replace(PENDING, floor=0.0)
MICRO_BATCH = make_action(
    verdict=Verdict.PENDING, at_ms=NOW, baseline=BEFORE, what=What.MICRO_BATCH
)


@pytest.mark.parametrize(
    ("rates", "how", "code", "surprise"),
    [
        pytest.param((146, 144, 145), {}, "TrialAsPredicted", 0.0, id="growth as predicted"),
        pytest.param((90, 91, 89), {}, "TrialWorse", math.log(0.9 / 1.2), id="W9: loss"),
        pytest.param((60,), {"action": FREE}, "TrialWorse", None, id="large loss, one segment"),
        pytest.param((90,), {"action": FREE}, "TrialPending", None, id="loss, one segment"),
        pytest.param((98,) * 3, {"action": FREE}, "TrialUnclear", None, id="3 % less"),
        pytest.param((95,) * 3, {"action": FREE}, "TrialWorse", None, id="5 % less"),
        # Twice the workers at a floor of 0.5 must give 1.4 times the goodput.
        pytest.param((115,) * 3, {}, "TrialNotWorthPrice", None, id="less than its price"),
        pytest.param((150,) * 3, {"oom": True}, "TrialOutOfMemory", None, id="out of memory"),
        pytest.param((220,) * 3, {}, "TrialAsPredicted", math.log(2.2 / 1.6), id="W11: more"),
        pytest.param((99, 101, 100), {"action": MICRO_BATCH}, "TrialUnclear", None, id="undecided"),
        pytest.param((60,) * 3, {"overtaken": True}, "TrialOvertaken", None, id="overtaken"),
    ],
)
def test_a_trial_is_judged_by_its_segments(
    rates: tuple[float, ...], how: dict[str, Any], code: str, surprise: float | None
) -> None:
    result = judge_rates(*rates, **how)
    assert (result.why.code, result.verdict) == (code, VERDICTS[code])
    if surprise is not None:
        assert result.surprise == pytest.approx(surprise, abs=0.01)


@pytest.mark.parametrize(
    ("formed", "waits_s", "fails_s"),
    [
        pytest.param(False, 100, 130, id="W10: twice the usual time"),
        pytest.param(None, 7 * 60, 9 * 60, id="only segments can show it"),
    ],
)
def test_a_world_that_does_not_form_is_rolled_back(
    formed: bool | None, waits_s: int, fails_s: int
) -> None:
    early, late = (
        judge_rates(now=NOW + 1000 * after_s, formed=formed, form_s=60.0)
        for after_s in (waits_s, fails_s)
    )
    assert early.verdict is Verdict.PENDING
    assert (late.verdict, late.why.code) == (Verdict.ROLLED_BACK, "TrialNoWorld")


def test_fewer_workers_are_judged_by_what_was_predicted_for_them() -> None:
    fewer = make_action(
        before=8,
        after=4,
        verdict=Verdict.PENDING,
        at_ms=NOW,
        baseline=BEFORE,
        predicted=Choice(value=4, goodput=0.9, low=0.85, high=0.95),
    )
    segments = make_segments([90, 90, 90], WARM, nodes=4)
    assert judge(fewer, segments, WARM + 15 * MINUTE).verdict is Verdict.KEPT
    segments = make_segments([60, 60, 60], WARM, nodes=4)
    assert judge(fewer, segments, WARM + 15 * MINUTE).verdict is Verdict.ROLLED_BACK


def test_what_becomes_worse_after_a_good_trial_is_taken_back_within_four_segments() -> None:
    kept = make_action(at_ms=NOW, judged_ms=NOW + 20 * MINUTE, baseline=BEFORE)
    worse = make_segments([140] * 8 + [60] * 4, WARM)
    assert judge(kept, worse, NOW + 59 * MINUTE).verdict is Verdict.ROLLED_BACK
    assert judge(kept, worse, NOW + 3 * HOUR).verdict is Verdict.KEPT, "watched for an hour"
    noisy = make_segments([140] * 8 + [140, 60, 140, 140], WARM)
    assert judge(kept, noisy, NOW + 59 * MINUTE).verdict is Verdict.KEPT


def test_warm_up_and_other_sizes_do_not_count() -> None:
    warm = make_segments([10, 10, 10], WARM, quality=WARM_UP)
    other = make_segments([10, 10, 10], WARM, nodes=4)
    assert judge(PENDING, warm + other, NOW + 3 * MINUTE).verdict is Verdict.PENDING


def test_baseline_needs_three_good_segments_of_the_present_settings() -> None:
    old = make_segments([50] * 5, NOW - HOUR, nodes=4)
    new = make_segments([100] * 2, NOW - 20 * MINUTE)
    assert baseline(old + new, NOW) is None
    new = make_segments([100] * 3, NOW - 20 * MINUTE)
    before = baseline(old + new, NOW)
    assert before is not None
    assert before.count == 3
    assert before.mean == pytest.approx(math.log(100))


def test_the_sequential_interval_holds_at_all_looks_together() -> None:
    """Of means of noise without a difference, at most 20 % leave the interval at any look."""
    random = np.random.default_rng(7)
    noise = random.standard_normal((4000, 40))
    means = noise.cumsum(axis=1) / np.arange(1, 41)
    radius = np.array([sequential_radius(n) for n in range(1, 41)])
    assert ((np.abs(means) > radius).any(axis=1)).mean() <= 0.2
