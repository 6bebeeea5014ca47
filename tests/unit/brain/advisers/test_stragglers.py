"""Slow ranks and nodes: who is named, who is not."""

import msgspec
import numpy as np
import pytest

from gangline.brain.advisers.advice import Advice, What
from gangline.brain.advisers.stragglers import (
    advise_stragglers,
    node_factor,
    suspected_nodes,
)
from gangline.brain.advisers.view import AdviserView, ClusterView, NodeCheckResult
from gangline.brain.facts.records import NodeSpeed, RankSpeed, Run
from unit.brain.histories import a_job, checked

NOW = 1_000_000_000
DAY = NOW // 86_400_000


def make_speeds(
    ranks: int,
    slow: dict[int, float],
    windows: int = 6,
    *,
    waits: bool = False,
    noise: float = 0.01,
) -> tuple[RankSpeed, ...]:
    """Windows of a minute; the ranks in ``slow`` take longer by a factor."""
    random = np.random.default_rng(3)
    speeds = []
    for window in range(windows):
        own = {
            rank: slow.get(rank, 1.0) * (1 + 0.01 * random.standard_normal())
            for rank in range(ranks)
        }
        step = max(own.values())
        speeds += [
            RankSpeed(
                rank=rank,
                pod=f"pod-{rank}",
                node=f"node-{rank}",
                gpu_model="A100",
                window_ms=NOW - (windows - window) * 60_000,
                compute_s=1.0 if waits else own[rank],
                wait_s=step - own[rank] if waits else None,
            )
            for rank in range(ranks)
        ]
    return tuple(speeds)


def make_view(speeds: tuple[RankSpeed, ...], **changes: object) -> AdviserView:
    view = AdviserView(now_ms=NOW, run=Run(job=a_job()), rank_speeds=speeds)
    return msgspec.structs.replace(view, **changes)


def only(advice: list[Advice]) -> Advice:
    (item,) = advice
    return checked(item)


@pytest.mark.parametrize("waits", [False, True], ids=["computes longest", "waits least"])
def test_t4_a_slow_rank_is_named(waits: bool) -> None:
    advice = only(advise_stragglers(make_view(make_speeds(16, {5: 1.25}, waits=waits))))
    assert (advice.rank, advice.target, advice.reason.code) == (5, "node-5", "SlowRank")
    assert advice.reason.arguments["slower"] == pytest.approx(0.25, abs=0.03)


def test_t4_a_good_node_is_not_left() -> None:
    check = NodeCheckResult(node="node-5", at_ms=NOW - 60_000, slow=False)
    view = make_view(make_speeds(16, {5: 1.25}), node_checks=(check,))
    advice = only(advise_stragglers(view))
    assert advice.what is What.WARNING


@pytest.mark.parametrize("slow", [5, 8, 12])
def test_t5_many_slow_ranks_point_to_the_network(slow: int) -> None:
    view = make_view(make_speeds(16, dict.fromkeys(range(slow), 1.3)))
    advice = only(advise_stragglers(view))
    assert (advice.what, advice.reason.code) == (What.WARNING, "SlowGroup")
    assert advice.reason.arguments == {"slow": slow, "ranks": 16}


def test_t6_one_slow_window_in_ten_is_nothing() -> None:
    slow = make_speeds(16, {5: 1.5}, windows=1)
    pause = tuple(msgspec.structs.replace(speed, window_ms=NOW - 3 * 60_000 - 1) for speed in slow)
    rest = tuple(
        speed for speed in make_speeds(16, {}, windows=10) if speed.window_ms != NOW - 180_000
    )
    assert advise_stragglers(make_view((*rest, *pause))) == []


def test_t7_two_ranks_are_compared_with_the_history_of_their_nodes_only() -> None:
    speeds = make_speeds(2, {1: 1.5})
    assert advise_stragglers(make_view(speeds)) == []
    history = tuple(
        NodeSpeed(node="node-1", gpu_model="A100", day=DAY - age, score=0.8, jobs=1)
        for age in range(3)
    )
    view = make_view(speeds, cluster=ClusterView(node_speeds=history))
    advice = only(advise_stragglers(view))
    assert (advice.what, advice.target) == (What.NODE, "node-1")


def test_device_models_are_compared_apart() -> None:
    slow = tuple(
        msgspec.structs.replace(speed, gpu_model="V100", rank=speed.rank + 16)
        for speed in make_speeds(4, dict.fromkeys(range(4), 2.0))
    )
    assert advise_stragglers(make_view((*make_speeds(16, {}), *slow))) == []


def test_node_factor_halves_in_a_week() -> None:
    days = [
        NodeSpeed(node="a", gpu_model="A100", day=100, score=0.8, jobs=1),
        NodeSpeed(node="a", gpu_model="A100", day=93, score=1.1, jobs=2),
        NodeSpeed(node="a", gpu_model="A100", day=1, score=0.1, jobs=99),
    ]
    assert node_factor(days, 100) == (pytest.approx(0.95), 3)


@pytest.mark.parametrize(
    ("score", "jobs", "failed", "suspected"),
    [(0.85, 3, 0, True), (0.85, 2, 0, False), (0.95, 9, 0, False), (1.0, 1, 1, True)],
)
def test_suspected_nodes(score: float, jobs: int, failed: int, suspected: bool) -> None:
    day = NodeSpeed(
        node="a", gpu_model="A100", day=DAY, score=score, jobs=jobs, checks_failed=failed
    )
    assert ("a" in suspected_nodes([day], DAY)) == suspected
