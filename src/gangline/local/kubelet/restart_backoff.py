"""Restart policies and the crash loop back-off.

The back-off is the kubelet's: the first restart is immediate, the next waits 10 seconds from the
end of the run, then 20, and so on up to 5 minutes. It is reset by a run that lasted twice the
longest delay since the last change.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from gangline.local.kubelet.records import ContainerRecord, ExitRecord, RestartBackoff

ALWAYS, ON_FAILURE, NEVER = "Always", "OnFailure", "Never"


@dataclass(frozen=True, slots=True)
class BackoffSettings:
    """The delays of restarts, in seconds."""

    base_s: float = 10.0
    max_s: float = 300.0


def should_restart(policy: str, ended: ExitRecord) -> bool:
    """True if the policy restarts a container after this end."""
    return policy in (ALWAYS, "") or (policy == ON_FAILURE and ended.exit_code != 0)


def restart_time(record: ContainerRecord, settings: BackoffSettings) -> datetime | None:
    """The earliest restart of an ended container; None means immediately."""
    ended, backoff = record.ended, record.backoff
    if ended is None or backoff is None or _is_expired(backoff, ended.finished_at, settings):
        return None
    return ended.finished_at + timedelta(seconds=backoff.delay_s)


def next_backoff(
    record: ContainerRecord, now: datetime, settings: BackoffSettings
) -> RestartBackoff | None:
    """The back-off after a start at ``now``; None for the first start."""
    ended, backoff = record.ended, record.backoff
    if ended is None:
        return None
    if backoff is None or _is_expired(backoff, ended.finished_at, settings):
        return RestartBackoff(settings.base_s, now)
    return RestartBackoff(min(backoff.delay_s * 2, settings.max_s), now)


def _is_expired(backoff: RestartBackoff, finished_at: datetime, settings: BackoffSettings) -> bool:
    return finished_at - backoff.updated_at > timedelta(seconds=2 * settings.max_s)
