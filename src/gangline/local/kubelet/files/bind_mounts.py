"""Mounts volumes at places that others could replace meanwhile; runs inside a mount namespace.

The shell script that builds a container's file system mounts by path, which is safe only where no
other process can rename a folder of the path. A part of a volume, a mount point inside a volume and
a folder of another user are not: a container could put a symbolic link there after the check, and
the mount would land outside the container's root. Here sources and mount points are opened once,
without leaving their volume and without links, and mounted by descriptor.

The process gets its orders as a JSON file (`MountOrders`), since it starts without the packages
of the environment: ``python -I -S -c BOOT FOLDER ORDERS``.
"""

import ctypes
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gangline.local.kubelet.files.beneath import make_beneath, open_beneath, opened_folder

_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC = 0x1, 0x20, 0x1000, 0x4000
_MS_RELATIME = 1 << 21
_SAME_AS_STATVFS = os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME
"""Flags whose numbers are the same in statvfs(3) and mount(2)."""

_FOLDER_MODE = 0o755
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from gangline.local.kubelet.files.bind_mounts import main; main(sys.argv[1])"
)


@dataclass(frozen=True, slots=True)
class Cover:
    """An in-memory layer over a folder, with the machine's mounts below it."""

    target: str
    upper: str
    work: str
    options: str = ""
    inner: list[str] = field(default_factory=list)
    """Paths of this machine, which are mounted at the same paths again."""


@dataclass(frozen=True, slots=True)
class Bind:
    """One file or folder to mount."""

    source: str
    """The volume, or the file or folder itself; a path that only the kubelet can change."""

    target: str
    sub_path: str = ""
    """The part of the volume; empty for the volume itself."""

    read_only: bool = False


@dataclass(frozen=True, slots=True)
class MountOrders:
    """What to mount below ``root``; targets are absolute paths in the container, without links."""

    root: str
    covers: list[Cover] = field(default_factory=list)
    binds: list[Bind] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    """Folders to create after the mounts, such as the working folder."""

    def __bool__(self) -> bool:
        return bool(self.covers or self.binds or self.folders)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))


def helper_command(orders: Path) -> list[str]:
    """The command that carries out the orders in a file."""
    packages = Path(__file__).parents[4]
    return [sys.executable, "-I", "-S", "-c", _BOOT, str(packages), str(orders)]


def main(path: str) -> None:
    """Carry out the orders in a file; exit with a message if that is not possible."""
    written: dict[str, Any] = json.loads(Path(path).read_text())
    with opened_folder(written["root"]) as root:
        for each in written["covers"]:
            _attempt(each["target"], _cover, root, Cover(**each))
        for each in written["binds"]:
            _attempt(each["target"], _bind, root, Bind(**each))
        for folder in written["folders"]:
            _attempt(folder, _make_folder, root, folder)


def _attempt(target: str, work: Any, *values: object) -> None:
    try:
        work(*values)
    except OSError as error:
        changed = f" at {error.filename!r}" if isinstance(error.filename, str) else ""
        sys.exit(f"cannot mount at {target}: {error.strerror}{changed}")


def _cover(root: int, cover: Cover) -> None:
    for folder in (cover.upper, cover.work):
        os.makedirs(folder, exist_ok=True)
    target = _open_plain(root, cover.target)
    layers = f"lowerdir={_of(target)},upperdir={cover.upper},workdir={cover.work}{cover.options}"
    _mount("gangline", _of(target), "overlay", 0, layers)
    os.close(target)
    for inner in cover.inner:
        _bind(root, Bind(inner, inner))


def _bind(root: int, bind: Bind) -> None:
    source = os.open(bind.source, os.O_PATH | os.O_CLOEXEC)
    if bind.sub_path:
        volume, source = source, open_beneath(source, bind.sub_path)
        os.close(volume)
    is_folder = os.path.isdir(_of(source))
    target = _make_plain(root, bind.target, is_folder=is_folder)
    _mount(_of(source), _of(target), "", _MS_BIND | _MS_REC)
    os.close(target)
    if bind.read_only:
        _protect(root, bind.target, source)
    os.close(source)


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
    values: Sequence[bytes] = [os.fsencode(text) for text in (source, target, kind, options)]
    number = ctypes.c_ulong(flags)
    if libc.mount(values[0], values[1], values[2], number, values[3]) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
