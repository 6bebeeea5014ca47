"""Modules that a spare may preload: those of the first start that are not the user's own code."""

from collections.abc import Iterable, Sequence
from pathlib import Path

_LIBRARY_FOLDERS = ("site-packages", "dist-packages")


def preloadable_modules(
    modules: Iterable[tuple[str, str | None]], own_folders: Sequence[str]
) -> tuple[str, ...]:
    """Return the modules to import, in the order of the first start.

    The user's own code is left out: importing it may have effects, and it may be edited between two
    starts. Built-in modules need no import.

    Args:
        modules: names and files.
        own_folders: folders of the user's code, except for installed libraries below them.
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
