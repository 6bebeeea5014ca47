"""DNS: answers for the names of services and pods."""

import contextlib

import dnslib
import pytest
from dnslib import QTYPE, RCODE
from hypothesis import given
from hypothesis import strategies as st

from gangline.api.core.service import (
    EndpointAddress,
    EndpointPort,
    Endpoints,
    EndpointSubset,
    Service,
    ServicePort,
    ServiceSpec,
)
from gangline.api.meta.objects import ObjectMeta
from gangline.local.network.dns import (
    DnsAnswer,
    DnsMessageError,
    DnsRecord,
    DnsZone,
    build_response,
    parse_query,
    service_records,
)

DOMAIN = "svc.cluster.local"


def service(name: str, address: str) -> Service:
    ports = [ServicePort(name="http", port=80)]
    return Service(
        metadata=ObjectMeta(name=name, namespace="ns"),
        spec=ServiceSpec(cluster_ip=address, ports=ports),
    )


def endpoints(name: str, *addresses: EndpointAddress) -> Endpoints:
    subset = EndpointSubset(addresses=list(addresses), ports=[EndpointPort(name="http", port=8080)])
    return Endpoints(metadata=ObjectMeta(name=name, namespace="ns"), subsets=[subset])


@pytest.fixture
def zone() -> DnsZone:
    zone = DnsZone()
    zone.set_service(("ns", "web"), service_records(service("web", "10.9.0.1"), None))
    members = endpoints(
        "gang",
        EndpointAddress(ip="10.1.0.2", hostname="worker-0"),
        EndpointAddress(ip="10.1.0.3"),
    )
    zone.set_service(("ns", "gang"), service_records(service("gang", "None"), members))
    for name, target in (
        ("alias", f"gang.ns.{DOMAIN}"),
        ("outer", "Example.com."),
        ("circle", f"circle.ns.{DOMAIN}"),
    ):
        spec = ServiceSpec(type="ExternalName", external_name=target)
        external = Service(metadata=ObjectMeta(name=name, namespace="ns"), spec=spec)
        zone.set_service(("ns", name), service_records(external, None))
    zone.set_pod("10.1.0.2", "ns")
    zone.set_pod("10.1.0.9", "other")
    return zone


@pytest.mark.parametrize(
    ("name", "kind", "values"),
    [
        pytest.param(f"web.ns.{DOMAIN}", QTYPE.A, ["10.9.0.1"], id="a cluster address"),
        pytest.param(f"gang.ns.{DOMAIN}", QTYPE.A, ["10.1.0.2", "10.1.0.3"], id="headless: all"),
        pytest.param(f"worker-0.gang.ns.{DOMAIN}", QTYPE.A, ["10.1.0.2"], id="a host of a service"),
        pytest.param(f"10-1-0-3.gang.ns.{DOMAIN}", QTYPE.A, ["10.1.0.3"], id="a host without name"),
        pytest.param(f"web.ns.{DOMAIN}", QTYPE.AAAA, [], id="no IPv6, but the name exists"),
        pytest.param("1-2-3-4.ns.pod.cluster.local", QTYPE.A, ["1.2.3.4"], id="a pod by address"),
        pytest.param(f"_http._tcp.web.ns.{DOMAIN}", QTYPE.SRV, [f"web.ns.{DOMAIN}"], id="SRV"),
        pytest.param(
            "2.0.1.10.in-addr.arpa",
            QTYPE.PTR,
            [f"worker-0.gang.ns.{DOMAIN}"],
            id="reverse: service",
        ),
        pytest.param(
            "9.0.1.10.in-addr.arpa",
            QTYPE.PTR,
            ["10-1-0-9.other.pod.cluster.local"],
            id="reverse: pod",
        ),
        pytest.param(
            "1.0.9.10.in-addr.arpa", QTYPE.PTR, [f"web.ns.{DOMAIN}"], id="reverse: address"
        ),
    ],
)
def test_a_known_name_has_these_records(
    zone: DnsZone, name: str, kind: int, values: list[str]
) -> None:
    answer = zone.lookup(name, kind)
    assert answer is not None
    assert answer.code == RCODE.NOERROR
    assert sorted(record.value for record in answer.records) == values


def test_an_external_name_is_an_alias_with_the_records_behind_it(zone: DnsZone) -> None:
    answer = zone.lookup(f"alias.ns.{DOMAIN}", QTYPE.A)
    assert answer is not None
    assert [(record.type, record.name, record.value) for record in answer.records] == [
        (QTYPE.CNAME, "", f"gang.ns.{DOMAIN}"),
        (QTYPE.A, f"gang.ns.{DOMAIN}", "10.1.0.2"),
        (QTYPE.A, f"gang.ns.{DOMAIN}", "10.1.0.3"),
    ]
    outer = zone.lookup(f"outer.ns.{DOMAIN}", QTYPE.A)
    assert outer is not None
    assert outer.alias == "example.com"
    circle = zone.lookup(f"circle.ns.{DOMAIN}", QTYPE.A)
    assert circle == DnsAnswer(RCODE.SERVFAIL)
    assert ("10.1.0.2", f"alias.ns.{DOMAIN}") in zone.address_records()


@pytest.mark.parametrize(
    "name",
    [
        f"nobody.ns.{DOMAIN}",
        "not-an-address.ns.pod.cluster.local",
        "nobody",
        "77.0.1.10.in-addr.arpa",
        "1.0.0.127.in-addr.arpa",
    ],
)
def test_unknown_name_of_the_cluster_does_not_exist(zone: DnsZone, name: str) -> None:
    assert zone.lookup(name, QTYPE.A) == DnsAnswer(RCODE.NXDOMAIN)


@pytest.mark.parametrize("name", ["example.com", "8.8.8.8.in-addr.arpa"])
def test_names_outside_the_cluster_are_not_answered(zone: DnsZone, name: str) -> None:
    assert zone.lookup(name, QTYPE.A) is None


def test_names_of_a_deleted_service_are_removed(zone: DnsZone) -> None:
    assert not zone.set_service(("ns", "web"), service_records(service("web", "10.9.0.1"), None))
    assert zone.set_service(("ns", "gang"), None)
    assert zone.lookup(f"worker-0.gang.ns.{DOMAIN}", QTYPE.A) == DnsAnswer(RCODE.NXDOMAIN)
    reverse = zone.lookup("2.0.1.10.in-addr.arpa", QTYPE.PTR)
    assert reverse is not None
    assert [record.value for record in reverse.records] == ["10-1-0-2.ns.pod.cluster.local"]


def query(name: str, kind: int = QTYPE.A, *, udp_size: int = 0) -> bytes:
    message = dnslib.DNSRecord(dnslib.DNSHeader(id=7, rd=1), q=dnslib.DNSQuestion(name, kind))
    if udp_size:
        message.add_ar(dnslib.EDNS0(udp_len=udp_size))
    return message.pack()


def test_a_question_is_read_and_its_answer_can_be_found_again() -> None:
    question = parse_query(query("Web.NS.svc.cluster.local"))
    assert (question.name, question.type) == ("web.ns.svc.cluster.local", 1)
    reply = build_response(question, DnsAnswer(records=(DnsRecord(QTYPE.A, "10.9.0.1"),)))
    assert reply[:2] == b"\0\x07"
    assert b"Web" in reply, "the response repeats the question in its original case"
    assert reply.endswith(bytes([10, 9, 0, 1]))


def test_an_answer_too_long_for_udp_is_cut_and_marked() -> None:
    records = tuple(DnsRecord(QTYPE.A, f"10.0.{i // 250}.{i % 250}") for i in range(100))
    small, large = parse_query(query("gang")), parse_query(query("gang", udp_size=4096))
    cut = build_response(small, DnsAnswer(records=records), limit=small.udp_size)
    assert len(cut) <= 512
    assert dnslib.DNSRecord.parse(cut).header.tc
    assert dnslib.DNSRecord.parse(cut).rr == []
    complete = build_response(large, DnsAnswer(records=records), limit=large.udp_size)
    assert len(dnslib.DNSRecord.parse(complete).rr) == 100


@given(st.binary(max_size=80))
def test_no_packet_breaks_the_reader(packet: bytes) -> None:
    with contextlib.suppress(DnsMessageError):
        parse_query(packet)


@given(st.integers(min_value=0, max_value=40))
def test_a_truncated_question_is_refused(length: int) -> None:
    packet = query("a.name.that.is.long.enough.to.cut")
    with pytest.raises(DnsMessageError):
        parse_query(packet[:length])


def test_a_chain_of_compression_pointers_is_refused() -> None:
    packet = bytearray(query("a"))
    packet[11] = 2  # Additional records: one of an unknown type with the chain, one that uses it.
    start = len(packet) + 11
    offsets = [start, *range(start + 4, start + 8000, 2)]
    chain = b"\1a\0\0" + b"".join((0xC000 | offset).to_bytes(2, "big") for offset in offsets)
    packet += b"\0\xff\1\0\1\0\0\0\0" + len(chain).to_bytes(2, "big") + chain
    packet += (0xC000 | offsets[-1]).to_bytes(2, "big") + b"\0\1\0\1\0\0\0\0\0\4\1\2\3\4"
    with pytest.raises(DnsMessageError):
        parse_query(bytes(packet))


def test_zone_stores_nothing_of_removed_services(zone: DnsZone) -> None:
    for name in ("web", "gang", "alias", "outer", "circle"):
        zone.set_service(("ns", name), None)
    assert (zone._services, zone._forward, zone._reverse) == ({}, {}, {})
