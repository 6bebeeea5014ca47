"""The command line and the name that ``ps`` shows for the fork server.

The server was started with the command line of the workers, and looked like one of them. It writes
another text over its arguments in memory, as PostgreSQL and others do. A forked process gets the
original back before its program begins.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PR_SET_NAME = 15
_ARG_START, _ARG_END = 45, 46
"""Positions in ``/proc/self/stat`` (proc(5), fields 48 and 49), after the name of the program."""


class ProcessTitle:
    """The title of this process, and of the processes that it forks. Needs ``ctypes``."""

    def __init__(self) -> None:
        """Remember the original."""
        self._ctypes: Any = sys.modules["ctypes"]
        self._name = self._title = b""
        self._start = 0
        try:
            with open("/proc/self/comm", "rb") as file:
                self._name = file.read().rstrip(b"\n")
            with open("/proc/self/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            return  # without /proc the title is not shown either
        self._start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
        if 0 < self._start < end:
            self._title = self._ctypes.string_at(self._start, end - self._start)

    def replace(self, title: bytes, name: bytes) -> None:
        """Show another command line, cut to the length of the original, and another name."""
        size = len(self._title)
        self._write(title[: max(size - 1, 0)].ljust(size, b"\0"), name)

    def restore(self) -> None:
        """Show the original again."""
        self._write(self._title, self._name)

    def _write(self, title: bytes, name: bytes) -> None:
        if title:
            self._ctypes.memmove(self._start, title, len(title))
        if self._name:
            self._ctypes.CDLL(None).prctl(_PR_SET_NAME, name)
