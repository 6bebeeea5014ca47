"""Noise of gradients: how large a batch still helps.

For gradients of two batch sizes b < B of the same step (McCandlish et al. 2018, arXiv 1812.06162,
appendix A.1)::

    g2 = (B |G_B|^2 - b |G_b|^2) / (B - b)          squared norm of the true gradient
    v  = (|G_b|^2 - |G_B|^2) / (1/b - 1/B)          trace of the covariance of one sample
    phi = v / g2                                    the noise scale, in samples

Both are unbiased but noisy; g2 may even come out negative. So v and g2 are averaged over many
steps, and only then divided. A single process without accumulation has no two batch sizes: it can
only compare with the gradient of the step before, which is biased.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gangline.brain.facts.records import Quality, Segment

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
    steps: int
    biased: bool = False
    """Some of it is from a single process: only fit to widen ranges."""


def estimate_noise(
    small_sqr: float, big_sqr: float, small_batch: float, big_batch: float
) -> tuple[float, float]:
    """Return (g2, v) of one step, from squared norms of gradients of two batch sizes.

    Args:
        small_sqr: mean squared norm of the gradients of the small batches.
        big_sqr: squared norm of their mean.
        small_batch: samples of each small batch.
        big_batch: samples of all together; more than ``small_batch``.

    Raises:
        ValueError: the batches are equal, or not positive.
    """
    if not 0 < small_batch < big_batch:
        raise ValueError(f"batches {small_batch} and {big_batch}: two different sizes are needed")
    sqr = (big_batch * big_sqr - small_batch * small_sqr) / (big_batch - small_batch)
    var = (small_sqr - big_sqr) / (1 / small_batch - 1 / big_batch)
    return sqr, var


def noise_scale(segments: Sequence[Segment]) -> NoiseScale | None:
    """Return the noise scale after the last segment.

    Args:
        segments: of one job in the order of time.

    Returns:
        None where no segment reports noise, or it rests on fewer than 100 steps, or the true
        gradient cannot be distinguished from 0: the batch must then stay as it is.
    """
    reporting = [
        (each, each.grad_sqr, each.grad_var)
        for each in segments
        if each.quality is Quality.GOOD
        and each.grad_sqr is not None
        and each.grad_var is not None
        and each.steps > 0
    ]
    total = sum(each.steps for each, _, _ in reporting)
    if total < _FEWEST_STEPS:
        return None
    sqr = var = 0.0
    singles = []
    for each, grad_sqr, grad_var in reporting:
        keep = _DECAY**each.steps
        sqr = keep * sqr + (1 - keep) * grad_sqr
        var = keep * var + (1 - keep) * grad_var
        if grad_sqr > 0 and grad_var > 0:
            singles.append((grad_var / grad_sqr, each.steps))
    if sqr <= 0 or var <= 0:
        return None
    phi = var / sqr
    biased = any(each.procs == 1 and (each.accumulation or 1) == 1 for each, _, _ in reporting)
    low, high = _spread(phi, singles)
    factor = _UNCERTAIN if biased else 1.0
    return NoiseScale(phi, low / factor, high * factor, total, biased)


def noise_by_decile(segments: Sequence[Segment], total_steps: int) -> tuple[NoiseScale | None, ...]:
    """Return the noise scale of each tenth of a training: it rises as the loss falls.

    Args:
        segments: of the runs of one family.
        total_steps: optimizer steps of one complete run.
    """
    deciles: list[list[Segment]] = [[] for _ in range(10)]
    for each in segments:
        if each.step_first is not None and total_steps > 0:
            deciles[min(10 * each.step_first // total_steps, 9)].append(each)
    return tuple(noise_scale(each) for each in deciles)


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
