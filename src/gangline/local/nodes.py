"""Virtual nodes: one kubelet for each, switched by annotations of its Node object.

Any client can set the annotations, so a test needs no special access:

``gangline.dev/stopped: "true"``
    The machine loses power: its containers are killed and nothing is reported. Without the
    annotation it boots again.
``gangline.dev/cut: "true"``
    The machine loses its network: its containers continue, but the cluster gets no report of them.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

from gangline.api.core import Node
from gangline.api.resources import NODES
from gangline.kube.client import Client
from gangline.kube.errors import NotFound
from gangline.kube.informer import Informer
from gangline.local.machine import NodeShape

log = logging.getLogger(__name__)

STOPPED = "gangline.dev/stopped"
CUT = "gangline.dev/cut"
VIRTUAL = "gangline.dev/virtual"
"""The label of nodes that a cluster created itself and may delete again."""


class Agent(Protocol):
    """The component that runs a node: a kubelet."""

    async def run(self) -> None:
        """Run until cancelled; a later call takes over the containers of the earlier one."""
        ...

    async def stop(self, grace_s: float) -> None:
        """End all containers; those that take longer than ``grace_s`` are killed."""
        ...


class Power(Enum):
    """The desired state of a node."""

    ON = auto()
    CUT = auto()
    STOPPED = auto()


def wanted_power(node: Node | None) -> Power:
    """Read the desired state from a node's annotations."""
    annotations = node.metadata.annotations if node is not None else {}
    if annotations.get(STOPPED) == "true":
        return Power.STOPPED
    return Power.CUT if annotations.get(CUT) == "true" else Power.ON


class VirtualNode:
    """One node: switches its agent to the desired state."""

    def __init__(self, name: str, make: Callable[[], Agent]) -> None:
        self.name = name
        self._make = make
        self._agent: Agent | None = None
        self._running: asyncio.Task[None] | None = None
        self._wish = asyncio.Event()
        self._wanted = Power.ON
        self._ended = False

    def want(self, power: Power) -> None:
        if power is not self._wanted:
            self._wanted = power
            self._wish.set()

    async def run(self) -> None:
        """Apply each desired state until cancelled."""
        try:
            while True:
                self._wish.clear()
                await self._switch(self._wanted)
                await self._wait()
        finally:
            await self._halt()

    async def end(self, grace_s: float) -> None:
        """End all containers; the node never runs again, whatever its annotations say."""
        self._ended = True
        await self.stop(grace_s)

    async def stop(self, grace_s: float) -> None:
        # Cleared before the halt: a concurrent stop must not stop the same agent a second time.
        agent, self._agent = self._agent, None
        await self._halt()
        if agent is not None:
            await agent.stop(grace_s)

    async def _switch(self, power: Power) -> None:
        match power:
            case Power.ON if self._running is None and not self._ended:
                self._agent = self._agent or self._make()
                self._running = asyncio.create_task(self._agent.run(), name=self.name)
            case Power.CUT:
                await self._halt()
            case Power.STOPPED:
                await self.stop(0.0)

    async def _wait(self) -> None:
        """Wait for another desired state; an exception of the agent is raised here."""
        wish = asyncio.create_task(self._wish.wait())
        watched = {wish} | ({self._running} if self._running is not None else set())
        try:
            await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        finally:
            wish.cancel()
        if self._running is not None and self._running.done():
            ended, self._running = self._running, None
            ended.result()

    async def _halt(self) -> None:
        if self._running is not None:
            running, self._running = self._running, None
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


class Nodes:
    """All virtual nodes of a cluster. ``make`` builds the agent of a node."""

    def __init__(
        self,
        client: Client,
        shapes: list[NodeShape],
        informer: Informer[Node],
        make: Callable[[NodeShape], Agent],
    ) -> None:
        self._client = client
        self._informer = informer
        self._nodes = {shape.name: self._node(shape, make) for shape in shapes}
        informer.add_listener(self._changed)

    def _node(self, shape: NodeShape, make: Callable[[NodeShape], Agent]) -> VirtualNode:
        return VirtualNode(shape.name, lambda: make(shape))

    async def run(self) -> None:
        await self._informer.synced()
        await self._remove_surplus()
        async with asyncio.TaskGroup() as tasks:
            for node in self._nodes.values():
                tasks.create_task(self._keep(node))

    async def stop(self, grace_s: float, hurry: asyncio.Event) -> None:
        """End all containers; when ``hurry`` is set, return without waiting for them."""
        ending = asyncio.create_task(self._stop_all(grace_s))
        hurried = asyncio.create_task(hurry.wait())
        await asyncio.wait((ending, hurried), return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        ending.cancel()  # Containers that still run are killed at the end of this process.
        await asyncio.gather(ending, hurried, return_exceptions=True)

    async def _stop_all(self, grace_s: float) -> None:
        await asyncio.gather(*(node.end(grace_s) for node in self._nodes.values()))

    async def _keep(self, node: VirtualNode) -> None:
        """Run one node; when its agent fails, log that and restart it."""
        while True:
            try:
                await node.run()
            except Exception:  # The outermost loop of a node: the others continue.
                log.exception("node failed and is restarted", extra={"node": node.name})
                await asyncio.sleep(1.0)

    def _changed(self, _: Node | None, new: Node | None) -> None:
        if new is not None and new.metadata.name in self._nodes:
            self._nodes[new.metadata.name].want(wanted_power(new))

    async def _remove_surplus(self) -> None:
        """Delete the nodes of an earlier run that had more nodes."""
        for node in list(self._informer.items()):
            ours = node.metadata.labels.get(VIRTUAL) == "true"
            if ours and node.metadata.name not in self._nodes:
                with contextlib.suppress(NotFound):
                    await self._client.delete(NODES, node.metadata.name)
