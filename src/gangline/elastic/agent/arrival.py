"""The first connection to the master: waited for patiently, and people are told."""

import asyncio
import contextlib
import logging
import time

from gangline.elastic.agent.rendezvous import MeetingError
from gangline.elastic.protocol.client import Client
from gangline.elastic.protocol.errors import MasterUnreachableError, RequestRefusedError

log = logging.getLogger(__name__)

WAIT_TOLD_S = 10.0
"""How often people are told what is waited for."""


async def arrived(client: Client, patience_s: float) -> None:
    """Wait until there is a connection; a name that does not resolve is told at once.

    Raises:
        MeetingError: there was none for so long, or the master refuses this node.
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
                whole = MasterUnreachableError(client.address, patience_s, error.trouble)
                raise MeetingError(str(whole)) from error
            log.warning("waiting for the master until %s: %s", until, error)
