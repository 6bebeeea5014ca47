"""Hosts and resolver files of pods."""

from pathlib import Path

import pytest

from gangline.local.network.dns_zone import DnsZone
from gangline.local.network.loopback import LoopbackNetwork
from gangline.local.network.pod_files import (
    PodFiles,
    PodName,
    render_cluster_resolv_conf,
    render_host_resolv_conf,
    render_hosts,
    short_names,
)


def test_a_pod_is_in_its_hosts_file_with_its_aliases() -> None:
    pod = PodName("ns", "p", subdomain="gang", aliases=(("1.2.3.4", ("db", "db.example")),))
    text = render_hosts(pod, "10.1.0.2")
    assert "10.1.0.2\tp.gang.ns.svc.cluster.local p\n" in text
    assert "1.2.3.4\tdb db.example\n" in text
    assert "127.0.0.1\tlocalhost" in text


@pytest.mark.parametrize(
    ("pod", "host"),
    [
        (PodName("ns", "p"), "p"),
        (PodName("ns", "p", hostname="h"), "h"),
        (PodName("ns", "x" * 62 + "-yz"), "x" * 62),
    ],
)
def test_a_host_name_is_the_specs_or_the_pods_and_short_enough(pod: PodName, host: str) -> None:
    assert pod.host == host


def test_a_name_can_be_shortened_as_far_as_search_domains_would_complete_it() -> None:
    full = "web.ns.svc.cluster.local"
    assert short_names(full, "ns") == [full, "web.ns.svc", "web.ns", "web"]
    assert short_names(full, "other") == [full, "web.ns.svc", "web.ns"]
    assert short_names("1-2-3-4.ns.pod.cluster.local", "ns") == ["1-2-3-4.ns.pod.cluster.local"]


def test_a_cluster_resolver_searches_the_pods_namespace_first() -> None:
    text = render_cluster_resolv_conf("ns", "10.1.0.1")
    assert text.startswith("search ns.svc.cluster.local svc.cluster.local cluster.local\n")
    assert "nameserver 10.1.0.1\n" in text


def test_host_resolv_conf_keeps_resolvers_with_a_short_timeout() -> None:
    text = render_host_resolv_conf("search lan\nnameserver 1.1.1.1\noptions timeout:30\n")
    assert text == "nameserver 1.1.1.1\noptions timeout:1 attempts:1\n"


def test_rewriting_keeps_the_file_that_is_mounted(tmp_path: Path) -> None:
    files = PodFiles(tmp_path)
    place = files.write(
        "u", PodName("ns", "p"), ip="1.2.3.4", netns=None, hosts="long text", resolv=""
    )
    inode = place.hosts_path.stat().st_ino
    files.rewrite_hosts("u", "short")
    assert place.hosts_path.read_text() == "short"
    assert place.hosts_path.stat().st_ino == inode
    files.remove("u")
    assert not place.hosts_path.exists()


async def test_clusters_without_root_take_different_ranges(tmp_path: Path) -> None:
    one, two = (LoopbackNetwork(tmp_path, DnsZone()) for _ in range(2))
    await one.open()
    await two.open()
    assert one.ranges != two.ranges
    await one.close()
    await two.close()


async def test_names_that_appear_later_reach_the_hosts_files_of_pods(tmp_path: Path) -> None:
    zone = DnsZone()
    network = LoopbackNetwork(tmp_path, zone)
    await network.open()
    place = await network.attach("u1", "ns", "p1", False)
    assert await network.attach("u1", "ns", "p1", False) == place
    zone.set_pod("127.64.0.99", "ns")
    network.rewrite_hosts_files()
    assert "127.64.0.99\t127-64-0-99.ns.pod.cluster.local" in place.hosts_path.read_text()
    await network.detach("u1")
    await network.detach("u1")
    await network.close()
