"""Errors of the store.

::

    StoreError
    ├── BadAddress         the URL is not one, its driver is missing, no such database or host
    ├── NoRights           the server refuses the user, or the file may not be written
    ├── NewerSchema        the database was migrated by a newer version of Gangline
    ├── OldSchema          the database must be migrated, which the caller has not allowed
    ├── StoreUnavailable   the server cannot be reached at the moment
    ├── StoreFull          the disk of the database is full
    ├── Fenced             another Brain leads since
    ├── ActionOpen         the job has an action without a verdict
    └── UnknownJob         an action for a job that is not stored
"""

from gangline.brain.advisers.advice import GuardAction


class StoreError(Exception):
    """The history cannot be read or written."""


class BadAddress(StoreError):
    """The address of the database is wrong. Trying again cannot help."""


class NoRights(StoreError):
    """The database refuses the user. Trying again cannot help."""


class NewerSchema(StoreError):
    def __init__(self, stored: int, newest: int) -> None:
        super().__init__(
            f"the schema of the database has version {stored}, and this version of gangline knows "
            f"versions up to {newest}: start a newer gangline, or restore a backup"
        )


class OldSchema(StoreError):
    def __init__(self, stored: int, newest: int) -> None:
        state = f"has version {stored}" if stored else "does not exist"
        super().__init__(
            f"the schema of the database {state}, and this version of gangline needs version "
            f"{newest}: run `gangline brain migrate`, or start without --no-migrate"
        )


class StoreUnavailable(StoreError):
    """The server of the database cannot be reached at the moment."""


class StoreFull(StoreError):
    """The disk of the database is full."""


class Fenced(StoreError):
    """Another Brain has become leader of this cluster; this one must not act."""

    def __init__(self, cluster: str, mine: int, current: int) -> None:
        super().__init__(
            f"another Brain leads cluster {cluster!r}: its fencing number is {current}, mine {mine}"
        )


class ActionOpen(StoreError):
    """The job has an open action; a second one has to wait for its verdict."""

    def __init__(self, action: GuardAction) -> None:
        super().__init__(f"action {action.id} of job {action.job} has no verdict yet")
        self.action = action


class UnknownJob(StoreError):
    """The job is not stored, or was forgotten."""

    def __init__(self, cluster: str, uid: str) -> None:
        super().__init__(f"job {uid} of cluster {cluster!r} is not stored")
