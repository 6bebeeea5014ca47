"""Private folders, and reads of files that a container could have replaced."""

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

PRIVATE_MODE = 0o700


def make_private_folder(path: Path) -> Path:
    """Create a folder that only this user can enter; an existing one is checked and closed.

    Missing parent folders get the usual mode. Returns the folder. Raises OSError: it cannot be
    created, is a symbolic link, or belongs to another user.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=PRIVATE_MODE)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            text = f"belongs to user {status.st_uid}, not to user {os.geteuid()}: remove it"
            raise PermissionError(errno.EPERM, text, str(path))
        if stat.S_IMODE(status.st_mode) != PRIVATE_MODE:
            os.fchmod(descriptor, PRIVATE_MODE)
    finally:
        os.close(descriptor)
    return path


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading, without a buffer. Raises OSError: it does not exist, or is
    anything but a regular file. A symbolic link is not followed, and a pipe without a writer is not
    waited for.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    return os.fdopen(descriptor, "rb", buffering=0)


def read_end_of_file(path: Path, most: int) -> bytes:
    """Return the last ``most`` bytes of a regular file. Raises OSError: as of `open_regular`."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        return os.pread(file.fileno(), most, max(0, size - most))


def give_to_group(folder: Path, group: int) -> None:
    """Make a folder and its content writable for a group, as Kubernetes does for ``fsGroup``.

    New files in the folders get the group as well. Links are never followed: another process may
    replace entries meanwhile.
    """
    for _, _, files, descriptor in os.fwalk(folder, follow_symlinks=False):
        for name in (".", *files):
            with contextlib.suppress(FileNotFoundError):
                _give_entry(name, descriptor, group)


def _give_entry(name: str, folder: int, group: int) -> None:
    entry = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        mode = os.fstat(entry).st_mode
        if stat.S_ISLNK(mode):
            return
        inode = f"/proc/self/fd/{entry}"
        os.chown(inode, -1, group)
        mask = 0o2770 if stat.S_ISDIR(mode) else 0o660
        os.chmod(inode, stat.S_IMODE(mode) | mask)
    finally:
        os.close(entry)
