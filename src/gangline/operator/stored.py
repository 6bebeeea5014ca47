"""A job as it is stored: of any kind, with specification and status left as bytes.

Bytes are what a cache of many jobs should hold. They are read when a job is looked at, so that
one that cannot be read is that job's own trouble and not the end of the watch.
"""

import msgspec

from gangline.api.meta import Object

_NOTHING = msgspec.Raw(b"{}")


class StoredJob(Object):
    """Any job."""

    spec: msgspec.Raw = _NOTHING
    status: msgspec.Raw = _NOTHING


def detached(job: StoredJob) -> StoredJob:
    """Copy a job out of the message that it came in, which otherwise stays in memory with it."""
    return msgspec.structs.replace(
        job, spec=msgspec.Raw(bytes(job.spec)), status=msgspec.Raw(bytes(job.status))
    )
