"""Refuses writes of a replica whose lease may have passed on.

A process that is stopped and continues (SIGSTOP, a frozen virtual machine) still believes that it
leads, until its next attempt to renew the lease fails. Meanwhile it would write what it had
decided before. So the time is compared again directly before each write is sent.

The guard belongs to the task that leads and to all tasks that it starts. Reads are not guarded,
nor are the writes of the election itself.
"""

import time
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context

from gangline.api.meta.objects import Status
from gangline.kube.errors import ApiError

_guard: ContextVar[Callable[[], bool] | None] = ContextVar("write_guard", default=None)

# Unlike CLOCK_MONOTONIC it counts the time for which the machine was suspended; only Linux has it.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class LeadershipExpired(ApiError):
    """A write was not sent, because another replica may lead by now."""

    def __init__(self) -> None:
        message = "not sent: the lease was not renewed in time, so another replica may lead"
        super().__init__(Status(status="Failure", reason="LeadershipExpired", message=message))


def guarded_context(may_write: Callable[[], bool]) -> Context:
    """Return a context for a task that may write while ``may_write`` returns True."""
    context = copy_context()
    context.run(_guard.set, may_write)
    return context


def check_may_write() -> None:
    """Check directly before a write is sent.

    Raises:
        LeadershipExpired: it must not be sent.
    """
    may_write = _guard.get()
    if may_write is not None and not may_write():
        raise LeadershipExpired


def elapsed_time_s() -> float:
    """Return a time in seconds that goes on while the process or the machine is stopped."""
    return time.clock_gettime(_CLOCK)
