"""Rendezvous as the agent sees it: the handler protocol, and its form for a single node.

The handler provides worlds and delivers notices. The agent attaches its workers to it, so that the
handler can answer questions of other nodes about them.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gangline.api.failure import Failure
from gangline.elastic.agent.account import Report
from gangline.elastic.agent.hang import View
from gangline.elastic.agent.world import PortsTakenError, World, free_port, is_free


class MeetingError(Exception):
    """No world could be formed."""


class CutOffError(MeetingError):
    """This node reaches neither master, members nor witness."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Other nodes or the master interrupt this agent's attempt."""

    reason: str
    stops: bool = False
    """True: end the workers and the agent. False: join the next attempt."""


class Node(Protocol):
    """Control of this node's workers, for the master and other nodes."""

    def report(self) -> Report:
        """Return the present progress, or the last one after the workers have ended."""
        ...

    async def views(self) -> Sequence[View]:
        """Return the stacks of all ranks of this node."""
        ...

    async def dump_stacks(self, reason: str) -> None:
        """Log the stacks of all workers."""
        ...

    def start_saving(self) -> None:
        """Start to write the newest checkpoint in memory to storage."""
        ...


class Rendezvous(Protocol):
    """Provides worlds to an agent."""

    def serve(self, node: Node) -> None:
        """Attach the workers of this node."""
        ...

    async def imports(self) -> Sequence[str]:
        """Return the modules that running workers have imported. Called before the first join."""
        ...

    def learned(self, modules: Sequence[str]) -> None:
        """Share the modules that workers import with nodes that join later."""
        ...

    async def join(self) -> World:
        """Return the first world, or the next one after a change of members."""
        ...

    async def restart(self, world: World, failure: Failure | None) -> World:
        """Agree with the other members on the attempt after ``world``.

        Args:
            world: the world that has ended.
            failure: what ended it on this node; None if another member reported the end.
        """
        ...

    def started(self, world: World) -> None:
        """Report that the workers of this world have started here; other nodes may wait for it."""
        ...

    async def notice(self) -> Notice:
        """Wait until other nodes or the master interrupt this attempt."""
        ...

    async def views(self) -> Sequence[View]:
        """Return the stacks of the ranks of all nodes; called when this node hangs."""
        ...

    async def finished(self, world: World) -> Notice | None:
        """Report that all workers here have succeeded; wait for the other nodes.

        Returns None when all nodes have succeeded, else the notice that interrupts the wait.
        """
        ...

    async def leave(self, reason: str) -> None:
        """Leave the job; other nodes do not wait for this one any more."""
        ...


class OneNode:
    """Worlds of a single node, without a master."""

    def __init__(self, local_world_size: int, host: str, port: int | None = None) -> None:
        self._size, self._host, self._port = local_world_size, host, port
        self._node: Node | None = None

    def serve(self, node: Node) -> None:
        self._node = node

    async def imports(self) -> Sequence[str]:
        return ()

    def learned(self, modules: Sequence[str]) -> None: ...

    async def join(self) -> World:
        """Return the world of this node.

        Raises:
            PortsTakenError: another process listens on the requested port.
        """
        if self._port and not is_free(self._port):
            raise PortsTakenError(
                f"--master-port {self._port}: another process listens on that port of this node; "
                "leave the flag out for a free one"
            )
        return World(0, 0, 1, 0, self._size, self._host, self._port or free_port())

    async def restart(self, world: World, failure: Failure | None) -> World:
        del failure
        port = self._port or free_port()
        return replace(world, attempt=world.attempt + 1, store_port=port)

    def started(self, world: World) -> None: ...

    async def notice(self) -> Notice:
        """Never returns: no other node can interrupt."""
        never: asyncio.Future[Notice] = asyncio.get_running_loop().create_future()
        return await never

    async def views(self) -> Sequence[View]:
        return await self._node.views() if self._node else ()

    async def finished(self, world: World) -> Notice | None:
        del world
        return None

    async def leave(self, reason: str) -> None: ...
