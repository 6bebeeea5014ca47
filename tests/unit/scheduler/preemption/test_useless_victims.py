"""Cheap gangs whose eviction would not help stay, however many there are."""

import pytest

from gangline.scheduler.types import GroupKey, TaintInfo
from unit.scheduler.builders import node, pod
from unit.scheduler.scenarios.reading import Gang, Node, Play, Pods, Queue, Scenario, scenarios

USELESS = 40
"""More gangs than the search may spare one by one."""
FENCE = TaintInfo("fenced", "", "NoSchedule")
WITHOUT_QUEUES = [each for each in scenarios() if each.gangs and not each.queues and not each.quota]
EVICTING = [
    each
    for each in WITHOUT_QUEUES
    if each.expect.evicts is not None or each.expect.evicted is not None or each.expect.runs
]


def add_useless_gangs(play: Play, queue: str = "default", gpu: int = 0) -> None:
    """Add the cheapest gangs of all, on a node that no pending pod tolerates."""
    play.state.set_node(node("fenced", cpu=64, gpu=USELESS, taints=(FENCE,)))
    play.add(
        {
            f"useless-{number}": Gang(
                [Pods(cpu=1, gpu=gpu, on="fenced")], min=1, priority=-1, queue=queue
            )
            for number in range(USELESS)
        }
    )


def still_running(play: Play) -> int:
    return sum(len(play.running(f"useless-{number}")) for number in range(USELESS))


@pytest.mark.parametrize("scenario", [pytest.param(each, id=each.id) for each in EVICTING])
def test_useless_victims_change_nothing(scenario: Scenario) -> None:
    plain, crowded = Play(scenario), Play(scenario)
    add_useless_gangs(crowded)
    expected, found = plain.decide(), crowded.decide()
    assert [each.pod for each in found.evictions] == [each.pod for each in expected.evictions]
    assert {(each.pod, each.node) for each in found.bindings} == {
        (each.pod, each.node) for each in expected.bindings
    }
    plain.rest()
    crowded.rest()
    assert {gang: len(crowded.running(gang)) for gang in scenario.gangs} == {
        gang: len(plain.running(gang)) for gang in scenario.gangs
    }
    assert still_running(crowded) == USELESS


def test_reclaim_takes_the_gang_that_helps() -> None:
    play = Play(
        Scenario(
            id="",
            says="",
            nodes={"n1": Node(cpu=64, gpu=8)},
            queues={"a": Queue(deserved={"gpu": 8}), "b": Queue()},
            gangs={
                "big": Gang([Pods(count=8, cpu=1, gpu=1, on="n1")], min=8, queue="b"),
                "wants": Gang([Pods(cpu=1, gpu=8)], min=1, queue="a"),
            },
        )
    )
    add_useless_gangs(play, "b", gpu=1)
    play.rest()
    assert (len(play.running("wants")), len(play.running("big"))) == (1, 0)
    assert still_running(play) == USELESS


@pytest.mark.parametrize("size", [1, 2])
def test_victim_is_found_on_the_last_of_many_nodes(size: int) -> None:
    """More nodes than the search considers hold cheaper gangs, which free too little there."""
    play = Play(
        Scenario(
            id="",
            says="",
            nodes={f"small-{number:04}": Node(cpu=1) for number in range(1100)}
            | {f"z-{number}": Node(cpu=4) for number in range(size)},
            gangs={"wants": Gang([Pods(count=size, cpu=4)], min=size, priority=9)},
        )
    )
    for number in range(1100):
        play.state.set_pod(pod(f"s{number}", on=f"small-{number:04}", priority=-1))
    for number in range(size):
        play.state.set_pod(pod(f"z{number}", cpu=4, on=f"z-{number}"))
    decision = play.decide()
    assert sorted(each.pod for each in decision.evictions) == [f"d/z{n}" for n in range(size)]


MANY = [f"n{number:03}" for number in range(200)]


@pytest.mark.parametrize(
    ("nodes", "costs", "cpu", "victim"),
    [
        pytest.param(
            dict.fromkeys(MANY, 1),
            {name: (name, 300.0 - number) for number, name in enumerate(MANY)},
            1,
            "n199",
            id="the cheapest gang of all",
        ),
        pytest.param(
            dict.fromkeys([*MANY, "z"], 2),
            {f"{name}-{n}": (name, 1.0) for name in MANY for n in range(2)} | {"last": ("z", 99.0)},
            2,
            "last",
            id="one gang in place of two cheaper ones",
        ),
    ],
)
def test_gang_that_helps_most_is_found_among_many_nodes(
    nodes: dict[str, int], costs: dict[str, tuple[str, float]], cpu: int, victim: str
) -> None:
    """The nodes have these processors, the gangs a node and the seconds that would be lost."""
    play = Play(
        Scenario(
            id="",
            says="",
            nodes={name: Node(cpu=has) for name, has in nodes.items()},
            gangs={
                **{
                    name: Gang([Pods(cpu=1, on=on, lost=lost)], min=1)
                    for name, (on, lost) in costs.items()
                },
                "wants": Gang([Pods(cpu=cpu)], min=1, priority=9),
            },
        )
    )
    assert [each.group for each in play.decide().evictions] == [f"d/{victim}"]


def test_victims_of_the_lowest_sufficient_priority_are_taken() -> None:
    """Bisection over priorities: every level but the last sufficient one leaves higher ones be."""
    for sufficient in range(6):
        play = Play(
            Scenario(
                id="",
                says="",
                nodes={
                    f"n{level}": Node(cpu=2 if level >= sufficient else 1) for level in range(6)
                },
                gangs={
                    **{
                        f"g{level}": Gang(
                            [Pods(cpu=2 if level >= sufficient else 1, on=f"n{level}")],
                            min=1,
                            priority=level,
                        )
                        for level in range(6)
                    },
                    "wants": Gang([Pods(cpu=2)], min=1, priority=9),
                },
            )
        )
        (victim,) = play.decide().evictions
        assert victim.group == GroupKey(f"d/g{sufficient}")
