"""The agent's part of a save before an eviction: one save for each request, and its answer.

A master that was restarted repeats its request. A request that has been answered is answered again;
one that is being carried out is not begun twice.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from gangline.elastic.agent.rendezvous import WorkerControl
from gangline.elastic.protocol import messages as msg
from gangline.elastic.protocol.client import MasterClient
from gangline.elastic.protocol.errors import MasterUnreachableError, RequestRefusedError

log = logging.getLogger(__name__)

SEND_TIMEOUT_S = 30.0


class EvictionSave:
    """Carries out requests to save of one agent process."""

    def __init__(
        self,
        client: MasterClient,
        node_id: int,
        incarnation: str,
        run_in_background: Callable[[Coroutine[Any, Any, object]], None],
    ) -> None:
        self._client, self._node_id, self._incarnation = client, node_id, incarnation
        self._run_in_background = run_in_background
        self._request = ""
        self._result: asyncio.Future[int | None] | None = None

    def handle(self, workers: WorkerControl, command: msg.SaveCheckpoint) -> None:
        """Begin a save, answer a repeated request, or let the workers continue."""
        if command.is_withdrawn:
            if command.request == self._request:
                log.warning("the requested save is withdrawn: the workers continue")
                workers.withdraw_request()
            return
        if command.request != self._request:
            log.warning("saving on request: %s", command.reason)
            self._request = command.request
            self._result = asyncio.ensure_future(
                workers.save_on_request(command.request, command.wait_s)
            )
        assert self._result is not None
        self._run_in_background(self._answer(command.request, self._result))

    async def _answer(self, request: str, result: asyncio.Future[int | None]) -> None:
        try:
            step = await asyncio.shield(result)
        except OSError as error:
            log.warning("the requested save has failed: %s", error)
            step = None
        finished = msg.SaveFinished(
            node_id=self._node_id, incarnation=self._incarnation, request=request, step=step
        )
        with contextlib.suppress(MasterUnreachableError, RequestRefusedError):
            await self._client.call(finished, timeout_s=SEND_TIMEOUT_S)
