"""Invariants of every cycle: no node over capacity, complete gangs, one result."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.types.types import (
    HOST_PORT_PREFIX,
    CycleResult,
    GroupKey,
    NodeInfo,
    PlacementConstraints,
    PodGroupInfo,
    PodInfo,
)
from unit.scheduler.builders import cluster, decide, group, node, pod
from unit.scheduler.oracle.check import violations

Facts = NodeInfo | PodInfo | PodGroupInfo

ZONES = ("a", "b")
LAW = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine is no fault of the law."""
IN_WORDS = settings(LAW, max_examples=40)
"""For invariants that the oracle also checks: here they are stated directly."""


@st.composite
def worlds(draw: st.DrawFn) -> list[Facts]:
    """Draw nodes, running and waiting pods, gangs with and without role minimums."""
    nodes = [
        node(
            f"n{index}",
            cpu=draw(st.integers(1, 8)),
            gpu=draw(st.integers(0, 4)),
            pods=draw(st.integers(1, 6)),
            labels={"zone": draw(st.sampled_from(ZONES))},
            unschedulable=draw(st.integers(0, 7)) == 0,
            ready=draw(st.integers(0, 7)) != 0,
        )
        for index in range(draw(st.integers(0, 4)))
    ]
    groups = [
        group(
            f"g{index}",
            draw(st.integers(0, 4)),
            age=draw(st.integers(0, 3)),
            priority=draw(st.integers(0, 2)),
            min_task_member=(("ps", draw(st.integers(0, 2))),),
        )
        for index in range(draw(st.integers(0, 4)))
    ]
    pods = [_pod(draw, f"p{index}", nodes, groups) for index in range(draw(st.integers(0, 12)))]
    return [*nodes, *groups, *pods]


def _pod(
    draw: st.DrawFn, name: str, nodes: Sequence[NodeInfo], groups: Sequence[PodGroupInfo]
) -> PodInfo:
    owner = draw(st.sampled_from([None, *groups]))
    on = draw(st.sampled_from([None, None, None, *nodes]))
    zone = draw(st.sampled_from([None, *ZONES]))
    return pod(
        name,
        cpu=draw(st.integers(0, 4)),
        gpu=draw(st.integers(0, 2)),
        port=draw(st.sampled_from([0, 0, 80, 443])),
        group=owner.key.removeprefix("d/") if owner else None,
        on=str(on.name) if on else None,
        age=draw(st.integers(0, 3)),
        role=draw(st.sampled_from(["ps", "worker"])),
        phase=draw(st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]))
        if on
        else "Pending",
        is_terminating=draw(st.integers(0, 9)) == 0,
        constraints=PlacementConstraints(selector=(("zone", zone),))
        if zone
        else PlacementConstraints(),
    )


def used(state: SchedulerCache) -> dict[str, Counter[str]]:
    amounts: dict[str, Counter[str]] = defaultdict(Counter)
    for each in state.pods.values():
        if each.holds_resources and each.node is not None:
            amounts[each.node].update(dict(each.shape.request))
    return amounts


def carried_out(world: Sequence[Facts], decision: CycleResult) -> SchedulerCache:
    state = cluster(*world)
    for binding in decision.bindings:
        state.assume(binding.pod, binding.node)
    return state


@IN_WORDS
@given(worlds())
def test_no_decision_puts_a_node_over_its_capacity(world: list[Facts]) -> None:
    before = used(cluster(*world))
    decision = decide(cluster(*world))
    after = used(carried_out(world, decision))
    for each in world:
        if isinstance(each, NodeInfo) and after[each.name] != before[each.name]:
            has = dict(each.allocatable)
            asked = after[each.name] - before[each.name]
            ports = {name: 1 for name in asked if name.startswith(HOST_PORT_PREFIX)}
            limits = has | ports
            assert all(after[each.name][name] <= limits.get(name, 0) for name in asked)


@LAW
@given(worlds())
def test_an_independent_judge_finds_nothing_wrong(world: list[Facts]) -> None:
    state = cluster(*world)
    assert not list(violations(state, decide(state)))


@IN_WORDS
@given(worlds())
def test_pods_go_only_where_they_may(world: list[Facts]) -> None:
    state = cluster(*world)
    nodes = {each.name: each for each in world if isinstance(each, NodeInfo)}
    for binding in decide(state).bindings:
        chosen = nodes[binding.node]
        assert chosen.ready
        assert not chosen.unschedulable
        assert set(state.pods[binding.pod].shape.constraints.selector) <= set(chosen.labels)
        assert state.pods[binding.pod].is_pending


@IN_WORDS
@given(worlds())
def test_gang_is_placed_completely_or_not_at_all(world: list[Facts]) -> None:
    decision = decide(cluster(*world))
    state = carried_out(world, decision)
    for key in {binding.group for binding in decision.bindings if binding.group}:
        members = [
            member
            for member in state.members[key].values()
            if member.phase == "Succeeded" or (member.holds_resources and not member.is_terminating)
        ]
        roles = Counter(member.role for member in members)
        facts = state.groups[key]
        assert len(members) >= facts.min_member
        assert all(roles[role] >= minimum for role, minimum in facts.min_task_member)


@LAW
@given(worlds())
def test_everything_that_waits_has_a_reason_or_a_node(world: list[Facts]) -> None:
    state = cluster(*world)
    decision = decide(state)
    bound = {binding.pod for binding in decision.bindings}
    explained = {key for verdict in decision.pending_reasons for key, _ in verdict.pods}
    assert bound | explained == set(state.pending)
    assert not bound & explained
    assert all(text for verdict in decision.pending_reasons for _, text in verdict.pods)


@LAW
@given(worlds(), st.randoms(use_true_random=False))
def test_the_order_in_which_the_world_is_seen_changes_nothing(
    world: list[Facts], random: Random
) -> None:
    shuffled = list(world)
    random.shuffle(shuffled)
    assert decide(cluster(*world)) == decide(cluster(*shuffled))


@LAW
@given(worlds())
def test_deciding_twice_gives_one_answer_and_changes_nothing(world: list[Facts]) -> None:
    state = cluster(*world)
    assert decide(state) == decide(state)


@LAW
@given(worlds(), st.data())
def test_incremental_cache_equals_a_rebuilt_one(world: list[Facts], data: st.DataObject) -> None:
    state = cluster(*world)
    survivors = list(world)
    for _ in range(data.draw(st.integers(0, 6))):
        if not survivors:
            break
        index = data.draw(st.integers(0, len(survivors) - 1))
        match survivors.pop(index):
            case NodeInfo() as gone:
                state.remove_node(gone.name)
                if data.draw(st.booleans()):
                    state.set_node(gone)
                    survivors.append(gone)
            case PodInfo() as gone:
                state.remove_pod(gone.key)
                if data.draw(st.booleans()):
                    moved = pod(gone.key.removeprefix("d/"), cpu=data.draw(st.integers(0, 9)))
                    state.set_pod(moved)
                    survivors.append(moved)
            case PodGroupInfo() as gone:
                state.remove_group(GroupKey(gone.key))
    assert decide(state) == decide(cluster(*survivors))
