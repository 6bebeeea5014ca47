"""Bodies in Kubernetes' protobuf form, for the two kinds that kubectl sends in no other.

An envelope (``k8s`` and a zero byte, then the type and the object's bytes) around messages whose
field numbers are below. Everything else is answered with 415, on which clients use JSON.
"""

from collections.abc import Iterator
from typing import NamedTuple

from gangline.local.apiserver.errors import bad_request, unsupported_media
from gangline.local.apiserver.registry import Json

MEDIA = "application/vnd.kubernetes.protobuf"
MAGIC = b"k8s\x00"
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class Field(NamedTuple):
    """One field of a message: its JSON name, its message type (None: text), how it repeats."""

    name: str
    message: "Message | None" = None
    many: str = ""
    """``list`` or ``map``; empty: once."""


Message = dict[int, Field]

ENTRY: Message = {1: Field("key"), 2: Field("value")}
META: Message = {
    1: Field("name"),
    2: Field("generateName"),
    3: Field("namespace"),
    5: Field("uid"),
    6: Field("resourceVersion"),
    11: Field("labels", ENTRY, "map"),
    12: Field("annotations", ENTRY, "map"),
}
SUBJECT: Message = {1: Field("kind"), 2: Field("apiGroup"), 3: Field("name"), 4: Field("namespace")}
ROLE: Message = {1: Field("apiGroup"), 2: Field("kind"), 3: Field("name")}
BINDING: Message = {
    1: Field("metadata", META),
    2: Field("subjects", SUBJECT, "list"),
    3: Field("roleRef", ROLE),
}
TYPE: Message = {1: Field("apiVersion"), 2: Field("kind")}
ENVELOPE: Message = {1: Field("type", TYPE)}
KINDS = {"RoleBinding": BINDING, "ClusterRoleBinding": BINDING}
RAW_FIELD = 2


def read_protobuf(body: bytes, accepted: tuple[str, ...]) -> Json:
    """Decode a body.

    Raises:
        StatusError: 415 for kinds that are not known here, 400 for bytes that are no message.
    """
    if not body.startswith(MAGIC):
        raise bad_request("the body of the request is not in Kubernetes' protobuf form")
    try:
        type_ = _decode(body[len(MAGIC) :], ENVELOPE).get("type", {})
        message = KINDS.get(type_.get("kind", ""))
        if message is None:
            raise unsupported_media(MEDIA, accepted)
        raw = next(piece for number, piece in _fields(body[len(MAGIC) :]) if number == RAW_FIELD)
        return {**type_, **_decode(raw, message)}
    except (IndexError, UnicodeDecodeError, StopIteration) as error:
        raise bad_request(f"the body of the request is not valid protobuf: {error}") from None


def _decode(raw: bytes, message: Message) -> Json:
    found: Json = {}
    for number, piece in _fields(raw):
        field = message.get(number)
        if field is None:
            continue
        value = _decode(piece, field.message) if field.message else piece.decode()
        if field.many == "list":
            found.setdefault(field.name, []).append(value)
        elif field.many == "map" and isinstance(value, dict):
            found.setdefault(field.name, {})[value.get("key", "")] = value.get("value", "")
        elif value != "":
            found[field.name] = value
    return found


def _fields(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields with a length; numbers of fixed size and varints are passed over."""
    position = 0
    while position < len(raw):
        tag, position = _varint(raw, position)
        number, wire = tag >> 3, tag & 7
        if wire == VARINT:
            _, position = _varint(raw, position)
        elif wire == FIXED64:
            position += 8
        elif wire == FIXED32:
            position += 4
        elif wire == BYTES:
            length, position = _varint(raw, position)
            if position + length > len(raw):
                raise IndexError("a field is cut short")
            yield number, raw[position : position + length]
            position += length
        else:
            raise IndexError(f"wire type {wire} is not known")


def _varint(raw: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value, position
        shift += 7
