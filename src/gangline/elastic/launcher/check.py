"""Runs a node check: on a single node, with other nodes, or again on request.

Importing it costs time, so the launcher does it only if a check is due.
"""

import contextlib
import logging
import secrets

from gangline.elastic.agent.membership.master_messages import wait_for_master
from gangline.elastic.agent.membership.membership import LEAVE_TIMEOUT_S
from gangline.elastic.agent.membership.restart_consensus import TEXT_LIMIT
from gangline.elastic.agent.rendezvous import RendezvousError
from gangline.elastic.agent.settings import AgentSettings, NodeIdentity
from gangline.elastic.launcher.settings import NodeCheckOptions, NodeUnhealthyError
from gangline.elastic.nodecheck.interpreters import CheckInterpreters, idle_interpreters
from gangline.elastic.nodecheck.run import CheckReport, CheckSettings, LocalExchange, run_check
from gangline.elastic.protocol.channel import JobSecret
from gangline.elastic.protocol.client import ClientIdentity, MasterClient
from gangline.elastic.protocol.messages import (
    CheckGroup,
    CheckRequest,
    CheckResult,
    CheckVerdict,
    Leave,
    RunCheck,
)
from gangline.elastic.protocol.wire import MasterUnreachableError, RequestRefusedError

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

    Raises NodeUnhealthyError: the node must not train.
    """
    request = CheckRequest(
        node_id=_ONLY_NODE,
        host="127.0.0.1",
        straggler_ratio=checks.straggler_ratio,
        straggler_s=checks.straggler_s,
    )
    exchange = LocalExchange()
    report = await run_check(_check_settings(settings, request, checks), exchange, interpreters)
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
    request = _check_request(
        identity, checks, identity.max_nodes, identity.min_nodes, identity.last_call_s
    )
    check = _check_settings(settings, request, checks)
    name = ClientIdentity(identity.job, identity.node_id, request.incarnation)
    try:
        async with MasterClient(identity.master_address, secret, name) as client:
            await wait_for_master(client, identity.connect_timeout_s)
            report = await run_check(check, _MasterExchange(client), interpreters)
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
    # The workers of the other nodes must end before these join the check.
    last_call_s = settings.shutdown_s + _SLACK_S
    request = _check_request(identity, checks, len(order.nodes) or 1, 1, last_call_s)
    check = _check_settings(settings, request, checks)
    try:
        async with idle_interpreters(settings.local_world_size) as interpreters:
            report = await run_check(check, _MasterExchange(client), interpreters)
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


def _check_request(
    identity: NodeIdentity, checks: NodeCheckOptions, nodes: int, min_nodes: int, last_call_s: float
) -> CheckRequest:
    return CheckRequest(
        node_id=identity.node_id,
        incarnation=secrets.token_hex(8),
        node_rank=identity.node_rank,
        host=identity.host,
        nodes=nodes,
        min_nodes=min_nodes,
        last_call_s=last_call_s,
        straggler_ratio=checks.straggler_ratio,
        straggler_s=checks.straggler_s,
        all_together=checks.reports_speed,
    )


def _check_settings(
    settings: AgentSettings, request: CheckRequest, checks: NodeCheckOptions
) -> CheckSettings:
    size = settings.local_world_size
    return CheckSettings(request, local_world_size=size, workload=checks.workload)


def _report_verdict(report: CheckReport, node_id: int, checks: NodeCheckOptions) -> None:
    verdict = report.verdict
    for node, finding in verdict.faulty.items():
        log.warning("node check: node %d is faulty: %s", node, finding)
    for node, finding in verdict.stragglers.items():
        log.warning("node check: node %d is slow: %s", node, finding)
    level = logging.WARNING if checks.reports_speed else logging.INFO
    for group, result in zip(report.groups, report.results, strict=True):
        if result.passed:
            log.log(
                level,
                "node check: nodes %s: %.3f GB/s, a collective took %.3f ms; "
                "on %s a matrix product took %.3f ms",
                ", ".join(map(str, group)), result.bandwidth / _GIGA,
                result.collective_s * _MILLI, result.device, result.compute_s * _MILLI,
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
