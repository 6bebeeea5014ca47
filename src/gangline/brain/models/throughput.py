"""Throughput of all-reduce training by its size: a model of the time of a step, fitted to segments.

For n nodes, k processes, micro-batch m and s micro-steps per optimizer step::

    T_c(m)   = a0 + a1 m                                   one micro-step of computing
    T_x(n,k) = 0                                           k = 1
             = r0 + r1 q                                   n = 1, k > 1
             = x0 + x1 q + x2 max(n - 2, 0)                n > 1,   with q = 2 (k - 1) / k
    T_step   = o + (s - 1) T_c + (T_c^g + T_x^g)^(1/g)     1 <= g <= 10

All coefficients are non-negative. q is the volume of a ring all-reduce in units of the gradients;
g says how far computing hides the exchange, and the form of the sum is that of Pollux (OSDI 2021,
section 3.2). A prediction is a range of 80 %, because advice must not rest on a number that the
data does not support; settings outside of what was run are marked as extrapolated.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gangline.api.jobs.training_facts import GOOD, SegmentFacts
from gangline.brain.models.nnls import Array

DAY_MS = 86_400_000
_HALF_LIFE_DAYS = 7.0
LOW, HIGH = 0.1, 0.9
"""Percentiles at the ends of a range."""
DRAWS = 200
SHORTEST_STEP_S, LONGEST_STEP_S = 1e-5, 1e6
"""Shorter steps, and longer ones than eleven days, are no measurement."""
WIDER_PER_DOUBLING = 1.5
_MISSED = 0.4
"""Part of the left-out error that is the model's: the rest is the noise of what was left out, and
that it was further away from the rest of the data than most questions are. Calibrated by
``benchmarks.brain.throughput`` so that ranges of 80 % contain 80 %."""

A0, A1, R0, R1, X0, X1, X2, FIXED = range(8)
"""Columns of the coefficients."""
COMPUTE, INTRA, INTER = [A0, A1], [R0, R1], [X0, X1, X2]


class Configuration(NamedTuple):
    """A size of a job. A tuple, because it is the key of much that is remembered."""

    nodes: int
    procs: int
    micro_batch: float
    accumulation: int = 1

    @property
    def global_batch(self) -> float:
        return self.procs * self.micro_batch * self.accumulation


@dataclass(frozen=True, slots=True)
class StepObservation:
    """Steps of one configuration, means in seconds."""

    configuration: Configuration
    steps: int
    step_s: float
    compute_s: float | None = None
    """All micro-steps of a step together."""
    sync_s: float | None = None
    age_days: float = 0.0


@dataclass(frozen=True, slots=True)
class Prior:
    """What is expected of regimes that no observation covers."""

    fixed_share: float = 0.5
    """Part of a micro-step that does not depend on the micro-batch; Pollux assumes a half."""
    between_nodes: float = 4.0
    """Bandwidth within a node over that between nodes, as ``sizing.hardware`` knows it."""
    exchange_s: float | None = None
    """Seconds of an exchange within a node with q = 2, from ``sizing.steptime``."""


NO_PRIOR = Prior()


@dataclass(frozen=True, slots=True)
class SeenRange:
    """The settings that were observed: within them a prediction is no extrapolation."""

    procs: tuple[int, int]
    nodes: tuple[int, int]
    micro_batch: tuple[float, float]
    intra: bool
    """Several processes on one node were seen."""
    configurations: frozenset[Configuration]

    def doublings(self, at: Configuration) -> float:
        """How far a configuration is outside, in doublings; 0 if it is inside."""
        low, high = self.procs
        apart = max(math.log2(at.procs / high), math.log2(low / at.procs), 0.0)
        least, most = self.micro_batch
        batch = max(math.log2(at.micro_batch / most), math.log2(least / at.micro_batch), 0.0)
        unseen = at.nodes > 1 >= self.nodes[1]
        unseen = unseen or (at.nodes == 1 and at.procs > 1 and not self.intra)
        nodes = max(math.log2(at.nodes / self.nodes[1]), 0.0) if self.nodes[1] > 1 else 0.0
        return max(apart, batch, nodes, 1.0 if unseen else 0.0)


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds of a step: the most likely value and a range of 80 %."""

    step_s: float
    low: float
    high: float
    extrapolated: bool


@dataclass(frozen=True, slots=True)
class ThroughputModel:
    """A fitted model."""

    coefficients: Array
    gamma: float
    covariance: Array
    alternatives: tuple[Array, ...]
    """Other coefficients that the data does not exclude: where a column was never varied."""
    error: float
    """Root mean square of the logarithmic errors at configurations left out of the fit; where
    fewer than three were observed, an assumed value."""
    seen: SeenRange
    observations: int
    draws: Array
    """200 sets of coefficients, drawn with a fixed seed."""

    def step_time(self, at: Configuration) -> float:
        """Return the most likely seconds of a step."""
        return float(step_times(self.coefficients[None, :], self.gamma, at)[0])

    def predict(self, at: Configuration) -> Prediction:
        """Predict the seconds of a step."""
        middle = self.step_time(at)
        low, high = np.quantile(self.sample(at), [LOW, HIGH])
        others = [float(step_times(c[None, :], self.gamma, at)[0]) for c in self.alternatives]
        return Prediction(
            step_s=middle,
            low=float(min(low, middle, *others)),
            high=float(max(high, middle, *others)),
            extrapolated=self.extrapolated(at),
        )

    def sample(self, at: Configuration) -> Array:
        """Return 200 possible step times. The same draws serve all configurations, so that the
        ratio of two samples has the distribution of the gain."""
        return np.asarray(self.samples([at])[1][0])

    def samples(self, places: Sequence[Configuration]) -> tuple[Array, Array]:
        """Return the most likely step time of each configuration, and 200 possible ones of each.

        All configurations together take little more time than one of them.
        """
        middles = step_times_at(self.coefficients[None, :], self.gamma, places)
        times = step_times_at(self.draws, self.gamma, places)
        wider = np.array([WIDER_PER_DOUBLING ** self.seen.doublings(at) for at in places])
        errors = _MISSED * self.error * np.sqrt(np.maximum(wider**2 - 1, 0.0))
        own = np.array([_own_noise(at) for at in places])
        noise = _MISSED * self.error * own + errors[:, None] * _common_noise()
        spread = (times / middles) ** wider[:, None]
        return middles[:, 0], np.asarray(middles * spread * np.exp(noise))

    def extrapolated(self, at: Configuration) -> bool:
        """Whether a configuration is outside of what was observed."""
        if at in self.seen.configurations:
            return False
        return len(self.seen.configurations) == 1 or self.seen.doublings(at) > 0


def step_times(coefficients: Array, gamma: float, at: Configuration) -> Array:
    """Return the seconds of a step for each row of coefficients; never 0."""
    return np.asarray(step_times_at(coefficients, gamma, [at])[0])


def step_times_at(coefficients: Array, gamma: float, places: Sequence[Configuration]) -> Array:
    """Return the seconds of a step for each configuration and each row of coefficients."""
    compute, exchange, fixed = (np.array(rows) for rows in zip(*map(columns, places), strict=True))
    one = compute @ coefficients.T
    sync = exchange @ coefficients.T
    more = np.array([at.accumulation - 1 for at in places])
    times = fixed @ coefficients.T + more[:, None] * one + combine(one, sync, gamma)
    return np.asarray(np.maximum(times, SHORTEST_STEP_S))


def combine(one: Array, sync: Array, gamma: float | Array) -> Array:
    """Return the time of computing and an exchange that overlap: ``(one^g + sync^g)^(1/g)``."""
    both = np.maximum(one, sync)
    share = np.minimum(one, sync) / np.where(both > 0, both, 1.0)
    return np.asarray(both * (1 + share**gamma) ** (1 / gamma))


@lru_cache(maxsize=4096)
def columns(at: Configuration) -> tuple[Array, Array, Array]:
    """Return the rows of T_c, T_x and o for a configuration; they may not be changed."""
    compute, exchange, fixed = np.zeros(8), np.zeros(8), np.zeros(8)
    compute[A0], compute[A1] = 1.0, at.micro_batch
    volume = 2.0 * (at.procs - 1) / at.procs
    if at.nodes > 1:
        exchange[X0], exchange[X1], exchange[X2] = 1.0, volume, max(at.nodes - 2, 0)
    elif at.procs > 1:
        exchange[R0], exchange[R1] = 1.0, volume
    fixed[FIXED] = 1.0
    for row in (compute, exchange, fixed):
        row.flags.writeable = False
    return compute, exchange, fixed


def observations(segments: Sequence[SegmentFacts], now_ms: int) -> list[StepObservation]:
    """Convert the segments that may be fitted: good ones with a known micro-batch."""
    return [
        StepObservation(
            Configuration(
                max(segment.nodes, 1),
                segment.procs,
                _exact_micro_batch(segment),
                max(segment.accumulation or 1, 1),
            ),
            segment.steps,
            segment.step_seconds.mean,
            _part_of(segment.step_seconds.mean, segment.compute_seconds),
            _part_of(segment.step_seconds.mean, segment.sync_seconds),
            max(now_ms - segment.until, 0) / DAY_MS,
        )
        for segment in segments
        if segment.quality == GOOD
        and segment.steps > 0
        and segment.procs > 0
        and SHORTEST_STEP_S <= segment.step_seconds.mean <= LONGEST_STEP_S
        and segment.micro_batch
        and segment.micro_batch > 0
    ]


def _part_of(step_s: float, part_s: float | None) -> float | None:
    """A part of a step; None where it is not known, or cannot be a part of it."""
    return part_s if part_s is not None and 0 <= part_s <= 2 * step_s else None


def _exact_micro_batch(segment: SegmentFacts) -> float:
    """The mean of the shares of all processes, which differ by one sample."""
    micro_batch = float(segment.micro_batch or 0)
    parts = segment.procs * max(segment.accumulation or 1, 1)
    exact = (segment.global_batch or 0) / parts
    return exact if abs(exact - micro_batch) < 1 else micro_batch


def weight(observation: StepObservation) -> float:
    """Relative errors count, by steps, and old ones less."""
    return float(
        observation.steps / observation.step_s**2 * 0.5 ** (observation.age_days / _HALF_LIFE_DAYS)
    )


def seen_range(data: Sequence[StepObservation]) -> SeenRange:
    """Return the range of settings of some observations."""
    at = [observation.configuration for observation in data]
    return SeenRange(
        procs=(min(c.procs for c in at), max(c.procs for c in at)),
        nodes=(min(c.nodes for c in at), max(c.nodes for c in at)),
        micro_batch=(min(c.micro_batch for c in at), max(c.micro_batch for c in at)),
        intra=any(c.nodes == 1 and c.procs > 1 for c in at),
        configurations=frozenset(at),
    )


def _own_noise(at: Configuration) -> NDArray[np.float64]:
    """Errors of a configuration of its own: what the form of the model misses there."""
    return _noise(20261123, at.nodes, at.procs, round(at.micro_batch * 1000), at.accumulation)


def _common_noise() -> NDArray[np.float64]:
    """Errors that all configurations outside of what was seen have in common."""
    return _noise(20261124)


@lru_cache(maxsize=4096)
def _noise(*seed: int) -> NDArray[np.float64]:
    # A generator costs more than all else that a prediction does; jobs ask for the same sizes.
    drawn = np.random.default_rng(seed).standard_normal(DRAWS)
    drawn.flags.writeable = False
    return drawn
