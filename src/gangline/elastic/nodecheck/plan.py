"""Who tests with whom, and who is to blame: group testing as a function of the rounds so far.

A group passes if all of its nodes are healthy. Round one tests neighbours. A node of a group that
passed is *proved*. From then on each suspect meets a proved node, best one that it has not met: if
that passes it is proved too, if not it has failed twice, once with a healthy partner, and is
faulty. While nobody is proved, pairs that have not met yet meet each other: when at least half of
the nodes are healthy, two healthy ones meet by the third round. Where nobody can be proved at all
(two nodes, one faulty), each is tested alone; what this does not settle stays undecided, and no
node is blamed by guess.

Slow nodes meet a fast one once more before they are called stragglers.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gangline.elastic.nodecheck.outcome import LOST, Finding, Group, Outcome, Round, Verdict
from gangline.elastic.nodecheck.straggler import History, SpeedLimits, slow_nodes

SEARCH_ROUNDS = 8
"""Rounds in which nodes look for a first pair that passes; enough for eight nodes to meet all."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How a check is conducted."""

    limits: SpeedLimits = field(default_factory=SpeedLimits)
    all_together: bool = False
    """Test the collective over all healthy nodes at the end; for figures, without consequence."""


def decide(
    nodes: Sequence[int],
    rounds: Sequence[Round],
    rules: Rules | None = None,
    history: History | None = None,
    gone: Collection[int] = (),
) -> tuple[Group, ...] | Verdict:
    """Return the groups of the next round, or what is concluded from the rounds so far.

    Nodes that are in no group of a round wait.

    Args:
        nodes: all, should be ordered by topology: neighbours test together first.
        rounds: what has been tested.
        rules: how.
        history: times of earlier checks.
        gone: nodes that will not test any more.
    """
    rules = rules or Rules()
    nodes = list(dict.fromkeys(nodes))
    if not rounds:
        return _neighbours(nodes)
    evidence = _Evidence.of(nodes, rounds, gone)
    groups = evidence.next_groups()
    if groups:
        return groups
    slow = slow_nodes(evidence.times(), rules.limits, history or {})
    slow = {n: evidence.located(finding) for n, finding in slow.items() if n in evidence.proved}
    groups = evidence.second_chances(slow)
    if groups:
        return groups
    healthy = tuple(evidence.partners)
    if rules.all_together and len(healthy) > 1 and rounds[-1].groups != (healthy,):
        return (healthy,)
    return Verdict(evidence.findings(), slow, evidence.undecided(), len(rounds))


def _neighbours(nodes: Sequence[int]) -> tuple[Group, ...]:
    """Pair neighbours; an odd last node joins the last pair, which saves a round when all is well.

    Nobody is blamed for a failure of the three: it leaves three suspects who have not met.
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
    rounds: Sequence[Round]
    proved: set[int] = field(default_factory=set)
    met: set[frozenset[int]] = field(default_factory=set)
    """Pairs that tested with each other alone."""
    failures: dict[int, list[Group]] = field(default_factory=dict)
    """Groups with which a node failed and in which nobody failed by itself."""
    local_failures: dict[int, int] = field(default_factory=dict)
    alone: set[int] = field(default_factory=set)
    """Nodes that were tested by themselves."""
    sound_alone: set[int] = field(default_factory=set)
    """Those that passed so."""
    gone: Collection[int] = ()
    """Nodes that will not test any more."""

    @classmethod
    def of(
        cls, nodes: Sequence[int], rounds: Sequence[Round], gone: Collection[int]
    ) -> "_Evidence":
        """Read the rounds."""
        evidence = cls(nodes, rounds, failures={node: [] for node in nodes}, gone=gone)
        for one in rounds:
            for group in one.groups:
                evidence._read(one, group)
        return evidence

    def _read(self, one: Round, group: Group) -> None:
        if len(group) == 1:
            self.alone.update(group)
        if len(group) == 2:
            self.met.add(frozenset(group))
        if one.passed(group):
            self.sound_alone.update(group if len(group) == 1 else ())
            if len(group) > 1 or len(self.nodes) == 1:
                self.proved.update(group)
            return
        at_fault = [node for node in group if _failed_by_itself(one, group, node)]
        for node in at_fault:
            self.local_failures[node] = self.local_failures.get(node, 0) + 1
        for node in group if not at_fault else ():
            self.failures[node].append(group)

    @property
    def faulty(self) -> list[int]:
        """Nodes that failed twice: by themselves, or once with a proved node alone. Or are gone."""
        return [n for n in self.nodes if n not in self.proved and self._is_faulty(n)]

    def _is_faulty(self, node: int) -> bool:
        if node in self.gone or self.local_failures.get(node, 0) > 1:
            return True
        failures = self.failures[node]
        with_proved = any(len(group) == 2 and self.proved & set(group) for group in failures)
        return with_proved and len(failures) + self.local_failures.get(node, 0) > 1

    @property
    def suspects(self) -> list[int]:
        """Neither proved nor faulty."""
        return [n for n in self.nodes if n not in self.proved and not self._is_faulty(n)]

    @property
    def partners(self) -> list[int]:
        """Proved nodes that can test with others."""
        return [n for n in self.nodes if n in self.proved and n not in self.gone]

    def next_groups(self) -> tuple[Group, ...]:
        """Return who should meet to settle what is open; nobody when nothing can be settled."""
        suspects = self.suspects
        if not suspects:
            return ()
        if self.partners:
            return self._with_partners(suspects, self.partners)
        if len(self.rounds) < SEARCH_ROUNDS and (groups := self._unmet(suspects)):
            return groups
        return tuple((n,) for n in suspects if n not in self.alone or self._may_fail_alone(n))

    def _may_fail_alone(self, node: int) -> bool:
        return node in self.local_failures and node not in self.sound_alone

    def _unmet(self, suspects: Sequence[int]) -> tuple[Group, ...]:
        groups: list[Group] = []
        free = list(suspects)
        while free:
            node = free.pop(0)
            partner = next((n for n in free if frozenset((node, n)) not in self.met), None)
            if partner is not None:
                free.remove(partner)
                groups.append((node, partner))
        return tuple(groups)

    def _with_partners(self, suspects: Sequence[int], partners: Sequence[int]) -> tuple[Group, ...]:
        """Give each suspect, as far as there are any, a partner; best one that it has not met."""
        groups: list[Group] = []
        free = list(partners)
        for node in suspects[: len(partners)]:
            partner = next((n for n in free if frozenset((node, n)) not in self.met), free[0])
            free.remove(partner)
            groups.append((partner, node))
        return tuple(groups)

    def times(self) -> dict[int, tuple[float, float]]:
        """Return the best compute and collective times of each node that passed a round."""
        best: dict[int, tuple[float, float]] = {}
        for one in self.rounds:
            for node, outcome in one.outcomes.items():
                if outcome.passed:
                    seen = best.get(node, (outcome.compute_s, outcome.collective_s))
                    best[node] = (
                        min(seen[0], outcome.compute_s),
                        min(seen[1], outcome.collective_s),
                    )
        return best

    def second_chances(self, slow: Mapping[int, Finding]) -> tuple[Group, ...]:
        """Let slow nodes that have passed only once meet a fast one."""
        passes, tests = dict.fromkeys(self.nodes, 0), dict.fromkeys(self.nodes, 0)
        for one in self.rounds:
            for group in one.groups:
                for node in group:
                    passes[node] += one.passed(group)
                    tests[node] += 1
        again = [n for n in slow if passes[n] == 1 and tests[n] < SEARCH_ROUNDS]
        again = [n for n in again if n not in self.gone]
        times = self.times()
        fast = sorted((n for n in self.partners if n not in slow), key=lambda n: (sum(times[n]), n))
        return self._with_partners(again, fast)

    def located(self, finding: Finding) -> Finding:
        """Say on which device a node took its best time for the test in which it is slow."""
        passed = [
            one.outcomes[finding.node]
            for one in self.rounds
            if finding.node in one.outcomes and one.outcomes[finding.node].passed
        ]
        best = min(passed, key=lambda each: each.seconds_of(finding.test))
        return replace(finding, device=best.device_of(finding.test))

    def undecided(self) -> tuple[int, ...]:
        """Return the suspects that are left, but those whose partners alone were at fault."""
        return tuple(n for n in self.suspects if self.failures[n] or self._may_fail_alone(n))

    def findings(self) -> dict[int, Finding]:
        """Say of each faulty node how it failed last."""
        return {node: self._finding(node) for node in self.faulty}

    def _finding(self, node: int) -> Finding:
        if node in self.gone:
            return Finding(node, LOST.test, value=1.0, message=LOST.message)
        failures: list[Outcome] = [
            one.outcome(node)
            for one in self.rounds
            for group in one.groups
            if node in group and not one.passed(group)
        ]
        last = next((f for f in reversed(failures) if not f.passed), failures[-1])
        return Finding(
            node,
            last.test or "collective",
            last.device,
            float(len(failures)),
            1.0,
            last.message,
        )


def _failed_by_itself(one: Round, group: Group, node: int) -> bool:
    outcome = one.outcome(node)
    return not outcome.passed and (outcome.local or len(group) == 1)
