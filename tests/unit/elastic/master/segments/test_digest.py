"""The cuts between segments, and what a segment holds."""

import itertools
import math
import random
import statistics
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.elastic.master.segments.digest import (
    NO_MOMENTS,
    Instant,
    Moments,
    SegmentDigest,
    WindowMoments,
    WorldMembers,
)
from gangline.elastic.progress import ReportedShape, StepTimes
from gangline.elastic.protocol.messages import GoodputReport, Heartbeat, NodeReport

EPOCH_MS = 1_700_000_000_000


@dataclass
class Training:
    """A simulated job of two nodes with four processes each, one heartbeat a second."""

    step_s: float = 0.5
    reports: bool = True
    """False for a script that reports only step numbers."""
    values: dict[str, Any] = field(default_factory=dict)
    """Fields of the nodes' reports."""
    world: WorldMembers = field(default_factory=lambda: WorldMembers(1, 7, 8, {7: 0, 9: 1}))
    attempt: int = 0
    now: float = 100.0
    clock_ms: int = EPOCH_MS
    step: float = 0.0
    timed: int = 0
    parts: dict[str, float] = field(default_factory=dict)
    restarts: int = 0
    known: tuple[int, int] = (-1, -1)

    def __post_init__(self) -> None:
        self.digest = SegmentDigest(
            lambda: GoodputReport(1.0, 1.0, dict(self.parts), restarts=self.restarts), self.known
        )
        self.values = {"batch_size": 8, "accumulation": 2, "global_batch": 128, **self.values}

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1
            self.clock_ms += 1000
            self.step += 1 / self.step_s
            self.timed = int(self.step)
            self.beat()

    def beat(self) -> None:
        for node in self.world.ranks:
            self.digest.observe(self.world, self.heartbeat(node), self.at())

    def at(self) -> Instant:
        return Instant(self.now, self.clock_ms)

    def heartbeat(self, node: int) -> Heartbeat:
        done = int(self.step)
        values = dict(self.values.get(node) or {})
        for name, value in self.values.items():
            if isinstance(name, str):
                values.setdefault(name, value)
        if self.reports and self.timed:
            values["step_times"] = StepTimes(self.timed, self.step_s, 0.01 * self.timed)
        report = NodeReport(pod=f"pod-{node}", **values) if self.reports else None
        return Heartbeat(
            node_id=node,
            round=self.world.round,
            attempt=self.attempt,
            step=done if done else None,
            first_step=1 if done else None,
            node=report if int(self.now) % 5 == 0 else None,
        )

    def restart(self, round_: int | None = None) -> None:
        if round_ is None:
            self.attempt += 1
        else:
            self.world = WorldMembers(round_, 7, 8, {7: 0, 9: 1})
            self.attempt = 0
        self.step, self.timed = 0.0, 0
        self.beat()


@pytest.fixture
def training() -> Training:
    made = Training()
    made.beat()
    return made


def test_warm_up_ends_after_twenty_steps_and_segments_after_five_minutes(
    training: Training,
) -> None:
    training.run(700)
    first, second, third = training.digest.segments
    assert [segment.quality for segment in (first, second, third)] == ["warm_up", "good", "good"]
    assert first.step_last is not None
    assert first.step_last >= 20
    assert (first.step_first, second.step_first) == (1, first.step_last + 1)
    assert first.until == second.since, "segments are contiguous"
    assert 300_000 <= second.until - second.since <= 306_000
    assert second.steps == (second.step_last or 0) - (second.step_first or 0) + 1


def test_warm_up_of_slow_steps_ends_after_a_minute() -> None:
    training = Training(step_s=20.0)
    training.beat()
    training.run(300)
    first, *_ = training.digest.segments
    assert first.quality == "warm_up"
    assert 2 <= first.steps <= 3


def test_segment_holds_settings_and_exact_moments(training: Training) -> None:
    training.values |= {"compute_s": 0.3, "sync_s": 0.1, "data_s": 0.0, "grad_sqr": 2.0,
                        "grad_var": 64.0, "device_model": "A100", "device_peak_bytes": (5, 9),
                        "model": ReportedShape(params=10)}  # fmt: skip
    training.values[9] = {"compute_s": 0.6, "grad_var": 32.0}
    training.run(400)
    segment = training.digest.segments[1]
    assert (segment.round, segment.nodes, segment.procs) == (1, 2, 8)
    assert (segment.micro_batch, segment.accumulation, segment.global_batch) == (8, 2, 128)
    assert (segment.device_model, segment.devices_per_node) == ("A100", 2)
    assert segment.memory_peak == {"A100": 9}
    times = segment.step_seconds
    assert times.count == segment.steps
    assert times.mean == pytest.approx(0.5)
    assert times.m2 == pytest.approx(0.01 * segment.steps, rel=1e-3)
    assert segment.compute_seconds == pytest.approx(0.45)
    assert (segment.sync_seconds, segment.data_seconds) == (0.1, 0.0)
    assert (segment.grad_sqr, segment.grad_var) == (2.0, 48.0)
    assert segment.slowest is not None
    assert (segment.slowest.name, segment.slowest.rank) == ("pod-9", 1)
    assert segment.slowest.factor == pytest.approx(0.6 / 0.45, rel=1e-5)
    assert training.digest.model == ReportedShape(params=10)


def test_unknown_values_stay_unknown() -> None:
    training = Training(reports=False)
    training.beat()
    training.run(400)
    segment = training.digest.segments[1]
    assert segment.micro_batch is segment.global_batch is segment.compute_seconds is None
    assert segment.grad_sqr is segment.devices_per_node is segment.slowest is None
    assert segment.step_seconds.mean == pytest.approx(0.5, rel=1e-3)
    assert segment.step_seconds.count <= segment.steps


@pytest.mark.parametrize("reports", [True, False])
def test_fast_steps_before_the_first_heartbeat_belong_to_the_warm_up(reports: bool) -> None:
    training = Training(step_s=0.01, reports=reports)
    training.run(20)
    (first,) = training.digest.segments
    assert (first.quality, first.step_first) == ("warm_up", 1)
    assert first.step_seconds.mean == pytest.approx(0.01)


def test_change_of_a_setting_ends_the_segment_and_its_steps_are_not_mixed(
    training: Training,
) -> None:
    training.run(102)
    training.values["batch_size"] = 16
    training.run(400)
    before, after = [segment for segment in training.digest.segments if segment.quality == "good"][
        :2
    ]
    assert (before.micro_batch, after.micro_batch) == (8, 16)
    assert (after.step_first or 0) > (before.step_last or 0) + 1, "the steps between are dropped"
    assert before.round == after.round


def test_restart_ends_the_segment_and_begins_a_warm_up(training: Training) -> None:
    training.run(100)
    training.parts, training.restarts = {"restarting": 12.0}, 1
    training.restart()
    training.run(100)
    qualities = [segment.quality for segment in training.digest.segments]
    assert qualities == ["warm_up", "good", "warm_up"]
    restarted = [segment.restarts for segment in training.digest.segments if segment.restarts]
    assert [(segment.count, segment.seconds) for segment in restarted] == [
        (1, {"restarting": 12.0})
    ]


def test_clock_that_jumps_disturbs_the_segment(training: Training) -> None:
    training.run(60)
    training.clock_ms += 3_600_000
    training.run(400)
    good = training.digest.segments[1]
    assert good.quality == "disturbed"
    assert good.until - good.since < 310_000, "the duration is that of the monotonic clock"


def test_lost_time_disturbs_a_good_segment(training: Training) -> None:
    training.run(60)
    training.parts = {"checkpoint": 100.0}
    training.run(400)
    assert training.digest.segments[1].quality == "disturbed"


def test_master_that_restarts_does_not_count_earlier_steps() -> None:
    training = Training(known=(1, 0))
    training.step, training.timed = 1000.0, 1000
    training.run(400)
    (segment,) = training.digest.segments
    assert segment.quality == "good"
    assert (segment.step_first or 0) > 1000
    assert segment.step_seconds.count == segment.steps


def test_late_heartbeats_of_an_attempt_that_ended_count_no_step_again(training: Training) -> None:
    training.run(100)
    training.digest.interrupt()
    training.run(100)
    training.digest.interrupt()
    segments = training.digest.segments
    steps = [(segment.step_first or 0, segment.step_last or 0) for segment in segments]
    assert all(before[1] < after[0] for before, after in itertools.pairwise(steps)), steps


@given(
    st.randoms(use_true_random=False),
    st.lists(
        st.sampled_from(["run", "restart", "world", "batch", "back", "jump", "idle"]), max_size=40
    ),
)
def test_laws_of_segments(rng: random.Random, events: list[str]) -> None:
    """Keys are unique, steps of a round and attempt are counted once, times are ordered."""
    training = Training(step_s=rng.choice([0.01, 0.4, 3.0, 90.0]), reports=rng.random() < 0.7)
    training.digest.segments = _Unlimited()
    round_, steps_made = 1, 0.0
    for event in events:
        match event:
            case "restart":
                training.restart()
            case "world":
                round_ += 1
                training.restart(round_)
            case "batch":
                training.values["batch_size"] = rng.randint(1, 64)
            case "back":
                training.step = max(0.0, training.step - rng.randint(0, 50))
            case "jump":
                training.clock_ms += rng.randint(-5_000_000, 5_000_000)
            case "idle":
                training.digest.interrupt()
            case _:
                seconds = rng.randint(1, 700)
                steps_made += seconds / training.step_s
                training.run(seconds)
    training.digest.interrupt()
    segments = list(training.digest.segments)
    keys = {(segment.round, segment.since) for segment in segments}
    assert len(keys) == len(segments) == training.digest.closed
    assert sum(segment.steps for segment in segments) <= steps_made + len(events) + 1
    for segment in segments:
        assert segment.steps > 0
        assert segment.until >= segment.since
        assert segment.step_seconds.count > 0
        assert segment.step_seconds.mean > 0
        assert segment.step_seconds.m2 >= 0


class _Unlimited(list[Any]):
    """All segments, in place of the last twenty."""


SECONDS = st.floats(1e-5, 1e4)


def of(values: list[float]) -> Moments:
    total = NO_MOMENTS
    for value in values:
        total = total.merge(Moments(1, value))
    return total


def same(one: Moments, other: Moments, scale: float) -> bool:
    """Equal within the precision of sums over ``scale``, the sum of squares."""
    return (
        one.count == other.count
        and math.isclose(one.mean, other.mean, rel_tol=1e-9, abs_tol=1e-12 * math.sqrt(scale))
        and math.isclose(one.m2, other.m2, rel_tol=1e-6, abs_tol=1e-9 * scale)
    )


@given(st.lists(SECONDS, min_size=2, max_size=40))
def test_moments_are_mean_and_variance(values: list[float]) -> None:
    moments, scale = of(values), sum(value**2 for value in values)
    expected = Moments(
        len(values), statistics.fmean(values), statistics.variance(values) * (len(values) - 1)
    )
    assert same(moments, expected, scale)


@given(st.lists(SECONDS, max_size=30), st.lists(SECONDS, max_size=30))
def test_merging_is_commutative_and_subtracting_is_its_inverse(
    first: list[float], second: list[float]
) -> None:
    scale = sum(value**2 for value in (*first, *second))
    both = of(first).merge(of(second))
    assert same(both, of(second).merge(of(first)), scale)
    assert same(both, of([*first, *second]), scale)
    if second:
        assert same(both.without(of(first)), of(second), scale)
    assert both.without(both) == NO_MOMENTS
    assert of(first).without(both) in (NO_MOMENTS, of(first))


@given(st.lists(st.tuples(st.integers(1, 500), SECONDS), min_size=2, max_size=30))
def test_windows_have_the_mean_of_all_steps_and_count_windows(
    windows: list[tuple[int, float]],
) -> None:
    total = WindowMoments()
    for steps, seconds in windows:
        total = total.add(steps, seconds)
    moments = total.moments()
    expected = sum(seconds for _, seconds in windows) / sum(steps for steps, _ in windows)
    assert math.isclose(moments.mean, expected, rel_tol=1e-9)
    assert moments.count == len(windows)
    assert moments.m2 >= 0
