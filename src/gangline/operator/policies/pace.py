"""How fast failed replicas are replaced: at once at first, ever slower if it does not help.

The measures are the kubelet's for a container that keeps crashing: 10 s, doubled each time up to
5 minutes, forgotten after 10 quiet minutes. Failures within ten seconds of the first are one
burst, since ranks fall together: when one goes, its peers follow with connection errors, and all
of them shall come back without delay.
"""

from datetime import datetime, timedelta

import msgspec

from gangline.api.kubeflow import RestartRecord

BURST = timedelta(seconds=10)
BASE = timedelta(seconds=10)
LONGEST = timedelta(minutes=5)
QUIET = timedelta(minutes=10)

_MOST_DOUBLINGS = 5


def note(record: RestartRecord, now: datetime) -> RestartRecord:
    """Note that a replica fails now and is to be replaced."""
    since = now - record.burst_start if record.burst_start else None
    if since is None or since > QUIET + delay(record) or since < timedelta(0):
        # A burst in the future means that the clock was set back: begin anew.
        return msgspec.structs.replace(record, bursts=1, burst_start=now)
    if since <= BURST:
        return record
    return msgspec.structs.replace(record, bursts=record.bursts + 1, burst_start=now)


def delay(record: RestartRecord) -> timedelta:
    """How long replacements wait after the start of the newest burst."""
    if record.bursts <= 1:
        return timedelta(0)
    return min(BASE * (1 << min(record.bursts - 2, _MOST_DOUBLINGS)), LONGEST)


def wait(record: RestartRecord, now: datetime) -> timedelta:
    """How long from now replicas must not be created; zero or less if they may be.

    Never longer than the delay itself, even if the clock has been set back.
    """
    if record.burst_start is None:
        return timedelta(0)
    return min(record.burst_start + delay(record) - now, delay(record))
