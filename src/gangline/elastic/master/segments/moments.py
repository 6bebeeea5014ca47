"""Count, mean and sum of squared deviations of step times, and how to add and subtract them.

T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating formulae and a pairwise algorithm for computing
sample variances", 1979.
"""

from dataclasses import dataclass
from typing import Final, Self


@dataclass(frozen=True, slots=True)
class Moments:
    """The moments of some observations."""

    count: int = 0
    mean: float = 0.0
    m2: float = 0.0
    """Sum of squared deviations from the mean."""

    def merge(self, other: "Moments") -> Self:
        """Return the moments of both sets of observations."""
        count = self.count + other.count
        if count == 0:
            return type(self)()
        difference = other.mean - self.mean
        return type(self)(
            count,
            self.mean + difference * other.count / count,
            self.m2 + other.m2 + difference**2 * self.count * other.count / count,
        )

    def without(self, part: "Moments") -> Self:
        """Return the moments of the observations that are not in ``part``, which are the first.

        Empty if ``part`` is no part of these observations.
        """
        count = self.count - part.count
        if count <= 0:
            return type(self)()
        mean = self.mean + (self.mean - part.mean) * part.count / count
        spread = (mean - part.mean) ** 2 * count * part.count / self.count
        return type(self)(count, mean, max(0.0, self.m2 - part.m2 - spread))


NO_MOMENTS: Final = Moments()


@dataclass(frozen=True, slots=True)
class WindowMoments:
    """Moments of means over windows of several steps, for scripts that report step numbers only."""

    windows: int = 0
    steps: Moments = NO_MOMENTS
    """Each step counts with the mean of its window."""

    def add(self, steps: int, seconds: float) -> Self:
        """Add a window of at least one step."""
        merged = self.steps.merge(Moments(steps, seconds / steps))
        return type(self)(self.windows + 1, merged)

    def moments(self) -> Moments:
        """Return moments with a window as one observation.

        So ``m2 / (count - 1) / count`` still is the squared standard error of the mean. The
        variance of single steps cannot be known.
        """
        if not self.windows:
            return NO_MOMENTS
        m2 = self.steps.m2 * self.windows / self.steps.count
        return Moments(self.windows, self.steps.mean, m2)


NO_WINDOWS: Final = WindowMoments()
