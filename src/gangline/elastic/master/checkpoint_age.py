"""How old the last complete checkpoint of a job is, for its metrics.

The age begins when a training step is reported without a checkpoint, or when the saved step
advances. It is in memory only: after a restart of the master it begins again.
"""

from gangline.elastic.protocol import messages as msg


class CheckpointAge:
    """Follows the saves of one job."""

    def __init__(self) -> None:
        self.save_s: float | None = None
        """Time for which a save stops training, as the workers report it."""
        self.interval_s: float | None = None
        """Planned time between two checkpoints; None: the workers do not report it."""
        self._step: int | None = None
        self._since: float | None = None

    def observe_report(self, report: msg.NodeReport) -> None:
        """Record what the workers of a node report about their saves."""
        if report.save_s is not None:
            self.save_s = report.save_s
        if report.save_interval_s is not None:
            self.interval_s = report.save_interval_s

    def observe_steps(self, step: int | None, saved_step: int | None, now: float) -> None:
        """Record the progress of the job.

        Args:
            step: the last finished step; None: none.
            saved_step: the last step that all nodes have saved; None: none.
            now: the time on the job's clock.
        """
        if saved_step is not None and saved_step != self._step:
            self._step, self._since = saved_step, now
        elif self._since is None and step is not None:
            self._since = now

    def age_s(self, now: float) -> float | None:
        """Return the age in seconds; None before the first step."""
        return None if self._since is None else max(0.0, now - self._since)
