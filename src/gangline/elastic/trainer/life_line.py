"""A connection that ends in the moment at which this process is killed.

Linux closes the sockets of a killed process, and tells its parent, when the memory has been given
back: with PyTorch that takes 50 ms and more. A thread whose descriptors are its own (unshare(2))
has no memory to give back, so its connection ends before.
"""

import contextlib
import ctypes
import os
import socket
import threading

from gangline.elastic.survivors.messages import Alive
from gangline.elastic.survivors.orders import encode_first

_CLONE_FILES = 0x400
_DESCRIPTORS = "/proc/thread-self/fd"


def open_life_line(host: str, port: int, slot: int) -> None:
    """Connect with the store of the workers until this process ends, or the store does.

    Raises:
        OSError: the store cannot be reached.
    """
    with socket.create_connection((host, port), timeout=10.0) as connection:
        connection.settimeout(None)
        connection.sendall(encode_first(Alive(slot)))
        is_held = threading.Event()
        arguments = connection.fileno(), is_held
        threading.Thread(target=_hold, args=arguments, name="life line", daemon=True).start()
        is_held.wait()


def _hold(descriptor: int, is_held: threading.Event) -> None:
    """Keep one descriptor open in this thread alone; without a table of its own, not at all."""
    if ctypes.CDLL(None).unshare(_CLONE_FILES) != 0:
        is_held.set()
        return
    with contextlib.suppress(OSError):
        for other in map(int, os.listdir(_DESCRIPTORS)):
            if other != descriptor:
                with contextlib.suppress(OSError):
                    os.close(other)
        is_held.set()
        os.read(descriptor, 1)
    is_held.set()
