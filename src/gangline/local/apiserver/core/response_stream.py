"""Responses in parts, to clients that may not read them.

A client that reads nothing for ``STALL_TIMEOUT_S`` is disconnected, so that what it was sent does
not stay in memory.
"""

import asyncio

from aiohttp import web

PIECE_BYTES = 1 << 16
"""Bytes that are sent before the client must have read most of the previous ones."""
STALL_TIMEOUT_S = 30.0
"""Seconds in which a client must read the previous parts of a response."""


async def write_part(
    request: web.BaseRequest, response: web.StreamResponse, part: bytes | memoryview
) -> None:
    """Send a part, and wait until the client has read most of what it was sent.

    Raises:
        ConnectionError: the client has disconnected, or it has not read for too long.
    """
    view = memoryview(part)
    for start in range(0, len(view), PIECE_BYTES):
        try:
            async with asyncio.timeout(STALL_TIMEOUT_S):
                await response.write(view[start : start + PIECE_BYTES])
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("the client does not read its response") from None
