"""Which modules a spare may import ahead: those of a first start that are nobody's own code."""

from collections.abc import Iterable, Sequence
from pathlib import Path

_LIBRARY_FOLDERS = ("site-packages", "dist-packages")


def preloadable(
    modules: Iterable[tuple[str, str | None]], own_folders: Sequence[str]
) -> tuple[str, ...]:
    """Return the names to import, in the order in which the first start imported them.

    Code of the user's own is left out: importing it may do things, and it may be edited between
    two starts. Built-in modules come by themselves.

    Args:
        modules: names and files.
        own_folders: where the user's code is, unless an installed library lies beneath.
    """
    return tuple(name for name, file in modules if _is_library(name, file, own_folders))


def _is_library(name: str, file: str | None, own_folders: Sequence[str]) -> bool:
    if name == "__main__" or file is None or not file.startswith("/"):
        return False
    path = Path(file)
    if any(part in _LIBRARY_FOLDERS for part in path.parts):
        return True
    if any(path.is_relative_to(folder) for folder in own_folders):
        return False
    return "lib" in path.parts and any(part.startswith("python3") for part in path.parts)
