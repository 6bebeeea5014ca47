"""Virtual nodes: one kubelet for each, switched by annotations of its Node object.

Any client can set the annotations, so a test needs no special access:

``gangline.dev/stopped: "true"``
    The machine loses power: its containers are killed and nothing is reported. Without the
    annotation it boots again.
``gangline.dev/partitioned: "true"``
    The machine loses its network: its containers continue, but the cluster gets no report of them.
"""

import asyncio
import contextlib
from collections.abc import Callable
from enum import Enum, auto
from functools import partial

from gangline.api.core.core import Node
from gangline.api.resources import NODES
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import NotFound
from gangline.kube.informers.informer import Informer
from gangline.local.kubelet.kubelet import Kubelet
from gangline.local.kubelet.settings import VirtualNodeSpec
from gangline.local.machine import VIRTUAL_LABEL
from gangline.local.supervision import keep_running

STOPPED_ANNOTATION = "gangline.dev/stopped"
PARTITIONED_ANNOTATION = "gangline.dev/partitioned"


class NodePower(Enum):
    ON = auto()
    PARTITIONED = auto()
    STOPPED = auto()


def desired_power(node: Node | None) -> NodePower:
    annotations = node.metadata.annotations if node is not None else {}
    if annotations.get(STOPPED_ANNOTATION) == "true":
        return NodePower.STOPPED
    partitioned = annotations.get(PARTITIONED_ANNOTATION) == "true"
    return NodePower.PARTITIONED if partitioned else NodePower.ON


class VirtualNode:
    """One node: switches its kubelet to the desired state."""

    def __init__(self, name: str, make: Callable[[], Kubelet]) -> None:
        self.name = name
        self._make = make
        self._kubelet: Kubelet | None = None
        self._running: asyncio.Task[None] | None = None
        self._power_changed = asyncio.Event()
        self._desired = NodePower.ON
        self._ended = False

    def set_power(self, power: NodePower) -> None:
        if power is not self._desired:
            self._desired = power
            self._power_changed.set()

    async def run(self) -> None:
        try:
            while True:
                self._power_changed.clear()
                await self._switch(self._desired)
                await self._wait()
        finally:
            await self._halt()

    async def shut_down(self, grace_s: float) -> None:
        """End all containers; the node never runs again, whatever its annotations say."""
        self._ended = True
        await self.stop(grace_s)

    async def stop(self, grace_s: float) -> None:
        # Cleared before the halt: a concurrent stop must not stop the same kubelet a second time.
        kubelet, self._kubelet = self._kubelet, None
        await self._halt()
        if kubelet is not None:
            await kubelet.stop(grace_s)

    async def _switch(self, power: NodePower) -> None:
        match power:
            case NodePower.ON if self._running is None and not self._ended:
                self._kubelet = self._kubelet or self._make()
                self._running = asyncio.create_task(self._kubelet.run(), name=self.name)
            case NodePower.PARTITIONED:
                await self._halt()
            case NodePower.STOPPED:
                await self.stop(0.0)

    async def _wait(self) -> None:
        """Wait for another desired state; an exception of the kubelet is raised here."""
        switched = asyncio.create_task(self._power_changed.wait())
        watched = {switched} | ({self._running} if self._running is not None else set())
        try:
            await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        finally:
            switched.cancel()
        if self._running is not None and self._running.done():
            ended, self._running = self._running, None
            ended.result()

    async def _halt(self) -> None:
        if self._running is not None:
            running, self._running = self._running, None
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


class VirtualNodes:
    """All virtual nodes of a cluster. ``make`` builds the kubelet of a node."""

    def __init__(
        self,
        client: ApiClient,
        nodes: list[VirtualNodeSpec],
        informer: Informer[Node],
        make: Callable[[VirtualNodeSpec], Kubelet],
    ) -> None:
        self._client = client
        self._informer = informer
        self._nodes = {node.name: VirtualNode(node.name, partial(make, node)) for node in nodes}
        informer.add_listener(self._changed)

    async def run(self) -> None:
        await self._informer.wait_for_sync()
        await self._remove_surplus()
        async with asyncio.TaskGroup() as tasks:
            for node in self._nodes.values():
                tasks.create_task(keep_running(node.name, node.run))

    async def stop(self, grace_s: float, hurry: asyncio.Event) -> None:
        """End all containers; when ``hurry`` is set, return without waiting for them."""
        ending = asyncio.gather(*(node.shut_down(grace_s) for node in self._nodes.values()))
        hurried = asyncio.create_task(hurry.wait())
        await asyncio.wait((ending, hurried), return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        ending.cancel()  # Containers that still run are killed at the end of this process.
        await asyncio.gather(ending, hurried, return_exceptions=True)

    def _changed(self, _: Node | None, new: Node | None) -> None:
        if new is not None and new.metadata.name in self._nodes:
            self._nodes[new.metadata.name].set_power(desired_power(new))

    async def _remove_surplus(self) -> None:
        """Delete the nodes of an earlier run that had more nodes."""
        for node in list(self._informer.items()):
            ours = node.metadata.labels.get(VIRTUAL_LABEL) == "true"
            if ours and node.metadata.name not in self._nodes:
                with contextlib.suppress(NotFound):
                    await self._client.delete(NODES, node.metadata.name)
