"""Opens and creates paths that must not lead out of a folder.

A container controls the content of its volumes: a folder there may become a symbolic link at any
time. So a path is resolved once, by the kernel (``openat2``, Linux 5.6) or component by component
on descriptors, and the descriptor is used from then on. Links below the folder are followed; a link
or ``..`` that leads out fails with EXDEV, also if it leads back in.

It imports little: `bind_mounts` starts with it for a container.

Protocol: openat2(2), https://man7.org/linux/man-pages/man2/openat2.2.html.
"""

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Iterator

_OPENAT2 = 437
_NO_MAGIC_LINKS, _NO_SYMLINKS, _BENEATH = 0x02, 0x04, 0x08
_INSPECT = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_MAX_LINKS = 40
_MAX_RACES = 32
"""``openat2`` returns EAGAIN if something was renamed during a lookup with ``..``."""

_MISSING = (errno.ENOSYS, errno.EPERM)
"""No such system call, or a filter of system calls that does not know it."""

LEADS_OUT = (errno.EXDEV, errno.ELOOP)
"""The errors of a path that leads out of the folder, or has a forbidden link."""


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_beneath(
    folder: int, path: str, flags: int = os.O_PATH, *, follow_links: bool = True
) -> int:
    """Open an existing path below a folder and return its descriptor; an empty path is the folder.
    ``follow_links=False`` refuses all links, with ELOOP. Raises OSError: EXDEV if the path leads
    out of the folder; else as of `os.open`.
    """
    resolve = _BENEATH | _NO_MAGIC_LINKS | (0 if follow_links else _NO_SYMLINKS)
    how = _OpenHow(flags | os.O_CLOEXEC, 0, resolve)
    libc = ctypes.CDLL(None, use_errno=True)
    for _ in range(_MAX_RACES):
        size = ctypes.c_size_t(ctypes.sizeof(how))
        opened = libc.syscall(_OPENAT2, folder, os.fsencode(path or "."), ctypes.byref(how), size)
        if opened >= 0:
            return int(opened)
        code = ctypes.get_errno()
        if code in _MISSING:
            return walk_beneath(folder, path, flags, follow_links=follow_links)
        if code != errno.EAGAIN:
            break
    raise OSError(code, os.strerror(code), path)


def walk_beneath(
    folder: int, path: str, flags: int = os.O_PATH, *, follow_links: bool = True
) -> int:
    """`open_beneath` without the system call: each component is opened from the one before."""
    with contextlib.ExitStack() as stack:
        way = [folder]
        rest, links = _parts(path)[::-1], 0
        if path.startswith("/"):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
        while rest:
            part = rest.pop()
            if part == "..":
                if len(way) == 1:
                    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
                way.pop()
                continue
            entry = os.open(part, _INSPECT, dir_fd=way[-1])
            stack.callback(os.close, entry)
            if not stat.S_ISLNK(os.fstat(entry).st_mode):
                way.append(entry)
                continue
            links += 1
            if not follow_links or links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = os.readlink("", dir_fd=entry)
            if target.startswith("/"):
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
            rest += _parts(target)[::-1]
        # The descriptor is opened again with the requested flags: it cannot lead elsewhere.
        return os.open(f"/proc/self/fd/{way[-1]}", (flags & ~os.O_NOFOLLOW) | os.O_CLOEXEC)


def make_beneath(
    folder: int, path: str, mode: int, *, is_folder: bool = True, follow_links: bool = True
) -> int:
    """Open a path (without ``..``) below a folder; missing folders, or the missing file at its end,
    are created, with the permission bits ``mode``; a file without those to execute. Raises OSError:
    EXDEV if the path leads out of the folder; ENOTDIR if a part is no folder.
    """
    parts = _parts(path)
    if ".." in parts or path.startswith("/"):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    with contextlib.suppress(FileNotFoundError):
        return open_beneath(folder, path, follow_links=follow_links)
    present, missing = _open_existing(folder, parts, follow_links)
    for at, part in enumerate(missing):
        try:
            last = at == len(missing) - 1
            entry = _make_entry(present, part, mode, is_folder=is_folder or not last)
        finally:
            os.close(present)
        present = entry
    return present


def _open_existing(folder: int, parts: list[str], follow_links: bool) -> tuple[int, list[str]]:
    """The innermost existing folder of a path, and the parts after it."""
    for count in range(len(parts) - 1, -1, -1):
        with contextlib.suppress(FileNotFoundError):
            path = "/".join(parts[:count])
            return open_beneath(folder, path, _FOLDER, follow_links=follow_links), parts[count:]
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "/".join(parts))


def _make_entry(folder: int, name: str, mode: int, *, is_folder: bool) -> int:
    """Create an entry and open it. An entry that appears meanwhile is accepted unless a link."""
    if not is_folder:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with contextlib.suppress(FileExistsError):
            os.close(os.open(name, flags, mode & 0o666, dir_fd=folder))
        return _open_no_link(folder, name, _INSPECT)
    made = False
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=folder)
        made = True
    entry = _open_no_link(folder, name, _INSPECT | os.O_DIRECTORY)
    if made:
        # Not by mkdir: the umask must not count.
        os.chmod(f"/proc/self/fd/{entry}", mode)
    return entry


def _open_no_link(folder: int, name: str, flags: int) -> int:
    entry = os.open(name, flags, dir_fd=folder)
    if stat.S_ISLNK(os.fstat(entry).st_mode):
        os.close(entry)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
    return entry


@contextlib.contextmanager
def opened_folder(path: str | os.PathLike[str]) -> Iterator[int]:
    """A descriptor of a folder, inside the block. The path itself is trusted."""
    descriptor = os.open(path, _FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def real_path(descriptor: int) -> str:
    """The present path of an open file."""
    return os.readlink(f"/proc/self/fd/{descriptor}")


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]
