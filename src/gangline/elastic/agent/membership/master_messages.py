"""What an agent sends to its master: joins, heartbeats, failures, saves before evictions, imports.

``EvictionSave`` carries out a request once: a restarted master repeats its request, which is
answered again but not begun twice. ``PreloadList`` are the modules that workers import, stored at
the master: a node that joins a running job imports them first, while the others continue training.
"""

import asyncio
import contextlib
import json
import logging
import time
import zlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, fields
from typing import Any

from gangline.api.failure import Failure
from gangline.elastic.agent.membership.restart_consensus import TEXT_LIMIT, Round
from gangline.elastic.agent.progress_report import NodeProgress, WorkerUsage
from gangline.elastic.agent.rendezvous import RendezvousError, WorkerControl, free_port
from gangline.elastic.agent.settings import NodeIdentity
from gangline.elastic.progress import NOTHING, TrainingReport
from gangline.elastic.protocol import messages as msg
from gangline.elastic.protocol.client import MasterClient
from gangline.elastic.protocol.messages import Acknowledged, KeyValueGet, KeyValueReply, KeyValueSet
from gangline.elastic.protocol.wire import MasterUnreachableError, RequestRefusedError
from gangline.elastic.variables import join_address

log = logging.getLogger(__name__)

SEND_TIMEOUT_S = 30.0
_KEY = "gangline/imports"
_PATIENCE_S = 10.0
LONG_POLL_S = 30.0
WAIT_MESSAGE_INTERVAL_S = 10.0


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


class PreloadList:
    """One job's preload list."""

    def __init__(self, client: MasterClient) -> None:
        self._client = client
        self._is_published = False
        self.modules: tuple[str, ...] = ()
        """Modules that this node has learned."""

    async def fetch(self) -> tuple[str, ...]:
        with contextlib.suppress(MasterUnreachableError, RequestRefusedError):
            request = KeyValueGet(keys=(_KEY,))
            value = (await self._client.ask(request, KeyValueReply, timeout_s=_PATIENCE_S)).values[
                0
            ]
            return decode_modules(value) if value else ()
        return ()

    async def publish(self) -> None:
        """Store the list at the master, once. If the master is away, the next call tries again."""
        if not self.modules or self._is_published:
            return
        with contextlib.suppress(MasterUnreachableError, RequestRefusedError):
            update = KeyValueSet(key=_KEY, value=encode_modules(self.modules))
            await self._client.ask(update, Acknowledged, timeout_s=_PATIENCE_S)
            self._is_published = True


def encode_modules(modules: tuple[str, ...]) -> bytes:
    """Compress a list of modules. PyTorch alone has more than a thousand."""
    return zlib.compress(json.dumps(modules).encode())


def decode_modules(data: bytes) -> tuple[str, ...]:
    """Decompress a list; empty if it is invalid, as another version may have written it."""
    try:
        modules = json.loads(zlib.decompress(data))
    except (zlib.error, ValueError):
        return ()
    names = modules if isinstance(modules, list) else []
    return tuple(name for name in names if isinstance(name, str))


@dataclass(frozen=True, slots=True)
class MasterMessages:
    """Creates the messages of one agent process."""

    identity: NodeIdentity
    incarnation: str

    def join(
        self,
        number: int,
        peer_port: int,
        last_round: Round | None,
        running_store_port: int | None = None,
    ) -> msg.Join:
        """Return a request for the next world.

        Args:
            running_store_port: port of the store of workers that keep running; None without any.
        """
        place = self.identity
        return msg.Join(
            node_id=place.node_id,
            incarnation=self.incarnation,
            number=number,
            node_rank=place.node_rank,
            local_world_size=place.local_world_size,
            host=place.host,
            agent_address=join_address(place.host, peer_port),
            store_port=running_store_port or free_port(),
            continues=running_store_port is not None,
            topology=place.topology,
            round_seen=last_round.world.round if last_round else 0,
            attempt=last_round.order.attempt if last_round else 0,
            wait_s=LONG_POLL_S,
            min_nodes=place.min_nodes,
            max_nodes=place.max_nodes,
            node_unit=place.node_unit,
            last_call_s=place.last_call_s,
            join_timeout_s=place.join_timeout_s,
        )

    def heartbeat(
        self,
        round_: int,
        attempt: int,
        report: NodeProgress,
        details: msg.NodeReport | None = None,
    ) -> msg.Heartbeat:
        usage = report.usage
        return msg.Heartbeat(
            node_id=self.identity.node_id,
            incarnation=self.incarnation,
            round=round_,
            attempt=attempt,
            phase=report.phase,
            step=report.step,
            first_step=report.first_step,
            steps_per_s=round(report.steps_per_s, 4),
            spent_s=report.spent_s,
            checkpoint_step=report.checkpoint_step,
            saves=report.saves,
            resources=_resources(usage) if usage else None,
            node=details,
        )


def _resources(usage: WorkerUsage) -> msg.NodeResources:
    return msg.NodeResources(usage.cpus, usage.memory_bytes, is_warm=usage.is_warm)


def node_report(
    report: NodeProgress, pod: str, tuning_version: int | None, tunes_batch: bool
) -> msg.NodeReport:
    training = report.training or NOTHING
    return msg.NodeReport(
        **{field.name: getattr(training, field.name) for field in fields(TrainingReport)},
        pod=pod,
        memory_peak_bytes=report.memory_peak_bytes,
        tuning_version=tuning_version,
        tunes_batch=tunes_batch,
        replaced=report.replaced,
        replacement=report.replacement[:TEXT_LIMIT],
    )


def failure_message(
    identity: NodeIdentity, round_: int, attempt: int, failure: Failure
) -> msg.FailureReport:
    """Return the message about a failure that is followed by a restart in place."""
    return msg.FailureReport(
        node_id=identity.node_id,
        round=round_,
        attempt=attempt,
        exit_codes=(failure.exit_code,) if failure.exit_code is not None else (),
        cause=failure.cause,
        blame=failure.blame.value,
        remedy=failure.remedy.value,
        message=failure.message[:TEXT_LIMIT],
        action="RestartInPlace",
    )


async def wait_for_master(client: MasterClient, timeout_s: float) -> None:
    """Wait until the client is connected. A name that does not resolve is logged immediately.

    Raises RendezvousError: there was no connection in time, or the master refuses this node.
    """
    end = time.monotonic() + timeout_s
    until = time.strftime("%H:%M:%S", time.localtime(time.time() + timeout_s))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(min(WAIT_MESSAGE_INTERVAL_S, timeout_s)):
            await client.attempted.wait()
    if client.unresolved_host:
        log.warning("waiting for the master until %s: %s", until, client.last_error)
    while True:
        try:
            await client.wait_connected(
                max(min(WAIT_MESSAGE_INTERVAL_S, end - time.monotonic()), 0)
            )
            return
        except RequestRefusedError as error:
            raise RendezvousError(str(error)) from error
        except MasterUnreachableError as error:
            if time.monotonic() >= end:
                failure = MasterUnreachableError(client.address, timeout_s, error.last_error)
                raise RendezvousError(str(failure)) from error
            log.warning("waiting for the master until %s: %s", until, error)
