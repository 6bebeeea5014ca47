"""Coordinates one check of nodes in this process, for a launcher without a master.

The master's coordinator applies the same group testing to nodes that come and leave.
"""

import asyncio
from collections.abc import Mapping, Sequence

from gangline.elastic.nodecheck.group_testing import CheckRules, choose_next_step
from gangline.elastic.nodecheck.result import CheckConclusion, CheckRound, NodeResult
from gangline.elastic.nodecheck.speed import TimesHistory
from gangline.elastic.protocol.check_messages import (
    CheckGroup,
    CheckMember,
    CheckRequest,
    CheckResult,
    CheckVerdict,
)


class LocalCoordinator:
    """One check of a fixed set of nodes; implements ``run.CheckExchange``."""

    def __init__(
        self,
        nodes: Sequence[int],
        rules: CheckRules | None = None,
        history: TimesHistory | None = None,
    ) -> None:
        self._nodes = list(nodes)
        self._rules, self._history = rules or CheckRules(), history or {}
        self._rounds: list[CheckRound] = []
        self._step = choose_next_step(self._nodes, [], self._rules, self._history)
        self._addresses: dict[int, tuple[str, int]] = {}
        self._outcomes: dict[int, NodeResult] = {}
        self._moved = asyncio.Condition()

    async def ask(self, message: CheckRequest | CheckResult) -> CheckGroup | CheckVerdict:
        """Process a request or result; return the next message when there is one."""
        node = message.node_id
        async with self._moved:
            if isinstance(message, CheckRequest) and message.testing >= 0:
                pass  # a presence message: nothing changes
            elif isinstance(message, CheckRequest):
                self._addresses[node] = (message.host or "127.0.0.1", message.store_port)
            else:
                self._addresses[node] = (self._addresses[node][0], message.store_port)
                self._outcomes[node] = node_result(message)
                self._close_round()
            self._moved.notify_all()
            await self._moved.wait_for(lambda: self._answer(node) is not None)
            answer = self._answer(node)
        assert answer is not None
        return answer

    def _close_round(self) -> None:
        if isinstance(self._step, CheckConclusion):
            return
        if all(node in self._outcomes for group in self._step for node in group):
            self._rounds.append(CheckRound(self._step, self._outcomes))
            self._outcomes = {}
            self._step = choose_next_step(self._nodes, self._rounds, self._rules, self._history)

    def _answer(self, node: int) -> CheckGroup | CheckVerdict | None:
        if isinstance(self._step, CheckConclusion):
            return verdict_message(node, self._step)
        group = next((group for group in self._step if node in group), None)
        if group is None or node in self._outcomes or len(self._addresses) < len(self._nodes):
            return None
        host, port = self._addresses[group[0]]
        members = [CheckMember(n, rank, self._addresses[n][0]) for rank, n in enumerate(group)]
        return CheckGroup(
            round=len(self._rounds), members=tuple(members), store_host=host, store_port=port
        )


def node_result(result: CheckResult) -> NodeResult:
    return NodeResult(
        passed=result.passed,
        local=result.local,
        compute_s=result.compute_s,
        collective_s=result.collective_s,
        bandwidth=result.bandwidth,
        device=result.device,
        test=result.test,
        message=result.message,
        collective_device=result.collective_device,
    )


def verdict_message(
    node: int, verdict: CheckConclusion, *, exclude_stragglers: bool = False
) -> CheckVerdict:
    return CheckVerdict(
        passed=verdict.passed(node, exclude_stragglers=exclude_stragglers),
        faulty=_texts(verdict.faulty),
        stragglers=_texts(verdict.stragglers),
        undecided=verdict.undecided,
    )


def _texts(findings: Mapping[int, object]) -> dict[int, str]:
    return {node: str(finding) for node, finding in findings.items()}
