"""The worker processes of a check on one node: forks of its interpreters, one for each device.

They are used in all rounds. A process that fails or hangs is replaced while the others wait for
their next round.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import msgspec

from gangline.elastic.agent.spare import Child, Spare
from gangline.elastic.nodecheck.interpreters import Interpreters
from gangline.elastic.nodecheck.orders import (
    FromWorker,
    Listening,
    Measured,
    Order,
    Start,
    Workload,
)
from gangline.elastic.nodecheck.outcome import Outcome
from gangline.elastic.protocol.check_messages import CheckGroup, CheckWanted

WORKER = "gangline.elastic.nodecheck.worker"

_END_S = 5.0
"""Time limit for the end of a process that closed its connection."""

_PROCESS = "process"
"""Name of the test that failed when a process ends unexpectedly."""
PARTNER_GONE = Measured(
    passed=False,
    test="partner",
    message="a process of the group has ended, so the test was stopped",
)


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """How a node takes part in a check."""

    node_id: int
    wanted: CheckWanted
    """The first request; ``store_port`` is filled in."""
    local_world_size: int = 1
    workload: Workload = field(default_factory=Workload)
    environment: Mapping[str, str] | None = None
    """Environment of the processes; None for that of this process."""
    start_timeout_s: float = 120.0
    """Time limit for the start of a process, in addition to the tests."""
    module: str = WORKER
    """Module whose ``main`` is run for each device."""


class Crew:
    """The worker processes of a check on one node."""

    def __init__(self, settings: CheckSettings, interpreters: Interpreters) -> None:
        self._settings, self._interpreters = settings, interpreters
        self._members: list[_Member] = []

    async def __aenter__(self) -> Self:
        ranks = range(self._settings.local_world_size)
        self._members = [_Member(self._settings, self._interpreters, rank) for rank in ranks]
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(member.end() for member in self._members))

    async def port(self) -> int:
        """Return the port that the first process holds for the next round's store."""
        return await self._members[0].port()

    @property
    def size(self) -> int:
        """Number of processes."""
        return len(self._members)

    async def measured(self, group: CheckGroup) -> list[Measured]:
        """Run one test in all processes. If one dies, the tests of the others are cancelled."""
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
        return [PARTNER_GONE if test.cancelled() else test.result() for test in tests]

    async def renew(self, measured: Sequence[Measured]) -> None:
        """Replace the processes that failed."""
        for rank, one in enumerate(measured):
            if not one.passed:
                await self._members[rank].end()
                await self._interpreters.renew(rank)
                self._members[rank] = _Member(self._settings, self._interpreters, rank)

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
    """Combine the results of a node's processes: the first failure, else the slowest.

    A failure within the node comes before failures that may follow from it.
    """
    failures = sorted(
        (result for result in measured if not result.passed), key=lambda result: not result.local
    )
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
        bandwidth=min(result.bandwidth for result in measured),
        device=slowest.device,
        collective_device=last.device,
    )


class _Member:
    """One worker process."""

    def __init__(
        self, settings: CheckSettings, interpreters: Interpreters, local_rank: int
    ) -> None:
        self._settings, self._local_rank = settings, local_rank
        self._interpreters = interpreters
        self._spare: Spare | None = None
        self._child: Child | None = None
        self._is_lent = False
        self._port = 0
        self._begun = asyncio.create_task(self._begin())

    async def port(self) -> int:
        """Return the port that it holds; 0 if it ended before."""
        while not self._port:
            message = await self._hear(self._settings.start_timeout_s)
            if not isinstance(message, Listening):
                return 0
            self._port = message.port
        return self._port

    async def test(self, order: Order) -> Measured:
        """Run one test. A process that ends or does not answer in time has failed."""
        settings = self._settings
        limit_s = settings.start_timeout_s + 4 * settings.workload.timeout_s
        await asyncio.shield(self._begun)
        await self._say(order)
        message = await self._hear(limit_s)
        while isinstance(message, Listening):
            message = await self._hear(limit_s)
        self._port = 0
        return message or await self._explained(limit_s)

    async def end(self) -> None:
        """End the process and wait for it."""
        self._begun.cancel()
        await asyncio.gather(self._begun, return_exceptions=True)
        if self._child:
            self._child.writer.close()
        if not self._spare or not self._is_lent:
            return
        try:
            async with asyncio.timeout(_END_S):
                await self._spare.recall()
                await self._spare.returned()
        except ConnectionError:
            return
        except TimeoutError:
            self._spare.process.send(signal.SIGKILL)
            await asyncio.wait({self._spare.process.ended}, timeout=_END_S)

    async def _begin(self) -> None:
        """Start the process when its interpreter is warm; other processes do not wait for it."""
        settings = self._settings
        environment = os.environ if settings.environment is None else settings.environment
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(settings.start_timeout_s):
                self._spare = await self._interpreters.warm(self._local_rank)
            self._is_lent = True
            self._child = await self._spare.lend(settings.module, environment)
        start = Start(
            workload=settings.workload,
            local_rank=self._local_rank,
            local_world_size=settings.local_world_size,
        )
        await self._say(start)

    async def _say(self, words: Start | Order) -> None:
        if self._child:
            with contextlib.suppress(ConnectionError):
                self._child.writer.write(msgspec.json.encode(words) + b"\n")
                await self._child.writer.drain()

    async def _hear(self, limit_s: float) -> FromWorker | None:
        await asyncio.shield(self._begun)
        if self._child is None:
            return None
        try:
            async with asyncio.timeout(limit_s):
                line = await self._child.reader.readline()
        except (TimeoutError, ConnectionError):
            return None
        return msgspec.json.decode(line, type=FromWorker) if line else None

    async def _explained(self, limit_s: float) -> Measured:
        device = f"process {self._local_rank}"
        try:
            async with asyncio.timeout(_END_S):
                code = await self._code()
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

    async def _code(self) -> int:
        """Wait for the end of the process, or of its interpreter; return the exit code."""
        if self._spare is None:
            raise TimeoutError
        code = await self._spare.returned() if self._is_lent else None
        self._is_lent = False
        return await asyncio.shield(self._spare.process.ended) if code is None else code
