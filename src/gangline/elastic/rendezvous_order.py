"""Which nodes make the world, and in which order: near nodes get ranks side by side."""

from collections.abc import Iterable

from gangline.elastic.protocol.messages import Join, Member, World
from gangline.elastic.rendezvous_state import Seat

_LAST = 1 << 62
"""The rank of a node that has none: behind all others."""

Place = tuple[int, int]


def chosen(seats: Iterable[Seat], size: int, former: World | None) -> list[Join]:
    """Return the nodes of a world of ``size``: who trained before first, then by rank."""
    trained = {member.node_id for member in former.members} if former else set()
    by_right = sorted(
        (seat.join for seat in seats),
        key=lambda join: (join.node_id not in trained, place(join)),
    )
    return by_right[:size]


def ranked(joins: list[Join]) -> list[Join]:
    """Order nodes by rank, but so that those of one zone, rack … follow each other.

    A group stands where its first node stands. Without topology the order is that of ranks.
    """
    depth = max((len(join.topology) for join in joins), default=0)
    first: dict[tuple[str, ...], Place] = {}
    for join in joins:
        for level in range(1, depth + 1):
            area = tuple(join.topology[:level])
            first[area] = min(first.get(area, place(join)), place(join))

    def key(join: Join) -> list[Place]:
        areas = (tuple(join.topology[:level]) for level in range(1, depth + 1))
        return [*(first[area] for area in areas), place(join)]

    return sorted(joins, key=key)


def place(join: Join) -> Place:
    """Where a node would stand by its own rank; unique, so that order never depends on arrival."""
    return (join.node_rank if join.node_rank >= 0 else _LAST, join.node_id)


def world_of(joins: list[Join], number: int) -> World:
    """Make the world of nodes that are in their order."""
    members, first_rank = [], 0
    for group_rank, join in enumerate(joins):
        members.append(
            Member(
                join.node_id,
                join.node_rank,
                group_rank,
                join.local_world_size,
                first_rank,
                join.host,
                join.agent_address,
            )
        )
        first_rank += join.local_world_size
    return World(
        round=number,
        members=tuple(members),
        store_host=joins[0].host,
        store_port=joins[0].store_port,
    )
