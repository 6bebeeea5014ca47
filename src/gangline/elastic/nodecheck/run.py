"""A node's part in a check: its worker processes, and the exchange with the coordinator.

`run_check` runs one process for each device. In each round it asks for its group, runs the tests in
all processes and reports the result, until there is a verdict.
"""

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Protocol

import msgspec

from gangline.elastic.nodecheck.coordinator import CheckCoordinator
from gangline.elastic.nodecheck.interpreters import CheckInterpreters
from gangline.elastic.nodecheck.result import NodeResult
from gangline.elastic.nodecheck.workers import PARTNER_GONE, CheckSettings, CheckWorkers, summarize
from gangline.elastic.protocol.check_messages import (
    PARTNER_LOST,
    CheckGroup,
    CheckRequest,
    CheckResult,
    CheckVerdict,
)
from gangline.elastic.protocol.errors import ProtocolError, RequestRefusedError
from gangline.elastic.protocol.messages import RequestRefused

log = logging.getLogger(__name__)

UNKNOWN_CHECK = "UnknownNode"
"""Reason with which a master refuses the result of another master's check: the node starts again.
"""

PRESENCE_INTERVAL_S = 4.0
"""Interval of presence messages during a test, if the coordinator does not delay its replies."""


class CheckExchange(Protocol):
    """Connection to the coordinator of the check."""

    async def ask(self, message: CheckRequest | CheckResult) -> CheckGroup | CheckVerdict:
        """Send a message and wait for the next instruction, without a time limit."""
        ...


class LocalExchange:
    """A coordinator in this process, for nodes without a master."""

    def __init__(self) -> None:
        self._coordinator = CheckCoordinator()
        self._changed = asyncio.Condition()

    async def ask(self, message: CheckRequest | CheckResult) -> CheckGroup | CheckVerdict:
        """Send a message and wait for the next instruction.

        Raises:
            RequestRefusedError: a partner of the running test is lost.
        """
        async with self._changed:
            self._coordinator.receive(message, time.monotonic())
            self._changed.notify_all()
            while (answer := self._coordinator.answer(message)) is None:
                if self._coordinator.is_test_obsolete(message):
                    raise RequestRefusedError(RequestRefused(reason=PARTNER_LOST))
                await self._changed.wait()
        return answer


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Course and verdict of a check on this node."""

    verdict: CheckVerdict
    results: tuple[NodeResult, ...]
    """Results of this node by round."""
    groups: tuple[tuple[int, ...], ...]
    """The groups of these results; each includes this node."""
    duration_s: float


async def run_check(
    settings: CheckSettings, exchange: CheckExchange, interpreters: CheckInterpreters
) -> CheckReport:
    """Take part in a node check until its verdict.

    Raises:
        StartError: the interpreters cannot be started.
        Exception: whatever the exchange raises if the coordinator cannot be reached.
    """
    begin, request = time.monotonic(), settings.request
    results: list[NodeResult] = []
    groups: list[tuple[int, ...]] = []
    async with CheckWorkers(settings, interpreters) as workers:
        port = await workers.port()
        step = await exchange.ask(msgspec.structs.replace(request, store_port=port))
        while isinstance(step, CheckGroup):
            result = await _run_test(workers, step, request, exchange)
            log.info("node check round is over", extra={"round": step.round, "outcome": result})
            results.append(result)
            groups.append(tuple(member.node_id for member in step.members))
            message = CheckResult(
                node_id=request.node_id,
                incarnation=request.incarnation,
                check=request.check,
                round=step.round,
                store_port=await workers.port(),
                wait_s=request.wait_s,
                **msgspec.structs.asdict(result),
            )
            try:
                step = await exchange.ask(message)
            except RequestRefusedError as error:
                if error.reason != UNKNOWN_CHECK:
                    raise
                again = msgspec.structs.replace(request, store_port=message.store_port)
                step = await exchange.ask(again)
    return CheckReport(step, tuple(results), tuple(groups), time.monotonic() - begin)


async def _run_test(
    workers: CheckWorkers, group: CheckGroup, request: CheckRequest, exchange: CheckExchange
) -> NodeResult:
    """Test with the group, until the result or the loss of a node of the group."""
    testing = msgspec.structs.replace(request, testing=group.round)
    test = asyncio.create_task(workers.measure(group))
    loss = asyncio.create_task(_wait_until_obsolete(testing, exchange))
    try:
        await asyncio.wait({test, loss}, return_when=asyncio.FIRST_COMPLETED)
        is_obsolete = not test.done() and loss.result()
        measured = [PARTNER_GONE] * workers.size if is_obsolete else await test
    finally:
        test.cancel()
        loss.cancel()
        await asyncio.gather(test, loss, return_exceptions=True)
    await workers.replace_failed(measured)
    return summarize(measured)


async def _wait_until_obsolete(testing: CheckRequest, exchange: CheckExchange) -> bool:
    """Send presence messages during a test; without them the node would count as dead.

    Returns True if the coordinator reports that a partner is lost, False if it cannot be asked.
    """
    while True:
        try:
            await exchange.ask(testing)
        except RequestRefusedError as error:
            return error.reason == PARTNER_LOST
        except ProtocolError:
            return False
        await asyncio.sleep(PRESENCE_INTERVAL_S)
