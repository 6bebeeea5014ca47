"""How much of our time the output of one container may take: a fifth, however much it writes."""

SHARE = 0.2
BURST_S = 0.02
"""Time spent at once before a pause is due."""


class Pace:
    """Counts the time spent for one container. Pure: the clock's readings are passed in."""

    def __init__(self, now: float) -> None:
        self._debt_s = 0.0
        self._last = now

    def spend(self, began: float, ended: float) -> float:
        """Note time spent; returns for how long to take a rest, 0 for none."""
        self._debt_s = max(0.0, self._debt_s - (began - self._last) * SHARE) + (ended - began)
        self._last = ended
        return self._debt_s / SHARE if self._debt_s > BURST_S else 0.0
