"""Files and directories that survive a power failure once a function of this module has returned.

A file is durable when its content and its entry in the directory are both on disk. POSIX requires
an ``fsync`` of each: that of the file does not cover its name. ``Durability`` is the setting of
what an acknowledged write survives.
"""

import errno
import os
from enum import StrEnum
from pathlib import Path


class Durability(StrEnum):
    """The event that no acknowledged write is lost by."""

    DISK = "disk"
    """A power failure: a write is acknowledged after fsync, as etcd does."""

    PROCESS = "process"
    """The death of the process at any instant. A power failure may lose the last moments."""


NO_HARD_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})
"""Errors of file systems without hard links, such as that of a USB stick."""


def write_durably(path: Path, content: bytes, mode: int = 0o600, *, sync: bool = True) -> None:
    """Replace ``path`` atomically: after a crash it has the old or the new content, never a part.
    Without ``sync`` that is so if the process dies, but not the machine. Raises OSError: the file
    could not be written; the old one is unchanged.
    """
    temporary = path.with_name(f"{path.name}.new")
    temporary.unlink(missing_ok=True)  # its mode would stay that of the interrupted attempt
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        if sync:
            os.fsync(descriptor)
    temporary.replace(path)
    if sync:
        sync_directory(path.parent)


def publish_new(temporary: Path, path: Path) -> None:
    """Give a complete file its name, unless another file has it; ``temporary`` is removed.

    Raises:
        FileExistsError: another file has the name.
        OSError: the file system refuses.
    """
    try:
        os.link(temporary, path)  # unlike a rename, it replaces nothing
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def make_directory(path: Path, mode: int = 0o777) -> None:
    """Create a directory with its parents; ``mode`` applies to the last of them."""
    missing = [parent for parent in (path, *path.parents) if not parent.exists()]
    path.mkdir(parents=True, exist_ok=True, mode=mode)
    for created in missing:
        sync_directory(created.parent)


def sync_file(path: Path) -> None:
    """Write the content of a file to disk."""
    _sync(path, os.O_RDONLY)


def sync_directory(path: Path) -> None:
    """Write the entries of a directory to disk: created, renamed and removed files."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
