"""A stored job of any kind, with specification and status as bytes.

Bytes keep a cache of many jobs small. They are decoded when the job is reconciled, so an unreadable
job is an error of that job and does not end the watch.
"""

import msgspec

from gangline.api.meta.objects import Object

_EMPTY = msgspec.Raw(b"{}")


class RawJob(Object):
    """A job of any kind."""

    spec: msgspec.Raw = _EMPTY
    status: msgspec.Raw = _EMPTY


def detach(job: RawJob) -> RawJob:
    """Copy a job out of its watch message, which otherwise stays in memory with it."""
    return msgspec.structs.replace(
        job, spec=msgspec.Raw(bytes(job.spec)), status=msgspec.Raw(bytes(job.status))
    )
