"""Writes what is derived from facts: histograms, fits, prices, predictions.

Removes jobs with everything that refers to them, in transactions of at most 500 rows.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from sqlalchemy import ColumnElement, Connection, Table, delete, exists, select, update

from gangline.brain.store.batch import MAX_ROWS
from gangline.brain.store.sql import tables
from gangline.brain.store.sql.bulk import among, lock_cluster

MAX_JOBS: Final = 20
"""Removed together: with their sizes of roles they are fewer than 500 rows."""

_CHILDREN: Final = (tables.segment, tables.pod_run, tables.action, tables.advice)
"""In the order in which they can be deleted: actions refer to advice."""
_DETAILS: Final = (tables.role_size, tables.model)


def delete_some(connection: Connection, table: Table, condition: ColumnElement[bool]) -> int:
    """Delete at most 500 rows of a table with an id; return how many."""
    query = select(table.c.id).where(condition).limit(MAX_ROWS)
    ids = list(connection.execute(query).scalars())
    delete_rows(connection, table, ids)
    return len(ids)


def delete_rows(connection: Connection, table: Table, ids: Sequence[int]) -> None:
    """Delete rows of a table with an id; their number must be bounded."""
    if not ids:
        return
    if table is tables.advice:
        # An action of another job never refers to it, one of the same job may be younger.
        action = tables.action
        connection.execute(
            update(action).where(among(connection, action.c.advice_id, ids)).values(advice_id=None)
        )
    connection.execute(delete(table).where(among(connection, table.c.id, ids)))


def remove_children(connection: Connection, jobs: Sequence[int]) -> int:
    """Delete at most 500 rows that refer to ``jobs``; 0 if there are none left."""
    for table in _CHILDREN:
        deleted = delete_some(connection, table, table.c.job_id.in_(jobs))
        if deleted:
            return deleted
    return 0


def remove_jobs(connection: Connection, cluster: str, jobs: Sequence[int]) -> int:
    """Delete at most ``MAX_JOBS`` jobs, and their families if these have no other job.

    Returns 0, and deletes nothing, if rows refer to them again: remove those first.
    """
    lock_cluster(connection, cluster)  # no fact of these jobs is written meanwhile
    job = tables.job
    for table in _CHILDREN:
        left = select(table.c.id).where(table.c.job_id.in_(jobs)).limit(1)
        if connection.execute(left).first() is not None:
            return 0
    query = select(job.c.family_id, job.c.image_id).where(job.c.id.in_(jobs))
    found = connection.execute(query).all()
    families = Counter(row.family_id for row in found)
    for table in _DETAILS:
        connection.execute(delete(table).where(table.c.job_id.in_(jobs)))
    deleted = connection.execute(delete(job).where(job.c.id.in_(jobs))).rowcount
    family = tables.family
    for count in sorted(set(families.values())):
        same = sorted(number for number, each in families.items() if each == count)
        connection.execute(
            update(family)
            .where(among(connection, family.c.id, same))
            .values(jobs=family.c.jobs - count)
        )
    empty = (family.c.id.in_(sorted(families))) & (family.c.jobs <= 0)
    gone = list(connection.execute(select(family.c.id).where(empty)).scalars())
    if gone:
        connection.execute(delete(family).where(family.c.id.in_(gone)))
    _delete_unused_images(connection, {row.image_id for row in found})
    return int(deleted)


def _delete_unused_images(connection: Connection, images: set[int]) -> None:
    job, image = tables.job.c, tables.image
    used = exists().where(job.image_id == image.c.id)
    query = select(image.c.id).where(image.c.id.in_(sorted(images)), ~used)
    unused = list(connection.execute(query).scalars())
    if unused:
        connection.execute(delete(image).where(image.c.id.in_(unused)))
