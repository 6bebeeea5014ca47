"""A node's part in a check: its worker processes, and the exchange with the coordinator.

`run_check` runs one process for each device, a fork of the device's interpreter. In each round it
asks for its group, runs the tests in all processes and reports the result, until there is a
verdict. A process that fails or hangs is replaced while the others wait for their next round.
"""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

import msgspec

from gangline.elastic.agent.spare_interpreter import ForkedChild, SpareInterpreter
from gangline.elastic.nodecheck.coordinator import CheckCoordinator
from gangline.elastic.nodecheck.interpreters import CheckInterpreters
from gangline.elastic.nodecheck.result import (
    CheckWorkload,
    MeasureOrder,
    NodeResult,
    PortReport,
    WorkerMessage,
    WorkerStart,
)
from gangline.elastic.protocol.messages import (
    PARTNER_LOST,
    CheckGroup,
    CheckRequest,
    CheckResult,
    CheckVerdict,
    RequestRefused,
)
from gangline.elastic.protocol.wire import ProtocolError, RequestRefusedError

WORKER = "gangline.elastic.nodecheck.worker"

_END_TIMEOUT_S = 5.0

_PROCESS_TEST = "process"
PARTNER_GONE = NodeResult(
    passed=False,
    test="partner",
    message="a process of the group has ended, so the test was stopped",
)

log = logging.getLogger(__name__)

UNKNOWN_CHECK = "UnknownNode"
"""Reason with which a master refuses the result of another master's check: the node starts again.
"""
PRESENCE_INTERVAL_S = 4.0
"""Interval of presence messages during a test, if the coordinator does not delay its replies."""


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """How a node takes part in a check."""

    request: CheckRequest
    """The first request; ``store_port`` is filled in."""
    local_world_size: int = 1
    workload: CheckWorkload = field(default_factory=CheckWorkload)
    environment: Mapping[str, str] | None = None
    """Environment of the processes; None for that of this process."""
    start_timeout_s: float = 120.0
    """Time limit for the start of a process, in addition to the tests."""
    module: str = WORKER
    """Module whose ``main`` is run for each device."""


class CheckWorkers:
    """The worker processes of a check on one node."""

    def __init__(self, settings: CheckSettings, interpreters: CheckInterpreters) -> None:
        self._settings, self._interpreters = settings, interpreters
        self._members: list[_CheckWorker] = []

    async def __aenter__(self) -> Self:
        ranks = range(self._settings.local_world_size)
        self._members = [_CheckWorker(self._settings, self._interpreters, rank) for rank in ranks]
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(member.end() for member in self._members))

    async def port(self) -> int:
        return await self._members[0].port()

    @property
    def size(self) -> int:
        return len(self._members)

    async def measure(self, group: CheckGroup) -> list[NodeResult]:
        """Run one test in all processes. If one dies, the tests of the others are cancelled."""
        orders = zip(self._members, self._orders(group), strict=True)
        tests = [asyncio.create_task(member.test(order)) for member, order in orders]
        running = set(tests)
        try:
            while running:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                if any(test.result().test == _PROCESS_TEST for test in done):
                    break
        finally:
            for test in tests:
                test.cancel()
            await asyncio.gather(*tests, return_exceptions=True)
        return [PARTNER_GONE if test.cancelled() else test.result() for test in tests]

    async def replace_failed(self, measured: Sequence[NodeResult]) -> None:
        for rank, result in enumerate(measured):
            if not result.passed:
                await self._members[rank].end()
                await self._interpreters.replace(rank)
                self._members[rank] = _CheckWorker(self._settings, self._interpreters, rank)

    def _orders(self, group: CheckGroup) -> list[MeasureOrder]:
        own = self._settings.request.node_id
        size = self._settings.local_world_size
        first = next(member.rank for member in group.members if member.node_id == own) * size
        return [
            MeasureOrder(
                rank=first + local_rank,
                world_size=len(group.members) * size,
                store_host=group.store_host or "127.0.0.1",
                store_port=group.store_port,
            )
            for local_rank in range(size)
        ]


def summarize(measured: Sequence[NodeResult]) -> NodeResult:
    """Combine the results of a node's processes: the first failure, else the slowest.

    A failure within the node comes before failures that may follow from it.
    """
    failures = sorted(
        (result for result in measured if not result.passed), key=lambda result: not result.local
    )
    if failures:
        return failures[0]
    last = max(measured, key=lambda result: result.collective_s)
    return msgspec.structs.replace(
        max(measured, key=lambda result: result.compute_s),
        collective_s=last.collective_s,
        bandwidth=min(result.bandwidth for result in measured),
        collective_device=last.device,
    )


class _CheckWorker:
    """One worker process."""

    def __init__(
        self, settings: CheckSettings, interpreters: CheckInterpreters, local_rank: int
    ) -> None:
        self._settings, self._local_rank = settings, local_rank
        self._interpreters = interpreters
        self._spare: SpareInterpreter | None = None
        self._child: ForkedChild | None = None
        self._has_child = False
        self._port = 0
        self._begin_task = asyncio.create_task(self._begin())

    async def port(self) -> int:
        """Return the port that it holds; 0 if it ended before."""
        while not self._port:
            message = await self._receive(self._settings.start_timeout_s)
            if not isinstance(message, PortReport):
                return 0
            self._port = message.port
        return self._port

    async def test(self, order: MeasureOrder) -> NodeResult:
        """Run one test. A process that ends or does not answer in time has failed."""
        settings = self._settings
        limit_s = settings.start_timeout_s + 4 * settings.workload.timeout_s
        await asyncio.shield(self._begin_task)
        await self._send(order)
        message = await self._receive(limit_s)
        while isinstance(message, PortReport):
            message = await self._receive(limit_s)
        self._port = 0
        return message or await self._explain_silence(limit_s)

    async def end(self) -> None:
        self._begin_task.cancel()
        await asyncio.gather(self._begin_task, return_exceptions=True)
        if self._child:
            self._child.writer.close()
        if not self._spare or not self._has_child:
            return
        try:
            async with asyncio.timeout(_END_TIMEOUT_S):
                await self._spare.end_child()
                await self._spare.wait_for_child()
        except ConnectionError:
            return
        except TimeoutError:
            self._spare.process.signal_group(signal.SIGKILL)
            await asyncio.wait({self._spare.process.ended}, timeout=_END_TIMEOUT_S)

    async def _begin(self) -> None:
        """Start the process when its interpreter is warm; other processes do not wait for it."""
        settings = self._settings
        environment = os.environ if settings.environment is None else settings.environment
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(settings.start_timeout_s):
                self._spare = await self._interpreters.warm(self._local_rank)
            self._has_child = True
            self._child = await self._spare.fork_child(settings.module, environment)
        start = WorkerStart(
            workload=settings.workload,
            local_rank=self._local_rank,
            local_world_size=settings.local_world_size,
        )
        await self._send(start)

    async def _send(self, message: WorkerStart | MeasureOrder) -> None:
        if self._child:
            with contextlib.suppress(ConnectionError):
                self._child.writer.write(msgspec.json.encode(message) + b"\n")
                await self._child.writer.drain()

    async def _receive(self, limit_s: float) -> WorkerMessage | None:
        await asyncio.shield(self._begin_task)
        if self._child is None:
            return None
        try:
            async with asyncio.timeout(limit_s):
                line = await self._child.reader.readline()
        except (TimeoutError, ConnectionError):
            return None
        return msgspec.json.decode(line, type=WorkerMessage) if line else None

    async def _explain_silence(self, limit_s: float) -> NodeResult:
        device = f"process {self._local_rank}"
        try:
            async with asyncio.timeout(_END_TIMEOUT_S):
                code = await self._exit_code()
        except TimeoutError:
            message = f"no answer within {limit_s:.0f} s"
            return NodeResult(passed=False, device=device, test="collective", message=message)
        message = f"the process of the check ended with code {code}"
        return NodeResult(
            passed=False, local=True, device=device, test=_PROCESS_TEST, message=message
        )

    async def _exit_code(self) -> int:
        """Wait for the end of the process, or of its interpreter; return the exit code."""
        if self._spare is None:
            raise TimeoutError
        code = await self._spare.wait_for_child() if self._has_child else None
        self._has_child = False
        return await asyncio.shield(self._spare.process.ended) if code is None else code


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
    groups: tuple[tuple[int, ...], ...]
    """The groups of these results; each includes this node."""
    duration_s: float


async def run_check(
    settings: CheckSettings, exchange: CheckExchange, interpreters: CheckInterpreters
) -> CheckReport:
    """Take part in a node check until its verdict."""
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
