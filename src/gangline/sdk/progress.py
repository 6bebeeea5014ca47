"""How far a training is, as its pods report it to the operator."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gangline.api.jobs.progress import TrainerStatus
    from gangline.sdk.kinds import ListedTrainerStatus

STALE_AFTER_S = 10.0
"""Age from which a step is shown with its age."""
STALE_REPORT_S = 60.0
"""Age from which a report of the training is shown with its age; clients send one in 5 s or less
often.
"""


def format_clock(seconds: float) -> str:
    """Return a time span as ``M:SS`` or ``H:MM:SS``."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_time_ago(seconds: float) -> str:
    """Return an age such as ``12 s ago`` or ``5 min ago``."""
    return f"{seconds:.0f} s ago" if seconds < 120 else f"{seconds / 60:.0f} min ago"


@dataclass(frozen=True, slots=True)
class Progress:
    """The last report of a training."""

    percentage: int | None = None
    """How complete the training is, 0 to 100; None if it is not known."""
    left_s: float | None = None
    """Estimated time until it is complete; None if it is not known, or the job has ended."""
    metrics: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Metrics by name, such as ``{"loss": "0.12"}``, as the training wrote them."""
    reported_at: datetime | None = None
    """Time of the report, by the clock of the training."""

    @property
    def summary(self) -> str:
        """Percentage and time left, as far as they are known: ``45%, 2:10 left``."""
        parts = [] if self.percentage is None else [f"{self.percentage}%"]
        if self.left_s:
            parts.append(f"{format_clock(self.left_s)} left")
        return ", ".join(parts)

    def age_s(self, now: datetime) -> float:
        """Return how old the report is."""
        return max(0.0, (now - self.reported_at).total_seconds()) if self.reported_at else 0.0


def read_progress(
    status: "TrainerStatus | ListedTrainerStatus | None", *, has_ended: bool = False
) -> Progress | None:
    """Convert the report in the status of a job; None before the first one.

    A job that has ended has no time left, whatever it reported before.
    """
    if status is None:
        return None
    return Progress(
        status.progress_percentage,
        None if has_ended else status.estimated_remaining_seconds,
        {metric.name: metric.value for metric in status.metrics},
        status.last_updated_time,
    )


def progress_data(progress: Progress) -> dict[str, Any]:
    """Return a report as plain data, with the keys of ``gangline get -o json``."""
    return {
        "percentage": progress.percentage,
        "secondsLeft": progress.left_s,
        "metrics": dict(progress.metrics),
        "reportedAt": progress.reported_at.isoformat() if progress.reported_at else None,
    }
