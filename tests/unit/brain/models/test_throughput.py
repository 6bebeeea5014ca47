"""The throughput model, against jobs whose step times are known."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brain_records import a_segment, not_none
from gangline.api.jobs.training_facts import DISTURBED, WARM_UP, StepSeconds
from gangline.brain.models.goodput import GoodputModel
from gangline.brain.models.throughput import (
    HIGH,
    LOW,
    NO_PRIOR,
    Configuration,
    Prior,
    StepObservation,
    ThroughputModel,
    fit_throughput,
    observations,
    step_times,
)

PER_NODE = 8


def at(procs: int, micro: float = 32, accumulation: int = 1) -> Configuration:
    return Configuration(-(-procs // PER_NODE), procs, micro, accumulation)


def true_parts(c: Configuration) -> tuple[float, float]:
    compute = 0.05 + 0.01 * c.micro_batch
    if c.procs == 1:
        return compute, 0.0
    volume = 2 * (c.procs - 1) / c.procs
    return compute, 0.02 + (0.05 if c.nodes == 1 else 0.15) * volume


def true_step(c: Configuration, overlap: float = 1.0, fixed: float = 0.01) -> float:
    compute, sync = true_parts(c)
    joined = (compute**overlap + sync**overlap) ** (1 / overlap)
    return fixed + (c.accumulation - 1) * compute + joined


def measured(
    c: Configuration, *, parts: bool, overlap: float = 1.0, noise: float = 0.0, seed: int = 0
) -> StepObservation:
    factor = float(np.exp(np.random.default_rng([seed, c.procs]).normal(0, noise)))
    compute, sync = true_parts(c)
    return StepObservation(
        c,
        200,
        true_step(c, overlap) * factor,
        compute * c.accumulation * factor if parts else None,
        sync * factor if parts else None,
    )


def fitted(data: Sequence[StepObservation], prior: Prior = NO_PRIOR) -> ThroughputModel:
    return not_none(fit_throughput(data, prior))


def ends(model: ThroughputModel, c: Configuration) -> tuple[float, float]:
    """The range of 80 % of the seconds of a step."""
    low, high = np.quantile(model.samples([c])[1][0], [LOW, HIGH])
    return float(low), float(high)


def width(model: ThroughputModel, c: Configuration) -> float:
    low, high = ends(model, c)
    return float(np.log(high / low))


VARIED = [at(1), at(2, 64), at(4, 16), at(8), at(16, 16), at(32, 64, 2), at(4, 32, 4)]


@pytest.mark.parametrize(
    ("overlap", "parts"), [(1.0, True), (2.0, True), (4.0, True), (1.0, False)]
)
def test_exact_times_are_found_again(overlap: float, parts: bool) -> None:
    model = fitted([measured(c, parts=parts, overlap=overlap) for c in VARIED])
    assert model.gamma == pytest.approx(overlap)
    for c in [at(6), at(12, 24), at(24, 48, 3), at(64)]:
        assert model.step_time(c) == pytest.approx(true_step(c, overlap), rel=0.01)


def test_without_an_observation_there_is_no_model() -> None:
    assert fit_throughput([]) is None


@pytest.mark.parametrize("parts", [True, False])
def test_w6_one_size_claims_nothing_about_others(parts: bool) -> None:
    model = not_none(
        fit_throughput([measured(at(4), parts=parts, seed=i, noise=0.02) for i in range(20)])
    )
    assert not model.extrapolated(at(4))
    assert model.step_time(at(4)) == pytest.approx(true_step(at(4)), rel=0.03)
    for other in (at(2), at(5), at(8), at(16), at(4, 16), at(4, 32, 2)):
        assert model.extrapolated(other)
    # At a fixed global batch, twice the size may bring everything or nothing.
    goodput = GoodputModel(model, base_batch=128, phi=1000.0)
    _, low, high = goodput.gain(at(8, 16), at(4, 32))
    assert low < 0.15
    assert high > 0.6


def test_w7_single_micro_batch_does_not_invent_its_fixed_part() -> None:
    data = [measured(at(n), parts=True, seed=n) for n in (2, 4, 8)]
    model = fitted(data)
    compute = true_parts(at(2))[0]
    for other in (8.0, 64.0):
        low, high = ends(model, at(4, other))
        sync = true_step(at(4)) - compute
        assert low <= sync + min(compute, compute * other / 32) * 1.001
        assert high >= sync + max(compute, compute * other / 32) * 0.999
        assert model.extrapolated(at(4, other))
    # A second micro-batch decides.
    model = fitted([*data, measured(at(4, 64), parts=True)])
    assert model.step_time(at(4, 48)) == pytest.approx(true_step(at(4, 48)), rel=0.01)
    assert width(model, at(4, 48)) < np.log(1.2)


def test_sizes_on_several_nodes_are_extrapolated_from_one_node() -> None:
    data = [measured(at(n, 16 * (1 + n % 3)), parts=True) for n in (2, 3, 4, 6, 8)]
    slow = fitted(data, Prior(between_nodes=8.0))
    fast = fitted(data, Prior(between_nodes=1.0))
    assert slow.extrapolated(at(16))
    assert slow.step_time(at(16)) > fast.step_time(at(16)) > slow.step_time(at(8))
    assert width(slow, at(64)) > width(slow, at(16))


def test_ranges_widen_with_each_doubling_beyond_the_largest_world() -> None:
    sizes = [at(n, 16 * (1 + n % 3)) for n in (8, 12, 16, 24, 32)]
    data = [measured(c, parts=True, noise=0.05, seed=s) for c in sizes for s in range(4)]
    model = fitted(data)
    widths = [width(model, at(n)) for n in (32, 64, 256)]
    assert widths[1] > 2.2 * widths[0]
    assert widths[2] > 5 * widths[1]


def test_ranges_of_noisier_data_are_wider() -> None:
    def width_of(noise: float) -> float:
        data = [
            measured(c, parts=True, noise=noise, seed=seed) for c in VARIED for seed in range(4)
        ]
        model = fitted(data)
        return width(model, at(12))

    assert width_of(0.15) > 2 * width_of(0.02)


def test_fit_is_deterministic_and_does_not_depend_on_the_order() -> None:
    data = [measured(c, parts=True, noise=0.05, seed=s) for c in VARIED for s in range(3)]
    first, again, backwards = fitted(data), fitted(data), fitted(data[::-1])
    assert (first.samples([at(12)])[1] == again.samples([at(12)])[1]).all()
    assert backwards.step_time(at(12)) == pytest.approx(first.step_time(at(12)))


@settings(max_examples=15, deadline=None)
@given(st.floats(1e-3, 1e3), st.sampled_from([0.5, 2.0, 8.0]), st.booleans())
def test_fit_follows_the_units_of_time_and_of_samples(
    seconds: float, samples: float, parts: bool
) -> None:
    def scaled(c: Configuration) -> Configuration:
        return c._replace(micro_batch=c.micro_batch * samples)

    data = [measured(c, parts=parts, noise=0.05, seed=1) for c in VARIED]
    other = [
        replace(
            observation,
            configuration=scaled(observation.configuration),
            step_s=observation.step_s * seconds,
            compute_s=None if observation.compute_s is None else observation.compute_s * seconds,
            sync_s=None if observation.sync_s is None else observation.sync_s * seconds,
        )
        for observation in data
    ]
    model, changed = fitted(data), fitted(other)
    for c in (at(12), at(3, 20), at(64, 16)):
        expected = seconds * model.step_time(c)
        assert changed.step_time(scaled(c)) == pytest.approx(expected, rel=1e-6)


def test_newer_observations_count_more() -> None:
    old = [replace(measured(at(4), parts=False), age_days=28, step_s=2.0) for _ in range(5)]
    new = [replace(measured(at(4), parts=False), step_s=1.0) for _ in range(5)]
    model = fitted([*old, *new])
    assert model.step_time(at(4)) < 1.1


def test_only_good_segments_with_a_known_batch_are_fitted() -> None:
    good = a_segment(
        until=10, nodes=1, procs=4, steps=50, step_seconds=StepSeconds(1, 2.0), compute_seconds=1.0
    )

    bad: list[dict[str, object]] = [
        {"quality": WARM_UP},
        {"quality": DISTURBED},
        {"micro_batch": None},
    ]
    assert observations([msgspec.structs.replace(good, **changes) for changes in bad], 10) == []
    (kept,) = observations([good], 10 + 86_400_000)
    assert kept == StepObservation(Configuration(1, 4, 8.0, 1), 50, 2.0, 1.0, None, 1.0)


@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 8), st.floats(0.5, 64), st.integers(1, 4)),
        min_size=1,
        max_size=12,
    ),
    st.floats(1, 10),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_times_of_many_configurations_are_those_of_each(
    sizes: list[tuple[int, int, float, int]], gamma: float, seed: int
) -> None:
    """The formula of the model, written out for one configuration and one row at a time."""
    coefficients = np.abs(np.random.default_rng(seed).normal(0, 0.1, (5, 8)))
    places = [
        Configuration(n, n * node_procs, micro, steps) for n, node_procs, micro, steps in sizes
    ]
    together = step_times(coefficients, gamma, places)
    for row, c in zip(together, places, strict=True):
        for value, (a0, a1, r0, r1, x0, x1, x2, fixed) in zip(row, coefficients, strict=True):
            one = a0 + a1 * c.micro_batch
            volume = 2 * (c.procs - 1) / c.procs
            sync = 0.0
            if c.nodes > 1:
                sync = x0 + x1 * volume + x2 * max(c.nodes - 2, 0)
            elif c.procs > 1:
                sync = r0 + r1 * volume
            joined = (one**gamma + sync**gamma) ** (1 / gamma)
            expected = fixed + (c.accumulation - 1) * one + joined
            assert value == pytest.approx(expected, rel=1e-9)
