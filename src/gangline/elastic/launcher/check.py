"""Runs a node check: on a single node, with other nodes, or again on request.

Importing it costs time, so the launcher does it only if a check is due.
"""

import contextlib
import logging
import secrets

import msgspec

from gangline.elastic.agent.arrival import arrived
from gangline.elastic.agent.membership import FAREWELL_S
from gangline.elastic.agent.peers import TEXT_LIMIT
from gangline.elastic.agent.place import Place
from gangline.elastic.agent.rendezvous import MeetingError
from gangline.elastic.agent.settings import AgentSettings
from gangline.elastic.launcher.checks import Checks, Extent, UnfitError
from gangline.elastic.nodecheck.crew import CheckSettings
from gangline.elastic.nodecheck.interpreters import Interpreters, idle_interpreters
from gangline.elastic.nodecheck.orders import Workload
from gangline.elastic.nodecheck.plan import Rules
from gangline.elastic.nodecheck.referee import Referee
from gangline.elastic.nodecheck.run import CheckReport, Exchange, run_check
from gangline.elastic.nodecheck.straggler import SpeedLimits
from gangline.elastic.protocol.client import Client, ClientName
from gangline.elastic.protocol.errors import MasterUnreachableError, RequestRefusedError
from gangline.elastic.protocol.messages import (
    CheckGroup,
    CheckResult,
    CheckVerdict,
    CheckWanted,
    Leave,
    RunCheck,
)
from gangline.elastic.protocol.seal import Secret

log = logging.getLogger(__name__)

_ONLY_NODE = 0
_GIGA, _MILLI = 1e9, 1e3
_SLACK_S = 5.0


class _Master:
    """The master as coordinator of the check."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def ask(self, message: CheckWanted | CheckResult) -> CheckGroup | CheckVerdict:
        """Repeat the request until there is a reply: a round lasts as long as its slowest node."""
        while True:
            try:
                reply = await self._client.call(message, timeout_s=None)
            except RequestRefusedError as error:
                if error.reason == "TimedOut":
                    continue
                raise
            if isinstance(reply, CheckGroup | CheckVerdict):
                return reply


async def check_alone(settings: AgentSettings, checks: Checks, interpreters: Interpreters) -> None:
    """Check a single node: its devices, and their communication.

    Raises:
        UnfitError: the node must not train.
    """
    request = CheckWanted(node_id=_ONLY_NODE, host="127.0.0.1")
    extent = checks.extent
    rules = Rules(SpeedLimits(extent.straggler_ratio, absolute_s=extent.straggler_s))
    report = await _check(settings, request, Referee([_ONLY_NODE], rules), extent, interpreters)
    _judge(report, _ONLY_NODE, checks)


async def check_together(
    settings: AgentSettings,
    place: Place,
    secret: Secret,
    checks: Checks,
    interpreters: Interpreters,
) -> None:
    """Check this node with the others. A last round of all nodes measures their speed if requested.

    Raises:
        UnfitError: the node must not train.
        MeetingError: the master cannot be reached, or refuses this node.
    """
    request = msgspec.structs.replace(
        _wanted(place, checks),
        nodes=place.max_nodes,
        min_nodes=place.min_nodes,
        last_call_s=place.last_call_s,
    )
    name = ClientName(place.job, place.node_id, request.incarnation)
    try:
        async with Client(place.master, secret, name) as client:
            await arrived(client, place.connect_timeout_s)
            report = await _check(settings, request, _Master(client), checks.extent, interpreters)
            if fault := _fault_of(report, place.node_id, checks):
                await _leave(client, request, fault)
    except (MasterUnreachableError, RequestRefusedError) as error:
        raise MeetingError(f"node check: {error}") from error
    _judge(report, place.node_id, checks)


async def check_again(
    settings: AgentSettings, place: Place, checks: Checks, client: Client, wish: RunCheck
) -> None:
    """Check this node with the nodes that got the same order.

    Raises:
        UnfitError: the node must not train.
        MeetingError: the master refuses this node.
    """
    request = msgspec.structs.replace(
        _wanted(place, checks),
        nodes=len(wish.nodes) or 1,
        last_call_s=settings.shutdown_s + _SLACK_S,  # the workers of the other nodes must end first
    )
    try:
        async with idle_interpreters(settings.local_world_size) as interpreters:
            report = await _check(settings, request, _Master(client), checks.extent, interpreters)
    except RequestRefusedError as error:
        raise MeetingError(f"node check: {error}") from error
    _judge(report, place.node_id, checks)


async def _leave(client: Client, wanted: CheckWanted, reason: str) -> None:
    """Leave the job, so that the other nodes do not wait for this one to join."""
    leave = Leave(
        node_id=wanted.node_id, incarnation=wanted.incarnation, reason=reason[:TEXT_LIMIT]
    )
    with contextlib.suppress(MasterUnreachableError, RequestRefusedError):
        await client.call(leave, timeout_s=FAREWELL_S)


def _wanted(place: Place, checks: Checks) -> CheckWanted:
    return CheckWanted(
        node_id=place.node_id,
        incarnation=secrets.token_hex(8),
        node_rank=place.node_rank,
        host=place.host,
        straggler_ratio=checks.extent.straggler_ratio,
        straggler_s=checks.extent.straggler_s,
        all_together=checks.tells_speed,
    )


async def _check(
    settings: AgentSettings,
    wanted: CheckWanted,
    exchange: Exchange,
    extent: Extent,
    interpreters: Interpreters,
) -> CheckReport:
    workload = Workload(
        matrix_size=extent.matrix_size,
        matrix_repeats=extent.matrix_repeats,
        collective_bytes=extent.collective_bytes,
        collective_repeats=extent.collective_repeats,
        timeout_s=extent.timeout_s,
        memory_limit=extent.memory_limit,
    )
    size = settings.local_world_size
    check = CheckSettings(wanted.node_id, wanted, local_world_size=size, workload=workload)
    return await run_check(check, exchange, interpreters)


def _judge(report: CheckReport, node_id: int, checks: Checks) -> None:
    """Log the results of the check.

    Raises:
        UnfitError: this node is faulty, or slow while slow nodes are excluded.
    """
    verdict = report.verdict
    for node, finding in verdict.faulty.items():
        log.warning("node check: node %d is faulty: %s", node, finding)
    for node, finding in verdict.stragglers.items():
        log.warning("node check: node %d is slow: %s", node, finding)
    level = logging.WARNING if checks.tells_speed else logging.INFO
    for group, outcome in zip(report.groups, report.outcomes, strict=True):
        if outcome.passed:
            log.log(
                level,
                "node check: nodes %s: %.3f GB/s, a collective took %.3f ms; "
                "on %s a matrix product took %.3f ms",
                ", ".join(map(str, group)), outcome.bandwidth / _GIGA,
                outcome.collective_s * _MILLI, outcome.device, outcome.compute_s * _MILLI,
            )  # fmt: skip
    log.log(level, "node check: done after %.2f s", report.duration_s)
    if fault := _fault_of(report, node_id, checks):
        raise UnfitError(fault)


def _fault_of(report: CheckReport, node_id: int, checks: Checks) -> str:
    """Return why this node must not train; empty if it may."""
    verdict = report.verdict
    if node_id in verdict.stragglers:
        finding = verdict.stragglers[node_id]
        return f"this node is slow: {finding}" if checks.exclude_straggler else ""
    if not verdict.passed:
        finding = verdict.faulty.get(node_id, "it could not be proved healthy")
        return f"this node is unfit for training: {finding}"
    return ""
