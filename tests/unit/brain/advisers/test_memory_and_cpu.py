"""Right-sizing of memory and CPU, from histories with known peaks and kills."""

import msgspec
import pytest

from brain_records import a_segment
from gangline.api.jobs.training_facts import ModelShapeFacts, SegmentFacts, StepSeconds
from gangline.brain.advisers.advice import Confidence, What
from gangline.brain.advisers.rightsize import advise, data_share
from gangline.brain.facts.records import Outcome, PlannedSize, Run
from unit.brain.histories import (
    DAY,
    GIB,
    HOUR,
    NOW,
    a_job,
    a_pod,
    a_run,
    a_view,
    an_oom,
    asking,
    codes,
    peaks_of,
    the,
)

NINE = [
    peaks_of(f"{33 + i}", *[gib - 0.3, gib - 0.2, gib - 0.1, gib], days_ago=14 - 1.5 * i)
    for i, gib in enumerate([8.1, 9.8, 8.4, 9.0, 8.8, 9.1, 8.3, 8.6, 8.9])
]


def gib(value: float | None) -> float:
    assert value is not None
    return value / GIB


def test_a1_family_of_nine_runs_lowers_to_its_highest_peak_and_margin() -> None:
    advice = the(advise(a_view(NINE)), What.MEMORY)
    assert gib(advice.value) == pytest.approx(9.8 * 1.15, rel=0.002)
    assert advice.was == 32 * GIB
    assert advice.low is not None
    assert advice.high is not None
    assert advice.low <= advice.value <= advice.high  # type: ignore[operator]
    assert advice.confidence is Confidence.HIGH
    assert set(advice.evidence) == {run.job.uid for run in NINE}
    reason = advice.reason
    assert reason.code == "HighestPeak"
    assert reason.arguments["peak_run"] == "train-resnet-34"
    assert reason.arguments["peak_rank"] == 3
    assert reason.arguments["runs"] == 9
    assert reason.arguments["ooms"] == 0
    assert reason.arguments["first_ms"] == NOW - 14 * DAY
    assert reason.arguments["last_ms"] == NOW - 2 * DAY
    assert reason.arguments["saved_bytes"] == 4 * (advice.was - advice.value)


def test_a2_runs_that_are_only_similar_lower_nothing_and_widen_the_range() -> None:
    near = the(advise(a_view(NINE, level=1)), What.MEMORY)
    far = the(advise(a_view(NINE, level=3)), What.MEMORY)
    assert far.value == far.was == 32 * GIB
    assert far.reason.code == "NotLowered"
    assert far.reason.arguments["estimate_bytes"] == near.value
    assert far.reason.arguments["because"] == "similarity"
    assert far.low is not None
    assert near.low is not None
    assert far.low == pytest.approx(near.low / 1.3**2)
    assert far.high == pytest.approx((near.high or 0) * 1.3**2)


def test_a2_runs_that_are_only_similar_fill_what_the_user_left_out() -> None:
    job = a_job(roles=(asking(None),))
    advice = the(advise(a_view(NINE, level=3, job=job)), What.MEMORY)
    assert gib(advice.value) == pytest.approx(9.8 * 1.15, rel=0.002)


def test_a3_nothing_similar_gives_no_advice() -> None:
    assert advise(a_view()) == []
    assert advise(a_view(job=a_job(roles=(asking(None),)))) == []


def test_a5_failed_runs_are_lower_bounds_only() -> None:
    failed = [peaks_of(f"f{i}", 6.0, outcome=Outcome.FAILED, cause="UserError") for i in range(5)]
    assert advise(a_view(bounds=failed)) == []
    small = a_view(bounds=failed, job=a_job(roles=(asking(4),)))
    (advice,) = advise(small)
    assert advice.reason.code == "LowerBound"
    assert advice.high == 2 * (advice.value or 0)
    assert gib(advice.value) == pytest.approx(6.9, rel=0.001)
    assert advise(a_view(bounds=failed, job=a_job(roles=(asking(None),)))) == []


def test_a6_first_minutes_of_the_job_do_not_lower_its_size() -> None:
    own = Run(job=a_job(started_ms=NOW - HOUR), pods=tuple(a_pod(0.5, r) for r in range(4)))
    assert advise(a_view(own=own)) == []
    with_history = the(advise(a_view(NINE, own=own)), What.MEMORY)
    assert with_history == the(advise(a_view(NINE)), What.MEMORY)


def test_a9_request_below_the_need_is_a_warning_with_the_history_of_kills() -> None:
    killed = a_run("k", [an_oom(8), a_pod(9.5, number=1, limit_memory_bytes=16 * GIB)])
    view = a_view([*NINE, killed], job=a_job(roles=(asking(8),)))
    advice = advise(view)
    warning = the(advice, What.WARNING)
    assert warning.reason.code == "RequestBelowNeed"
    assert warning.reason.arguments["ooms"] == 1
    assert warning.reason.arguments["request_bytes"] == 8 * GIB
    assert the(advice, What.MEMORY).value == warning.value


def test_m1_ten_kills_in_one_run_are_one_sample() -> None:
    own = Run(
        job=a_job(roles=(asking(10),), started_ms=NOW - HOUR),
        pods=tuple(an_oom(10, number=i) for i in range(10)),
    )
    advice = the(advise(a_view(own=own)), What.MEMORY)
    assert advice.value == 12 * GIB
    assert advice.reason.code == "OutOfMemory"
    assert advice.reason.arguments["kills"] == 10
    assert advice.reason.arguments["runs"] == 1


def test_sizes_of_a_plan_are_what_is_compared_with_the_need() -> None:
    planned = PlannedSize(role="worker", memory_bytes=16 * GIB)
    half = a_view(NINE, own=Run(job=a_job(planned=(planned,))))
    advice = the(advise(half), What.MEMORY)
    assert advice.was == 16 * GIB
    assert advice.reason.arguments["saved_bytes"] == 4 * (advice.was - (advice.value or 0))

    need = round(advice.value or 0)
    done = PlannedSize(role="worker", memory_bytes=need)
    assert advise(a_view(NINE, own=Run(job=a_job(planned=(done,))))) == []
    of_servers = PlannedSize(role="ps", memory_bytes=need)
    other = a_view(NINE, own=Run(job=a_job(planned=(of_servers,))))
    assert the(advise(other), What.MEMORY).was == 32 * GIB


def test_size_that_a_plan_gave_one_rank_counts_for_this_rank() -> None:
    runs = [peaks_of(f"r{i}", 11.0, 5.0, 4.9, 4.8, days_ago=i + 1) for i in range(4)]
    first = PlannedSize(role="worker", rank=0, memory_bytes=20 * GIB)
    advice = advise(a_view(runs, own=Run(job=a_job(planned=(first,)))))
    assert the(advice, What.MEMORY).was == 32 * GIB
    assert the(advice, What.MEMORY, rank=0).was == 20 * GIB


def test_b16_small_limits_grow_by_at_least_256_mib_and_only_once() -> None:
    own = Run(job=a_job(roles=(asking(0.5),)), pods=(an_oom(0.5), an_oom(0.5, number=1)))
    assert the(advise(a_view(own=own)), What.MEMORY).value == GIB * 3 // 4


@pytest.mark.parametrize("kills", [5, 20, 50])
def test_m2_kills_under_a_cap_do_not_feed_each_other(kills: int) -> None:
    killed = [
        a_run(
            f"k{i}",
            [an_oom(8)],
            days_ago=7 * i / kills,
            outcome=Outcome.FAILED,
            roles=(asking(8),),
        )
        for i in range(kills)
    ]
    advice = advise(a_view(bounds=killed, job=a_job(roles=(asking(8),))))
    assert gib(the(advice, What.MEMORY).value) == pytest.approx(9.6, rel=0.001)
    warning = the(advice, What.WARNING)
    assert warning.reason.code == "LimitTooLow"
    assert warning.reason.arguments["kills"] == kills
    assert warning.reason.arguments["limit_bytes"] == 8 * GIB


def test_m3_growing_runs_size_for_the_last() -> None:
    runs = [peaks_of(f"g{i}", gib, days_ago=9 - 3 * i) for i, gib in enumerate([5.0, 6.0, 7.0])]
    advice = the(advise(a_view(runs, level=0)), What.MEMORY)
    assert gib(advice.value) == pytest.approx(8.05, rel=0.002)


def test_m4_single_old_peak_fades() -> None:
    usual = [peaks_of(f"u{i}", 8.0, 8.0, days_ago=i) for i in range(1, 13)]
    outlier = peaks_of("old", 20.0, 8.0, days_ago=29.9)  # 4 % of the peaks, 1 % of their weight
    fresh = peaks_of("new-outlier", 20.0, 8.0, days_ago=0.5)
    faded = the(advise(a_view([*usual, outlier])), What.MEMORY)
    # The end of the bucket is at most 5 % above the samples in it.
    assert 9.2 <= gib(faded.value) <= 9.2 * 1.051
    assert faded.reason.code == "UsualPeak"
    assert faded.reason.arguments["highest_bytes"] == 20 * GIB
    assert gib(the(advise(a_view([*usual, fresh])), What.MEMORY).value) == pytest.approx(23)


def test_m5_rank_that_uses_much_more_has_its_own_size() -> None:
    runs = [peaks_of(f"r{i}", 11.0, 5.0, 4.9, 4.8, days_ago=i + 1) for i in range(4)]
    advice = advise(a_view(runs))
    assert gib(the(advice, What.MEMORY).value) == pytest.approx(5.0 * 1.15, rel=0.002)
    assert gib(the(advice, What.MEMORY, rank=0).value) == pytest.approx(11 * 1.15, rel=0.002)


def test_m5_two_runs_are_too_few_for_an_own_size() -> None:
    runs = [peaks_of(f"r{i}", 11.0, 5.0, days_ago=i + 1) for i in range(2)]
    runs.append(peaks_of("even", 5.0, 5.0))
    advice = advise(a_view(runs))
    assert gib(the(advice, What.MEMORY).value) == pytest.approx(11 * 1.15, rel=0.002)


def test_m6_run_that_was_not_measured_gives_no_size() -> None:
    unmeasured = [a_run(f"s{i}", [a_pod(None)]) for i in range(4)]
    assert advise(a_view(unmeasured)) == []
    mixed = the(advise(a_view([*unmeasured, peaks_of("m", 6.0)])), What.MEMORY)
    assert gib(mixed.value) == pytest.approx(6.9, rel=0.001)


def test_m7_order_of_the_runs_changes_nothing() -> None:
    assert advise(a_view(NINE[::-1])) == advise(a_view(NINE))


def test_m8_kill_at_the_largest_node_gives_no_larger_number() -> None:
    own = Run(job=a_job(roles=(asking(64),)), pods=(an_oom(64),))
    advice = advise(a_view(own=own, largest_gib=64))
    assert codes(advice) == ["LargestNodeTooSmall"]
    assert advice[0].value is None
    assert the(advise(a_view(own=own, largest_gib=256)), What.MEMORY).value is not None


def test_m8_size_never_exceeds_the_largest_node() -> None:
    own = Run(job=a_job(roles=(asking(10),)), pods=(an_oom(10),))
    assert the(advise(a_view(own=own, largest_gib=11)), What.MEMORY).value == 11 * GIB


def test_two_survivors_replace_a_kill_by_real_peaks() -> None:
    killed = a_run("k", [an_oom(10)], days_ago=5, outcome=Outcome.FAILED)
    job = a_job(roles=(asking(20),))
    survivors = [peaks_of(f"s{i}", 10.5, days_ago=i + 1) for i in range(2)]
    one = the(advise(a_view(survivors[:1], bounds=[killed], level=0, job=job)), What.MEMORY)
    two = the(advise(a_view(survivors, bounds=[killed], level=0, job=job)), What.MEMORY)
    assert gib(one.value) == pytest.approx(10.5 * 1.15, rel=0.01)
    assert gib(two.value) == pytest.approx(10.5 * 1.15, rel=0.01)
    low = [peaks_of(f"s{i}", 6.0, days_ago=i + 1) for i in range(2)]
    still = the(advise(a_view(low[:1], bounds=[killed], level=0, job=job)), What.MEMORY)
    assert still.value == 12 * GIB
    # A run did need more than 10 GiB: that stays a sample, without the estimate of a fifth.
    replaced = the(advise(a_view(low, bounds=[killed], level=0, job=job)), What.MEMORY)
    assert gib(replaced.value) == pytest.approx(11.5, rel=0.01)


def test_larger_job_than_all_runs_is_not_lowered() -> None:
    runs = [msgspec.structs.replace(r, job=_sized(r, 1000)) for r in NINE]
    larger = a_job(model=ModelShapeFacts(sequence=1300))
    advice = the(advise(a_view(runs, job=larger)), What.MEMORY)
    assert advice.value == advice.was
    assert advice.reason.arguments["because"] == "size"
    usual = the(advise(a_view(runs, job=a_job(model=ModelShapeFacts(sequence=1200)))), What.MEMORY)
    assert usual.reason.code == "HighestPeak"


def _sized(run: Run, sequence: int) -> object:
    return msgspec.structs.replace(run.job, model=ModelShapeFacts(sequence=sequence))


def waiting(data_s: float) -> SegmentFacts:
    """Steps of a second that wait for records."""
    return a_segment(step_seconds=StepSeconds(1, 1.0), data_seconds=data_s)


def cpu_run(uid: str, p50: int, p95: int, most: int, **changes: object) -> Run:
    use = {"cpu_p50_millis": p50, "cpu_p95_millis": p95, "cpu_max_millis": most, "samples": 60}
    return a_run(uid, [a_pod(None, rank, **use) for rank in range(4)], **changes)


def test_cpu_is_the_95th_percentile_and_a_tenth() -> None:
    runs = [cpu_run(f"c{i}", 1500, 2800, 3900) for i in range(9)]
    advice = the(advise(a_view(runs, job=a_job(roles=(asking(None, 8000),)))), What.CPU)
    assert advice.reason.code == "CpuUse"
    assert 2800 * 1.1 <= (advice.value or 0) <= 2800 * 1.1 * 1.051
    assert advice.reason.arguments["saved_millis"] == 4 * (8000 - (advice.value or 0))


def test_m10_cpu_of_a_starved_loader_is_not_lowered() -> None:
    runs = [cpu_run(f"c{i}", 300, 900, 1200) for i in range(9)]
    job = a_job(roles=(asking(None, 8000),), started_ms=NOW - HOUR)
    starved = Run(job=job, segments=(waiting(0.3),))
    assert advise(a_view(runs, own=starved)) == []
    fed = Run(job=job, segments=(waiting(0.05),))
    assert (the(advise(a_view(runs, own=fed)), What.CPU).value or 0) < 8000


def test_starved_loader_that_uses_its_cpu_gets_half_more() -> None:
    runs = [cpu_run(f"c{i}", 3000, 3900, 4000) for i in range(9)]
    own = Run(
        job=a_job(roles=(asking(None, 4000),), started_ms=NOW - HOUR),
        segments=(waiting(0.31),),
    )
    advice = the(advise(a_view(runs, own=own)), What.CPU)
    assert advice.value == 6000
    assert advice.reason.code == "LoaderStarved"
    assert advice.reason.arguments["data_percent"] == 31


def test_cpu_that_was_not_measured_is_no_advice() -> None:
    assert advise(a_view([a_run("x", [a_pod(None)])], job=a_job(roles=(asking(None, 500),)))) == []


def test_waiting_for_longer_than_a_step_is_not_known() -> None:
    assert data_share([waiting(2.0)]) is None
    assert data_share([waiting(2.0), waiting(0.25)]) == 0.25
