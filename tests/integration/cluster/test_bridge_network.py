"""The bridge network (root): connectivity between pods, host and DNS, and removal."""

import asyncio
import os
import shutil
import socket
import sys
from collections.abc import AsyncIterator
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from gangline.api.core.pod import Pod, PodSpec
from gangline.api.meta.objects import ObjectMeta
from gangline.local.network.addresses import NetworkAttachment, NetworkError
from gangline.local.network.bridge import (
    NETNS_FOLDER,
    BridgeNetwork,
    kernel_prefix,
    mac_address,
    query_json,
    remove_kernel_objects,
    run_command,
)
from gangline.local.network.cluster_network import ServiceForwarder, ServiceRoute
from gangline.local.network.dns import DnsServer, DnsZone, host_resolvers

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2"
    ),
]


@pytest.fixture
async def network(tmp_path: Path) -> AsyncIterator[BridgeNetwork]:
    bridge = BridgeNetwork(tmp_path)
    await bridge.open()
    yield bridge
    await bridge.close()


def a_pod(uid: str, **spec: Any) -> Pod:
    return Pod(metadata=ObjectMeta(name=uid, namespace="ns", uid=uid), spec=PodSpec(**spec))


def left(folder: Path) -> list[str]:
    mark = kernel_prefix(folder)
    links = [path.name for path in Path("/sys/class/net").glob(f"{mark}*")]
    return links + [path.name for path in NETNS_FOLDER.glob(f"{mark}*")]


async def inside(pod: NetworkAttachment, program: str) -> str:
    """Run Python in a pod's namespace and return its output."""
    process = await asyncio.create_subprocess_exec(
        *["nsenter", f"--net={pod.netns_path}", sys.executable, "-c", program],
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode().strip()


async def test_pods_reach_each_other_and_services_with_their_own_address(
    network: BridgeNetwork,
) -> None:
    one = await network.attach(a_pod("u1"))
    two = await network.attach(a_pod("u2"))
    server = (
        "import socket;s=socket.create_server(('',80));print('up',flush=True);"
        "[(lambda c,a:(c.sendall(a[0].encode()),c.close()))(*s.accept()) for _ in range(2)]"
    )
    process = await asyncio.create_subprocess_exec(
        *["nsenter", f"--net={one.netns_path}", sys.executable, "-c", server],
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    await process.stdout.readline()
    forwarder = ServiceForwarder()
    service = str(network.ranges.services.network_address + 5)
    assert await forwarder.apply({(service, 8080): ServiceRoute(((one.ip, 80),))})

    call = "import socket;print(socket.create_connection(('{}',{}),5).recv(99).decode())"
    assert await inside(two, call.format(one.ip, 80)) == two.ip
    assert await inside(two, call.format(service, 8080)) == network.host_address
    await process.wait()
    await forwarder.stop()


async def test_pod_reaches_the_host_while_others_start_and_end(
    network: BridgeNetwork, tmp_path: Path
) -> None:
    bridge = Path("/sys/class/net") / kernel_prefix(tmp_path) / "address"
    first = bridge.read_text()
    stays = await network.attach(a_pod("stays"))
    call = f"import socket;socket.create_connection(('{network.host_address}',{{}}),2).close()"
    with socket.create_server((network.host_address, 0)) as server:
        call = call.format(server.getsockname()[1])
        await inside(stays, call)
        # The pod has now cached the host's link address, and refreshes it only after a while.
        for uid in ("a", "b", "c", "d"):
            await network.attach(a_pod(uid))
        assert bridge.read_text() == first
        await inside(stays, call)
        for uid in ("a", "b", "c", "d"):
            await network.detach(uid)
            assert bridge.read_text() == first
            await inside(stays, call)


async def test_reused_ip_address_has_the_same_mac_address(network: BridgeNetwork) -> None:
    pod = await network.attach(a_pod("u"))
    assert pod.netns_path is not None
    (link,) = await query_json("-n", Path(pod.netns_path).name, "link", "show", "eth0")
    assert link["address"] == mac_address(pod.ip)
    assert mac_address("10.215.0.4") == "0a:58:0a:d7:00:04"


async def test_a_pod_asks_the_hosts_end_for_names(network: BridgeNetwork) -> None:
    zone = DnsZone()
    pod = await network.attach(a_pod("u1"))
    zone.set_pod(pod.ip, "ns")
    server = DnsServer(zone, network.host_address)
    await server.start()
    question = (
        "import socket;s=socket.socket(2,2);s.settimeout(5);"
        rf"s.sendto(b'\0\1\1\0\0\1\0\0\0\0\0\0\3one\0\0\1\0\1',('{network.host_address}',53));"
        "print(s.recv(512)[3]&15)"
    )
    assert await inside(pod, question) == "3"
    assert f"nameserver {network.host_address}" in pod.resolv_path.read_text()
    await server.stop()


async def test_attaching_twice_gives_one_place_and_detaching_gives_it_back(
    network: BridgeNetwork, tmp_path: Path
) -> None:
    first, again = await asyncio.gather(*(network.attach(a_pod("u")) for _ in range(2)))
    assert first == again
    await network.detach("u")
    await network.detach("u")
    assert left(tmp_path) == [kernel_prefix(tmp_path)]
    assert not first.hosts_path.exists()


async def test_pods_on_the_hosts_network_have_its_address_and_no_namespace(
    network: BridgeNetwork,
) -> None:
    place = await network.attach(a_pod("u", host_network=True))
    assert (place.ip, place.netns_path) == (network.host_address, None)


async def test_leftovers_are_removed_and_the_range_is_reused(tmp_path: Path) -> None:
    killed = BridgeNetwork(tmp_path)
    await killed.open()
    await killed.attach(a_pod("u"))

    successor = BridgeNetwork(tmp_path)
    await successor.open()
    assert successor.ranges == killed.ranges
    assert left(tmp_path) == [kernel_prefix(tmp_path)]
    await remove_kernel_objects(tmp_path)
    assert left(tmp_path) == []


async def test_two_clusters_take_different_ranges_and_a_taken_one_is_refused(
    network: BridgeNetwork, tmp_path: Path
) -> None:
    other = BridgeNetwork(tmp_path / "other")
    await other.open()
    assert not other.ranges.pods.overlaps(network.ranges.pods)
    await other.close()
    taken = BridgeNetwork(tmp_path / "third", cidr=IPv4Network(network.ranges.pods))
    with pytest.raises(NetworkError, match="overlaps a route"):
        await taken.open()
    assert left(tmp_path / "third") == []


async def test_a_pod_reaches_the_hosts_resolver_and_the_way_is_closed_again(
    tmp_path: Path,
) -> None:
    resolvers = [address for address in host_resolvers() if not address.startswith("127.")]
    if not resolvers or shutil.which("nft") is None:
        pytest.skip("needs nft and a resolver beyond this host")
    bridge = BridgeNetwork(tmp_path)
    await bridge.open()
    pod = await bridge.attach(a_pod("u"))
    question = (
        "import socket;s=socket.socket(2,2);s.settimeout(5);"
        rf"s.sendto(b'\0\1\1\0\0\1\0\0\0\0\0\0\3com\0\0\2\0\1',('{resolvers[0]}',53));"
        "print(len(s.recv(512)) > 12)"
    )
    assert await inside(pod, question) == "True"
    await bridge.close()
    assert not (tmp_path / "network" / "outside").exists()
    tables = await run_command("nft", "list", "tables")
    assert kernel_prefix(tmp_path) not in tables
