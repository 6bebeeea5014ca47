"""Waits for the first connection to the master, and logs what it waits for."""

import asyncio
import contextlib
import logging
import time

from gangline.elastic.agent.rendezvous import RendezvousError
from gangline.elastic.protocol.client import MasterClient
from gangline.elastic.protocol.errors import MasterUnreachableError, RequestRefusedError

log = logging.getLogger(__name__)

WAIT_MESSAGE_INTERVAL_S = 10.0
"""Interval of log messages while waiting."""


async def wait_for_master(client: MasterClient, timeout_s: float) -> None:
    """Wait until the client is connected. A name that does not resolve is logged immediately.

    Raises:
        RendezvousError: there was no connection in time, or the master refuses this node.
    """
    end = time.monotonic() + timeout_s
    until = time.strftime("%H:%M:%S", time.localtime(time.time() + timeout_s))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(min(WAIT_MESSAGE_INTERVAL_S, timeout_s)):
            await client.attempted.wait()
    if client.unresolved_host:
        log.warning("waiting for the master until %s: %s", until, client.last_error)
    while True:
        try:
            await client.wait_connected(
                max(min(WAIT_MESSAGE_INTERVAL_S, end - time.monotonic()), 0)
            )
            return
        except RequestRefusedError as error:
            raise RendezvousError(str(error)) from error
        except MasterUnreachableError as error:
            if time.monotonic() >= end:
                failure = MasterUnreachableError(client.address, timeout_s, error.last_error)
                raise RendezvousError(str(failure)) from error
            log.warning("waiting for the master until %s: %s", until, error)
