"""Hang detection, and the ranks to blame."""

import pytest

from gangline.api.failure import Remedy
from gangline.elastic.agent.hang.detector import (
    HangDetector,
    ProgressSample,
    RankStack,
    StackLocation,
    hang_failure,
    parse_stack_location,
)

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


@pytest.mark.parametrize("text", ["", "Thread 0x1 (most recent call first):\n"])
def test_no_stack_is_no_place(text):
    assert parse_stack_location(text) is None


def test_steps_are_progress_and_processor_time_then_is_none():
    watch = HangDetector(10.0, since=100.0)
    assert not watch.is_hung([ProgressSample(5.0, 0.0), ProgressSample(None, 0.0)], 105.0)
    assert not watch.is_hung([ProgressSample(5.0, 50.0), ProgressSample(None, 0.0)], 115.0)
    assert watch.is_hung([ProgressSample(5.0, 99.0), ProgressSample(None, 0.0)], 115.1)


def test_a_clock_that_jumps_is_no_hang_and_hides_none():
    for jump in (3600.0, -3600.0):
        watch = HangDetector(10.0, since=100.0)
        assert not watch.is_hung([ProgressSample(5000.0, 0.0)], 105.0)
        assert not watch.is_hung([ProgressSample(5000.0, 0.0)], 114.0)
        assert not watch.is_hung([ProgressSample(5000.0 + jump, 0.0)], 114.5)
        assert watch.is_hung([ProgressSample(5000.0 + jump, 0.0)], 125.0)


def test_without_steps_processor_time_is_progress():
    watch = HangDetector(10.0, since=100.0)
    busy_s = 0.0
    for second in range(101, 130):
        busy_s += 0.5
        assert not watch.is_hung([ProgressSample(None, busy_s)], float(second))
    assert not watch.is_hung([ProgressSample(None, busy_s + 0.001)], 139.0)
    assert watch.is_hung([ProgressSample(None, busy_s + 0.002)], 139.5)


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
