"""A limit on the kubelet's own CPU time for the output of one container: a fifth."""

OUTPUT_TIME_SHARE = 0.2
BURST_S = 0.02
"""Seconds of processing before a pause is due."""


class OutputThrottle:
    """Counts the processing time for one container; the caller passes in the clock's readings."""

    def __init__(self, now: float) -> None:
        self._debt_s = 0.0
        self._last = now

    def spend(self, began: float, ended: float) -> float:
        """Record processing time; return for how long to pause, 0 for none."""
        self._debt_s = max(0.0, self._debt_s - (began - self._last) * OUTPUT_TIME_SHARE) + (
            ended - began
        )
        self._last = ended
        return self._debt_s / OUTPUT_TIME_SHARE if self._debt_s > BURST_S else 0.0
