"""The node check from the side of a node: its processes, and what is said to the referee.

`run_check` has one process for each device. Each round it asks the exchange for its group, has all
processes test, and sends what they found, until a verdict comes.
"""

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Protocol

import msgspec

from gangline.elastic.nodecheck.crew import PARTNER_GONE, CheckSettings, Crew, summed_up
from gangline.elastic.nodecheck.interpreters import Interpreters
from gangline.elastic.nodecheck.outcome import Outcome
from gangline.elastic.protocol.check_messages import (
    PARTNER_LOST,
    CheckGroup,
    CheckResult,
    CheckVerdict,
    CheckWanted,
)
from gangline.elastic.protocol.errors import ProtocolError, RequestRefusedError

log = logging.getLogger(__name__)

UNKNOWN_CHECK = "UnknownNode"
"""Why a master refuses the result of a check that another master began: the node begins anew."""

TOUCH_S = 4.0
"""How often a node that tests says that it is there, where it is not let wait for news."""


class Exchange(Protocol):
    """The way to whoever conducts the check: the master, or a `Referee` in this process."""

    async def ask(self, message: CheckWanted | CheckResult) -> CheckGroup | CheckVerdict:
        """Send, and wait for what is to be done next, however long that takes."""
        ...


@dataclass(frozen=True, slots=True)
class CheckReport:
    """How the check went for this node."""

    verdict: CheckVerdict
    outcomes: tuple[Outcome, ...]
    """What this node measured, by round."""
    groups: tuple[tuple[int, ...], ...]
    """The nodes with which it measured that, itself among them."""
    duration_s: float


async def run_check(
    settings: CheckSettings, exchange: Exchange, interpreters: Interpreters
) -> CheckReport:
    """Take part in a node check until its verdict.

    Raises:
        StartError: the interpreters cannot be started.
        Whatever the exchange raises when nobody answers.
    """
    begin = time.monotonic()
    outcomes: list[Outcome] = []
    groups: list[tuple[int, ...]] = []
    async with Crew(settings, interpreters) as crew:
        port = await crew.port()
        step = await exchange.ask(msgspec.structs.replace(settings.wanted, store_port=port))
        while isinstance(step, CheckGroup):
            outcome = await _tested(crew, step, settings.wanted, exchange)
            log.info("node check round is over", extra={"round": step.round, "outcome": outcome})
            outcomes.append(outcome)
            groups.append(tuple(member.node_id for member in step.members))
            result = CheckResult(
                node_id=settings.node_id,
                round=step.round,
                passed=outcome.passed,
                local=outcome.local,
                incarnation=settings.wanted.incarnation,
                check=settings.wanted.check,
                compute_s=outcome.compute_s,
                collective_s=outcome.collective_s,
                bandwidth=outcome.bandwidth,
                device=outcome.device,
                test=outcome.test,
                message=outcome.message,
                collective_device=outcome.collective_device,
                store_port=await crew.port(),
                wait_s=settings.wanted.wait_s,
            )
            try:
                step = await exchange.ask(result)
            except RequestRefusedError as error:
                if error.reason != UNKNOWN_CHECK:
                    raise
                again = msgspec.structs.replace(settings.wanted, store_port=result.store_port)
                step = await exchange.ask(again)
    return CheckReport(step, tuple(outcomes), tuple(groups), time.monotonic() - begin)


async def _tested(
    crew: Crew, group: CheckGroup, wanted: CheckWanted, exchange: Exchange
) -> Outcome:
    """Test with the group, unless it becomes known that somebody of it is gone."""
    testing = msgspec.structs.replace(wanted, testing=group.round)
    test = asyncio.create_task(crew.measured(group))
    news = asyncio.create_task(_is_in_vain(testing, exchange))
    try:
        await asyncio.wait({test, news}, return_when=asyncio.FIRST_COMPLETED)
        in_vain = not test.done() and news.result()
        measured = [PARTNER_GONE] * crew.size if in_vain else await test
    finally:
        test.cancel()
        news.cancel()
        await asyncio.gather(test, news, return_exceptions=True)
    await crew.renew(measured)
    return summed_up(measured)


async def _is_in_vain(testing: CheckWanted, exchange: Exchange) -> bool:
    """Ask on during a test, or the node would be held dead for its silence.

    Returns whether the test is in vain, once somebody says so or cannot be asked any more.
    """
    while True:
        try:
            await exchange.ask(testing)
        except RequestRefusedError as error:
            return error.reason == PARTNER_LOST
        except ProtocolError:
            return False
        await asyncio.sleep(TOUCH_S)
