"""The node check from the side of a node: its processes, and what is said to the referee.

`run_check` starts one process for each device, once. Each round it asks the exchange for its group,
has all processes test, and sends what they found, until a verdict comes. A process that fails or
hangs is replaced while the others wait for their next round.
"""

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

import msgspec

from gangline.elastic.nodecheck.orders import (
    FromWorker,
    Listening,
    Measured,
    Order,
    Start,
    Workload,
)
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

_WORKER = (sys.executable, "-m", "gangline.elastic.nodecheck.worker")
UNKNOWN_CHECK = "UnknownNode"
"""Why a master refuses the result of a check that another master began: the node begins anew."""

TOUCH_S = 4.0
"""How often a node that tests says that it is there, where it is not let wait for news."""

_END_S = 5.0
"""How long processes have to end by themselves when the check is over."""


_PROCESS = "process"
"""What has failed when a process ends of which nobody asked that."""
_PARTNER_LOST = Measured(
    passed=False, test="partner", message="a process of the group is gone: the test was ended"
)


class Exchange(Protocol):
    """The way to whoever conducts the check: the master, or a `Referee` in this process."""

    async def ask(self, message: CheckWanted | CheckResult) -> CheckGroup | CheckVerdict:
        """Send, and wait for what is to be done next, however long that takes."""
        ...


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """How a node takes part."""

    node_id: int
    wanted: CheckWanted
    """What is said on arrival; ``store_port`` is filled in."""
    local_world_size: int = 1
    workload: Workload = field(default_factory=Workload)
    environment: Mapping[str, str] | None = None
    """Of the processes; None: as this one's."""
    start_timeout_s: float = 120.0
    """How long a process may take to start, beside the time for the tests themselves."""
    command: Sequence[str] = _WORKER
    """What is started for each device."""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """How the check went for this node."""

    verdict: CheckVerdict
    outcomes: tuple[Outcome, ...]
    """What this node measured, by round."""
    groups: tuple[tuple[int, ...], ...]
    """The nodes with which it measured that, itself among them."""
    duration_s: float


async def run_check(settings: CheckSettings, exchange: Exchange) -> CheckReport:
    """Take part in a node check until its verdict.

    Raises:
        OSError: the processes cannot be started.
        Whatever the exchange raises when nobody answers.
    """
    begin = time.monotonic()
    outcomes: list[Outcome] = []
    groups: list[tuple[int, ...]] = []
    async with _Crew(settings) as crew:
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
    crew: "_Crew", group: CheckGroup, wanted: CheckWanted, exchange: Exchange
) -> Outcome:
    """Test with the group, unless it becomes known that somebody of it is gone."""
    testing = msgspec.structs.replace(wanted, testing=group.round)
    test = asyncio.create_task(crew.measured(group))
    news = asyncio.create_task(_is_in_vain(testing, exchange))
    try:
        await asyncio.wait({test, news}, return_when=asyncio.FIRST_COMPLETED)
        in_vain = not test.done() and news.result()
        measured = [_PARTNER_LOST] * crew.size if in_vain else await test
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


class _Crew:
    """The processes of a node."""

    def __init__(self, settings: CheckSettings) -> None:
        self._settings = settings
        self._members: list[_Member] = []

    async def __aenter__(self) -> Self:
        try:
            for local_rank in range(self._settings.local_world_size):
                self._members.append(await _Member.started(self._settings, local_rank))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(member.end() for member in self._members))

    async def port(self) -> int:
        """Return the port that the first process holds for the next round's store."""
        return await self._members[0].port()

    @property
    def size(self) -> int:
        """How many processes there are."""
        return len(self._members)

    async def measured(self, group: CheckGroup) -> list[Measured]:
        """Let all processes test; the others need not wait for one that dies."""
        orders = zip(self._members, self._orders(group), strict=True)
        tests = [asyncio.create_task(member.test(order)) for member, order in orders]
        running = set(tests)
        try:
            while running:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                if any(test.result().test == _PROCESS for test in done):
                    break
        finally:
            for test in tests:
                test.cancel()
            await asyncio.gather(*tests, return_exceptions=True)
        return [_PARTNER_LOST if test.cancelled() else test.result() for test in tests]

    async def renew(self, measured: Sequence[Measured]) -> None:
        """Replace the processes that failed."""
        for rank, one in enumerate(measured):
            if not one.passed:
                await self._members[rank].end()
                self._members[rank] = await _Member.started(self._settings, rank)

    def _orders(self, group: CheckGroup) -> list[Order]:
        own = self._settings.node_id
        size = self._settings.local_world_size
        first = next(m.rank for m in group.members if m.node_id == own) * size
        return [
            Order(
                rank=first + local_rank,
                world_size=len(group.members) * size,
                store_host=group.store_host or "127.0.0.1",
                store_port=group.store_port,
            )
            for local_rank in range(size)
        ]


def summed_up(measured: Sequence[Measured]) -> Outcome:
    """Return what a node says for all of its processes: the first failure, else the slowest.

    Of failures, one that lies within the node comes before those that follow from it.
    """
    failures = sorted((one for one in measured if not one.passed), key=lambda one: not one.local)
    if failures:
        one = failures[0]
        return Outcome(
            passed=False, local=one.local, device=one.device, test=one.test, message=one.message
        )
    slowest = max(measured, key=lambda one: one.compute_s)
    last = max(measured, key=lambda one: one.collective_s)
    return Outcome(
        passed=True,
        compute_s=slowest.compute_s,
        collective_s=last.collective_s,
        bandwidth=min(one.bandwidth for one in measured),
        device=slowest.device,
        collective_device=last.device,
    )


class _Member:
    """One process."""

    def __init__(
        self, process: asyncio.subprocess.Process, settings: CheckSettings, local_rank: int
    ) -> None:
        self._process, self._settings, self._local_rank = process, settings, local_rank
        self._port = 0

    @classmethod
    async def started(cls, settings: CheckSettings, local_rank: int) -> Self:
        """Start it; it prepares itself while others go on."""
        start = Start(
            workload=settings.workload,
            local_rank=local_rank,
            local_world_size=settings.local_world_size,
        )
        process = await asyncio.create_subprocess_exec(
            *settings.command,
            msgspec.json.encode(start).decode(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=dict(os.environ if settings.environment is None else settings.environment),
            start_new_session=True,
        )
        return cls(process, settings, local_rank)

    async def port(self) -> int:
        """Return the port that it holds; 0 if it ended before it held one."""
        while not self._port:
            said = await self._hear(self._settings.start_timeout_s)
            if not isinstance(said, Listening):
                return 0
            self._port = said.port
        return self._port

    async def test(self, order: Order) -> Measured:
        """Have it test; a process that ends or does not answer in time has failed."""
        settings = self._settings
        limit_s = settings.start_timeout_s + 4 * settings.workload.timeout_s
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(msgspec.json.encode(order) + b"\n")
            await self._process.stdin.drain()
        said = await self._hear(limit_s)
        while isinstance(said, Listening):
            said = await self._hear(limit_s)
        self._port = 0
        return said or await self._explained(limit_s)

    async def _hear(self, limit_s: float) -> FromWorker | None:
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(limit_s):
                line = await self._process.stdout.readline()
        except TimeoutError:
            return None
        return msgspec.json.decode(line, type=FromWorker) if line else None

    async def _explained(self, limit_s: float) -> Measured:
        device = f"process {self._local_rank}"
        try:
            async with asyncio.timeout(_END_S):
                code = await self._process.wait()
        except TimeoutError:
            return Measured(
                passed=False,
                device=device,
                test="collective",
                message=f"no answer within {limit_s:.0f} s",
            )
        return Measured(
            passed=False,
            local=True,
            device=device,
            test=_PROCESS,
            message=f"the process of the check ended with code {code}",
        )

    async def end(self) -> None:
        """End it and wait for it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        await self._process.wait()
