"""A cancelled connection attempt leaks nothing, at any stage of the TLS handshake."""

import asyncio

from gangline.api.resources import PODS
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import NotFound
from gangline.local.apiserver.server import ApiServer

STEPS = 40
"""So many turns of the event loop are about what an answer takes."""


async def test_a_request_cancelled_at_any_step_of_connecting_leaves_no_connection(
    api_server: ApiServer,
) -> None:
    """A leaked transport causes a warning at the end of the loop, and so an error of this test."""
    outcomes = set()
    for steps in range(STEPS):
        async with ApiClient(api_server.config) as client:
            request = asyncio.create_task(client.get(PODS, "none", "default"))
            for _ in range(steps):
                await asyncio.sleep(0)
            request.cancel()
            outcomes.update(map(type, await asyncio.gather(request, return_exceptions=True)))
    assert asyncio.CancelledError in outcomes
    assert outcomes <= {asyncio.CancelledError, NotFound}
