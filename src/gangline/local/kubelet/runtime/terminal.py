"""Terminals: a pair of descriptors, one to control it and one for its command."""

import errno
import fcntl
import os
import struct
from dataclasses import dataclass

from gangline.local.kubelet.files.beneath import open_beneath, opened_folder

_PTMX = os.makedev(5, 2)
_TIOCSPTLCK = 0x40045431
_TIOCGPTPEER = 0x5441

TAKE_TERMINAL = ("setsid", "--ctty", "--")
"""Before a command: makes it the leader of a session whose terminal is its standard input."""


@dataclass(frozen=True, slots=True)
class Terminal:
    """Both sides of a terminal; the function that spawns a command on it closes them."""

    control_fd: int
    tty_fd: int
    taken_inside: bool = False
    """The command takes the terminal itself (`TAKE_TERMINAL`), in the process namespace that it
    enters. A shell needs its session leader to be visible there: job control uses the leader's
    process id.
    """


def open_terminal(*, taken_inside: bool = False) -> Terminal:
    """Open a terminal of this machine.

    Raises:
        OSError: there are none left.
    """
    return Terminal(*os.openpty(), taken_inside=taken_inside)


def open_terminal_inside(pid: int, root: str) -> Terminal:
    """Open a terminal of a container, so that it has a name in the container's /dev/pts.

    Args:
        pid: a process in the container's mount namespace.
        root: the folder there that is the container's root.

    Raises:
        OSError: the container has ended, or has no terminals.
    """
    flags = os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
    with opened_folder(f"/proc/{pid}/root{root}") as folder:
        control = open_beneath(folder, "dev/pts/ptmx", flags, follow_links=False)
    try:
        # A container with the rights to mount may have put any file there.
        if os.fstat(control).st_rdev != _PTMX:
            raise OSError(errno.ENOTTY, "is not a terminal multiplexer", "/dev/pts/ptmx")
        os.set_blocking(control, True)
        fcntl.ioctl(control, _TIOCSPTLCK, struct.pack("i", 0))
        # The other side by descriptor: its name only means something inside the container.
        side = fcntl.ioctl(control, _TIOCGPTPEER, flags & ~os.O_NONBLOCK)
    except OSError:
        os.close(control)
        raise
    return Terminal(control, side, taken_inside=True)
