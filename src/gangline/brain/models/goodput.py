"""Goodput: samples per second, times what a sample of a larger batch is worth.

At the noise scale phi, a sample of the global batch M is worth ``E(M) = (phi + M0) / (phi + M)`` of
one of the batch M0 that the user chose (Pollux, OSDI 2021, section 3.1, with phi in samples).

For gradients of two batch sizes b < B of the same step (McCandlish et al. 2018, arXiv 1812.06162,
appendix A.1)::

    g2 = (B |G_B|^2 - b |G_b|^2) / (B - b)          squared norm of the true gradient
    v  = (|G_b|^2 - |G_B|^2) / (1/b - 1/B)          trace of the covariance of one sample
    phi = v / g2                                    the noise scale, in samples

Both are unbiased but noisy; g2 may even come out negative. So v and g2 are averaged over many
steps, and only then divided. A single process without accumulation has no two batch sizes: it can
only compare with the gradient of the step before, which is biased.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gangline.api.jobs.training_facts import GOOD, SegmentFacts
from gangline.brain.models.throughput import HIGH, LOW, Configuration, ThroughputModel

_DECAY = 0.999
"""Per optimizer step: an average over about 1,000 of them."""
_FEWEST_STEPS = 100
_UNCERTAIN = 2.0
"""Factor between the estimate and the ends of its range, where little is known."""


@dataclass(frozen=True, slots=True)
class NoiseScale:
    """The noise scale with its range, in samples."""

    phi: float
    low: float
    high: float
    biased: bool = False
    """Some of it is from a single process: only fit to widen ranges."""


def noise_scale(segments: Sequence[SegmentFacts]) -> NoiseScale | None:
    """Return the noise scale after the last segment.

    Returns:
        None where no segment reports noise, or it rests on fewer than 100 steps, or the true
        gradient cannot be distinguished from 0: the batch must then stay as it is.
    """
    reporting = [
        (segment, segment.grad_sqr, segment.grad_var)
        for segment in segments
        if segment.quality == GOOD
        and segment.grad_sqr is not None
        and segment.grad_var is not None
        and segment.steps > 0
    ]
    total = sum(segment.steps for segment, _, _ in reporting)
    if total < _FEWEST_STEPS:
        return None
    sqr = var = 0.0
    singles = []
    for segment, grad_sqr, grad_var in reporting:
        keep = _DECAY**segment.steps
        sqr = keep * sqr + (1 - keep) * grad_sqr
        var = keep * var + (1 - keep) * grad_var
        if grad_sqr > 0 and grad_var > 0:
            singles.append((grad_var / grad_sqr, segment.steps))
    if sqr <= 0 or var <= 0:
        return None
    phi = var / sqr
    biased = any(
        segment.procs == 1 and (segment.accumulation or 1) == 1 for segment, _, _ in reporting
    )
    low, high = _spread(phi, singles)
    factor = _UNCERTAIN if biased else 1.0
    return NoiseScale(phi, low / factor, high * factor, biased)


def _spread(phi: float, singles: list[tuple[float, int]]) -> tuple[float, float]:
    """The range of 80 % of what single segments say; wide where there are few."""
    if len(singles) < 5:
        return phi / _UNCERTAIN, phi * _UNCERTAIN
    singles.sort()
    total = sum(steps for _, steps in singles)
    ends, passed = [], 0
    for share in (0.1, 0.9):
        passed = 0
        for value, steps in singles:
            passed += steps
            if passed >= share * total:
                ends.append(value)
                break
    return min(ends[0], phi), max(ends[1], phi)


_BATCHES = 50


@dataclass(frozen=True, slots=True)
class Gain:
    """The relative gain of goodput, 0.1 for 10 %, with a range of 80 %."""

    expected: float
    low: float
    high: float
    extrapolated: bool


@dataclass(frozen=True, slots=True)
class GoodputModel:
    """Throughput and efficiency of one job."""

    throughput: ThroughputModel
    base_batch: float
    """The global batch that the user chose."""
    phi: float
    """The noise scale in samples."""

    def efficiency(self, global_batch: float) -> float:
        """Return what a sample is worth."""
        if math.isclose(global_batch, self.base_batch, rel_tol=0.01):
            return 1.0
        return (self.phi + self.base_batch) / (self.phi + global_batch)

    def goodput(self, at: Configuration) -> float:
        return self._useful(at) / self.throughput.step_time(at)

    def gain(self, to: Configuration, now: Configuration) -> Gain:
        ratios = (self._useful(to) / self.throughput.sample(to)) / (
            self._useful(now) / self.throughput.sample(now)
        )
        low, high = np.quantile(ratios, [LOW, HIGH])
        expected = self.goodput(to) / self.goodput(now) - 1
        return Gain(
            expected,
            min(float(low) - 1, expected),
            max(float(high) - 1, expected),
            self.throughput.extrapolated(to) or self.throughput.extrapolated(now),
        )

    def best_batch(
        self, nodes: int, procs: int, most_batch: float, most_micro_batch: float
    ) -> Configuration | None:
        """Return the configuration with the best goodput at a number of processes.

        None if not even the user's own batch can be divided so.
        """
        batches = np.geomspace(self.base_batch, max(most_batch, self.base_batch), _BATCHES)
        divided = (divide_batch(nodes, procs, float(n), most_micro_batch) for n in batches)
        return max((at for at in divided if at is not None), key=self.goodput, default=None)

    def _useful(self, at: Configuration) -> float:
        """Samples of a step, in samples of the user's own batch."""
        return at.global_batch * self.efficiency(at.global_batch)


def divide_batch(
    nodes: int, procs: int, global_batch: float, most_micro_batch: float
) -> Configuration | None:
    """Divide a global batch among processes, with as few micro-steps as fit.

    Returns:
        None if a process would get less than one sample, or the device holds none.
    """
    share = round(global_batch / procs)
    if share < 1 or most_micro_batch < 1:
        return None
    accumulation = math.ceil(share / most_micro_batch)
    return Configuration(nodes, procs, share / accumulation, accumulation)
