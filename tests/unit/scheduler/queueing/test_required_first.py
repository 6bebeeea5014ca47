"""Which pods of a gang start first: those that its roles need, then those that the gang needs."""

import pytest

from gangline.scheduler.queueing.gangs import PendingGang, pending_gangs
from gangline.scheduler.types.types import NetworkTopologyRule
from unit.scheduler.builders import cluster, group, node, pod


def only(minimum: int, roles: tuple[tuple[str, int], ...], *pods: tuple[str, str]) -> PendingGang:
    """Return a pending gang of pods with these names and roles."""
    state = cluster(
        node("n"),
        group("g", minimum, min_task_member=roles),
        *(pod(name, group="g", role=role) for name, role in pods),
    )
    (found,), _ = pending_gangs(state, 0.0)
    return found


def names(found: PendingGang) -> list[str]:
    return [each.key.removeprefix("d/") for each in found.pending]


WORKERS = (("a-0", "worker"), ("a-1", "worker"), ("a-2", "worker"), ("b-0", "ps"), ("b-1", "ps"))


@pytest.mark.parametrize(
    ("minimum", "roles", "order", "needed"),
    [
        pytest.param(2, (), ["a-0", "a-1", "a-2", "b-0", "b-1"], 2, id="no roles"),
        pytest.param(
            2, (("ps", 1), ("worker", 1)), ["a-0", "b-0", "a-1", "a-2", "b-1"], 2, id="one of each"
        ),
        pytest.param(
            3, (("ps", 2),), ["b-0", "b-1", "a-0", "a-1", "a-2"], 3, id="roles, then the gang"
        ),
        pytest.param(
            1, (("ps", 2),), ["b-0", "b-1", "a-0", "a-1", "a-2"], 2, id="roles beyond the minimum"
        ),
    ],
)
def test_pods_of_roles_below_their_minimum_come_first(
    minimum: int, roles: tuple[tuple[str, int], ...], order: list[str], needed: int
) -> None:
    found = only(minimum, roles, *WORKERS)
    assert names(found) == order
    assert found.needed == needed


def test_members_that_run_count_for_their_role() -> None:
    state = cluster(
        node("n"),
        group("g", 3, min_task_member=(("ps", 1), ("worker", 2))),
        pod("a-0", group="g", role="worker", on="n"),
        *(pod(name, group="g", role=role) for name, role in WORKERS[1:]),
    )
    (found,), _ = pending_gangs(state, 0.0)
    assert names(found)[:2] == ["a-1", "b-0"]
    assert found.needed == 2


@pytest.mark.parametrize("network", [None, NetworkTopologyRule(tier=1)])
def test_equal_gangs_are_recognised_wherever_their_members_run(
    network: NetworkTopologyRule | None,
) -> None:
    """Only a required or preferred network domain depends on the nodes of the others."""
    keys = []
    for name in ("m", "n"):
        state = cluster(
            node("m"),
            node("n"),
            group("g", 2, network=network),
            pod("g-0", group="g", on=name),
            pod("g-1", group="g"),
        )
        (found,), _ = pending_gangs(state, 0.0)
        keys.append(found.equivalence_key)
    assert (keys[0] == keys[1]) is (network is None)
