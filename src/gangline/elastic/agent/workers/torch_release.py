"""The release of PyTorch that workers will import, from the metadata of its installation.

Nothing is imported: PyTorch takes seconds, and workers may have another interpreter.
"""

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

_METADATA = re.compile(r"torch-(?P<major>\d+)\.(?P<minor>\d+)\S*\.(dist|egg)-info")
FIRST_WITH_VALIDATION = 2, 2
"""First release whose ``TCPStore`` begins a connection with a magic number (pytorch#107607).

Earlier ones number the requests differently, so they need a store of their own release.
"""


def speaks_agent_store(interpreter: str) -> bool:
    """Return whether the workers' PyTorch is known to speak the agent's store, or is unknown."""
    paths = sys.path if interpreter == sys.executable else installation_paths(interpreter)
    release = torch_release(paths)
    return release is None or release >= FIRST_WITH_VALIDATION


def torch_release(paths: Iterable[str]) -> tuple[int, int] | None:
    """Return the first two numbers of the release that is found first; None without one.

    Args:
        paths: folders of modules, in the order in which the interpreter searches them.
    """
    for path in paths:
        try:
            names = os.listdir(path or ".")
        except OSError:
            continue  # no such folder, or an archive
        for name in names:
            if found := _METADATA.fullmatch(name):
                return int(found["major"]), int(found["minor"])
    return None


def installation_paths(interpreter: str) -> list[str]:
    """Return the folders of packages beside an interpreter, as in a virtual environment."""
    folder = Path(interpreter).parent.parent
    return [str(path) for path in sorted(folder.glob("lib/python3*/site-packages"))]
