"""Chooses the nodes of a world, and orders them so that near nodes get neighbouring ranks."""

from collections.abc import Iterable

from gangline.elastic.protocol.messages import Join, Member, World
from gangline.elastic.rendezvous_state import Seat

_LAST = 1 << 62
"""Sort key of a node without a rank: behind all others."""

Place = tuple[int, int]


def chosen(seats: Iterable[Seat], size: int, former: World | None) -> list[Join]:
    """Return the nodes of a world of ``size``: former members first, then by rank."""
    trained = {member.node_id for member in former.members} if former else set()
    by_right = sorted(
        (seat.join for seat in seats),
        key=lambda join: (join.node_id not in trained, place(join)),
    )
    return by_right[:size]


def ranked(joins: list[Join]) -> list[Join]:
    """Order nodes by rank, but place nodes of one zone, rack … next to each other.

    An area is placed where its first node would be. Without topology the order is that of ranks.
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
    """Sort key of a node by its rank. It is unique, so arrival times do not matter."""
    return (join.node_rank if join.node_rank >= 0 else _LAST, join.node_id)


def world_of(joins: list[Join], number: int) -> World:
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
