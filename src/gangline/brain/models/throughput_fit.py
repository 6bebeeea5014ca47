"""Fits the throughput model: non-negative least squares, and a search for the overlap.

Where segments report computing and exchange apart, each is fitted by itself, then the fixed part
and g by a search over 19 values. Where they report step times only, g is 1 and all columns are
fitted together. Coefficients that no segment separates keep their prior, which for sizes that were
never run follows from the job's devices and model; all other basic solutions that fit as well
become alternatives, which widen the ranges.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np

from gangline.brain.facts.records import Run
from gangline.brain.models.nnls import Array, equivalent_solutions, nnls
from gangline.brain.models.throughput import (
    A0,
    A1,
    COMPUTE,
    DRAWS,
    FIXED,
    INTER,
    INTRA,
    NO_PRIOR,
    R0,
    R1,
    X0,
    X1,
    X2,
    Configuration,
    Prior,
    StepObservation,
    ThroughputModel,
    columns,
    combine,
    seen_range,
    step_times,
    weight,
)
from gangline.sizing.hardware import UnknownDeviceError, find_device
from gangline.sizing.steptime import group_bandwidth

_GRADIENT_BYTES = 4
"""Of a parameter: gradients in 32 bits, the larger of both usual sizes."""


def job_prior(runs: Iterable[Run]) -> Prior:
    """Return the prior of a job, from what the first of its runs that knows them reports."""
    gpu_model, parameters = "", None
    for run in runs:
        named = [segment.device_model for segment in run.segments] + [
            r.gpu_model for r in run.job.roles
        ]
        gpu_model = gpu_model or next(filter(None, named), "")
        parameters = parameters or (run.job.model.params if run.job.model else None)
    return throughput_prior(gpu_model, parameters)


def throughput_prior(gpu_model: str, parameters: int | None) -> Prior:
    """Return the prior of the exchange between devices.

    Returns:
        ``NO_PRIOR`` for devices that ``sizing`` does not know.
    """
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


@dataclass(frozen=True, slots=True)
class _Fitted:
    coefficients: Array
    gamma: float
    covariance: Array
    alternatives: tuple[Array, ...]


def fit_throughput(
    data: Sequence[StepObservation], prior: Prior = NO_PRIOR
) -> ThroughputModel | None:
    """Fit the model to observations.

    Returns:
        None without any observation: there is no default model.
    """
    if not data:
        return None
    fitted = _fit(data, prior)
    error = _left_out_error(data, prior)
    return ThroughputModel(
        coefficients=fitted.coefficients,
        gamma=fitted.gamma,
        covariance=fitted.covariance,
        alternatives=fitted.alternatives,
        error=error,
        seen=seen_range(data),
        observations=len(data),
        draws=_draws(fitted),
    )


def _fit(data: Sequence[StepObservation], prior: Prior, *, ranges: bool = True) -> _Fitted:
    separate = [
        observation
        for observation in data
        if observation.compute_s is not None
        and (observation.sync_s is not None or observation.configuration.procs == 1)
    ]
    complete = {observation.configuration for observation in separate} == {
        e.configuration for e in data
    }
    if complete:
        fitted = _fit_parts(data, separate, prior, ranges)
    else:
        fitted = _fit_steps(data, prior, ranges)
    return fitted


def _fit_parts(
    data: Sequence[StepObservation], apart: Sequence[StepObservation], prior: Prior, ranges: bool
) -> _Fitted:
    """Fit computing, exchange, and then the fixed part for each g."""
    parts = _Parts(prior, ranges)
    rows = np.array([columns(observation.configuration)[0] for observation in apart])
    compute = np.array([(e.compute_s or 0.0) / e.configuration.accumulation for e in apart])
    weights = np.array([weight(observation) for observation in apart])
    parts.add(COMPUTE, rows, compute, weights)
    groups = (
        (INTRA, [e for e in apart if e.configuration.nodes == 1 and e.configuration.procs > 1]),
        (INTER, [e for e in apart if e.configuration.nodes > 1]),
    )
    for group, chosen in groups:
        if chosen:
            rows = np.array([columns(observation.configuration)[1] for observation in chosen])
            sync = np.array([observation.sync_s or 0.0 for observation in chosen])
            parts.add(group, rows, sync, np.array([weight(observation) for observation in chosen]))
    parts.fill(data)
    gamma, fixed = _search_gamma(data, parts.coefficients)
    for observation in (parts.coefficients, *parts.alternatives):
        observation[FIXED] = fixed
    return _Fitted(parts.coefficients, gamma, parts.covariance, tuple(parts.alternatives))


def _search_gamma(data: Sequence[StepObservation], coefficients: Array) -> tuple[float, float]:
    """Return the overlap and the fixed part with the least weighted squares."""
    weights = np.array([weight(observation) for observation in data])
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


def _fit_steps(data: Sequence[StepObservation], prior: Prior, ranges: bool) -> _Fitted:
    """Fit step times alone, g = 1: all columns together."""
    parts = _Parts(prior, ranges)
    rows = []
    for observation in data:
        compute, exchange, fixed = columns(observation.configuration)
        rows.append(observation.configuration.accumulation * compute + exchange + fixed)
    matrix = np.array(rows)
    if len({observation.configuration.accumulation for observation in data}) == 1:
        matrix[:, FIXED] = (
            0.0  # not separable from a0, where the number of micro-steps never changes
        )
    weights = np.array([weight(observation) for observation in data])
    used = [int(column) for column in np.flatnonzero(np.abs(matrix).sum(axis=0))]
    parts.add(used, matrix, np.array([observation.step_s for observation in data]), weights)
    parts.fill(data)
    return _Fitted(parts.coefficients, 1.0, parts.covariance, tuple(parts.alternatives))


class _Parts:
    """Coefficients, covariance and alternatives while groups of columns are fitted."""

    def __init__(self, prior: Prior, ranges: bool) -> None:
        self.prior = prior
        self.ranges = ranges
        self.coefficients = np.zeros(8)
        self.covariance = np.zeros((8, 8))
        self.alternatives: list[Array] = []

    def add(self, group: list[int], rows: Array, values: Array, weights: Array) -> None:
        """Fit the columns of a group."""
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
        basic = equivalent_solutions(a, b)
        if len(basic) > 1:
            others = [solution.x for solution in basic]
            bases = [before, *self.alternatives]
            self.alternatives = []
            for base, other in product(bases[:8], others[:8]):
                changed = base.copy()
                changed[group] = other
                self.alternatives.append(changed)
        else:
            for alternative in self.alternatives:
                alternative[group] = best
        self._add_covariance(group, a, b - a @ best, best, lengths)

    def _expected(self, group: list[int], values: Array, rows: Array, weights: Array) -> Array:
        """The prior of a group, scaled to the mean of its data."""
        mean = float(weights @ values / weights.sum())
        typical = weights @ rows / weights.sum()
        expected = np.zeros(len(group))
        shares = {
            A0: self.prior.fixed_share,
            A1: 1 - self.prior.fixed_share,
            R1: 1.0,
            X1: 1.0,
        }
        computes = any(column in group for column in COMPUTE)
        for index, column in enumerate(group):
            share = shares.get(column, 0.0)
            if computes and column not in COMPUTE:
                share = 0.0
            if typical[column] > 0:
                expected[index] = share * mean / typical[column]
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
                coefficients[X0], coefficients[X1], coefficients[X2] = (
                    1.1 * coefficients[R0],
                    factor * coefficients[R1],
                    0.0,
                )
            elif not inside:
                coefficients[R0], coefficients[R1] = (
                    coefficients[X0] / 1.1,
                    coefficients[X1] / factor,
                )
        if not between and self.ranges:
            # As fast as within a node, or half as fast as expected: both happen.
            for scale in (1.1 / factor, 2.0):
                other = self.coefficients.copy()
                other[X1] *= scale
                self.alternatives.append(other)


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
        fitted = _fit(rest, prior, ranges=False)
        predicted = step_times(fitted.coefficients[None, :], fitted.gamma, left)[0]
        errors.append(math.log(max(predicted, 1e-12) / _merged(groups[left]).step_s))
    # The median is not moved by one configuration at the edge, which is an extrapolation there.
    robust = 1.4826 * float(np.median(np.abs(errors)))
    return max(robust, LEAST_ERROR)


def _merged(group: Sequence[StepObservation]) -> StepObservation:
    """One observation instead of several of the same configuration."""
    steps = np.array(
        [observation.steps * 0.5 ** (observation.age_days / 7.0) for observation in group]
    )
    total = max(float(steps.sum()), 1e-9)

    def mean(values: list[float | None]) -> float | None:
        measured = [(w, v) for w, v in zip(steps, values, strict=True) if v is not None]
        if not measured:
            return None
        return float(sum(w * v for w, v in measured) / max(sum(w for w, _ in measured), 1e-9))

    return replace(
        group[0],
        steps=max(round(total), 1),
        step_s=float(steps @ np.array([observation.step_s for observation in group])) / total,
        compute_s=mean([observation.compute_s for observation in group]),
        sync_s=mean([observation.sync_s for observation in group]),
        age_days=0.0,
    )


def _draws(fitted: _Fitted) -> Array:
    """Coefficients drawn about the best ones and, in turn, about the alternatives."""
    centres = np.array([fitted.coefficients, *fitted.alternatives])
    values, vectors = np.linalg.eigh(fitted.covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    centre = centres[np.arange(DRAWS) % len(centres)]
    return np.asarray(np.maximum(centre + _deviations() @ root.T, 0.0))


@cache
def _deviations() -> Array:
    """The same for all models, so that these can be compared."""
    drawn = np.random.default_rng(20261122).standard_normal((DRAWS, 8))
    drawn.flags.writeable = False
    return drawn
