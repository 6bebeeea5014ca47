"""Paths inside a container: symbolic links resolved below its root, and mounts below a folder."""

import os
from collections.abc import Iterable
from pathlib import Path

_MAX_LINKS = 40


def is_within(path: str, folder: str) -> bool:
    """True if ``path`` is ``folder`` or lies in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def resolve_inside(base: str, path: str, stop_at: Iterable[str] = ()) -> str:
    """The path without symbolic links, with the folder ``base`` as root.

    Parts that do not exist stay unchanged. Links in the folders ``stop_at`` are not resolved, since
    the container does not see them.
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
        place = base + step
        if links < _MAX_LINKS and not _hidden(done, hidden) and os.path.islink(place):
            links += 1
            to = os.readlink(place)
            done = "/" if to.startswith("/") else done
            rest += to.split("/")[::-1]
        else:
            done = step
    return done


def mounts_below(folder: str) -> list[str]:
    """The mount points in ``folder``, without those inside another one."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = sorted({_unescape(line.split(" ")[4]) for line in lines})
    below = [point for point in points if point != folder and is_within(point, folder)]
    return [
        point
        for point in below
        if not any(is_within(point, other) for other in below if other != point)
    ]


def _hidden(path: str, folders: tuple[str, ...]) -> bool:
    return any(is_within(path, folder) for folder in folders)


def _unescape(text: str) -> str:
    return text.encode("latin-1", "replace").decode("unicode_escape") if "\\" in text else text
