"""Where an agent gets its worlds from: the protocol, and the form of it for a single node."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gangline.api.failure import Failure
from gangline.elastic.agent.account import Report
from gangline.elastic.agent.hang import View
from gangline.elastic.agent.world import PortsTakenError, World, free_port, is_free


class MeetingError(Exception):
    """No world could be had."""


class CutOffError(MeetingError):
    """This node reaches nobody any more."""


@dataclass(frozen=True, slots=True)
class Notice:
    """What others want of this agent."""

    reason: str
    stops: bool = False
    """End the workers and go, instead of joining the next attempt."""


class Node(Protocol):
    """The workers of this node, for those who ask how they are or want them to act."""

    def report(self) -> Report:
        """Return how the workers are, or were when they ended."""
        ...

    async def views(self) -> Sequence[View]:
        """Return where the workers of this attempt are."""
        ...

    async def dump_stacks(self, reason: str) -> None:
        """Write the stacks of all workers to the log."""
        ...

    def start_saving(self) -> None:
        """Start to bring the newest checkpoint in memory to storage."""
        ...


class Rendezvous(Protocol):
    """Where worlds come from."""

    def serve(self, node: Node) -> None:
        """Take the workers about which others may ask."""
        ...

    async def imports(self) -> Sequence[str]:
        """Return what workers that run already have imported: before the first join."""
        ...

    def learned(self, modules: Sequence[str]) -> None:
        """Take what workers import, for nodes to come."""
        ...

    async def join(self) -> World:
        """Return the first world, or the next one after a change of membership."""
        ...

    async def restart(self, world: World, failure: Failure | None) -> World:
        """Agree with the other members on the attempt after ``world``.

        Args:
            world: the world that has ended.
            failure: what ended it here; None when another member said so.
        """
        ...

    def started(self, world: World) -> None:
        """Take that the workers of this world are started here: others may wait for it."""
        ...

    async def notice(self) -> Notice:
        """Wait until others want something."""
        ...

    async def views(self) -> Sequence[View]:
        """Return where the workers of all nodes are: this one's hang."""
        ...

    async def finished(self, world: World) -> Notice | None:
        """Say that all workers here are done; wait for the others.

        Returns None when all are done, or what is wanted instead.
        """
        ...

    async def leave(self, reason: str) -> None:
        """Say farewell; not to be waited for any more."""
        ...


class OneNode:
    """A world of one node: nobody to ask."""

    def __init__(self, local_world_size: int, host: str, port: int | None = None) -> None:
        self._size, self._host, self._port = local_world_size, host, port
        self._node: Node | None = None

    def serve(self, node: Node) -> None:
        """Take the workers."""
        self._node = node

    async def imports(self) -> Sequence[str]:
        """Return nothing: no others run."""
        return ()

    def learned(self, modules: Sequence[str]) -> None:
        """Do nothing: none will come."""

    async def join(self) -> World:
        """Return the only world there is.

        Raises:
            PortsTakenError: the port that the user wants is somebody else's.
        """
        if self._port and not is_free(self._port):
            raise PortsTakenError(
                f"--master-port {self._port}: somebody listens on that port of this node; "
                "leave the flag out for a free one"
            )
        return World(0, 0, 1, 0, self._size, self._host, self._port or free_port())

    async def restart(self, world: World, failure: Failure | None) -> World:
        """Count, and open the store elsewhere unless the user has fixed its port."""
        del failure
        port = self._port or free_port()
        return replace(world, attempt=world.attempt + 1, store_port=port)

    def started(self, world: World) -> None:
        """Do nothing: nobody waits for it."""

    async def notice(self) -> Notice:
        """Wait for ever: there is nobody else."""
        never: asyncio.Future[Notice] = asyncio.get_running_loop().create_future()
        return await never

    async def views(self) -> Sequence[View]:
        """Return where the workers are."""
        return await self._node.views() if self._node else ()

    async def finished(self, world: World) -> Notice | None:
        """Return at once."""
        del world
        return None

    async def leave(self, reason: str) -> None:
        """Do nothing."""
