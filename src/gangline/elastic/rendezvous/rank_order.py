"""Chooses the nodes of a world, and orders them so that near nodes get neighbouring ranks."""

from collections.abc import Iterable

from gangline.elastic.protocol.messages import Join, WorldInfo, WorldMember
from gangline.elastic.rendezvous.state import WaitingNode

_LAST_RANK = 1 << 62
"""Sort key of a node without a rank: behind all others."""

RankKey = tuple[int, int]


def choose_members(
    waiting: Iterable[WaitingNode], size: int, former: WorldInfo | None
) -> list[Join]:
    """Return the nodes of a world of ``size``: former members first, then by rank."""
    trained = {member.node_id for member in former.members} if former else set()
    by_right = sorted(
        (seat.join for seat in waiting),
        key=lambda join: (join.node_id not in trained, rank_key(join)),
    )
    return by_right[:size]


def order_by_topology(joins: list[Join]) -> list[Join]:
    """Order nodes by rank, but place nodes of one zone, rack … next to each other.

    An area is placed where its first node would be. Without topology the order is that of ranks.
    """
    depth = max((len(join.topology) for join in joins), default=0)
    first: dict[tuple[str, ...], RankKey] = {}
    for join in joins:
        for level in range(1, depth + 1):
            area = tuple(join.topology[:level])
            first[area] = min(first.get(area, rank_key(join)), rank_key(join))

    def key(join: Join) -> list[RankKey]:
        areas = (tuple(join.topology[:level]) for level in range(1, depth + 1))
        return [*(first[area] for area in areas), rank_key(join)]

    return sorted(joins, key=key)


def rank_key(join: Join) -> RankKey:
    """Sort key of a node by its rank. It is unique, so arrival times do not matter."""
    return (join.node_rank if join.node_rank >= 0 else _LAST_RANK, join.node_id)


def build_world(joins: list[Join], number: int) -> WorldInfo:
    members, first_rank = [], 0
    for group_rank, join in enumerate(joins):
        members.append(
            WorldMember(
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
    return WorldInfo(
        round=number,
        members=tuple(members),
        store_host=joins[0].host,
        store_port=joins[0].store_port,
    )
