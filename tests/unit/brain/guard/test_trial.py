"""Judgement of actions by segments: kept, rolled back, unclear; and how many mistakes it makes."""

import math

import msgspec
import numpy as np
import pytest

from gangline.api.jobs.training_facts import WARM_UP
from gangline.brain.advisers.advice import Baseline, Choice, Verdict, What
from gangline.brain.advisers.explain import published_reason
from gangline.brain.guard.state import DEFAULTS
from gangline.brain.guard.trial import (
    Judgement,
    TrialEvents,
    baseline,
    judge,
    moments,
    sequential_radius,
)
from unit.brain.guard.builders import HOUR, MINUTE, NOW, make_action, make_segments

BEFORE = Baseline(mean=math.log(100.0), count=6)
PENDING = make_action(verdict=Verdict.PENDING, judged_ms=None, at_ms=NOW, baseline=BEFORE)
WARM = NOW + 2 * MINUTE


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


def test_a_growth_as_predicted_is_kept() -> None:
    assert judge_rates(146, 144, 145).verdict is Verdict.KEPT


def test_w9_a_loss_instead_of_a_gain_is_rolled_back_within_fifteen_minutes() -> None:
    result = judge_rates(90, 91, 89)
    assert result.verdict is Verdict.ROLLED_BACK
    assert result.surprise is not None
    assert result.surprise == pytest.approx(math.log(0.9 / 1.2), abs=0.01)


def test_a_large_loss_is_rolled_back_after_one_segment() -> None:
    free = msgspec.structs.replace(PENDING, floor=0.0)
    assert judge_rates(60, action=free).verdict is Verdict.ROLLED_BACK
    assert judge_rates(90, action=free).verdict is Verdict.PENDING


def test_three_percent_less_is_not_worse_and_five_percent_less_is() -> None:
    free = msgspec.structs.replace(PENDING, floor=0.0)
    assert judge_rates(98, 98, 98, action=free).verdict is Verdict.UNCLEAR
    result = judge_rates(95, 95, 95, action=free)
    assert (result.verdict, result.why.code) == (Verdict.ROLLED_BACK, "TrialWorse")


def test_a_growth_that_gains_less_than_its_price_is_rolled_back() -> None:
    """Twice the workers at a floor of 0.5 must give 1.4 times the goodput."""
    result = judge_rates(115, 115, 115)
    assert result.verdict is Verdict.ROLLED_BACK
    assert result.why.code == "TrialNotWorthPrice"


def test_w10_a_world_that_does_not_form_is_rolled_back_after_twice_the_usual_time() -> None:
    for after, verdict in ((100_000, Verdict.PENDING), (130_000, Verdict.ROLLED_BACK)):
        result = judge_rates(now=NOW + after, formed=False, form_s=60.0)
        assert result.verdict is verdict
    assert result.why.code == "TrialNoWorld"


def test_a_world_that_only_segments_can_show_gets_the_time_that_they_need() -> None:
    assert judge_rates(now=NOW + 7 * MINUTE, form_s=60.0).verdict is Verdict.PENDING
    assert judge_rates(now=NOW + 9 * MINUTE, form_s=60.0).verdict is Verdict.ROLLED_BACK


def test_rank_that_ran_out_of_memory_rolls_back_whatever_was_gained() -> None:
    assert judge_rates(150, 150, 150, oom=True).verdict is Verdict.ROLLED_BACK


def test_w11_a_gain_beyond_the_range_is_kept_and_a_surprise() -> None:
    result = judge_rates(220, 220, 220)
    assert result.verdict is Verdict.KEPT
    assert result.surprise == pytest.approx(math.log(2.2 / 1.6))


def test_an_undecided_trial_ends_after_fifteen_minutes_as_unclear() -> None:
    action = make_action(verdict=Verdict.PENDING, at_ms=NOW, baseline=BEFORE, what=What.MICRO_BATCH)
    assert judge_rates(99, 101, 100, action=action).verdict is Verdict.UNCLEAR


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


def test_an_overtaken_trial_concludes_nothing() -> None:
    assert judge_rates(60, 60, 60, overtaken=True).verdict is Verdict.OVERTAKEN


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


def test_moments_of_nothing_are_not_known() -> None:
    assert moments([]) is None
