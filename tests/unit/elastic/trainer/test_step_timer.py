"""Times of steps on a virtual clock."""

import pytest

from gangline.elastic.trainer.training_reporter import StepTimer


class Clock:
    """A clock of a processor, or of a device whose work is done later."""

    def __init__(self) -> None:
        self.now, self.done_until = 0.0, float("inf")

    def mark(self) -> float:
        return self.now

    def seconds(self, begin: float, end: float) -> float | None:
        return end - begin if end <= self.done_until else None


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def timer(clock: Clock) -> StepTimer:
    return StepTimer(clock, lambda: clock.now)


def step(
    timer: StepTimer, clock: Clock, *, data: float = 0.1, compute: float = 0.5, sync: float = 0.25,
    micro_batches: int = 1, outside: float = 0.0,
) -> None:  # fmt: skip
    """One step, whose backward has three gradients."""
    for number in range(micro_batches):
        is_last = number == micro_batches - 1
        clock.now += data
        timer.waited(data)
        timer.begin_micro_batch(is_first=number == 0)
        for _ in range(3):
            clock.now += compute / 3
            if timer.is_sampling and is_last:
                timer.gradient()
        if is_last:
            clock.now += sync
            if timer.is_sampling:
                timer.backward_ended()
        timer.end_micro_batch(is_last=is_last)
    clock.now += outside


@pytest.fixture
def distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)


@pytest.mark.usefixtures("distributed")
def test_step_is_split_into_computing_exchange_and_waiting(timer: StepTimer, clock: Clock) -> None:
    for _ in range(5):
        step(timer, clock, micro_batches=2)
    times, shares = timer.step_times(), timer.take_shares()
    assert times is not None
    assert (times.count, times.mean_s) == (4, pytest.approx(1.45))
    assert times.m2 == pytest.approx(0.0)
    assert shares.compute_s == pytest.approx(1.0)
    assert shares.sync_s == pytest.approx(0.25)
    assert shares.data_s == pytest.approx(0.2)
    after = timer.take_shares()
    assert after.compute_s is after.sync_s is after.data_s is None


def test_single_process_exchanges_nothing(timer: StepTimer, clock: Clock) -> None:
    for _ in range(3):
        step(timer, clock, sync=0.0)
    shares = timer.take_shares()
    assert shares.compute_s == pytest.approx(0.5)
    assert shares.sync_s is None


def test_pauses_and_the_first_step_of_a_pass_are_no_step_time(
    timer: StepTimer, clock: Clock
) -> None:
    for number in range(10):
        step(timer, clock, sync=0.0, outside=60.0 if number == 5 else 0.0)
    clock.now += 500.0
    timer.begin_pass()
    step(timer, clock, sync=0.0)
    times = timer.step_times()
    assert times is not None
    assert (times.count, times.mean_s) == (9, pytest.approx(0.6))


def test_steps_faster_than_the_sampling_are_taken_apart_seldom(
    timer: StepTimer, clock: Clock
) -> None:
    sampled = 0
    for _ in range(1000):
        clock.now += 0.001
        timer.begin_micro_batch(is_first=True)
        sampled += timer.is_sampling
        timer.end_micro_batch(is_last=True)
    assert 8 <= sampled <= 11


@pytest.mark.usefixtures("distributed")
def test_device_that_is_not_done_is_not_waited_for(timer: StepTimer, clock: Clock) -> None:
    step(timer, clock)
    timer.take_shares()
    clock.done_until = clock.now
    for _ in range(3):
        step(timer, clock)
    assert timer.take_shares().compute_s is None
    clock.done_until = float("inf")
    step(timer, clock)
    assert timer.take_shares().compute_s == pytest.approx(0.5)


@pytest.mark.usefixtures("distributed")
def test_backward_with_another_number_of_gradients_has_no_exchange(
    timer: StepTimer, clock: Clock
) -> None:
    step(timer, clock)
    timer.take_shares()
    clock.now += 1.0
    timer.begin_micro_batch(is_first=True)
    timer.gradient()
    timer.backward_ended()
    timer.end_micro_batch(is_last=True)
    assert timer.take_shares().sync_s is None
