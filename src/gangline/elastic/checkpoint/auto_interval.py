"""The save interval that loses least time, from the cost of a save and the rate of failures.

Saving every ``t`` seconds costs ``save_s / t`` of the time; a failure costs half an interval on
average. J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9),
1974, balances the two; J. T. Daly, "A higher order estimate of the optimum checkpoint interval for
restart dumps", FGCS 22(3), 2006, equation 37, refines it for failures that are not much rarer than
saves.
"""

import math
from dataclasses import dataclass

PRIOR_FAILURES = 1.0
PRIOR_S = 6 * 3600.0
"""Assumed before any failure, unless the job is tuned: one failure in six hours. Observations
replace it as hours pass.
"""


def daly_interval(save_s: float, between_failures_s: float) -> float:
    """Return the best time between two saves, in seconds.

    Raises:
        ValueError: a time is not positive.
    """
    if save_s <= 0 or between_failures_s <= 0:
        raise ValueError("times must be positive")
    if save_s >= 2 * between_failures_s:
        return between_failures_s
    ratio = math.sqrt(save_s / (2 * between_failures_s))
    return math.sqrt(2 * save_s * between_failures_s) * (1 + ratio / 3 + ratio**2 / 9) - save_s


@dataclass(slots=True)
class AutoInterval:
    """Records observations and decides when the next save is due."""

    failures: int = 0
    """Number of restarts of the job."""
    observed_s: float = 0.0
    """Seconds of training so far, restarts included."""
    save_s: float = 0.05
    """Seconds that a save blocks training; a running mean."""
    measured_s: float | None = None
    """The same mean without an assumed beginning; None before the first save."""
    between_saves_s: float | None = None
    """Seconds from one save to the next; a running mean, None before the second save."""
    last_save_at: float | None = None
    prior_failures: float = PRIOR_FAILURES
    prior_s: float = PRIOR_S

    def set_prior(self, failures: float, seconds: float) -> None:
        """Assume so many failures in so many seconds; own observations are added to them.

        Raises:
            ValueError: a number is not positive and finite.
        """
        if not (0 < failures < math.inf and 0 < seconds < math.inf):
            raise ValueError("a prior needs a positive number of failures and of seconds")
        self.prior_failures, self.prior_s = failures, seconds

    def between_failures_s(self) -> float:
        """Return the expected seconds from one failure to the next."""
        return (self.prior_s + self.observed_s) / (self.prior_failures + self.failures)

    def interval_s(self) -> float:
        """Return the best known interval between saves, in seconds."""
        return daly_interval(max(self.save_s, 1e-4), self.between_failures_s())

    def due(self, now: float) -> bool:
        """Return whether to save now; ``now`` is a monotonic clock."""
        return self.last_save_at is None or now - self.last_save_at >= self.interval_s()

    def record_save(self, now: float, took_s: float) -> None:
        """Record a save that blocked training for ``took_s`` seconds."""
        self.save_s += 0.3 * (took_s - self.save_s)
        self.measured_s = _smoothed(self.measured_s, took_s)
        if self.last_save_at is not None:
            passed_s = max(0.0, now - self.last_save_at)
            self.observed_s += passed_s
            self.between_saves_s = _smoothed(self.between_saves_s, passed_s)
        self.last_save_at = now


def _smoothed(mean: float | None, value: float) -> float:
    return value if mean is None else mean + 0.3 * (value - mean)
