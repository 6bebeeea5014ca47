"""Restarts of ranks in static worlds: when a rank may start without its imports.

Ranks of a static world (``MASTER_ADDR``, ``RANK``) meet at a store that rank 0 hosts. When a rank
dies, the others fail one after another, and each is restarted in its own pod. A rank that is back
before rank 0 has failed would join the store of the old world, and wait there for its timeout.
A start with imports is too slow for that in practice; a forked one is not.

So a restarted rank waits until a later run of rank 0 than the one it has belonged to listens at
``MASTER_PORT``, which /proc shows. It waits at most as long as its imports would have taken: a rank
that may rejoin a living rank 0 starts no later than without a fork server.
"""

import asyncio
import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

from gangline.local.kubelet.runtime.interface import ContainerPlan
from gangline.local.kubelet.runtime.process_tree import walk_process_tree
from gangline.local.network.listening import listening_sockets


def listens_at(pid: int, port: int, shares_network: bool) -> bool:
    """Return whether a TCP port of a process's network has a listener. If other containers use the
    same network, the socket must belong to the process or a descendant.
    """
    inodes = {inode for _, number, inode in listening_sockets(pid) if number == port}
    if not shares_network:
        return bool(inodes)
    links = {f"socket:[{inode}]" for inode in inodes}
    return bool(links) and any(
        link in links for member in walk_process_tree(pid) for link in _open_files(member)
    )


def _open_files(pid: int) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for number in os.listdir(folder):
            with contextlib.suppress(OSError):
                yield os.readlink(f"{folder}/{number}")


_POLL_S = 0.02
_PAUSE_FACTOR = 4.0
"""A container with many sockets gets at most a fifth of this process's time."""
_MAX_ENDED = 1000
"""Containers that are remembered after their end."""
_OWN_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


class StartRule(Enum):
    """How a container of a fork server's environment may start."""

    NOW = auto()
    """Forked without a delay."""

    AFTER_STORE = auto()
    """Forked when the store of the next world listens."""

    COLD = auto()
    """By commands: which processes it must wait for is unknown."""


@dataclass(frozen=True, slots=True)
class ContainerName:
    """The name of a container: pods that replace each other share it."""

    namespace: str
    pod: str
    container: str


@dataclass(slots=True)
class _Runs:
    """The runs of one container name, numbered from 1."""

    count: int = 0
    pid: int = 0
    """Process 1 of the present run; 0 if there is none."""

    world: int = 0
    """The run of the store's host to which the last run has belonged."""

    shares_network: bool = False
    """True if the network is that of the machine."""

    listens: bool = False
    next_check: float = 0.0
    """Time of the next check on the monotonic clock; infinite during one."""


class StaticWorlds:
    """Counts the runs of containers that have ``MASTER_ADDR``, those of all nodes."""

    def __init__(self, listens: Callable[[int, int, bool], bool] = listens_at) -> None:
        """Begin without containers; ``listens`` is replaced in tests."""
        self._listens = listens
        self._runs: dict[ContainerName, _Runs] = {}

    def begin_run(self, plan: ContainerPlan, pid: int) -> Callable[[], None]:
        """Note that a container has started; return what is to be called at its end."""
        host = store_host(plan)
        if host is None:
            return lambda: None
        name = container_name(plan)
        # The latest one is last.
        runs = self._runs[name] = self._runs.pop(name, _Runs())
        runs.count += 1
        runs.pid, runs.shares_network = pid, plan.netns is None
        runs.listens, runs.next_check = False, 0.0
        number = runs.count
        # Without a store yet, it waits for that of the next run.
        store = self._runs.get(host, _Runs())
        runs.world = store.count if store.pid else store.count + 1
        self._forget_ended()

        def end() -> None:
            if runs.count == number:
                runs.pid = 0
                if runs.world > self._runs.get(host, _Runs()).count:
                    runs.world -= 1  # that run never began

        return end

    def start_rule(self, plan: ContainerPlan) -> StartRule:
        host, previous = store_host(plan), self._runs.get(container_name(plan))
        if plan.instance == 0 and (previous is None or host is None):
            return StartRule.NOW
        if host is None or previous is None:
            return StartRule.COLD
        return StartRule.NOW if host == container_name(plan) else StartRule.AFTER_STORE

    async def wait_for_store(self, plan: ContainerPlan, limit_s: float) -> bool:
        """Wait until the store of the next world listens; return False after the limit."""
        host = store_host(plan)
        previous = self._runs.get(container_name(plan), _Runs())
        deadline = time.monotonic() + limit_s
        while host is not None and not await self._has_store(host, previous.world, plan):
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(_POLL_S)
        return True

    async def _has_store(self, host: ContainerName, after: int, plan: ContainerPlan) -> bool:
        store = self._runs.get(host)
        if store is None or not store.pid or store.count <= after:
            return False
        if not store.listens and time.monotonic() >= store.next_check:
            await self._check(store, _store_port(plan))
        return store.listens and store.count > after

    async def _check(self, store: _Runs, port: int) -> None:
        number, began = store.count, time.monotonic()
        store.next_check = math.inf
        listens = False
        try:
            # The tables of the kernel are as long as the container makes them.
            listens = await asyncio.to_thread(self._listens, store.pid, port, store.shares_network)
        finally:
            if store.count == number:
                store.listens = listens
                took_s = time.monotonic() - began
                store.next_check = time.monotonic() + max(_POLL_S, _PAUSE_FACTOR * took_s)

    def _forget_ended(self) -> None:
        if len(self._runs) > _MAX_ENDED:
            ended = [name for name, runs in self._runs.items() if not runs.pid]
            for name in ended[: len(self._runs) - _MAX_ENDED]:
                del self._runs[name]


def container_name(plan: ContainerPlan) -> ContainerName:
    return ContainerName(plan.namespace, plan.pod, plan.container)


def store_host(plan: ContainerPlan) -> ContainerName | None:
    """Return the container that hosts the store; None without a static world.

    The address is the name of a pod, or of its service, as the operator sets it. The container has
    the same name in all pods of a job.
    """
    address = plan.env.get("MASTER_ADDR", "")
    if not address or not _store_port(plan):
        return None
    pod = plan.pod if address in _OWN_HOSTS else address.partition(".")[0]
    return ContainerName(plan.namespace, pod, plan.container)


def _store_port(plan: ContainerPlan) -> int:
    port = plan.env.get("MASTER_PORT", "")
    return int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else 0
