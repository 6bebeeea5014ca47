"""The command line and the name that ``ps`` shows for a process that is forked without an exec."""

import ctypes
from pathlib import Path

_PR_SET_NAME = 15
_ARG_START, _ARG_END = 45, 46
"""Positions in ``/proc/self/stat`` (proc(5), fields 48 and 49), after the name of the program."""


def set_process_title(title: str) -> None:
    """Write a title over the arguments of this process in memory, as PostgreSQL and others do.

    Args:
        title: cut to the length of the original command line. Its first word, at most 15
            characters, becomes the name of the process.
    """
    ctypes.CDLL(None).prctl(_PR_SET_NAME, title.partition(" ")[0].encode())
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return  # without /proc the title is not shown either
    start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
    size = end - start
    if start and size > 0:
        ctypes.memmove(start, title.encode()[: size - 1].ljust(size, b"\0"), size)
