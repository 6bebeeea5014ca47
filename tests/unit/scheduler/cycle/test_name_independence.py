"""Names only break ties: renamed equal objects give the same result."""

from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.types.types import CycleResult, NodeInfo, PodGroupInfo, PodInfo
from unit.scheduler.builders import cluster, decide, group, node, pod

LAW = settings(
    deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
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


@LAW
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


@LAW
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
