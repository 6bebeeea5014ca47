"""Group testing: chooses the groups of each round, and finds faulty nodes, from the rounds so far.

A group passes if all its nodes are healthy. The rules:

1. Round one tests neighbours. A node of a group that passed is *proved*.
2. Each suspect then meets a proved node, preferably one that it has not met. If both pass, the
   suspect is proved too. If not, it has failed twice, once with a healthy partner: it is faulty.
3. While no node is proved, pairs that have not met yet meet. If at least half of the nodes are
   healthy, two healthy ones meet by the third round.
4. If no node can be proved (two nodes, one faulty), each is tested alone. What this does not settle
   stays undecided.
5. A slow node meets a fast one once more before it is called a straggler.

Invariant: a healthy node is never called faulty.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gangline.elastic.nodecheck.result import (
    LOST_RESULT,
    CheckConclusion,
    CheckRound,
    NodeFinding,
    NodeGroup,
    NodeResult,
    SpeedLimits,
    TimesHistory,
    best_times,
    find_slow_nodes,
)

SEARCH_ROUNDS = 8
"""Rounds in which nodes search a first pair that passes; enough for eight nodes to meet all others.
"""


@dataclass(frozen=True, slots=True)
class CheckRules:
    """How a check is conducted."""

    limits: SpeedLimits = field(default_factory=SpeedLimits)
    all_together: bool = False
    """True to test the collective over all healthy nodes at the end, for figures only."""


def choose_next_step(
    nodes: Sequence[int],
    rounds: Sequence[CheckRound],
    rules: CheckRules | None = None,
    history: TimesHistory | None = None,
    gone: Collection[int] = (),
) -> tuple[NodeGroup, ...] | CheckConclusion:
    """Return the groups of the next round, or the conclusion from the rounds so far.

    Nodes that are in no group of a round wait.

    Args:
        nodes: all nodes, ordered by topology: neighbours test together first.
        gone: nodes that do not test any more.
    """
    rules = rules or CheckRules()
    nodes = list(dict.fromkeys(nodes))
    if not rounds:
        return first_groups(nodes)
    evidence = _Evidence.from_rounds(nodes, rounds, gone)
    groups = evidence.next_groups()
    if groups:
        return groups
    slow = find_slow_nodes(best_times(rounds), rules.limits, history or {})
    slow = {
        n: evidence.locate_device(finding) for n, finding in slow.items() if n in evidence.proved
    }
    groups = evidence.retest_groups(slow)
    if groups:
        return groups
    healthy = tuple(evidence.partners)
    if rules.all_together and len(healthy) > 1 and rounds[-1].groups != (healthy,):
        return (healthy,)
    return CheckConclusion(evidence.findings(), slow, evidence.undecided(), len(rounds))


def first_groups(nodes: Sequence[int]) -> tuple[NodeGroup, ...]:
    """Pair neighbours. An odd last node joins the last pair, which saves a round if all pass.

    If the group of three fails, none is blamed: it leaves three suspects that have not met as a
    pair.
    """
    pairs = [tuple(nodes[i : i + 2]) for i in range(0, len(nodes), 2)]
    if len(pairs) > 1 and len(pairs[-1]) == 1:
        last = pairs.pop()
        pairs[-1] += last
    return tuple(pairs)


@dataclass(slots=True)
class _Evidence:
    """What the rounds so far prove."""

    nodes: Sequence[int]
    rounds: Sequence[CheckRound]
    proved: set[int] = field(default_factory=set)
    met: set[frozenset[int]] = field(default_factory=set)
    """Pairs that tested without other nodes."""
    failures: dict[int, list[NodeGroup]] = field(default_factory=dict)
    """By node: failed groups in which no node failed within itself."""
    local_failures: dict[int, int] = field(default_factory=dict)
    alone: set[int] = field(default_factory=set)
    passed_alone: set[int] = field(default_factory=set)
    gone: Collection[int] = ()

    @classmethod
    def from_rounds(
        cls, nodes: Sequence[int], rounds: Sequence[CheckRound], gone: Collection[int]
    ) -> "_Evidence":
        evidence = cls(nodes, rounds, failures={node: [] for node in nodes}, gone=gone)
        for round_ in rounds:
            for group in round_.groups:
                evidence._add_group(round_, group)
        return evidence

    def _add_group(self, round_: CheckRound, group: NodeGroup) -> None:
        if len(group) == 1:
            self.alone.update(group)
        if len(group) == 2:
            self.met.add(frozenset(group))
        if round_.passed(group):
            self.passed_alone.update(group if len(group) == 1 else ())
            if len(group) > 1 or len(self.nodes) == 1:
                self.proved.update(group)
            return
        at_fault = [node for node in group if _failed_by_itself(round_, group, node)]
        for node in at_fault:
            self.local_failures[node] = self.local_failures.get(node, 0) + 1
        for node in group if not at_fault else ():
            self.failures[node].append(group)

    @property
    def faulty(self) -> list[int]:
        """Nodes that failed twice (within themselves, or once with a proved node), or are lost."""
        return [n for n in self.nodes if n not in self.proved and self._is_faulty(n)]

    def _is_faulty(self, node: int) -> bool:
        if node in self.gone or self.local_failures.get(node, 0) > 1:
            return True
        failures = self.failures[node]
        with_proved = any(len(group) == 2 and self.proved & set(group) for group in failures)
        return with_proved and len(failures) + self.local_failures.get(node, 0) > 1

    @property
    def suspects(self) -> list[int]:
        return [n for n in self.nodes if n not in self.proved and not self._is_faulty(n)]

    @property
    def partners(self) -> list[int]:
        """Proved nodes that can test with others."""
        return [n for n in self.nodes if n in self.proved and n not in self.gone]

    def next_groups(self) -> tuple[NodeGroup, ...]:
        """Return the groups that settle open questions; empty if none can."""
        suspects = self.suspects
        if not suspects:
            return ()
        if self.partners:
            return self._with_partners(suspects, self.partners)
        if len(self.rounds) < SEARCH_ROUNDS and (groups := self._unmet(suspects)):
            return groups
        return tuple((n,) for n in suspects if n not in self.alone or self._may_fail_alone(n))

    def _may_fail_alone(self, node: int) -> bool:
        return node in self.local_failures and node not in self.passed_alone

    def _unmet(self, suspects: Sequence[int]) -> tuple[NodeGroup, ...]:
        groups: list[NodeGroup] = []
        free = list(suspects)
        while free:
            node = free.pop(0)
            partner = next((n for n in free if frozenset((node, n)) not in self.met), None)
            if partner is not None:
                free.remove(partner)
                groups.append((node, partner))
        return tuple(groups)

    def _with_partners(
        self, suspects: Sequence[int], partners: Sequence[int]
    ) -> tuple[NodeGroup, ...]:
        """Give each suspect a proved partner, preferably one that it has not met."""
        groups: list[NodeGroup] = []
        free = list(partners)
        for node in suspects[: len(partners)]:
            partner = next((n for n in free if frozenset((node, n)) not in self.met), free[0])
            free.remove(partner)
            groups.append((partner, node))
        return tuple(groups)

    def retest_groups(self, slow: Mapping[int, NodeFinding]) -> tuple[NodeGroup, ...]:
        """Pair slow nodes that have passed only once with fast ones."""
        passes, tests = dict.fromkeys(self.nodes, 0), dict.fromkeys(self.nodes, 0)
        for round_ in self.rounds:
            for group in round_.groups:
                for node in group:
                    passes[node] += round_.passed(group)
                    tests[node] += 1
        again = [n for n in slow if passes[n] == 1 and tests[n] < SEARCH_ROUNDS]
        again = [n for n in again if n not in self.gone]
        times = best_times(self.rounds)
        fast = sorted((n for n in self.partners if n not in slow), key=lambda n: (sum(times[n]), n))
        return self._with_partners(again, fast)

    def locate_device(self, finding: NodeFinding) -> NodeFinding:
        """Add the device on which the node had its best time in the slow test."""
        passed = [
            round_.results[finding.node]
            for round_ in self.rounds
            if finding.node in round_.results and round_.results[finding.node].passed
        ]
        best = min(passed, key=lambda result: result.seconds_of(finding.test))
        return replace(finding, device=best.device_of(finding.test))

    def undecided(self) -> tuple[int, ...]:
        """Return the remaining suspects, except nodes whose partners alone were at fault."""
        return tuple(n for n in self.suspects if self.failures[n] or self._may_fail_alone(n))

    def findings(self) -> dict[int, NodeFinding]:
        return {node: self._finding(node) for node in self.faulty}

    def _finding(self, node: int) -> NodeFinding:
        if node in self.gone:
            return NodeFinding(node, LOST_RESULT.test, value=1.0, message=LOST_RESULT.message)
        failures: list[NodeResult] = [
            round_.result(node)
            for round_ in self.rounds
            for group in round_.groups
            if node in group and not round_.passed(group)
        ]
        last = next((f for f in reversed(failures) if not f.passed), failures[-1])
        return NodeFinding(
            node,
            last.test or "collective",
            last.device,
            float(len(failures)),
            1.0,
            last.message,
        )


def _failed_by_itself(round_: CheckRound, group: NodeGroup, node: int) -> bool:
    outcome = round_.result(node)
    return not outcome.passed and (outcome.local or len(group) == 1)
