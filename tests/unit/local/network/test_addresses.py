"""Address ranges avoid overlaps; a pool assigns each address once."""

import os
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.api.core.pod import HostAlias, Pod, PodDNSConfig, PodDNSConfigOption, PodSpec
from gangline.api.meta.objects import ObjectMeta
from gangline.local.network.addresses import (
    CANDIDATES,
    AddressPool,
    NetworkError,
    PodFiles,
    api_service_port,
    apply_dns_settings,
    choose_range,
    render_cluster_resolv_conf,
    render_host_resolv_conf,
    render_hosts,
    short_names,
    split_range,
    system_name,
)
from gangline.local.network.dns import DnsZone
from gangline.local.network.loopback import LoopbackNetwork

DEFAULTS_OF_OTHERS = [
    IPv4Network("10.0.0.0/16"),
    IPv4Network("10.42.0.0/15"),
    IPv4Network("10.96.0.0/12"),
    IPv4Network("10.244.0.0/16"),
    IPv4Network("172.16.0.0/12"),
]


def a_pod(name: str = "p", **spec: Any) -> Pod:
    return Pod(metadata=ObjectMeta(name=name, namespace="ns", uid=name), spec=PodSpec(**spec))


NDOTS = PodDNSConfigOption("ndots", "2")


def test_no_candidate_overlaps_default_ranges_of_other_clusters() -> None:
    clashes = [c for c in CANDIDATES for other in DEFAULTS_OF_OTHERS if c.overlaps(other)]
    assert clashes == []


def test_preferred_range_is_chosen_while_it_is_free() -> None:
    preferred = IPv4Network("10.77.0.0/16")
    assert choose_range([], preferred) == preferred
    assert choose_range([IPv4Network("10.77.3.0/24")], preferred) != preferred


def test_a_default_route_is_no_clash_but_any_other_route_is() -> None:
    everything = IPv4Network("0.0.0.0/0")
    assert choose_range([everything], None) == CANDIDATES[0]
    assert choose_range([everything, CANDIDATES[0]], None) == CANDIDATES[1]


def test_error_names_the_option_when_all_candidates_are_taken() -> None:
    with pytest.raises(NetworkError, match="--pod-cidr"):
        choose_range([IPv4Network("10.0.0.0/8")], None)


def test_a_range_is_halved_and_its_first_address_is_the_hosts() -> None:
    ranges = split_range(IPv4Network("10.201.0.0/16"))
    assert str(ranges.pods) == "10.201.0.0/17"
    assert str(ranges.services) == "10.201.128.0/17"
    assert ranges.gateway == "10.201.0.1"


def test_a_freed_address_rests_before_it_is_used_again() -> None:
    pool = AddressPool(IPv4Network("10.0.0.0/29"))
    first, second = pool.allocate(), pool.allocate()
    pool.release(first)
    assert pool.allocate() not in (first, second)


def test_exhausted_pool_raises_and_recovers() -> None:
    pool = AddressPool(IPv4Network("10.0.0.0/30"), reserved=["10.0.0.1"])
    only = pool.allocate()
    with pytest.raises(NetworkError, match="in use"):
        pool.allocate()
    pool.release(only)
    assert pool.allocate() == only


@given(st.lists(st.booleans(), max_size=60))
def test_no_address_is_held_twice_and_none_is_reserved(steps: list[bool]) -> None:
    network = IPv4Network("10.0.0.0/28")
    pool = AddressPool(network, reserved=["10.0.0.1"])
    held: list[str] = []
    for take in steps:
        if take and len(held) < 13:
            address = pool.allocate()
            assert address not in held
            assert address not in ("10.0.0.0", "10.0.0.1", "10.0.0.15")
            held.append(address)
        elif held:
            pool.release(held.pop(0))


def test_a_pod_is_in_its_hosts_file_with_its_aliases() -> None:
    pod = a_pod(subdomain="gang", host_aliases=[HostAlias("1.2.3.4", ["db", "db.example"])])
    text = render_hosts(pod, "10.1.0.2")
    assert "10.1.0.2\tp.gang.ns.svc.cluster.local p\n" in text
    assert "1.2.3.4\tdb db.example\n" in text
    assert "127.0.0.1\tlocalhost" in text


@pytest.mark.parametrize(
    ("pod", "host"),
    [
        (a_pod(), "p"),
        (a_pod(hostname="h"), "h"),
        (a_pod(set_hostname_as_fqdn=True), "p"),
        (a_pod(subdomain="s", set_hostname_as_fqdn=True), "p.s.ns.svc.cluster.local"),
        (a_pod("x" * 62 + "-yz"), "x" * 62),
    ],
)
def test_a_host_name_is_the_specs_or_the_pods_and_short_enough(pod: Pod, host: str) -> None:
    assert system_name(pod) == host


def test_a_name_can_be_shortened_as_far_as_search_domains_would_complete_it() -> None:
    full = "web.ns.svc.cluster.local"
    assert short_names(full, "ns") == [full, "web.ns.svc", "web.ns", "web"]
    assert short_names(full, "other") == [full, "web.ns.svc", "web.ns"]
    assert short_names("1-2-3-4.ns.pod.cluster.local", "ns") == ["1-2-3-4.ns.pod.cluster.local"]


def test_a_cluster_resolver_searches_the_pods_namespace_first() -> None:
    text = render_cluster_resolv_conf("ns", "10.1.0.1")
    assert text.startswith("search ns.svc.cluster.local svc.cluster.local cluster.local\n")
    assert "nameserver 10.1.0.1\n" in text


@pytest.mark.parametrize(
    ("policy", "config", "text"),
    [
        pytest.param("", None, "search a b\nnameserver 10.0.0.1\noptions ndots:5\n", id="none"),
        pytest.param("Default", None, "nameserver 9.9.9.9\n", id="host"),
        pytest.param(
            "ClusterFirst",
            PodDNSConfig(["1.1.1.1"], ["b", "c"], [NDOTS, PodDNSConfigOption("edns0")]),
            "nameserver 10.0.0.1\nnameserver 1.1.1.1\nsearch a b c\noptions ndots:2 edns0\n",
            id="added to those of the cluster",
        ),
        pytest.param("None", PodDNSConfig(["1.1.1.1"]), "nameserver 1.1.1.1\n", id="alone"),
    ],
)
def test_resolvers_of_a_pod_follow_its_policy(
    policy: str, config: PodDNSConfig | None, text: str
) -> None:
    pod = a_pod(dns_policy=policy, dns_config=config)
    cluster = "search a b\nnameserver 10.0.0.1\noptions ndots:5\n"
    assert apply_dns_settings(pod, cluster, "nameserver 9.9.9.9\n") == text


def test_host_resolv_conf_keeps_resolvers_with_a_short_timeout() -> None:
    text = render_host_resolv_conf("search lan\nnameserver 1.1.1.1\noptions timeout:30\n")
    assert text == "nameserver 1.1.1.1\noptions timeout:1 attempts:1\n"


def test_rewriting_keeps_the_file_that_is_mounted(tmp_path: Path) -> None:
    files = PodFiles(tmp_path)
    place = files.write(a_pod(), ip="1.2.3.4", netns=None, hosts="long text", resolv="")
    inode = place.hosts_path.stat().st_ino
    files.rewrite_hosts("p", "short")
    assert place.hosts_path.read_text() == "short"
    assert place.hosts_path.stat().st_ino == inode
    files.remove("p")
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
    place = await network.attach(a_pod("p1"))
    assert await network.attach(a_pod("p1")) == place
    zone.set_pod("127.64.0.99", "ns")
    network.rewrite_hosts_files()
    assert "127.64.0.99\t127-64-0-99.ns.pod.cluster.local" in place.hosts_path.read_text()
    await network.detach("p1")
    await network.detach("p1")
    await network.close()


@pytest.mark.parametrize(("user", "port"), [(0, 443), (1000, 6443)])
def test_api_server_is_served_at_a_port_that_this_user_may_use(
    monkeypatch: pytest.MonkeyPatch, user: int, port: int
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert api_service_port() == port
