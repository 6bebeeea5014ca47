"""Group testing: no healthy node is blamed, no faulty one is missed."""

import itertools
import random
from collections.abc import Callable, Collection, Mapping

import pytest

from gangline.elastic.nodecheck.group_testing import CheckRules, choose_next_step
from gangline.elastic.nodecheck.result import (
    CheckConclusion,
    CheckRound,
    NodeGroup,
    NodeResult,
    SpeedLimits,
    find_slow_nodes,
)

Behaviour = Callable[[int, NodeGroup, int], NodeResult]


def conducted(
    nodes: int,
    behaviour: Behaviour,
    rules: CheckRules | None = None,
    dying: Mapping[int, int] | None = None,
) -> tuple[CheckConclusion, list[CheckRound]]:
    """Simulate a check; ``dying`` maps nodes to the round in which they are lost."""
    rounds: list[CheckRound] = []
    gone: set[int] = set()
    while True:
        step = choose_next_step(range(nodes), rounds, rules, gone=gone)
        if isinstance(step, CheckConclusion):
            return step, rounds
        members = [node for group in step for node in group]
        assert len(set(members)) == len(members)
        assert not gone & set(members)
        assert len(rounds) < 2 * nodes + 20
        gone |= {node for node, number in (dying or {}).items() if number == len(rounds)}
        outcomes = {
            node: PARTNER_LOST if gone & set(group) else behaviour(node, group, len(rounds))
            for group in step
            for node in group
            if node not in gone
        }
        rounds.append(CheckRound(step, outcomes))


PARTNER_LOST = NodeResult(passed=False, test="partner")


def broken(faulty: Collection[int], *, local: bool = False) -> Behaviour:
    def behaviour(node: int, group: NodeGroup, number: int) -> NodeResult:
        if local and node in faulty:
            return NodeResult(passed=False, local=True, test="compute", message="boom")
        passed = not set(group) & set(faulty) or (len(group) == 1 and not local)
        return NodeResult(passed, compute_s=0.01, collective_s=0.01, device="cpu")

    return behaviour


@pytest.mark.parametrize("nodes", range(1, 9))
def test_faulty_nodes_are_found_for_every_combination_up_to_eight_nodes(nodes: int) -> None:
    for count in range(nodes + 1):
        for faulty in itertools.combinations(range(nodes), count):
            verdict, rounds = conducted(nodes, broken(faulty))
            assert set(verdict.faulty) <= set(faulty)
            healthy = nodes - count
            if healthy >= 2:
                assert set(verdict.faulty) == set(faulty)
                assert not verdict.undecided
            if not faulty:
                assert len(rounds) == 1
            if healthy * 2 >= nodes and healthy >= 2:
                assert len(rounds) <= 3 + count + 1


@pytest.mark.parametrize("nodes", range(1, 9))
def test_local_failure_is_found_for_any_other_faulty_nodes(nodes: int) -> None:
    for count in range(nodes + 1):
        for faulty in itertools.combinations(range(nodes), count):
            verdict, _ = conducted(nodes, broken(faulty, local=True))
            assert set(verdict.faulty) == set(faulty)
            assert set(verdict.undecided) <= set(range(nodes)) - set(faulty)


def test_the_worst_case_of_one_faulty_node_in_each_pair_is_settled_quickly() -> None:
    chance = random.Random(3)
    for nodes in (4, 5, 6, 7, 64, 65, 510, 511, 512):
        for _ in range(10 if nodes < 100 else 2):
            faulty = {chance.choice((i, i + 1)) for i in range(0, nodes - 1, 2)}
            verdict, _ = conducted(nodes, broken(faulty))
            assert set(verdict.faulty) == faulty
            assert not verdict.undecided


def test_of_two_nodes_that_fail_together_neither_is_blamed_by_guess() -> None:
    verdict, rounds = conducted(2, broken({1}))
    assert verdict == CheckConclusion(undecided=(0, 1), rounds=2)
    assert rounds[1].groups == ((0,), (1,))
    assert not verdict.passed(0)


def test_a_failure_that_does_not_come_again_is_forgiven() -> None:
    def once(node: int, group: NodeGroup, number: int) -> NodeResult:
        return NodeResult(passed=not (number == 0 and 2 in group))

    verdict, rounds = conducted(6, once)
    assert verdict.faulty == {}
    assert len(rounds) == 2


@pytest.mark.parametrize("nodes", range(1, 6))
def test_no_healthy_node_is_blamed_for_losses_in_any_round(nodes: int) -> None:
    for states in itertools.product([None, "faulty", 0, 1, 2], repeat=nodes):
        faulty = {node for node, state in enumerate(states) if state == "faulty"}
        dying = {node: state for node, state in enumerate(states) if isinstance(state, int)}
        verdict, rounds = conducted(nodes, broken(faulty), dying=dying)
        lost = {node for node, number in dying.items() if number < len(rounds)}
        assert set(verdict.faulty) <= faulty | lost
        staying = [node for node in range(nodes) if node not in faulty | dying.keys()]
        if not faulty:
            assert all(verdict.passed(node) for node in staying)
        if len(staying) >= 2 and len(staying) > len(faulty):
            assert faulty <= verdict.faulty.keys()
            assert not verdict.undecided


def test_lost_proved_node_is_not_a_partner_again() -> None:
    verdict, rounds = conducted(4, broken({3}), dying={0: 1, 1: 1})
    assert (set(verdict.faulty), verdict.undecided) == (set(), (2, 3))
    assert len(rounds) == 3, "finally each node alone"


@pytest.mark.parametrize("nodes", range(1, 6))
def test_a_failure_within_a_node_that_does_not_come_again_is_forgiven(nodes: int) -> None:
    def once(node: int, group: NodeGroup, number: int) -> NodeResult:
        return NodeResult(passed=number > 0 or node != 0, local=True)

    verdict, _ = conducted(nodes, once)
    assert (verdict.faulty, verdict.undecided) == ({}, ())


def test_slow_then_failing_node_is_not_tried_endlessly() -> None:
    def late(node: int, group: NodeGroup, number: int) -> NodeResult:
        seconds = 1.0 if node == 1 else 0.1
        return NodeResult(not number or 1 not in group, compute_s=seconds, collective_s=0.1)

    verdict, _ = conducted(4, late)
    assert set(verdict.stragglers) == {1}


def slow(who: Collection[int]) -> Behaviour:
    def behaviour(node: int, group: NodeGroup, number: int) -> NodeResult:
        return NodeResult(
            passed=True,
            compute_s=1.0 if node in who else 0.1,
            collective_s=1.0 if set(group) & set(who) else 0.1,
            device=f"cuda:{node}",
        )

    return behaviour


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 8, 33])
def test_a_straggler_is_found_and_its_partner_is_not(nodes: int) -> None:
    verdict, rounds = conducted(nodes, slow({1}))
    assert set(verdict.stragglers) == {1}
    assert verdict.passed(1)
    assert len(rounds) <= 2
    finding = verdict.stragglers[1]
    assert (finding.test, finding.value, finding.threshold) == ("compute", 1.0, 0.2)
    assert str(finding) == (
        "node 1 failed compute on cuda:1 (1, limit 0.2): slower than the others"
    )


def test_a_slow_link_is_seen_where_the_devices_are_fast() -> None:
    def link(node: int, group: NodeGroup, number: int) -> NodeResult:
        seconds = 2.0 if 5 in group else 0.1
        return NodeResult(
            passed=True,
            compute_s=0.1,
            collective_s=seconds,
            device="cuda:0",
            collective_device="cuda:3",
        )

    verdict, _ = conducted(8, link)
    assert verdict.stragglers[5].device == "cuda:3"
    assert {node: one.test for node, one in verdict.stragglers.items()} == {5: "collective"}


def test_noise_below_the_excess_is_no_straggling() -> None:
    assert find_slow_nodes({0: (0.001, 0.001), 1: (0.009, 0.009)}, SpeedLimits(), {}) == {}


def test_history_and_absolute_limits_find_what_the_others_do_not_show() -> None:
    limits = SpeedLimits()
    assert find_slow_nodes({0: (1.0, 0.1)}, limits, {}) == {}
    assert set(find_slow_nodes({0: (1.0, 0.1)}, limits, {0: [(0.1, 0.1)]})) == {0}
    everyone = {n: (1.0, 0.1) for n in range(4)}
    assert find_slow_nodes(everyone, limits, {}) == {}
    past = {n: [(0.1, 0.1)] * 5 for n in range(4)}
    assert set(find_slow_nodes(everyone, limits, past)) == {0, 1, 2, 3}
    assert set(find_slow_nodes(everyone, SpeedLimits(absolute_s=0.5), {})) == {0, 1, 2, 3}


def test_all_healthy_nodes_can_test_together_at_the_end() -> None:
    verdict, rounds = conducted(5, broken({2}), CheckRules(all_together=True))
    assert rounds[-1].groups == ((0, 1, 3, 4),)
    assert set(verdict.faulty) == {2}
