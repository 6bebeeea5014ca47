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
only compare with the gradient of the step before, which is biased. Its noise does not count.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gangline.api.jobs.training_facts import GOOD, SegmentFacts
from gangline.brain.models.throughput import HIGH, LOW, Configuration, ThroughputModel

_DECAY = 0.999
"""Per optimizer step: an average over about 1,000 of them."""
_FEWEST_STEPS = 100
_ENOUGH_SEGMENTS = 5
_UNCERTAIN = 2.0
"""Factor between the estimate and the ends of its range, where little is known."""


class NoiseScale(NamedTuple):
    """The noise scale with its range of 80 %, in samples."""

    phi: float
    low: float
    high: float


def noise_scale(segments: Sequence[SegmentFacts]) -> NoiseScale | None:
    """Return the noise scale after the last segment.

    Returns:
        None where no segment reports noise, or it rests on fewer than 100 steps or on a single
        process, or the true gradient cannot be distinguished from 0: the batch must then stay as it
        is.
    """
    sqr = var = 0.0
    total, singles = 0, []
    for segment in segments:
        grad_sqr, grad_var, steps = segment.grad_sqr, segment.grad_var, segment.steps
        if segment.quality != GOOD or grad_sqr is None or grad_var is None:
            continue
        if segment.procs == 1 and (segment.accumulation or 1) == 1:
            return None
        keep = _DECAY**steps
        sqr = keep * sqr + (1 - keep) * grad_sqr
        var = keep * var + (1 - keep) * grad_var
        total += steps
        if grad_sqr > 0 and grad_var > 0:
            singles.append((grad_var / grad_sqr, steps))
    if total < _FEWEST_STEPS or sqr <= 0 or var <= 0:
        return None
    phi = var / sqr
    if len(singles) < _ENOUGH_SEGMENTS:
        return NoiseScale(phi, phi / _UNCERTAIN, phi * _UNCERTAIN)
    # The range of what single segments say, by their steps.
    singles.sort()
    passed = np.cumsum([steps for _, steps in singles])
    low, high = (
        singles[int(np.searchsorted(passed, share * passed[-1]))][0] for share in (LOW, HIGH)
    )
    return NoiseScale(phi, min(low, phi), max(high, phi))


_BATCHES = 50


class GoodputModel(NamedTuple):
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

    def gain(self, to: Configuration, now: Configuration) -> tuple[float, float, float]:
        """Return the relative gain of goodput, 0.1 for 10 %, and the ends of its range of 80 %."""
        worth = self._useful(to) / self._useful(now)
        middle, low, high = (worth * self.throughput.speedups(now, [to])[0] - 1).tolist()
        return middle, low, high

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
