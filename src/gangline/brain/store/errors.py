"""Errors of the store.

::

    StoreError
    ├── BadAddress         the URL is not one, its driver is missing, no such database or host
    ├── NoRights           the server refuses the user, or the file may not be written
    ├── WrongSchema        it is newer than this program, or must be migrated, which is not allowed
    ├── StoreUnavailable   the server cannot be reached at the moment
    ├── StoreFull          the disk of the database is full
    ├── Fenced             another Brain leads since
    └── ActionNotBegun     the job has an action without a verdict, or is not stored
"""


class StoreError(Exception):
    """The history cannot be read or written."""


class BadAddress(StoreError):
    """The address of the database is wrong. Trying again cannot help."""


class NoRights(StoreError):
    """The database refuses the user. Trying again cannot help."""


class WrongSchema(StoreError):
    """The schema of the database is of another version."""


class StoreUnavailable(StoreError):
    """The server of the database cannot be reached at the moment."""


class StoreFull(StoreError):
    """The disk of the database is full."""


class Fenced(StoreError):
    """Another Brain has become leader of this cluster; this one must not act."""


class ActionNotBegun(StoreError):
    """The job has an open action, whose verdict a second one has to wait for, or is not stored."""
