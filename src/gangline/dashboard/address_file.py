"""The address of the dashboard that runs with an embedded cluster, in a file of its folder.

The address holds the token of the user, so only the user can read the file.
"""

import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

NAME = "dashboard"
TIMEOUT_S = 0.5


def write_address(folder: Path, address: str) -> None:
    path = folder / NAME
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(address)


def remove_address(folder: Path) -> None:
    (folder / NAME).unlink(missing_ok=True)


def read_address(folder: Path) -> str:
    """Return the address; empty if no server answers there."""
    try:
        address = (folder / NAME).read_text()
        parts = urlsplit(address)
        socket.create_connection((parts.hostname, parts.port), TIMEOUT_S).close()
    except (OSError, ValueError):
        return ""
    return address
