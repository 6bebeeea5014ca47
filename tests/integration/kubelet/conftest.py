"""One node for each test: API server, network without root, kubelet."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gangline.api.core.pod import Pod
from gangline.api.resources import CONFIG_MAPS, PODS
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import AlreadyExists
from gangline.local.kubelet.containers.images import ImageMap
from gangline.local.kubelet.kubelet import Kubelet, ObservedCluster
from gangline.local.kubelet.records import BackoffSettings
from gangline.local.kubelet.runtime.cgroups import ControlGroups
from gangline.local.kubelet.runtime.isolation import detect_isolation
from gangline.local.kubelet.runtime.process_runtime import ProcessRuntime
from gangline.local.kubelet.settings import KubeletSettings, VirtualNodeSpec
from gangline.local.network.dns import DnsZone
from gangline.local.network.loopback import LoopbackNetwork

NODE = VirtualNodeSpec(name="n1", cpu_milli=8000, memory_bytes=8 << 30, gpus=(0, 1))


@dataclass
class TestNode:
    """One node and a client to put pods on it."""

    __test__ = False

    client: ApiClient
    make: Callable[[], Kubelet]
    kubelet: Kubelet
    main: asyncio.Task[None]
    retired: list[Kubelet] = field(default_factory=list)

    async def run(
        self, name: str = "p", *, metadata: dict[str, Any] | None = None, **spec: Any
    ) -> None:
        """Make a pod that is bound to the node."""
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, **(metadata or {})},
            "spec": {
                "nodeName": self.kubelet.node.name,
                "terminationGracePeriodSeconds": 1,
                **spec,
            },
        }
        await self.client.create(PODS, body, "default")

    async def until(self, check: Callable[[Pod], object], name: str = "p") -> Pod:
        """Wait until a pod is as wanted."""
        last: Pod | None = None
        try:
            async with asyncio.timeout(15):
                fields = f"metadata.name={name}"
                watch = self.client.watch(PODS, "default", fields=fields)
                async with aclosing(watch) as events:
                    async for event in events:
                        last = event.object
                        if event.type in ("ADDED", "MODIFIED") and check(event.object):
                            return event.object
        except TimeoutError:
            shown = msgspec.json.format(msgspec.json.encode(last.status), indent=1) if last else b""
            raise AssertionError(f"pod {name} did not reach the state: {shown.decode()}") from None
        raise AssertionError("the watch ended")

    async def until_phase(self, phase: str, name: str = "p") -> Pod:
        """Wait until a pod is in a phase."""
        return await self.until(lambda pod: pod.status.phase == phase, name)

    async def until_gone(self, name: str = "p") -> None:
        """Wait until a pod has been removed."""
        async with asyncio.timeout(15):
            while any(pod.metadata.name == name for pod in (await self.client.list(PODS)).items):
                await asyncio.sleep(0.05)

    async def crash(self) -> None:
        """The node loses power."""
        await self.cut()
        await self.kubelet.stop(0)

    async def cut(self) -> None:
        """The node loses its network."""
        self.main.cancel()
        await asyncio.wait({self.main})

    async def boot(self) -> None:
        """The node restarts without state."""
        self.kubelet = self.make()
        self.main = asyncio.create_task(self.kubelet.run())

    async def mend(self) -> None:
        """The network partition ends."""
        self.main = asyncio.create_task(self.kubelet.run())


def remove_groups(name: str) -> None:
    """Remove the control groups of a test's containers, as the clean-up of a cluster does."""
    mount = Path("/sys/fs/cgroup")
    for top in (*mount.glob(name), *mount.glob(f"*/{name}")):
        for group in (*top.glob("*/"), top):
            with suppress(OSError):
                group.rmdir()


@pytest.fixture
async def node(client: ApiClient, tmp_path: Path) -> AsyncIterator[TestNode]:
    authority = {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "authority"}}
    with suppress(AlreadyExists):
        await client.create(CONFIG_MAPS, authority, "default")
    network = LoopbackNetwork(tmp_path, DnsZone())
    await network.open()
    group_name = f"gangline-test-{tmp_path.name[-20:]}"
    groups = ControlGroups(group_name)
    settings = KubeletSettings(
        data=tmp_path / "node",
        cluster=tmp_path.name,
        backoff=BackoffSettings(0.2, 2.0),
        retry_s=0.2,
        token_use_s=0.5,
        refresh_s=0.2,
        heartbeat_s=0.5,
    )

    def make() -> Kubelet:
        runtime = ProcessRuntime(detect_isolation(), groups)
        observed = ObservedCluster(services=list, node=lambda: None)
        return Kubelet(
            client, NODE, settings, network, runtime, observed=observed, images=ImageMap()
        )

    kubelet = make()
    test_node = TestNode(client, make, kubelet, asyncio.create_task(kubelet.run()))
    yield test_node
    await test_node.crash()
    remove_groups(group_name)
    await network.close()


@pytest.fixture
def log_of(tmp_path: Path) -> Callable[..., str]:
    """Read the log of a container, without times."""

    def read(container: str = "c", pod: str = "p", number: int = 0) -> str:
        (path,) = (tmp_path / "node" / "logs").glob(f"default_{pod}_*/{container}/{number}.log")
        return "\n".join(line.split(" ", 3)[3] for line in path.read_text().splitlines())

    return read
