"""Delays the replacement of failed replicas: the first is immediate, later ones back off.

The values are those of the kubelet for a crashing container: 10 s, doubled each time up to 5
minutes, reset after 10 minutes without a failure. Failures within ten seconds of the first are one
burst. Ranks fail together: when one fails, its peers follow with connection errors, and all of them
must be replaced without delay.
"""

from datetime import datetime, timedelta

import msgspec

from gangline.api.kubeflow import RestartRecord

BURST_WINDOW = timedelta(seconds=10)
BASE_DELAY = timedelta(seconds=10)
MAX_DELAY = timedelta(minutes=5)
RESET_AFTER = timedelta(minutes=10)

_MAX_DOUBLINGS = 5


def record_failure(record: RestartRecord, now: datetime) -> RestartRecord:
    since = now - record.burst_start if record.burst_start else None
    if since is None or since > RESET_AFTER + replacement_delay(record) or since < timedelta(0):
        # A burst in the future means that the clock was set back: reset.
        return msgspec.structs.replace(record, bursts=1, burst_start=now)
    if since <= BURST_WINDOW:
        return record
    return msgspec.structs.replace(record, bursts=record.bursts + 1, burst_start=now)


def replacement_delay(record: RestartRecord) -> timedelta:
    """Return the delay between the start of the latest burst and replacements."""
    if record.bursts <= 1:
        return timedelta(0)
    return min(BASE_DELAY * (1 << min(record.bursts - 2, _MAX_DOUBLINGS)), MAX_DELAY)


def time_to_replacement(record: RestartRecord, now: datetime) -> timedelta:
    """Return the time until replicas may be created; zero or less if they may be now.

    It is never longer than the delay itself, even if the clock was set back.
    """
    if record.burst_start is None:
        return timedelta(0)
    return min(record.burst_start + replacement_delay(record) - now, replacement_delay(record))
