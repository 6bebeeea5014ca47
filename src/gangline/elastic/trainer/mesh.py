"""The sockets of a process group, and how to end what waits on them.

gloo's ``abort`` does nothing: a rank that waits for a living peer waits until the time-out of the
group. The connections of a group are the sockets that were opened while it was formed. Their
shutdown ends every exchange of this rank, and of the ranks that wait for it.
"""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator

_DESCRIPTORS = "/proc/self/fd"


def open_sockets() -> dict[str, int]:
    """Return the descriptors of all sockets of this process by their inode."""
    sockets = {}
    for name in os.listdir(_DESCRIPTORS):
        with contextlib.suppress(OSError):  # it may be closed meanwhile
            target = os.readlink(f"{_DESCRIPTORS}/{name}")
            if target.startswith("socket:"):
                sockets[target] = int(name)
    return sockets


class GroupSockets:
    """The connections of the present group; a thread may cut them while another one forms it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._before: dict[str, int] | None = None
        """What was open before a group began to connect; None while none does."""
        self._mesh: dict[str, int] = {}

    @contextlib.contextmanager
    def forming(self) -> Iterator[None]:
        """Context in which a group connects, in place of the one before."""
        with self._lock:
            self._mesh = {}
        with self.adding():
            yield

    @contextlib.contextmanager
    def adding(self) -> Iterator[None]:
        """Context in which a further group of the same ranks connects, and exchanges something."""
        with self._lock:
            self._before = open_sockets()
        try:
            yield
        finally:
            with self._lock:
                self._mesh, self._before = self._mesh | self._opened(), None

    def cut(self) -> bool:
        """End every exchange of the groups. Returns True while one of them connects.

        Then further connections may follow, and it is called again.
        """
        with self._lock:
            present = open_sockets()
            for inode in self._mesh | self._opened():
                if (descriptor := present.get(inode)) is not None:
                    _shut_down(descriptor)
            return self._before is not None

    def _opened(self) -> dict[str, int]:
        if self._before is None:
            return {}
        present = open_sockets()
        return {inode: at for inode, at in present.items() if inode not in self._before}


def _shut_down(descriptor: int) -> None:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.getpeername()  # fails for a listening socket, which gloo goes on using
            connection.shutdown(socket.SHUT_RDWR)
