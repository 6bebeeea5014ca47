"""DNS messages: parse a query and build its response, with dnslib.

A query has exactly one question, as all stub resolvers send it. Any other packet raises
`DnsMessageError`, and the server drops it.
"""

from dataclasses import dataclass
from enum import IntEnum

import dnslib

PLAIN_UDP_SIZE = 512
TTL_SECONDS = 5


class DnsMessageError(ValueError):
    """The packet is not a query that can be answered."""


class RecordType(IntEnum):
    """The record types of the zone."""

    A = 1
    PTR = 12
    AAAA = 28
    SRV = 33


class ResponseCode(IntEnum):
    """The response codes."""

    NO_ERROR = 0
    SERVER_FAILURE = 2
    NAME_ERROR = 3


@dataclass(frozen=True, slots=True)
class DnsQuestion:
    """A query with one question."""

    name: str
    """The name in lower case, without the trailing dot."""

    type: int
    message: dnslib.DNSRecord
    """The parsed message; its question preserves the case of letters, which resolvers compare."""

    udp_size: int
    """The response size that the client accepts over UDP."""


@dataclass(frozen=True, slots=True)
class DnsRecord:
    """One record of an answer; an empty ``name`` means the queried name."""

    type: RecordType
    value: str
    """An address (A) or a name (PTR, SRV)."""

    name: str = ""
    port: int = 0


@dataclass(frozen=True, slots=True)
class DnsAnswer:
    """Response code and records."""

    code: ResponseCode = ResponseCode.NO_ERROR
    records: tuple[DnsRecord, ...] = ()


def parse_query(packet: bytes) -> DnsQuestion:
    """Parse a query.

    Raises:
        DnsMessageError: it is malformed, is a response, or has not exactly one question.
    """
    try:
        message = dnslib.DNSRecord.parse(packet)
    # dnslib wraps most parse errors, but follows chains of compression pointers recursively.
    except (dnslib.DNSError, dnslib.BufferError, ValueError, IndexError, RecursionError) as error:
        raise DnsMessageError(str(error)) from error
    if message.header.qr or len(message.questions) != 1:
        raise DnsMessageError("not a single question")
    name = str(message.q.qname).rstrip(".").lower()
    # The class field of an OPT record is the UDP size of the client (EDNS).
    sizes = [extra.rclass for extra in message.ar if extra.rtype == dnslib.QTYPE.OPT]
    return DnsQuestion(name, message.q.qtype, message, max(PLAIN_UDP_SIZE, *sizes, 0))


def build_response(question: DnsQuestion, answer: DnsAnswer, *, limit: int | None = None) -> bytes:
    """Build the response; one above ``limit`` bytes is truncated for a retry over TCP."""
    query = question.message
    header = dnslib.DNSHeader(
        id=query.header.id, qr=1, aa=1, ra=1, rd=query.header.rd, rcode=answer.code
    )
    response = dnslib.DNSRecord(header, q=query.q)
    for record in answer.records:
        name = record.name or query.q.qname
        response.add_answer(dnslib.RR(name, record.type, rdata=_payload(record), ttl=TTL_SECONDS))
    packed: bytes = response.pack()
    if limit is not None and len(packed) > limit:
        header.tc = 1
        packed = dnslib.DNSRecord(header, q=query.q).pack()
    return packed


def _payload(record: DnsRecord) -> dnslib.RD:
    match record.type:
        case RecordType.A:
            return dnslib.A(record.value)
        case RecordType.SRV:
            return dnslib.SRV(priority=0, weight=100, port=record.port, target=record.value)
        case _:
            return dnslib.PTR(record.value)
