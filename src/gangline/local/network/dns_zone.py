"""The DNS zone of the cluster: an index from names to records.

It is updated by one service, endpoints object or pod at a time. Names follow the Kubernetes DNS
specification: ``SERVICE.NS.svc.cluster.local``, ``HOST.SERVICE.NS.svc...`` for the pods of a
headless service, ``_PORT._PROTOCOL.SERVICE...`` for SRV, ``1-2-3-4.NS.pod.cluster.local``, and the
reverse of each address. ``lookup`` returns None for a name outside the cluster.
"""

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gangline.api.core.service import EndpointAddress, Endpoints, Service
from gangline.local.network.dns_messages import DnsAnswer, DnsRecord, RecordType, ResponseCode
from gangline.local.network.pod_files import DOMAIN

REVERSE = ".in-addr.arpa"
NAME_ERROR = DnsAnswer(ResponseCode.NAME_ERROR)
HEADLESS = "None"


@dataclass(frozen=True, slots=True)
class ServiceRecords:
    """The records of one service."""

    forward: Mapping[str, tuple[DnsRecord, ...]] = field(default_factory=dict)
    reverse: Mapping[str, str] = field(default_factory=dict)


def dashed_address(ip: str) -> str:
    """Write an address as it appears in names: ``10-1-2-3``."""
    return ip.replace(".", "-")


def service_dns_name(service: Service) -> str:
    return f"{service.metadata.name}.{service.metadata.namespace}.svc.{DOMAIN}"


def service_records(service: Service, endpoints: Endpoints | None) -> ServiceRecords:
    """Return the records of a service: its cluster IP, or every endpoint's address if it is
    headless.
    """
    full = service_dns_name(service)
    address = service.spec.cluster_ip
    if address and address != HEADLESS:
        forward = {full: (DnsRecord(RecordType.A, address),)}
        for port in service.spec.ports:
            if port.name:
                forward[_srv_name(port.name, port.protocol, full)] = (
                    DnsRecord(RecordType.SRV, full, port=port.port),
                )
        return ServiceRecords(forward, {address: full})
    return _headless(full, endpoints) if address == HEADLESS else ServiceRecords()


def _headless(full: str, endpoints: Endpoints | None) -> ServiceRecords:
    forward: dict[str, list[DnsRecord]] = {full: []}
    reverse: dict[str, str] = {}
    for subset in endpoints.subsets if endpoints else ():
        for address in subset.addresses:
            own = f"{_host(address)}.{full}"
            forward[full].append(DnsRecord(RecordType.A, address.ip))
            forward.setdefault(own, []).append(DnsRecord(RecordType.A, address.ip))
            reverse[address.ip] = own
            for port in subset.ports:
                if port.name:
                    records = forward.setdefault(_srv_name(port.name, port.protocol, full), [])
                    records.append(DnsRecord(RecordType.SRV, own, port=port.port))
    unique = {name: tuple(dict.fromkeys(records)) for name, records in forward.items() if records}
    return ServiceRecords(unique, reverse)


def _host(address: EndpointAddress) -> str:
    return address.hostname or dashed_address(address.ip)


def _srv_name(port: str, protocol: str, full: str) -> str:
    return f"_{port}._{(protocol or 'TCP').lower()}.{full}"


def _is_private(ip: str) -> bool:
    return ipaddress.IPv4Address(ip).is_private


class DnsZone:
    """All names of one cluster."""

    def __init__(self) -> None:
        self._services: dict[tuple[str, str], ServiceRecords] = {}
        self._forward: dict[str, tuple[DnsRecord, ...]] = {}
        self._reverse: dict[str, dict[tuple[str, str], str]] = {}
        self._pods: dict[str, str] = {}

    def set_service(self, key: tuple[str, str], records: ServiceRecords | None) -> bool:
        """Replace the records of the service ``key`` (namespace, name); return whether they
        changed.
        """
        old = self._services.pop(key, ServiceRecords())
        new = records or ServiceRecords()
        for name in old.forward:
            self._forward.pop(name, None)
        for ip in old.reverse:
            owners = self._reverse.get(ip, {})
            owners.pop(key, None)
            if not owners:
                self._reverse.pop(ip, None)
        if records is not None:
            self._services[key] = new
            self._forward.update(new.forward)
            for ip, name in new.reverse.items():
                self._reverse.setdefault(ip, {})[key] = name
        return old != new

    def set_pod(self, ip: str, namespace: str | None) -> bool:
        """Record the namespace of the pod with address ``ip`` (None: no pod); return whether it
        changed.
        """
        if namespace is None:
            return self._pods.pop(ip, None) is not None
        changed = self._pods.get(ip) != namespace
        self._pods[ip] = namespace
        return changed

    def lookup(self, name: str, kind: int) -> DnsAnswer | None:
        """Answer a question; None means that the name is outside the cluster."""
        if name.endswith(REVERSE):
            return self._lookup_reverse(name, kind)
        if name == DOMAIN or name.endswith(f".{DOMAIN}"):
            return self._answer(self._records_of(name), kind)
        # The client has tried a name without a dot with every search domain already. Resolvers
        # outside do not know it, and a query would delay clients that wait for a new service.
        return None if "." in name else NAME_ERROR

    def address_records(self) -> Iterable[tuple[str, str]]:
        """List (address, full name) of every address record, for hosts files."""
        for name, records in self._forward.items():
            for record in records:
                if record.type is RecordType.A:
                    yield record.value, name
        for ip, namespace in self._pods.items():
            yield ip, f"{dashed_address(ip)}.{namespace}.pod.{DOMAIN}"

    def _records_of(self, name: str) -> tuple[DnsRecord, ...] | None:
        if found := self._forward.get(name):
            return found
        host, _, rest = name.partition(".")
        namespace, _, tail = rest.partition(".")
        if tail == f"pod.{DOMAIN}" and namespace:
            try:
                return (
                    DnsRecord(RecordType.A, str(ipaddress.IPv4Address(host.replace("-", ".")))),
                )
            except ValueError:
                return None
        return None

    def _answer(self, records: tuple[DnsRecord, ...] | None, kind: int) -> DnsAnswer:
        if records is None:
            return NAME_ERROR
        return DnsAnswer(records=tuple(record for record in records if record.type == kind))

    def _lookup_reverse(self, name: str, kind: int) -> DnsAnswer | None:
        parts = name.removesuffix(REVERSE).split(".")
        try:
            ip = str(ipaddress.IPv4Address(".".join(reversed(parts))))
        except ValueError:
            return NAME_ERROR
        if owners := self._reverse.get(ip):
            records = tuple(DnsRecord(RecordType.PTR, owner) for owner in sorted(owners.values()))
            return self._answer(records, kind)
        if namespace := self._pods.get(ip):
            full = f"{dashed_address(ip)}.{namespace}.pod.{DOMAIN}"
            return self._answer((DnsRecord(RecordType.PTR, full),), kind)
        # Resolvers outside have no records of private addresses (RFC 6303).
        return NAME_ERROR if _is_private(ip) else None
