"""Goodput: samples per second, times what a sample of a larger batch is worth.

At the noise scale phi, a sample of the global batch M is worth ``E(M) = (phi + M0) / (phi + M)`` of
one of the batch M0 that the user chose (Pollux, OSDI 2021, section 3.1, with phi in samples). Where
the noise is not known, E is known at M0 alone, and the batch may not change: assuming an efficiency
would make every batch look good.
"""

import math
from dataclasses import dataclass

import numpy as np

from gangline.brain.models.nnls import Array
from gangline.brain.models.throughput import HIGH, LOW, Configuration, ThroughputModel

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
    phi: float | None = None
    """The noise scale in samples; None: not known."""

    def efficiency(self, global_batch: float) -> float | None:
        """Return what a sample is worth; None where that is not known."""
        if math.isclose(global_batch, self.base_batch, rel_tol=0.01):
            return 1.0
        if self.phi is None:
            return None
        return (self.phi + self.base_batch) / (self.phi + global_batch)

    def goodput(self, at: Configuration) -> float | None:
        """Return useful samples per second; None where the efficiency is not known."""
        worth = self.efficiency(at.global_batch)
        if worth is None:
            return None
        return at.global_batch / self.throughput.step_time(at) * worth

    def gain(self, to: Configuration, now: Configuration) -> Gain | None:
        """Compare two configurations; None where an efficiency is not known."""
        after, before = self.goodput(to), self.goodput(now)
        if after is None or before is None:
            return None
        ratios = self._sample(to) / self._sample(now)
        low, high = np.quantile(ratios, [LOW, HIGH])
        expected = after / before - 1
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

        Args:
            nodes: nodes of the processes.
            procs: worker processes.
            most_batch: the largest global batch that the user allows.
            most_micro_batch: the largest that fits into the device.

        Returns:
            None if not even the user's own batch can be divided so.
        """
        best: tuple[float, Configuration] | None = None
        most = most_batch if self.phi is not None else self.base_batch
        for batch in np.geomspace(self.base_batch, max(most, self.base_batch), _BATCHES):
            at = divide_batch(nodes, procs, float(batch), most_micro_batch)
            value = None if at is None else self.goodput(at)
            if at is not None and value is not None and (best is None or value > best[0]):
                best = (value, at)
            if self.phi is None:
                break
        return best[1] if best else None

    def _sample(self, at: Configuration) -> Array:
        worth = self.efficiency(at.global_batch) or 0.0
        return np.asarray(at.global_batch * worth / self.throughput.sample(at))


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
