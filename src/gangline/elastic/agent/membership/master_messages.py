"""Messages of an agent to the master, and the wait for the first connection."""

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass, fields

from gangline.api.failure import Failure
from gangline.elastic.agent.membership.peers import TEXT_LIMIT
from gangline.elastic.agent.membership.restart_consensus import Round
from gangline.elastic.agent.progress_report import ProgressReport, WorkerUsage
from gangline.elastic.agent.rendezvous import RendezvousError
from gangline.elastic.agent.settings import NodeIdentity
from gangline.elastic.agent.world import free_port
from gangline.elastic.protocol import messages as msg
from gangline.elastic.protocol.client import MasterClient
from gangline.elastic.protocol.errors import MasterUnreachableError, RequestRefusedError
from gangline.elastic.training_report import NOTHING, TrainingReport

LONG_POLL_S = 30.0


@dataclass(frozen=True, slots=True)
class MasterMessages:
    """Creates the messages of one agent process."""

    identity: NodeIdentity
    incarnation: str

    def join(self, number: int, peer_port: int, last_round: Round | None) -> msg.Join:
        place = self.identity
        return msg.Join(
            node_id=place.node_id,
            incarnation=self.incarnation,
            number=number,
            node_rank=place.node_rank,
            local_world_size=place.local_world_size,
            host=place.host,
            agent_address=f"{place.host}:{peer_port}",
            store_port=free_port(),
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
        report: ProgressReport,
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
    report: ProgressReport, pod: str, tuning_version: int | None, tunes_batch: bool
) -> msg.NodeReport:
    """Return the part of a heartbeat that is not sent each time."""
    training = report.training or NOTHING
    return msg.NodeReport(
        **{field.name: getattr(training, field.name) for field in fields(TrainingReport)},
        pod=pod,
        memory_peak_bytes=report.memory_peak_bytes,
        tuning_version=tuning_version,
        tunes_batch=tunes_batch,
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


log = logging.getLogger(__name__)

WAIT_MESSAGE_INTERVAL_S = 10.0
"""Interval of log messages while waiting."""


async def wait_for_master(client: MasterClient, timeout_s: float) -> None:
    """Wait until the client is connected. A name that does not resolve is logged immediately.

    Raises:
        RendezvousError: there was no connection in time, or the master refuses this node.
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
