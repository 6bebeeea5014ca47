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

Fit: where segments report computing and exchange apart, each is fitted by itself, then the fixed
part and g by a search over 19 values. Where they report step times only, g is 1 and all columns are
fitted together. Coefficients that no segment separates keep their prior, which for sizes that were
never run follows from the job's devices and model; all other basic solutions that fit as well
become alternatives, which widen the ranges.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gangline.api.jobs.training_facts import GOOD, SegmentFacts
from gangline.brain.facts.records import Run
from gangline.brain.models.nnls import Array, equivalent_solutions, nnls
from gangline.sizing.hardware import UnknownDeviceError, find_device
from gangline.sizing.steptime import group_bandwidth

DAY_MS = 86_400_000
_HALF_LIFE_DAYS = 7.0
LOW, HIGH = 0.1, 0.9
"""Percentiles at the ends of a range."""
DRAWS = 200
SHORTEST_STEP_S = 1e-5
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
class ThroughputModel:
    coefficients: Array
    gamma: float
    error: float
    """Root mean square of the logarithmic errors at configurations left out of the fit; where
    fewer than three were observed, an assumed value."""
    seen: SeenRange
    draws: Array
    """200 sets of coefficients, drawn with a fixed seed."""

    def step_time(self, at: Configuration) -> float:
        """Return the most likely seconds of a step."""
        return float(step_times(self.coefficients[None, :], self.gamma, [at])[0, 0])

    def speedups(self, now: Configuration, places: Sequence[Configuration]) -> Array:
        """Return by which factor steps are faster at each place: most likely, least and most.

        The same draws serve all configurations, so that errors which they have in common cancel.
        """
        step_s, times = self.samples([now, *places])
        middles = step_s[0] / step_s[1:]
        low, high = np.quantile(times[0] / times[1:], (LOW, HIGH), axis=1)
        return np.array([middles, np.minimum(low, middles), np.maximum(high, middles)]).T

    def samples(self, places: Sequence[Configuration]) -> tuple[Array, Array]:
        """Return the most likely step time of each configuration, and 200 possible ones of each.

        All configurations together take little more time than one of them.
        """
        middles = step_times(self.coefficients[None, :], self.gamma, places)
        times = step_times(self.draws, self.gamma, places)
        wider = np.array([WIDER_PER_DOUBLING ** self.seen.doublings(at) for at in places])
        errors = _MISSED * self.error * np.sqrt(np.maximum(wider**2 - 1, 0.0))
        # Errors of each configuration, which the form of the model misses there, and those that all
        # configurations outside of what was seen have in common.
        own = np.array([_noise(20261123, n, k, round(m * 1000), s) for n, k, m, s in places])
        noise = _MISSED * self.error * own + errors[:, None] * _noise(20261124)
        spread = (times / middles) ** wider[:, None]
        return middles[:, 0], np.asarray(middles * spread * np.exp(noise))

    def extrapolated(self, at: Configuration) -> bool:
        """Whether a configuration is outside of what was observed."""
        if at in self.seen.configurations:
            return False
        return len(self.seen.configurations) == 1 or self.seen.doublings(at) > 0


def step_times(coefficients: Array, gamma: float, places: Sequence[Configuration]) -> Array:
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
                segment.nodes,
                segment.procs,
                _exact_micro_batch(segment, segment.micro_batch),
                segment.accumulation or 1,
            ),
            segment.steps,
            segment.step_seconds.mean,
            _part_of(segment.step_seconds.mean, segment.compute_seconds),
            _part_of(segment.step_seconds.mean, segment.sync_seconds),
            max(now_ms - segment.until, 0) / DAY_MS,
        )
        for segment in segments
        if segment.quality == GOOD and segment.micro_batch
    ]


def _part_of(step_s: float, part_s: float | None) -> float | None:
    """A part of a step; None where it is not known, or cannot be a part of it."""
    return part_s if part_s is not None and part_s <= 2 * step_s else None


def _exact_micro_batch(segment: SegmentFacts, micro_batch: int) -> float:
    """The mean of the shares of all processes, which differ by one sample."""
    exact = (segment.global_batch or 0) / (segment.procs * (segment.accumulation or 1))
    return exact if abs(exact - micro_batch) < 1 else float(micro_batch)


def weights_of(data: Sequence[StepObservation]) -> Array:
    return np.array([e.steps / e.step_s**2 * 0.5 ** (e.age_days / _HALF_LIFE_DAYS) for e in data])


def _seen_range(data: Sequence[StepObservation]) -> SeenRange:
    at = [observation.configuration for observation in data]
    nodes, procs, micro_batches, _ = (sorted(values) for values in zip(*at, strict=True))
    return SeenRange(
        procs=(procs[0], procs[-1]),
        nodes=(nodes[0], nodes[-1]),
        micro_batch=(micro_batches[0], micro_batches[-1]),
        intra=any(c.nodes == 1 and c.procs > 1 for c in at),
        configurations=frozenset(at),
    )


@lru_cache(maxsize=4096)
def _noise(*seed: int, columns: int = 0) -> NDArray[np.float64]:
    # A generator costs more than all else that a prediction does; jobs ask for the same sizes.
    drawn = np.random.default_rng(seed).standard_normal((DRAWS, columns) if columns else DRAWS)
    drawn.flags.writeable = False
    return drawn


_GRADIENT_BYTES = 4
"""Of a parameter: gradients in 32 bits, the larger of both usual sizes."""


def job_prior(runs: Iterable[Run]) -> Prior:
    """Return the prior of a job, from what the first of its runs that knows them reports."""
    gpu_model, parameters = "", None
    for run in runs:
        devices = [segment.device_model for segment in run.segments]
        devices += [role.gpu_model for role in run.job.roles]
        gpu_model = gpu_model or next(filter(None, devices), "")
        parameters = parameters or (run.job.model.params if run.job.model else None)
    return throughput_prior(gpu_model, parameters)


def throughput_prior(gpu_model: str, parameters: int | None) -> Prior:
    """Return the prior of the exchange; ``NO_PRIOR`` for devices that ``sizing`` does not know."""
    try:
        device = find_device(gpu_model)
    except UnknownDeviceError:
        return NO_PRIOR
    within = device.bus_bandwidth
    between = group_bandwidth(device, 1, 2 * device.node_devices)
    exchange_s = None if parameters is None else 2 * _GRADIENT_BYTES * parameters / within
    return Prior(between_nodes=max(within / between, 1.0), exchange_s=exchange_s)


GAMMAS = tuple(np.linspace(1.0, 10.0, 19))
ASSUMED_ERROR = 0.05
"""Of a configuration that was not run, where fewer than three were."""
LEAST_ERROR = 0.01
_PRIOR_WEIGHT = 1e-6
"""Weight of the prior beside that of the data: it decides only where the data does not."""
_LEAST_NOISE = 0.005
"""Relative standard deviation that a segment has at least, however many steps it has."""
_MOST_LEFT_OUT = 12


def fit_throughput(
    data: Sequence[StepObservation], prior: Prior = NO_PRIOR
) -> ThroughputModel | None:
    """Fit the model to observations.

    Returns:
        None without any observation: there is no default model.
    """
    if not data:
        return None
    fit = _fit_data(data, prior)
    error = _left_out_error(data, prior)
    return ThroughputModel(fit.coefficients, fit.gamma, error, _seen_range(data), fit.draws())


def _fit_data(data: Sequence[StepObservation], prior: Prior, *, ranges: bool = True) -> "_Fit":
    separate = [
        observation
        for observation in data
        if observation.compute_s is not None
        and (observation.sync_s is not None or observation.configuration.procs == 1)
    ]
    fit = _Fit(prior, ranges)
    if {e.configuration for e in separate} == {e.configuration for e in data}:
        _fit_parts(fit, data, separate)
    else:
        _fit_steps(fit, data)
    return fit


def _fit_parts(
    parts: "_Fit", data: Sequence[StepObservation], apart: Sequence[StepObservation]
) -> None:
    """Fit computing, exchange, and then the fixed part for each g."""
    rows = np.array([columns(observation.configuration)[0] for observation in apart])
    compute = np.array([(e.compute_s or 0.0) / e.configuration.accumulation for e in apart])
    weights = weights_of(apart)
    parts.add(COMPUTE, rows, compute, weights)
    groups = (
        (INTRA, [e for e in apart if e.configuration.nodes == 1 and e.configuration.procs > 1]),
        (INTER, [e for e in apart if e.configuration.nodes > 1]),
    )
    for group, chosen in groups:
        if chosen:
            rows = np.array([columns(observation.configuration)[1] for observation in chosen])
            sync = np.array([observation.sync_s or 0.0 for observation in chosen])
            parts.add(group, rows, sync, weights_of(chosen))
    parts.fill(data)
    parts.gamma, fixed = _search_gamma(data, parts.coefficients)
    for coefficients in (parts.coefficients, *parts.alternatives):
        coefficients[FIXED] = fixed


def _search_gamma(data: Sequence[StepObservation], coefficients: Array) -> tuple[float, float]:
    """Return the overlap and the fixed part with the least weighted squares."""
    weights = weights_of(data)
    weights /= weights.sum()
    measured = np.array([observation.step_s for observation in data])
    at = [observation.configuration for observation in data]
    one, sync, _ = (np.array(rows) @ coefficients for rows in zip(*map(columns, at), strict=True))
    gammas = np.array(GAMMAS)[:, None]
    model = combine(one, sync, gammas) + one * (np.array([c.accumulation for c in at]) - 1)
    fixed = np.maximum((measured - model) @ weights, 0.0)
    rest = measured - model - fixed[:, None]
    # A little preference for no overlap, as in Pollux: it decides only where nothing else does.
    squares = (rest * rest) @ weights * (1 + 1e-3 * (gammas[:, 0] - 1) / 9)
    best = int(np.argmin(squares))
    return float(GAMMAS[best]), float(fixed[best])


def _fit_steps(parts: "_Fit", data: Sequence[StepObservation]) -> None:
    """Fit step times alone, g = 1: all columns together."""
    places = [observation.configuration for observation in data]
    compute, exchange, fixed = (np.array(part) for part in zip(*map(columns, places), strict=True))
    counts = np.array([at.accumulation for at in places])
    matrix = counts[:, None] * compute + exchange + fixed
    if counts.min() == counts.max():
        matrix[:, FIXED] = 0.0  # not separable from a0
    weights = weights_of(data)
    used = [int(column) for column in np.flatnonzero(np.abs(matrix).sum(axis=0))]
    parts.add(used, matrix, np.array([observation.step_s for observation in data]), weights)
    parts.fill(data)


class _Fit:
    """Coefficients, fitted one group of columns after the other."""

    def __init__(self, prior: Prior, ranges: bool) -> None:
        self.prior = prior
        self.ranges = ranges
        self.coefficients = np.zeros(8)
        self.gamma = 1.0
        self.covariance = np.zeros((8, 8))
        self.alternatives: list[Array] = []
        """Other coefficients that the data does not exclude: where a column was never varied."""

    def add(self, group: list[int], rows: Array, values: Array, weights: Array) -> None:
        root = np.sqrt(weights)
        a, b = rows[:, group] * root[:, None], values * root
        lengths = np.sqrt((a * a).sum(axis=0))
        expected = self._expected(group, values, rows, weights)
        weak = math.sqrt(_PRIOR_WEIGHT) * lengths
        best = nnls(np.vstack([a, np.diag(weak)]), np.concatenate([b, weak * expected])).x
        before = self.coefficients.copy()
        self.coefficients[group] = best
        if not self.ranges:
            return
        others = [solution.x for solution in equivalent_solutions(a, b)]
        if len(others) > 1:
            bases = [before, *self.alternatives][:8]
            pairs = list(product(bases, others[:8]))
            self.alternatives = [base.copy() for base, _ in pairs]
            for alternative, (_, other) in zip(self.alternatives, pairs, strict=True):
                alternative[group] = other
        else:
            for alternative in self.alternatives:
                alternative[group] = best
        self._add_covariance(group, a, b - a @ best, best, lengths)

    def _expected(self, group: list[int], values: Array, rows: Array, weights: Array) -> Array:
        """The prior of a group, scaled to the mean of its data."""
        mean = float(weights @ values / weights.sum())
        typical = weights @ rows / weights.sum()
        expected = np.zeros(len(group))
        shares = {A0: self.prior.fixed_share, A1: 1 - self.prior.fixed_share}
        if not shares.keys() & set(group):
            shares = {R1: 1.0, X1: 1.0}
        for index, column in enumerate(group):
            if typical[column] > 0:
                expected[index] = shares.get(column, 0.0) * mean / typical[column]
        return expected

    def _add_covariance(
        self, group: list[int], a: Array, rest: Array, best: Array, lengths: Array
    ) -> None:
        """Of the columns that are positive; by the residuals, at least the noise of a segment."""
        active = [index for index, value in enumerate(best) if value > 0]
        if not active:
            return
        free = len(rest) - len(active)
        # One row of weight w has the variance sigma^2 / w; b = value * sqrt(w).
        least = _LEAST_NOISE**2 * float(np.mean((a @ best) ** 2))
        variance = max(float(rest @ rest) / free if free > 0 else 0.0, least)
        normal = a[:, active] / lengths[active]
        # A column is not farther from its value than this value: what limits the columns that the
        # data does not separate, and leaves their sum as certain as the data makes it.
        limits = np.diag(variance / np.maximum(best[active] * lengths[active], 1e-12) ** 2)
        inverse = np.linalg.inv(normal.T @ normal + limits)
        inverse /= np.outer(lengths[active], lengths[active])
        where = [group[index] for index in active]
        self.covariance[np.ix_(where, where)] = variance * inverse

    def fill(self, data: Sequence[StepObservation]) -> None:
        """Give regimes that were not seen their prior."""
        inside = any(e.configuration.nodes == 1 and e.configuration.procs > 1 for e in data)
        between = any(e.configuration.nodes > 1 for e in data)
        factor = 1.1 * max(self.prior.between_nodes, 1.0)
        for coefficients in (self.coefficients, *self.alternatives):
            if not inside and not between and self.prior.exchange_s is not None:
                coefficients[R1] = self.prior.exchange_s / 2
            if not between:
                coefficients[INTER] = 1.1 * coefficients[R0], factor * coefficients[R1], 0.0
            elif not inside:
                coefficients[INTRA] = coefficients[X0] / 1.1, coefficients[X1] / factor
        if not between and self.ranges:
            # As fast as within a node, or half as fast as expected: both happen.
            for scale in (1.1 / factor, 2.0):
                other = self.coefficients.copy()
                other[X1] *= scale
                self.alternatives.append(other)

    def draws(self) -> Array:
        """Coefficients drawn about the best ones and, in turn, about the alternatives."""
        centres = np.array([self.coefficients, *self.alternatives])
        values, vectors = np.linalg.eigh(self.covariance)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        centre = centres[np.arange(DRAWS) % len(centres)]
        # The deviations are the same for all models, so that these can be compared.
        deviations = _noise(20261122, columns=8)
        return np.asarray(np.maximum(centre + deviations @ root.T, 0.0))


def _left_out_error(data: Sequence[StepObservation], prior: Prior) -> float:
    """Root mean square of the errors at each configuration, fitted to the others."""
    groups: dict[Configuration, list[StepObservation]] = {}
    for observation in data:
        groups.setdefault(observation.configuration, []).append(observation)
    if len(groups) < 3:
        return ASSUMED_ERROR
    chosen = sorted(groups, key=lambda at: (at.procs, at.nodes, at.micro_batch, at.accumulation))
    step = -(-len(chosen) // _MOST_LEFT_OUT)
    merged = [_merged(group) for group in groups.values()]
    errors = []
    for left in chosen[::step]:
        rest = [observation for observation in merged if observation.configuration != left]
        fit = _fit_data(rest, prior, ranges=False)
        predicted = float(step_times(fit.coefficients[None, :], fit.gamma, [left])[0, 0])
        errors.append(math.log(max(predicted, 1e-12) / _merged(groups[left]).step_s))
    # The median is not moved by one configuration at the edge, which is an extrapolation there.
    robust = 1.4826 * float(np.median(np.abs(errors)))
    return max(robust, LEAST_ERROR)


def _merged(group: Sequence[StepObservation]) -> StepObservation:
    """One observation instead of several of the same configuration."""
    steps = np.array([e.steps * 0.5 ** (e.age_days / _HALF_LIFE_DAYS) for e in group])
    total = max(float(steps.sum()), 1e-9)

    def mean(values: list[float | None]) -> float | None:
        measured = [(w, v) for w, v in zip(steps, values, strict=True) if v is not None]
        weight = max(sum(w for w, _ in measured), 1e-9)
        return float(sum(w * v for w, v in measured) / weight) if measured else None

    return replace(
        group[0],
        steps=max(round(total), 1),
        step_s=float(steps @ np.array([e.step_s for e in group])) / total,
        compute_s=mean([e.compute_s for e in group]),
        sync_s=mean([e.sync_s for e in group]),
        age_days=0.0,
    )
