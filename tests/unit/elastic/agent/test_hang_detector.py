"""Hang detection, and the ranks to blame."""

import pytest

from gangline.api.failure import Remedy
from gangline.elastic.agent.hang_detector import (
    HangDetector,
    HangPhase,
    LearnedTimeout,
    ProcessActivity,
    ProgressSample,
    RankStack,
    StackLocation,
    hang_failure,
    have_worked,
    parse_stack_location,
)
from gangline.elastic.agent.settings import HangSettings

STACKS = """Thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait

Thread 0x00007e (most recent call first):
  File "/venv/torch/distributed/distributed_c10d.py", line 4811 in barrier
  File "train.py", line 7 in <module>
"""
WAITS = StackLocation("/venv/torch/distributed/distributed_c10d.py", 4811, "barrier")
LOADS = StackLocation("/home/me/train.py", 30, "load_batch")


def test_the_main_thread_is_the_last_in_the_stacks():
    assert parse_stack_location(STACKS) == WAITS
    assert WAITS.is_waiting
    assert not LOADS.is_waiting


@pytest.mark.parametrize(
    ("after", "works"),
    [
        pytest.param({7: ProcessActivity(5, 90, 41)}, False, id="waits, and wakes up at times"),
        pytest.param({7: ProcessActivity(6, 90, 40)}, True, id="computes"),
        pytest.param({7: ProcessActivity(5, 91, 40)}, True, id="reads"),
        pytest.param({7: ProcessActivity(5, 90, 60)}, True, id="waits for storage in turns"),
        pytest.param({7: ProcessActivity(5, 90, 40, is_runnable=True)}, True, id="gets no time"),
        pytest.param({}, True, id="has ended"),
    ],
)
def test_child_works_although_its_parent_waits(after, works):
    assert have_worked({7: ProcessActivity(5, 90, 40)}, after, seconds=1.0) is works


@pytest.mark.parametrize("text", ["", "Thread 0x1 (most recent call first):\n"])
def test_no_stack_is_no_place(text):
    assert parse_stack_location(text) is None


def test_steps_are_progress_and_processor_time_then_is_none():
    watch = HangDetector(HangSettings(10.0), since=100.0)
    assert not watch.is_hung([ProgressSample(5.0, 0.0), ProgressSample(None, 0.0)], 105.0)
    assert not watch.is_hung([ProgressSample(5.0, 50.0), ProgressSample(None, 0.0)], 115.0)
    assert watch.is_hung([ProgressSample(5.0, 99.0), ProgressSample(None, 0.0)], 115.1)


def test_a_clock_that_jumps_is_no_hang_and_hides_none():
    for jump in (3600.0, -3600.0):
        watch = HangDetector(HangSettings(10.0), since=100.0)
        assert not watch.is_hung([ProgressSample(5000.0, 0.0)], 105.0)
        assert not watch.is_hung([ProgressSample(5000.0, 0.0)], 114.0)
        assert not watch.is_hung([ProgressSample(5000.0 + jump, 0.0)], 114.5)
        assert watch.is_hung([ProgressSample(5000.0 + jump, 0.0)], 125.0)


def test_without_steps_processor_time_is_progress():
    watch = HangDetector(HangSettings(10.0), since=100.0)
    busy_s = 0.0
    for second in range(101, 130):
        busy_s += 0.5
        assert not watch.is_hung([ProgressSample(None, busy_s)], float(second))
    assert not watch.is_hung([ProgressSample(None, busy_s + 0.001)], 139.0)
    assert watch.is_hung([ProgressSample(None, busy_s + 0.002)], 139.5)


def test_one_idle_worker_is_a_suspect_until_it_is_dismissed():
    watch = HangDetector(HangSettings(10.0), since=100.0)
    for second in range(100, 112):
        busy_s = 0.5 * (second - 100)
        samples = [ProgressSample(None, busy_s), ProgressSample(None, min(busy_s, 0.5))]
        assert not watch.is_hung(samples, float(second))
        assert not watch.idle_workers(float(second))
    assert not watch.is_hung([ProgressSample(None, 7.0), ProgressSample(None, 0.5)], 112.0)
    assert watch.idle_workers(112.0) == {1}
    watch.dismiss({1}, 112.0)
    assert not watch.idle_workers(112.5)


def test_busy_script_that_reports_rare_saves_only_is_no_hang_and_an_idle_one_is():
    watch = HangDetector(HangSettings(10.0), since=100.0)
    busy_s = 0.0
    for second in range(100, 200):
        busy_s += 0.5
        saved_at = float(second // 30)
        assert not watch.is_hung([ProgressSample(saved_at, busy_s, lacks_steps=True)], second)
    idle = ProgressSample(6.0, busy_s, lacks_steps=True)
    assert not watch.is_hung([idle], 209.0)
    assert watch.is_hung([idle], 210.5)
    assert not watch.times.reports_steps


def test_frequent_saves_count_as_steps():
    watch = HangDetector(HangSettings(10.0), since=100.0)
    for second in range(100, 120):
        sample = ProgressSample(float(second // 4), float(second), lacks_steps=True)
        assert not watch.is_hung([sample], float(second))
    busy = [ProgressSample(29.0, float(second), lacks_steps=True) for second in range(120, 140)]
    hangs_at = [watch.is_hung([sample], 120.0 + second) for second, sample in enumerate(busy)]
    assert hangs_at.index(True) == 7


def test_busy_save_that_takes_too_long_is_a_hang_without_steps_too():
    watch = HangDetector(LIMITS, since=100.0)
    saves = [ProgressSample(1.0, float(second), "checkpoint", lacks_steps=True)
             for second in range(40)]  # fmt: skip
    hangs_at = [watch.is_hung([sample], 100.0 + second) for second, sample in enumerate(saves)]
    assert hangs_at.index(True) == 31
    assert watch.reported_phase is HangPhase.CHECKPOINT


def test_idle_times_are_learned_without_reports():
    settings, times = HangSettings(1800.0, is_learned=True), LearnedTimeout()
    watch = HangDetector(settings, since=0.0, times=times)
    # Ten seconds of work, then forty of waiting for data.
    for second in range(0, 500, 10):
        watch.is_hung([ProgressSample(None, 10.0 * (second // 50))], float(second))
    assert watch.limit_s == 500.0


def test_reports_take_precedence_over_idle_workers():
    watch = HangDetector(HangSettings(10.0), since=100.0)
    for second in range(100, 130):
        samples = [ProgressSample(float(second), 0.0, has_steps=True), ProgressSample(None, 0.0)]
        assert not watch.is_hung(samples, float(second))
        assert not watch.idle_workers(float(second))


LIMITS = HangSettings(10.0, first_step_s=50.0, evaluation_s=100.0, checkpoint_s=30.0)


@pytest.mark.parametrize(
    ("sample", "phase", "limit_s"),
    [
        pytest.param(ProgressSample(1.0, 0.0), HangPhase.FIRST_STEP, 50.0, id="first step"),
        pytest.param(ProgressSample(1.0, 0.0, "", True), HangPhase.STEP, 10.0, id="step"),
        pytest.param(
            ProgressSample(1.0, 0.0, "evaluation", True), HangPhase.EVALUATION, 100.0, id="eval"
        ),
        pytest.param(
            ProgressSample(1.0, 0.0, "checkpoint", True), HangPhase.CHECKPOINT, 30.0, id="save"
        ),
        pytest.param(
            ProgressSample(1.0, 0.0, "lunch", True), HangPhase.STEP, 10.0, id="an unknown phase"
        ),
    ],
)
def test_each_phase_has_its_own_timeout(sample, phase, limit_s):
    watch = HangDetector(LIMITS, since=100.0)
    assert not watch.is_hung([sample], 100.0)
    assert not watch.is_hung([sample], 100.0 + limit_s)
    assert watch.is_hung([sample], 100.5 + limit_s)
    assert (watch.reported_phase, watch.limit_s) == (phase, limit_s)


def test_file_that_is_touched_twice_without_a_step_is_in_its_steps():
    watch = HangDetector(LIMITS, since=100.0)
    assert not watch.is_hung([ProgressSample(1.0, 0.0)], 100.0)
    assert not watch.is_hung([ProgressSample(2.0, 0.0)], 101.0)
    assert watch.phase is HangPhase.STEP
    assert watch.is_hung([ProgressSample(2.0, 0.0)], 111.5)


def test_busy_start_hangs_only_if_a_limit_was_requested_and_the_script_is_known_to_report():
    for times, hangs in ((LearnedTimeout(), False), (LearnedTimeout(reports_steps=True), True)):
        watch = HangDetector(HangSettings(10.0, start_s=20.0), since=100.0, times=times)
        hangs_at = [
            watch.is_hung([ProgressSample(None, float(second))], float(second))
            for second in range(100, 140)
        ]
        assert any(hangs_at) == hangs
        assert not any(hangs_at[:21])


def test_timeout_of_steps_is_learned_and_survives_a_restart():
    settings, times = HangSettings(1800.0, is_learned=True), LearnedTimeout()
    watch = HangDetector(settings, since=0.0, times=times)
    for step in range(20):
        assert not watch.is_hung([ProgressSample(float(step), 0.0, "", True)], step * 6.0)
    assert watch.limit_s == 60.0
    again = HangDetector(settings, since=200.0, times=times)
    assert not again.is_hung([ProgressSample(50.0, 0.0, "", True)], 200.0)
    assert again.is_hung([ProgressSample(50.0, 0.0, "", True)], 261.0)


def test_time_of_an_evaluation_is_no_step_time():
    settings, times = HangSettings(1800.0, is_learned=True), LearnedTimeout()
    watch = HangDetector(settings, since=0.0, times=times)
    for step in range(20):
        watch.is_hung([ProgressSample(float(step), 0.0, "", True)], float(step))
    watch.is_hung([ProgressSample(20.0, 0.0, "evaluation", True)], 20.0)
    watch.is_hung([ProgressSample(21.0, 0.0, "", True)], 900.0)
    watch.is_hung([ProgressSample(22.0, 0.0, "", True)], 901.0)
    assert watch.limit_s == 30.0


def seen(rank: int, at: StackLocation | None, node: str = "", step: int | None = None) -> RankStack:
    return RankStack.from_location(rank, node, at, step)


def test_the_rank_that_did_not_arrive_is_named():
    failure = hang_failure([seen(0, WAITS), seen(1, LOADS), seen(2, WAITS)], 60)
    assert failure.remedy is not Remedy.STOP
    assert "rank 1 is at /home/me/train.py:30 in load_batch" in failure.message
    assert failure.message.endswith("waiting for it: rank 0, 2")


def test_a_rank_without_a_stack_did_not_arrive():
    message = hang_failure([seen(0, WAITS, "a"), seen(1, None, "b")], 60).message
    assert message == "rank 1 on b is at an unknown location (no stack); waiting for it: rank 0"


def test_rank_without_stack_is_blamed_if_no_rank_waits():
    message = hang_failure([seen(0, LOADS, "a", 7), seen(1, None, "b")], 60).message
    assert message.startswith("rank 1 on b is at an unknown location (no stack)")


def test_mute_rank_is_blamed_at_any_location():
    for others in (WAITS, LOADS):
        mute = RankStack.from_location(1, "b", others, 9, is_mute=True)
        message = hang_failure([seen(0, others, "a", 7), mute], 60).message
        assert message.startswith(f"rank 1 on b is at {others} and does not answer, after step 9")


def test_all_are_listed_when_all_wait_or_none_does():
    for at in (WAITS, LOADS):
        message = hang_failure([seen(0, at), seen(1, at)], 60).message
        assert "rank 0 is at" in message
        assert "rank 1 is at" in message


def test_when_all_wait_those_behind_are_named():
    views = [seen(0, WAITS, step=42), seen(1, WAITS, step=41), seen(2, WAITS, step=42)]
    message = hang_failure(views, 60).message
    assert message.startswith("rank 1 is at")
    assert message.endswith("after step 41; waiting for it: rank 0, 2")


def test_message_about_a_thousand_ranks_is_short():
    views = [seen(rank, LOADS if rank == 7 else WAITS) for rank in range(1000)]
    message = hang_failure(views, 60).message
    assert message.startswith("rank 7 is at")
    assert message.endswith("and 983 more")
    assert len(message) < 4096
