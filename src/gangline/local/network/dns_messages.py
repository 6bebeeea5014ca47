"""DNS messages: parse a query and build its response, as far as stub resolvers need it.

A query has exactly one question with plain labels, as all stub resolvers send it. A compressed
question, a truncated packet or a response raises `DnsMessageError`, and the server drops it.
"""

import ipaddress
import struct
from dataclasses import dataclass
from enum import IntEnum

HEADER = struct.Struct(">HHHHHH")
QUESTION_TAIL = struct.Struct(">HH")
RECORD_HEAD = struct.Struct(">HHIH")
PLAIN_UDP_SIZE = 512
TTL_SECONDS = 5
CLASS_INTERNET = 1
FLAG_RESPONSE, FLAG_AUTHORITATIVE, FLAG_TRUNCATED = 0x8000, 0x0400, 0x0200
FLAG_RECURSION_DESIRED, FLAG_RECURSION_AVAILABLE = 0x0100, 0x0080


class DnsMessageError(ValueError):
    """The packet is not a query that can be answered."""


class RecordType(IntEnum):
    """The supported record types."""

    A = 1
    PTR = 12
    AAAA = 28
    SRV = 33
    OPT = 41


class ResponseCode(IntEnum):
    """The response codes."""

    NO_ERROR = 0
    SERVER_FAILURE = 2
    NAME_ERROR = 3


@dataclass(frozen=True, slots=True)
class DnsQuestion:
    """A query with the fields that its response needs."""

    identifier: int
    flags: int
    name: str
    """The name in lower case, without the trailing dot."""

    type: int
    raw: bytes
    """The question section as received: resolvers compare the case of its letters."""

    udp_size: int


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
        DnsMessageError: it is truncated, is a response, or has not exactly one question.
    """
    try:
        identifier, flags, questions, _, _, additional = HEADER.unpack_from(packet)
        if flags & FLAG_RESPONSE or questions != 1:
            raise DnsMessageError("not a single question")
        labels, at = _labels(packet, HEADER.size)
        kind, _ = QUESTION_TAIL.unpack_from(packet, at)
    except (struct.error, IndexError, UnicodeDecodeError) as exc:
        raise DnsMessageError("cut short") from exc
    end = at + QUESTION_TAIL.size
    size = _udp_size(packet, end) if additional else PLAIN_UDP_SIZE
    name = ".".join(labels).lower()
    return DnsQuestion(identifier, flags, name, kind, packet[HEADER.size : end], size)


def _labels(packet: bytes, at: int) -> tuple[list[str], int]:
    labels: list[str] = []
    while length := packet[at]:
        if length > 63 or at + length >= len(packet):
            raise DnsMessageError("a label that is not plain")
        labels.append(packet[at + 1 : at + 1 + length].decode("ascii"))
        at += length + 1
    return labels, at + 1


def _udp_size(packet: bytes, at: int) -> int:
    """Return the response size that the client accepts, from an OPT record right after the
    question.
    """
    if len(packet) < at + 5 or packet[at] != 0:
        return PLAIN_UDP_SIZE
    kind, size = QUESTION_TAIL.unpack_from(packet, at + 1)
    return max(PLAIN_UDP_SIZE, size) if kind == RecordType.OPT else PLAIN_UDP_SIZE


def encode_name(name: str) -> bytes:
    labels = [label.encode("ascii") for label in name.split(".") if label]
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def build_response(question: DnsQuestion, answer: DnsAnswer, *, limit: int | None = None) -> bytes:
    """Build the response; one above ``limit`` bytes is truncated, so that the client retries over
    TCP.
    """
    flags = FLAG_RESPONSE | FLAG_AUTHORITATIVE | FLAG_RECURSION_AVAILABLE | answer.code
    flags |= question.flags & FLAG_RECURSION_DESIRED
    body = b"".join(_record(record) for record in answer.records)
    count = len(answer.records)
    if limit is not None and HEADER.size + len(question.raw) + len(body) > limit:
        flags, body, count = flags | FLAG_TRUNCATED, b"", 0
    return HEADER.pack(question.identifier, flags, 1, count, 0, 0) + question.raw + body


def _record(record: DnsRecord) -> bytes:
    # 0xC00C points back at the name of the question, which follows the header.
    name = encode_name(record.name) if record.name else b"\xc0\x0c"
    payload = _payload(record)
    head = RECORD_HEAD.pack(record.type, CLASS_INTERNET, TTL_SECONDS, len(payload))
    return name + head + payload


def _payload(record: DnsRecord) -> bytes:
    match record.type:
        case RecordType.A:
            return ipaddress.IPv4Address(record.value).packed
        case RecordType.SRV:
            return struct.pack(">HHH", 0, 100, record.port) + encode_name(record.value)
        case _:
            return encode_name(record.value)
