"""Mounts volumes at places that others could replace meanwhile; runs inside a mount namespace.

The shell script that builds a container's file system mounts by path, which is safe only where no
other process can rename a folder of the path. A part of a volume, a mount point inside a volume and
a folder of another user are not: a container could put a symbolic link there after the check, and
the mount would land outside the container's root. Here sources and mount points are opened once,
without leaving their volume and without links, and mounted by descriptor.

`mount_namespace` writes what to do, and the command of this process. The start of a container waits
for it, so it imports little: no ``dataclasses``, ``json`` or ``pathlib``.
"""

import ctypes
import marshal
import os
import sys
from collections.abc import Callable

from gangline.local.kubelet.files.beneath import make_beneath, open_beneath, opened_folder

_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC = 0x1, 0x20, 0x1000, 0x4000
_MS_RELATIME = 1 << 21
_SAME_AS_STATVFS = os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME
"""Flags whose numbers are the same in statvfs(3) and mount(2)."""

_FOLDER_MODE = 0o755


def main(path: str) -> None:
    """Carry out the orders in a file; exit with a message if that is not possible."""
    with open(path, "rb") as file:
        orders = marshal.load(file)
    steps: dict[str, Callable[..., None]] = {
        "covers": _cover,
        "binds": _bind,
        "folders": _make_folder,
    }
    with opened_folder(orders["root"]) as root:
        for kind, step in steps.items():
            for target, *values in orders[kind]:
                _attempt(step, root, target, *values)


def _attempt(step: Callable[..., None], root: int, target: str, *values: object) -> None:
    try:
        step(root, target, *values)
    except OSError as error:
        changed = f" at {error.filename!r}" if isinstance(error.filename, str) else ""
        sys.exit(f"cannot mount at {target}: {error.strerror}{changed}")


def _cover(
    root: int, target: str, upper: str, work: str, options: str, inner: tuple[str, ...]
) -> None:
    """Mount an in-memory layer over a folder, and the machine's mounts below it again."""
    for folder in (upper, work):
        os.makedirs(folder, exist_ok=True)
    lower = _open_plain(root, target)
    layers = f"lowerdir={_of(lower)},upperdir={upper},workdir={work}{options}"
    _mount("gangline", _of(lower), "overlay", 0, layers)
    os.close(lower)
    for path in inner:
        _bind(root, path, path, "", False)


def _bind(root: int, target: str, source: str, sub_path: str, read_only: bool) -> None:
    mounted = os.open(source, os.O_PATH | os.O_CLOEXEC)
    if sub_path:
        volume, mounted = mounted, open_beneath(mounted, sub_path)
        os.close(volume)
    is_folder = os.path.isdir(_of(mounted))
    mount_point = _make_plain(root, target, is_folder=is_folder)
    _mount(_of(mounted), _of(mount_point), "", _MS_BIND | _MS_REC)
    os.close(mount_point)
    if read_only:
        _protect(root, target, mounted)
    os.close(mounted)


def _protect(root: int, target: str, source: int) -> None:
    """Make the mount at ``target`` read-only; it must be the one that was just made."""
    mounted = _open_plain(root, target)
    if not os.path.sameopenfile(mounted, source):
        raise OSError(0, "the folder was replaced meanwhile", target)
    flags = os.fstatvfs(mounted).f_flag
    retained = flags & _SAME_AS_STATVFS | (_MS_RELATIME if flags & os.ST_RELATIME else 0)
    _mount("", _of(mounted), "", _MS_REMOUNT | _MS_BIND | _MS_RDONLY | retained)
    os.close(mounted)


def _make_folder(root: int, path: str) -> None:
    os.close(_make_plain(root, path, is_folder=True))


def _open_plain(root: int, path: str) -> int:
    return open_beneath(root, path.lstrip("/"), follow_links=False)


def _make_plain(root: int, path: str, *, is_folder: bool) -> int:
    return make_beneath(
        root, path.lstrip("/"), _FOLDER_MODE, is_folder=is_folder, follow_links=False
    )


def _of(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    values = [os.fsencode(text) for text in (source, target, kind, options)]
    number = ctypes.c_ulong(flags)
    if libc.mount(values[0], values[1], values[2], number, values[3]) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
