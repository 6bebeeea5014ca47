"""The free pages of the state file: how many there are, and their return to the file system.

SQLite reuses the pages of deleted rows and never makes a file smaller by itself. With
``auto_vacuum=INCREMENTAL`` the last pages of the file can be moved to free ones, a few at a time.
That mode is set when a file is created, or by one ``VACUUM``.
"""

import logging
import shutil
import sqlite3
from pathlib import Path

log = logging.getLogger(__name__)

PAGE_BYTES = 4096
"""SQLite's default, which every state file has."""
RESERVED_BYTES = 16 << 20
"""Free space that stays in the file. History grows and shrinks by less all the time, and pages that
are returned would be allocated again.
"""
STEP_PAGES = 512
"""Pages that one step returns: it delays writes for some milliseconds."""
INCREMENTAL = 2
"""The value of ``PRAGMA auto_vacuum``; 0 is the mode of files that earlier versions created."""


def enable_incremental_vacuum(connection: sqlite3.Connection) -> None:
    """Set the mode: at once in a new file without tables, else at its next ``VACUUM``."""
    connection.execute(f"PRAGMA auto_vacuum={INCREMENTAL}")


def surplus_pages(connection: sqlite3.Connection) -> int:
    """Return how many pages can be returned; 0 or less: none."""
    if _number(connection, "auto_vacuum") != INCREMENTAL:
        return 0
    return _number(connection, "freelist_count") - RESERVED_BYTES // PAGE_BYTES


def free_pages_step(connection: sqlite3.Connection) -> int:
    """Return some pages; the file becomes smaller at its next checkpoint.

    Returns the approximate number of pages that were written to the write-ahead log.
    """
    # A cursor would take only the first of the statement's steps, each of which moves one page.
    connection.executescript(f"PRAGMA incremental_vacuum({STEP_PAGES})")
    return 2 * STEP_PAGES


def make_shrinkable(connection: sqlite3.Connection, path: Path) -> bool:
    """Rewrite a file of an earlier version; return False if it is not needed, or not possible.

    ``VACUUM`` writes all rows twice, to a temporary file and to the write-ahead log. A disk that
    has not the space keeps its file as it is.
    """
    if _number(connection, "auto_vacuum") == INCREMENTAL:
        return False
    pages = _number(connection, "page_count")
    used_bytes = (pages - _number(connection, "freelist_count")) * PAGE_BYTES
    if shutil.disk_usage(path.parent).free < 4 * used_bytes + RESERVED_BYTES:
        log.warning(
            "the state file cannot become smaller: too little space to rewrite it once",
            extra={"file": str(path), "needed_bytes": 4 * used_bytes + RESERVED_BYTES},
        )
        return False
    log.info(
        "rewriting the state file once, so that it can become smaller",
        extra={"file": str(path), "bytes": pages * PAGE_BYTES, "used_bytes": used_bytes},
    )
    enable_incremental_vacuum(connection)
    connection.execute("VACUUM")
    return True


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    return int(connection.execute(f"PRAGMA {pragma}").fetchone()[0])
