"""The check of nodes before training: alone with a referee in this process, or with the others."""

import contextlib
import logging
import secrets

from gangline.elastic.agent.place import Place
from gangline.elastic.agent.settings import AgentSettings
from gangline.elastic.agent.world import MeetingError
from gangline.elastic.launcher.checks import UnfitError
from gangline.elastic.nodecheck.referee import Referee
from gangline.elastic.nodecheck.run import CheckReport, CheckSettings, Exchange, run_check
from gangline.elastic.protocol.client import Client, ClientName
from gangline.elastic.protocol.errors import MasterUnreachableError, RequestRefusedError
from gangline.elastic.protocol.messages import CheckGroup, CheckResult, CheckVerdict, CheckWanted
from gangline.elastic.protocol.seal import Secret

log = logging.getLogger(__name__)

_ONLY_NODE = 0
_GIGA = 1e9


class _Master:
    """The master as the one who conducts the check."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def ask(self, message: CheckWanted | CheckResult) -> CheckGroup | CheckVerdict:
        """Ask again and again: a round lasts as long as its slowest node."""
        while True:
            try:
                reply = await self._client.call(message, timeout_s=None)
            except RequestRefusedError as error:
                if error.reason == "TimedOut":
                    continue
                raise
            if isinstance(reply, CheckGroup | CheckVerdict):
                return reply


async def check_alone(settings: AgentSettings) -> CheckReport:
    """Check the only node: its devices, and their communication."""
    wanted = CheckWanted(node_id=_ONLY_NODE, host="127.0.0.1")
    return await _check(settings, wanted, Referee([_ONLY_NODE]))


async def check_together(
    settings: AgentSettings, place: Place, secret: Secret, *, all_together: bool = False
) -> CheckReport:
    """Check this node with the others; at the end all at once if ``all_together``.

    Raises:
        MeetingError: the master cannot be reached, or will not have it.
    """
    incarnation = secrets.token_hex(8)
    wanted = CheckWanted(
        node_id=place.node_id,
        incarnation=incarnation,
        node_rank=place.node_rank,
        host=place.host,
        nodes=place.max_nodes,
        min_nodes=place.min_nodes,
        last_call_s=place.last_call_s,
        all_together=all_together,
    )
    name = ClientName(place.job, place.node_id, incarnation)
    try:
        async with Client(place.master, secret, name) as client:
            await client.connected(place.connect_timeout_s)
            return await _check(settings, wanted, _Master(client))
    except (MasterUnreachableError, RequestRefusedError) as error:
        raise MeetingError(f"node check: {error}") from error


async def _check(settings: AgentSettings, wanted: CheckWanted, exchange: Exchange) -> CheckReport:
    check = CheckSettings(wanted.node_id, wanted, local_world_size=settings.local_world_size)
    return await run_check(check, exchange)


def judge(report: CheckReport, node_id: int, *, exclude_straggler: bool, tells_speed: bool) -> None:
    """Say what the check found.

    Raises:
        UnfitError: this node is faulty; or slow, and slow ones are excluded.
    """
    verdict = report.verdict
    for node, words in verdict.faulty.items():
        log.warning("node check: node %d is faulty: %s", node, words)
    for node, words in verdict.stragglers.items():
        log.warning("node check: node %d is slow: %s", node, words)
    with contextlib.suppress(IndexError):
        last = report.outcomes[-1]
        log.log(
            logging.WARNING if tells_speed else logging.INFO,
            "node check: %.2f s; on %s computing took %.3f s, a collective %.3f s (%.2f GB/s)",
            report.duration_s, last.device, last.compute_s, last.collective_s,
            last.bandwidth / _GIGA,
        )  # fmt: skip
    if node_id in verdict.stragglers and exclude_straggler:
        raise UnfitError(f"this node is slow: {verdict.stragglers[node_id]}")
    if not verdict.passed and node_id not in verdict.stragglers:
        said = verdict.faulty.get(node_id, "it could not be cleared")
        raise UnfitError(f"this node is unfit for training: {said}")
