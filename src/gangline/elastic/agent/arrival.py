"""The first connection to the master: waited for patiently, and people are told."""

import logging
import time

from gangline.elastic.agent.world import MeetingError
from gangline.elastic.protocol.client import Client
from gangline.elastic.protocol.errors import MasterUnreachableError, RequestRefusedError

log = logging.getLogger(__name__)

WAIT_TOLD_S = 10.0
"""How often people are told what is waited for."""


async def arrived(client: Client, patience_s: float) -> None:
    """Wait until there is a connection.

    Raises:
        MeetingError: there was none for so long, or the master refuses this node.
    """
    started = time.monotonic()
    while not client.is_connected:
        try:
            await client.connected(WAIT_TOLD_S)
        except RequestRefusedError as error:
            raise MeetingError(str(error)) from error
        except MasterUnreachableError as error:
            if time.monotonic() - started > patience_s:
                raise MeetingError(str(error)) from error
            log.warning("waiting for the master: %s", error)
