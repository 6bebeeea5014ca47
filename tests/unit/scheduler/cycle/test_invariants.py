"""Invariants of every cycle: no node over capacity, complete gangs, one result."""

from collections import Counter
from collections.abc import Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.types import (
    CycleResult,
    GroupKey,
    NodeInfo,
    PlacementConstraints,
    PodGroupInfo,
    PodInfo,
    QueueInfo,
)
from unit.scheduler.builders import cluster, decide, group, node, on_label, pod, request
from unit.scheduler.oracle.check import violations

Facts = NodeInfo | PodInfo | PodGroupInfo | QueueInfo

ZONES = ("a", "b")
QUEUES = ("default", "q0", "q1")
"""A busy machine is no fault of the law."""


@st.composite
def worlds(draw: st.DrawFn) -> list[Facts]:
    """Draw nodes, running and waiting pods, gangs with and without role minimums, in queues with
    and without limits and guarantees. Gangs may have more pods than they need to start.
    """
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
            queue=draw(st.sampled_from(QUEUES)),
        )
        for index in range(draw(st.integers(0, 4)))
    ]
    pods = [_pod(draw, f"p{index}", nodes, groups) for index in range(draw(st.integers(0, 12)))]
    queues = [
        QueueInfo(
            name,
            capability=request(cpu=most, pods=0) if (most := draw(st.integers(0, 6))) else (),
            guarantee=request(cpu=least, pods=0) if (least := draw(st.integers(0, 2))) else (),
        )
        for name in QUEUES[1:]
    ]
    return [*nodes, *groups, *pods, *queues]


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


@given(worlds())
def test_result_is_valid_and_everything_that_waits_has_a_reason_or_a_node(
    world: list[Facts],
) -> None:
    state = cluster(*world)
    decision = decide(state)
    assert not list(violations(state, decision))
    bound = {binding.pod for binding in decision.bindings}
    explained = {key for verdict in decision.pending_reasons for key, _ in verdict.pods}
    assert bound | explained == set(state.pending)
    assert not bound & explained
    assert all(text for verdict in decision.pending_reasons for _, text in verdict.pods)


@st.composite
def elastic_gangs(draw: st.DrawFn) -> list[Facts]:
    """Draw gangs whose first pods may fit nowhere, in queues of which one has a limit."""
    facts: list[Facts] = [node(f"n{index}", cpu=4, pods=20) for index in range(3)]
    for index in range(draw(st.integers(1, 3))):
        queue = draw(st.sampled_from(QUEUES))
        minimum = draw(st.integers(1, 3))
        facts.append(group(f"g{index}", minimum, age=index, queue=queue))
        for number in range(draw(st.integers(minimum, 6))):
            nowhere = draw(st.booleans())
            facts.append(
                pod(
                    f"g{index}-{number}",
                    cpu=draw(st.integers(1, 2)),
                    group=f"g{index}",
                    constraints=on_label(zone="nowhere") if nowhere else PlacementConstraints(),
                )
            )
    limit = request(cpu=draw(st.integers(1, 4)), pods=0)
    guarantee = request(cpu=draw(st.integers(0, 8)), pods=0)
    return [*facts, QueueInfo("q0", capability=limit), QueueInfo("q1", guarantee=guarantee)]


@given(elastic_gangs())
def test_limits_and_guarantees_hold_whichever_pods_of_a_gang_are_placed(
    world: list[Facts],
) -> None:
    state = cluster(*world)
    assert not list(violations(state, decide(state)))


@given(worlds(), st.randoms(use_true_random=False))
def test_the_order_in_which_the_world_is_seen_changes_nothing(
    world: list[Facts], random: Random
) -> None:
    shuffled = list(world)
    random.shuffle(shuffled)
    assert decide(cluster(*world)) == decide(cluster(*shuffled))


@given(worlds())
def test_deciding_twice_gives_one_answer_and_changes_nothing(world: list[Facts]) -> None:
    state = cluster(*world)
    assert decide(state) == decide(state)


@given(worlds(), st.data())
def test_incremental_cache_equals_a_rebuilt_one(world: list[Facts], data: st.DataObject) -> None:
    state = cluster(*world)
    queues = [fact for fact in world if isinstance(fact, QueueInfo)]
    survivors = [fact for fact in world if not isinstance(fact, QueueInfo)]
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
    assert decide(state) == decide(cluster(*survivors, *queues))


Kinds = list[tuple[int, int, int, int]]
"""Of each kind of gang: how many of it there are, pods, CPUs and devices of each pod."""
KINDS = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.integers(0, 2)),
    min_size=1,
    max_size=4,
)


def world(kinds: Kinds, nodes: list[str], names: list[list[str]]) -> SchedulerCache:
    """Return equal nodes, and gangs of kinds that came one kind after the other."""
    things: list[NodeInfo | PodGroupInfo | PodInfo] = [node(n, cpu=6, gpu=3) for n in nodes]
    for age, ((_, size, cpu, gpu), named) in enumerate(zip(kinds, names, strict=True)):
        for name in named:
            things.append(group(name, size, age=age))
            things += [pod(f"{name}-{i}", cpu=cpu, gpu=gpu, group=name) for i in range(size)]
    return cluster(*things)


def named(kinds: Kinds) -> list[list[str]]:
    """Return a name for each gang."""
    return [[f"g{kind}x{n}" for n in range(count)] for kind, (count, *_) in enumerate(kinds)]


def outline(decision: CycleResult, kind_of: dict[str, int]) -> Counter[tuple[tuple[int, int], ...]]:
    """Return what of which kinds comes together on nodes, without any names."""
    on: dict[str, Counter[int]] = {}
    for binding in decision.bindings:
        kind = kind_of[str(binding.group).removeprefix("d/")]
        on.setdefault(str(binding.node), Counter())[kind] += 1
    return Counter(tuple(sorted(each.items())) for each in on.values())


def kinds_of(names: list[list[str]]) -> dict[str, int]:
    """Return the kind of each gang."""
    return {name: kind for kind, listed in enumerate(names) for name in listed}


@given(KINDS, st.permutations(["a", "b", "c", "d"]))
def test_other_names_of_equal_nodes_change_only_names(kinds: Kinds, renamed: list[str]) -> None:
    names = named(kinds)
    known = dict(zip(sorted(renamed), renamed, strict=True))
    before = decide(world(kinds, sorted(renamed), names))
    after = decide(world(kinds, [known[n] for n in sorted(renamed)], names))
    assert after == before
    other = decide(world(kinds, [f"z{n}" for n in reversed(renamed)], names))
    assert other.placed == before.placed
    assert outline(other, kinds_of(names)) == outline(before, kinds_of(names))


@given(KINDS, st.randoms(use_true_random=False))
def test_other_names_of_equal_gangs_change_only_names(kinds: Kinds, random: object) -> None:
    names = named(kinds)
    shuffled = [list(each) for each in names]
    for each in shuffled:
        random.shuffle(each)  # type: ignore[attr-defined]
    renamed = [[f"{each}-{99 - n}" for n, each in enumerate(listed)] for listed in shuffled]
    before = decide(world(kinds, ["a", "b", "c"], names))
    after = decide(world(kinds, ["a", "b", "c"], renamed))
    assert outline(after, kinds_of(renamed)) == outline(before, kinds_of(names))
    assert len(after.placed) == len(before.placed)
