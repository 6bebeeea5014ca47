"""Paths inside a container: symbolic links resolved below its root, and mounts below a folder."""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

_MAX_LINKS = 40
_ALWAYS_PRIVATE = ("/proc", "/dev", "/run", "/tmp")
ROOT_HOME = "/root"
_MOUNTINFO = Path("/proc/self/mountinfo")
_OCTAL_ESCAPE = re.compile(r"\\(\d{3})")


def private_folders() -> tuple[str, ...]:
    """Folders that each container without an image folder has of its own, not the machine's.

    A container is root of its own users, so manifests expect that it may use ``/root``: it is
    private where this process may not enter the machine's.
    """
    entered = os.access(ROOT_HOME, os.R_OK | os.X_OK) or not os.path.isdir(ROOT_HOME)
    return _ALWAYS_PRIVATE if entered else (*_ALWAYS_PRIVATE, ROOT_HOME)


def is_within(path: str, folder: str) -> bool:
    """True if ``path`` is ``folder`` or lies in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def resolve_inside(
    base: str, path: str, stop_at: Iterable[str] = (), mounts: Mapping[str, str] | None = None
) -> str:
    """The path without symbolic links, with the folder ``base`` as root.

    Parts that do not exist stay unchanged. Links in the folders ``stop_at`` are not resolved, since
    the container does not see them. ``mounts`` maps paths in the container to paths of this machine
    that are mounted there.
    """
    done, rest, links = "/", path.split("/")[::-1], 0
    hidden = tuple(stop_at)
    while rest:
        part = rest.pop()
        if part in ("", "."):
            continue
        if part == "..":
            done = os.path.dirname(done)
            continue
        step = os.path.join(done, part)
        mount = max((at for at in mounts or () if is_within(step, at)), key=len, default=None)
        if mounts and mount is not None:
            place, seen = mounts[mount] + step[len(mount.rstrip("/")) :], True
        else:
            place, seen = base + step, not any(is_within(done, folder) for folder in hidden)
        if links < _MAX_LINKS and seen and os.path.islink(place):
            links += 1
            to = os.readlink(place)
            done = "/" if to.startswith("/") else done
            rest += to.split("/")[::-1]
        else:
            done = step
    return done


def mount_points() -> list[str]:
    """The mount points of this process; a stacked mount has several entries."""
    lines = _MOUNTINFO.read_text().splitlines()
    return [
        _OCTAL_ESCAPE.sub(lambda octal: chr(int(octal[1], 8)), ln.split(" ")[4]) for ln in lines
    ]


def mounts_below(folder: str) -> list[str]:
    """The mount points in ``folder``, without those inside another one."""
    below = [p for p in sorted(set(mount_points())) if p != folder and is_within(p, folder)]
    return [
        point
        for point in below
        if not any(is_within(point, other) for other in below if other != point)
    ]
