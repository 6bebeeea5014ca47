"""Connections into a pod, made from inside its network namespace."""

import asyncio
import ctypes
import os
import socket

_CLONE_NEWNET = 0x40000000
_CONNECT_TIMEOUT_S = 10
_CHUNK = 65536


class SocketStream:
    """A connected socket as a stream of bytes."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection

    async def read(self) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self._socket, _CHUNK)

    async def write(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def close(self) -> None:
        self._socket.close()


async def connect_inside(netns: str | None, address: str, port: int) -> SocketStream:
    """Connect to a port of a pod. In a namespace, 127.0.0.1 is tried first, then the pod's address.

    Raises:
        OSError: nothing listens there.
    """
    hosts = ["127.0.0.1", address] if netns else [address, "127.0.0.1"]
    return SocketStream(await asyncio.to_thread(_connect, netns, hosts, port))


def _connect(netns: str | None, hosts: list[str], port: int) -> socket.socket:
    """Connect from this thread, which enters the namespace during the call.

    Only the calling thread moves. It must return, since the thread pool reuses it.
    """
    if netns is None:
        return _first_answer(hosts, port)
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        _enter(netns)
        return _first_answer(hosts, port)
    finally:
        _set_namespace(home)
        os.close(home)


def _first_answer(hosts: list[str], port: int) -> socket.socket:
    refusal: OSError | None = None
    for host in hosts:
        try:
            return socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S)
        except OSError as error:
            refusal = error
    assert refusal is not None, "there is at least one host to try"
    raise refusal


def _enter(netns: str) -> None:
    space = os.open(netns, os.O_RDONLY)
    try:
        _set_namespace(space)
    finally:
        os.close(space)


def _set_namespace(space: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(space, _CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
