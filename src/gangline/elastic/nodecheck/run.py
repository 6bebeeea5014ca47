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

log = logging.getLogger(__name__)

UNKNOWN_CHECK = "UnknownNode"
"""Reason with which a master refuses the result of another master's check: the node starts again.
"""

PRESENCE_INTERVAL_S = 4.0
"""Interval of presence messages during a test, if the coordinator does not delay its replies."""


class CheckExchange(Protocol):
    """Connection to the coordinator: the master, or a `LocalCoordinator` in this process."""

    async def ask(self, message: CheckRequest | CheckResult) -> CheckGroup | CheckVerdict:
        """Send a message and wait for the next instruction, without a time limit."""
        ...


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
    begin = time.monotonic()
    outcomes: list[NodeResult] = []
    groups: list[tuple[int, ...]] = []
    async with CheckWorkers(settings, interpreters) as crew:
        port = await crew.port()
        step = await exchange.ask(msgspec.structs.replace(settings.request, store_port=port))
        while isinstance(step, CheckGroup):
            outcome = await _run_test(crew, step, settings.request, exchange)
            log.info("node check round is over", extra={"round": step.round, "outcome": outcome})
            outcomes.append(outcome)
            groups.append(tuple(member.node_id for member in step.members))
            result = CheckResult(
                node_id=settings.node_id,
                round=step.round,
                passed=outcome.passed,
                local=outcome.local,
                incarnation=settings.request.incarnation,
                check=settings.request.check,
                compute_s=outcome.compute_s,
                collective_s=outcome.collective_s,
                bandwidth=outcome.bandwidth,
                device=outcome.device,
                test=outcome.test,
                message=outcome.message,
                collective_device=outcome.collective_device,
                store_port=await crew.port(),
                wait_s=settings.request.wait_s,
            )
            try:
                step = await exchange.ask(result)
            except RequestRefusedError as error:
                if error.reason != UNKNOWN_CHECK:
                    raise
                again = msgspec.structs.replace(settings.request, store_port=result.store_port)
                step = await exchange.ask(again)
    return CheckReport(step, tuple(outcomes), tuple(groups), time.monotonic() - begin)


async def _run_test(
    workers: CheckWorkers, group: CheckGroup, request: CheckRequest, exchange: CheckExchange
) -> NodeResult:
    """Test with the group, until the result or the loss of a node of the group."""
    testing = msgspec.structs.replace(request, testing=group.round)
    test = asyncio.create_task(workers.measure(group))
    news = asyncio.create_task(_wait_until_obsolete(testing, exchange))
    try:
        await asyncio.wait({test, news}, return_when=asyncio.FIRST_COMPLETED)
        in_vain = not test.done() and news.result()
        measured = [PARTNER_GONE] * workers.size if in_vain else await test
    finally:
        test.cancel()
        news.cancel()
        await asyncio.gather(test, news, return_exceptions=True)
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
