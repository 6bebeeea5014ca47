"""Noise scale of gradients after 500 steps, against a quadratic problem whose noise is known.

Eight ranks with 16 samples each. Prints the relative error over 30 seeds, how often it is within
20 %, and how often the range contains the true value.
"""

import statistics

import numpy as np

from gangline.api.jobs.training_facts import SegmentFacts, StepSeconds
from gangline.brain.models.goodput import noise_scale

RANKS, MICRO_BATCH, DIMENSIONS = 8, 16, 100
STEPS, SEGMENT_STEPS, SEEDS = 500, 50, 30
SCALES = (50.0, 1_000.0, 10_000.0)


def estimate_noise(small_sqr: float, big_sqr: float) -> tuple[float, float]:
    """Return (g2, v) of one step, from squared norms of the gradients of ranks and of their mean.

    As in appendix A.1 of McCandlish et al. 2018, arXiv 1812.06162.
    """
    batch = MICRO_BATCH * RANKS
    sqr = (batch * big_sqr - MICRO_BATCH * small_sqr) / (batch - MICRO_BATCH)
    return sqr, (small_sqr - big_sqr) / (1 / MICRO_BATCH - 1 / batch)


def make_segments(scale: float, random: np.random.Generator) -> list[SegmentFacts]:
    """Return the segments of a training with a constant gradient of norm 1 and known noise."""
    true = np.ones(DIMENSIONS) / np.sqrt(DIMENSIONS)
    deviation = np.sqrt(scale / DIMENSIONS / MICRO_BATCH)
    found = []
    for first in range(0, STEPS, SEGMENT_STEPS):
        small = true + random.normal(0, deviation, (SEGMENT_STEPS, RANKS, DIMENSIONS))
        pairs = [
            estimate_noise(
                float((each**2).sum(axis=1).mean()),
                float((each.mean(axis=0) ** 2).sum()),
            )
            for each in small
        ]
        sqr, var = np.mean(pairs, axis=0)
        found.append(
            SegmentFacts(
                round=1, since=first, until=first + 1, nodes=1, procs=RANKS,
                steps=SEGMENT_STEPS, step_first=first, step_seconds=StepSeconds(1, 1.0),
                grad_sqr=float(sqr), grad_var=float(var),
            )
        )  # fmt: skip
    return found


def main() -> None:
    for scale in SCALES:
        found = [
            each
            for seed in range(SEEDS)
            if (each := noise_scale(make_segments(scale, np.random.default_rng(seed))))
        ]
        errors = [abs(each.phi / scale - 1) for each in found]
        close = sum(error <= 0.2 for error in errors)
        held = sum(each.low <= scale <= each.high for each in found)
        print(
            f"noise scale {scale:6.0f}: {len(found)} of {SEEDS} known, "
            f"error {statistics.median(errors):.1%} "
            f"(median), {max(errors):.0%} (most); {close} within 20 %, {held} within the range"
        )


if __name__ == "__main__":
    main()
