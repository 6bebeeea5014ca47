"""Waits for the first connection to the master, and logs what it waits for."""

import asyncio
import contextlib
import logging
import time

from gangline.elastic.agent.rendezvous import MeetingError
from gangline.elastic.protocol.client import Client
from gangline.elastic.protocol.errors import MasterUnreachableError, RequestRefusedError

log = logging.getLogger(__name__)

WAIT_TOLD_S = 10.0
"""Interval of log messages while waiting."""


async def arrived(client: Client, patience_s: float) -> None:
    """Wait until the client is connected. A name that does not resolve is logged immediately.

    Raises:
        MeetingError: there was no connection in time, or the master refuses this node.
    """
    end = time.monotonic() + patience_s
    until = time.strftime("%H:%M:%S", time.localtime(time.time() + patience_s))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(min(WAIT_TOLD_S, patience_s)):
            await client.tried.wait()
    if client.unknown_name:
        log.warning("waiting for the master until %s: %s", until, client.trouble)
    while True:
        try:
            await client.connected(max(min(WAIT_TOLD_S, end - time.monotonic()), 0))
            return
        except RequestRefusedError as error:
            raise MeetingError(str(error)) from error
        except MasterUnreachableError as error:
            if time.monotonic() >= end:
                failure = MasterUnreachableError(client.address, patience_s, error.trouble)
                raise MeetingError(str(failure)) from error
            log.warning("waiting for the master until %s: %s", until, error)
