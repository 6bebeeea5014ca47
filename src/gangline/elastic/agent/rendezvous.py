"""Rendezvous as the agent sees it: worlds, the handler that provides them, and its one-node form.

The handler provides worlds and delivers notices. The agent attaches its workers to it, so that the
handler can answer questions of other nodes about them.
"""

import asyncio
import random
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gangline.api.failure import Failure
from gangline.elastic.agent.failures import RankExit
from gangline.elastic.agent.hang_detector import RankStack
from gangline.elastic.agent.progress_report import NodeProgress

STORE_PORTS = range(20_000, 32_768)
"""Ports below the range from which Linux chooses ports of outgoing connections."""


class PortsTakenError(OSError):
    """No port is free for the store of the workers."""


@dataclass(frozen=True, slots=True)
class WorldSpec:
    """One attempt as this node sees it."""

    attempt: int
    """Number of restarts of the job so far; the same on all nodes."""
    group_rank: int
    """Position of this node among the nodes."""
    group_world_size: int
    first_rank: int
    """Global rank of this node's local rank 0."""
    world_size: int
    store_host: str
    store_port: int
    round: int = 0
    """Number of changes of membership."""
    is_running: bool = False
    """True if the workers of the other nodes run already, and those of this node join them."""


def free_port() -> int:
    """Return a port on which no process listens."""
    for port in random.sample(STORE_PORTS, 64):
        if is_port_free(port, is_lingering_free=False):
            return port
    raise PortsTakenError(f"no free port between {STORE_PORTS.start} and {STORE_PORTS.stop - 1}")


def is_port_free(port: int, *, is_lingering_free: bool = True) -> bool:
    """Return whether rank 0 could listen on the port, for all addresses as PyTorch does.

    Args:
        is_lingering_free: False to treat ports with closed connections as taken.
    """
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, is_lingering_free)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


class RendezvousError(Exception):
    """No world could be formed."""


class PartitionedError(RendezvousError):
    """This node reaches neither master, members nor witness."""


@dataclass(frozen=True, slots=True)
class StopNotice:
    """Other nodes or the master interrupt this agent's attempt."""

    reason: str
    stops: bool = False
    """True: end the workers and the agent. False: join the next attempt."""


class WorkerControl(Protocol):
    """Control of this node's workers, for the master and other nodes."""

    @property
    def survives(self) -> bool:
        """True if the workers keep running when nodes leave or join."""
        ...

    @property
    def epoch(self) -> int:
        """Number of the present group of workers whose ranks are replaced; 0 for others."""
        ...

    def continue_in(self, world: WorldSpec) -> None:
        """Report the workers, which keep running, as those of another world."""
        ...

    def report(self) -> NodeProgress:
        """Return the present progress, or the last one after the workers have ended."""
        ...

    async def rank_stacks(self) -> Sequence[RankStack]: ...

    def exits(self) -> Sequence[RankExit]:
        """Return the ranks of this node that ended by themselves in the present or last attempt."""
        ...

    async def dump_stacks(self, reason: str) -> None: ...

    def start_saving(self) -> None:
        """Start to write the newest checkpoint in memory to storage."""
        ...

    async def save_on_request(self, request: str, wait_s: float) -> int | None:
        """Save after the present step, and write that to storage; the workers stop there.

        Args:
            wait_s: seconds after which the answer is of no use.

        Returns:
            The step that is in storage; None if none could be written in time.
        """
        ...

    def withdraw_request(self) -> None:
        """Let the workers continue after a requested save."""
        ...


class RendezvousHandler(Protocol):
    """Provides worlds to an agent."""

    def attach_workers(self, workers: WorkerControl) -> None: ...

    async def known_imports(self) -> Sequence[str]:
        """Return the modules that running workers have imported. Called before the first join."""
        ...

    def share_imports(self, modules: Sequence[str]) -> None:
        """Share the modules that workers import with nodes that join later."""
        ...

    async def join(self) -> WorldSpec:
        """Return the first world, or the next one after a change of members."""
        ...

    async def restart(self, world: WorldSpec, failure: Failure | None) -> WorldSpec:
        """Agree with the other members on the attempt after ``world``.

        Args:
            failure: what ended it on this node; None if another member reported the end.
        """
        ...

    def announce_start(self, world: WorldSpec) -> None:
        """Report that the workers of this world have started here; other nodes may wait for it."""
        ...

    async def wait_for_notice(self) -> StopNotice:
        """Wait until other nodes or the master interrupt this attempt."""
        ...

    async def rank_stacks(self) -> Sequence[RankStack]:
        """Return the stacks of the ranks of all nodes; called when this node hangs."""
        ...

    async def rank_exits(self) -> Sequence[RankExit]:
        """Return the ranks of all nodes that have ended; called when a rank here lost another."""
        ...

    async def finish(self, world: WorldSpec) -> StopNotice | None:
        """Report that all workers here have succeeded; wait for the other nodes.

        Returns None when all nodes have succeeded, else the notice that interrupts the wait.
        """
        ...

    async def leave(self, reason: str) -> None:
        """Leave the job; other nodes do not wait for this one any more."""
        ...


class SingleNodeRendezvous:
    """Worlds of a single node, without a master."""

    def __init__(self, local_world_size: int, host: str, port: int | None = None) -> None:
        self._size, self._host, self._port = local_world_size, host, port
        self.workers: WorkerControl | None = None

    def attach_workers(self, workers: WorkerControl) -> None:
        self.workers = workers

    async def known_imports(self) -> Sequence[str]:
        return ()

    def share_imports(self, modules: Sequence[str]) -> None: ...

    async def join(self) -> WorldSpec:
        """Return the world of this node.

        Raises PortsTakenError: another process listens on the requested port.
        """
        if self._port and not is_port_free(self._port):
            raise PortsTakenError(
                f"--master-port {self._port}: another process listens on that port of this node; "
                "leave the flag out for a free one"
            )
        return WorldSpec(0, 0, 1, 0, self._size, self._host, self._port or free_port())

    async def restart(self, world: WorldSpec, failure: Failure | None) -> WorldSpec:
        del failure
        port = self._port or free_port()
        return replace(world, attempt=world.attempt + 1, store_port=port)

    def announce_start(self, world: WorldSpec) -> None: ...

    async def wait_for_notice(self) -> StopNotice:
        never: asyncio.Future[StopNotice] = asyncio.get_running_loop().create_future()
        return await never

    async def rank_stacks(self) -> Sequence[RankStack]:
        return await self.workers.rank_stacks() if self.workers else ()

    async def rank_exits(self) -> Sequence[RankExit]:
        return self.workers.exits() if self.workers else ()

    async def finish(self, world: WorldSpec) -> StopNotice | None:
        del world
        return None

    async def leave(self, reason: str) -> None: ...
