"""Runs a node check: on a single node, with other nodes, or again on request.

Importing it costs time, so the launcher does it only if a check is due.
"""

import contextlib
import logging
import secrets

import msgspec

from gangline.elastic.agent.membership.master_messages import wait_for_master
from gangline.elastic.agent.membership.membership import LEAVE_TIMEOUT_S
from gangline.elastic.agent.membership.peers import TEXT_LIMIT
from gangline.elastic.agent.node_identity import NodeIdentity
from gangline.elastic.agent.rendezvous import RendezvousError
from gangline.elastic.agent.settings import AgentSettings
from gangline.elastic.launcher.check_options import (
    CheckLimits,
    NodeCheckOptions,
    NodeUnhealthyError,
)
from gangline.elastic.nodecheck.group_testing import CheckRules
from gangline.elastic.nodecheck.interpreters import CheckInterpreters, idle_interpreters
from gangline.elastic.nodecheck.local_coordinator import LocalCoordinator
from gangline.elastic.nodecheck.run import CheckExchange, CheckReport, run_check
from gangline.elastic.nodecheck.speed import SpeedLimits
from gangline.elastic.nodecheck.worker_messages import CheckWorkload
from gangline.elastic.nodecheck.workers import CheckSettings
from gangline.elastic.protocol.client import ClientIdentity, MasterClient
from gangline.elastic.protocol.encryption import JobSecret
from gangline.elastic.protocol.errors import MasterUnreachableError, RequestRefusedError
from gangline.elastic.protocol.messages import (
    CheckGroup,
    CheckRequest,
    CheckResult,
    CheckVerdict,
    Leave,
    RunCheck,
)

log = logging.getLogger(__name__)

_ONLY_NODE = 0
_GIGA, _MILLI = 1e9, 1e3
_SLACK_S = 5.0


class _MasterExchange:
    """The master as coordinator of the check."""

    def __init__(self, client: MasterClient) -> None:
        self._client = client

    async def ask(self, message: CheckRequest | CheckResult) -> CheckGroup | CheckVerdict:
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


async def check_single_node(
    settings: AgentSettings, checks: NodeCheckOptions, interpreters: CheckInterpreters
) -> None:
    """Check a single node: its devices, and their communication.

    Raises:
        NodeUnhealthyError: the node must not train.
    """
    request = CheckRequest(node_id=_ONLY_NODE, host="127.0.0.1")
    extent = checks.limits
    rules = CheckRules(SpeedLimits(extent.straggler_ratio, absolute_s=extent.straggler_s))
    report = await _run_check(
        settings, request, LocalCoordinator([_ONLY_NODE], rules), extent, interpreters
    )
    _report_verdict(report, _ONLY_NODE, checks)


async def check_with_others(
    settings: AgentSettings,
    identity: NodeIdentity,
    secret: JobSecret,
    checks: NodeCheckOptions,
    interpreters: CheckInterpreters,
) -> None:
    """Check this node with the others. A last round of all nodes measures their speed if requested.

    Raises:
        NodeUnhealthyError: the node must not train.
        RendezvousError: the master cannot be reached, or refuses this node.
    """
    request = msgspec.structs.replace(
        _check_request(identity, checks),
        nodes=identity.max_nodes,
        min_nodes=identity.min_nodes,
        last_call_s=identity.last_call_s,
    )
    name = ClientIdentity(identity.job, identity.node_id, request.incarnation)
    try:
        async with MasterClient(identity.master_address, secret, name) as client:
            await wait_for_master(client, identity.connect_timeout_s)
            report = await _run_check(
                settings, request, _MasterExchange(client), checks.limits, interpreters
            )
            if fault := _fault_of(report, identity.node_id, checks):
                await _leave(client, request, fault)
    except (MasterUnreachableError, RequestRefusedError) as error:
        raise RendezvousError(f"node check: {error}") from error
    _report_verdict(report, identity.node_id, checks)


async def recheck(
    settings: AgentSettings,
    identity: NodeIdentity,
    checks: NodeCheckOptions,
    client: MasterClient,
    order: RunCheck,
) -> None:
    """Check this node with the nodes that got the same order.

    Raises:
        NodeUnhealthyError: the node must not train.
        RendezvousError: the master refuses this node.
    """
    request = msgspec.structs.replace(
        _check_request(identity, checks),
        nodes=len(order.nodes) or 1,
        last_call_s=settings.shutdown_s + _SLACK_S,  # the workers of the other nodes must end first
    )
    try:
        async with idle_interpreters(settings.local_world_size) as interpreters:
            report = await _run_check(
                settings, request, _MasterExchange(client), checks.limits, interpreters
            )
    except RequestRefusedError as error:
        raise RendezvousError(f"node check: {error}") from error
    _report_verdict(report, identity.node_id, checks)


async def _leave(client: MasterClient, request: CheckRequest, reason: str) -> None:
    """Leave the job, so that the other nodes do not wait for this one to join."""
    leave = Leave(
        node_id=request.node_id, incarnation=request.incarnation, reason=reason[:TEXT_LIMIT]
    )
    with contextlib.suppress(MasterUnreachableError, RequestRefusedError):
        await client.call(leave, timeout_s=LEAVE_TIMEOUT_S)


def _check_request(identity: NodeIdentity, checks: NodeCheckOptions) -> CheckRequest:
    return CheckRequest(
        node_id=identity.node_id,
        incarnation=secrets.token_hex(8),
        node_rank=identity.node_rank,
        host=identity.host,
        straggler_ratio=checks.limits.straggler_ratio,
        straggler_s=checks.limits.straggler_s,
        all_together=checks.reports_speed,
    )


async def _run_check(
    settings: AgentSettings,
    request: CheckRequest,
    exchange: CheckExchange,
    limits: CheckLimits,
    interpreters: CheckInterpreters,
) -> CheckReport:
    workload = CheckWorkload(
        matrix_size=limits.matrix_size,
        matrix_repeats=limits.matrix_repeats,
        collective_bytes=limits.collective_bytes,
        collective_repeats=limits.collective_repeats,
        timeout_s=limits.timeout_s,
        memory_limit=limits.memory_limit,
    )
    size = settings.local_world_size
    check = CheckSettings(request.node_id, request, local_world_size=size, workload=workload)
    return await run_check(check, exchange, interpreters)


def _report_verdict(report: CheckReport, node_id: int, checks: NodeCheckOptions) -> None:
    """Log the results of the check.

    Raises:
        NodeUnhealthyError: this node is faulty, or slow while slow nodes are excluded.
    """
    verdict = report.verdict
    for node, finding in verdict.faulty.items():
        log.warning("node check: node %d is faulty: %s", node, finding)
    for node, finding in verdict.stragglers.items():
        log.warning("node check: node %d is slow: %s", node, finding)
    level = logging.WARNING if checks.reports_speed else logging.INFO
    for group, outcome in zip(report.groups, report.results, strict=True):
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
        raise NodeUnhealthyError(fault)


def _fault_of(report: CheckReport, node_id: int, checks: NodeCheckOptions) -> str:
    """Return why this node must not train; empty if it may."""
    verdict = report.verdict
    if node_id in verdict.stragglers:
        finding = verdict.stragglers[node_id]
        return f"this node is slow: {finding}" if checks.excludes_stragglers else ""
    if not verdict.passed:
        finding = verdict.faulty.get(node_id, "it could not be proved healthy")
        return f"this node is unfit for training: {finding}"
    return ""
