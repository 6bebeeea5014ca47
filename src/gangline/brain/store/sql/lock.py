"""One writer at a time for each cluster, and one leader: a fencing number in the database.

A Brain that becomes leader takes the next number. Transactions that act carry it, and are refused
once another Brain has taken a higher one. So a leader that was frozen and wakes up cannot act.
"""

from sqlalchemy import Connection, select, update

from gangline.brain.store.errors import Fenced
from gangline.brain.store.sql import tables
from gangline.brain.store.sql.bulk import insert_missing


def lock_cluster(connection: Connection, cluster: str) -> int:
    """Lock the cluster's row until the end of the transaction, and return its fencing number."""
    leader = tables.leader
    query = select(leader.c.fence).where(leader.c.cluster == cluster).with_for_update()
    fence = connection.execute(query).scalar()
    if fence is None:
        insert_missing(
            connection, leader, [{"cluster": cluster, "fence": 0, "at_ms": 0}], "cluster"
        )
        fence = connection.execute(query).scalar_one()
    return int(fence)


def take_fence(connection: Connection, cluster: str, holder: str, now_ms: int) -> int:
    """Make ``holder`` the leader of the cluster, and return its fencing number."""
    fence = lock_cluster(connection, cluster) + 1
    leader = tables.leader
    connection.execute(
        update(leader)
        .where(leader.c.cluster == cluster)
        .values(fence=fence, holder=holder, at_ms=now_ms)
    )
    return fence


def check_fence(connection: Connection, cluster: str, fence: int) -> None:
    """Lock the cluster's row.

    Raises:
        Fenced: another Brain has become leader since ``fence`` was taken.
    """
    current = lock_cluster(connection, cluster)
    if current != fence:
        raise Fenced(cluster, fence, current)
