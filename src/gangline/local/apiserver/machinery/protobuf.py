"""Request bodies in the protobuf encoding of Kubernetes, which newer kubectl sends for known kinds.

A body is an envelope (four magic bytes, the type, the bytes of the object) around messages with
numbered fields. ``protobuf_fields.json`` maps the numbers: ``"1": "metadata ObjectMeta"`` is a
field of a message type; ``s`` is text, ``b`` boolean, ``i`` number, ``y`` bytes. ``[]`` and ``{}``
mark lists and maps. ``?`` marks fields where zero is a value: Go writes zeros for absent fields
too. A field without a name is inlined into its parent. ``tools/kubernetes_protobuf_fields.py``
generates the table. Unknown fields are ignored.
"""

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import resources
from typing import Any, NamedTuple, TypeAlias

from gangline.local import limits
from gangline.local.apiserver.machinery.json_text import JSON_ERRORS, decode_json, find_excess
from gangline.local.apiserver.machinery.schema.nodes import Json

__all__ = ["MEDIA", "ProtobufError", "UnknownProtobufKind", "decode_protobuf"]

MEDIA = "application/vnd.kubernetes.protobuf"
MAGIC = b"k8s\x00"
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

WireValue: TypeAlias = int | bytes


class ProtobufError(ValueError):
    """The bytes are not a valid message; HTTP 400."""


class UnknownProtobufKind(ProtobufError):
    """The kind is not in the table; HTTP 415."""


class ProtobufField(NamedTuple):
    """The meaning of one field number."""

    name: str
    keeps_zero: bool
    container: str
    type: str


def decode_protobuf(body: bytes) -> Json:
    """Return the object in a body.

    Raises:
        UnknownProtobufKind: the table does not contain the kind.
        ProtobufError: the bytes are not in this encoding.
    """
    if not body.startswith(MAGIC):
        raise ProtobufError("the body is not in Kubernetes' protobuf form")
    envelope = dict(_fields(body[len(MAGIC) :]))
    type_, raw = dict(_fields(_bytes(envelope.get(1, b"")))), _bytes(envelope.get(2, b""))
    kind = _text(type_.get(2, b""))
    if kind not in _table():
        raise UnknownProtobufKind(f"the kind {kind!r} has no protobuf table")
    return {
        "apiVersion": _text(type_.get(1, b"")),
        "kind": kind,
        **_message(raw, kind, 0, _ValueCounter()),
    }


@cache
def _table() -> Mapping[str, Mapping[int, ProtobufField]]:
    package = resources.files("gangline.local.apiserver.machinery")
    table = json.loads(package.joinpath("protobuf_fields.json").read_text())
    return {
        name: {int(number): _field(text) for number, text in fields.items()}
        for name, fields in table.items()
    }


def _field(text: str) -> ProtobufField:
    name, _, kind = text.partition(" ")
    many = kind[:2] if kind[:2] in ("[]", "{}") else ""
    return ProtobufField(name.rstrip("?"), name.endswith("?"), many, kind.removeprefix(many))


class _ValueCounter:
    """Counts the values of one body, because few bytes may be many values."""

    def __init__(self) -> None:
        self._left = limits.MAX_VALUES

    def add_one(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise ProtobufError(f"the body has more than {limits.MAX_VALUES} values")


def _message(raw: bytes, name: str, depth: int, counter: _ValueCounter) -> Json:
    if depth > limits.MAX_DEPTH:
        raise ProtobufError("the messages are nested too deep")
    fields = _table()[name]
    found: Json = {}
    for number, piece in _fields(raw):
        counter.add_one()
        field = fields.get(number)
        if field is None:
            continue
        if field.container == "{}":
            entry = dict(_fields(_bytes(piece)))
            value = _value(entry.get(2, b""), field.type, depth, counter)
            found.setdefault(field.name, {})[_text(entry.get(1, b""))] = value
        elif field.container:
            found.setdefault(field.name, []).append(_value(piece, field.type, depth, counter))
        elif not field.name:
            found.update(_value(piece, field.type, depth, counter))
        elif (value := _value(piece, field.type, depth, counter)) not in _ZEROS or field.keeps_zero:
            found[field.name] = value
    return found


_ZEROS: tuple[Any, ...] = (None, "", 0, {}, [])
"""Values that Go writes for absent fields."""


def _value(piece: WireValue, kind: str, depth: int, counter: _ValueCounter) -> Any:
    match kind:
        case "s":
            return _text(piece)
        case "i":
            return _signed(_number(piece))
        case "b":
            return bool(_number(piece))
        case "y":
            return base64.b64encode(_bytes(piece)).decode()
    if (special := _SPECIAL.get(kind)) is not None:
        return special(_bytes(piece))
    return _message(_bytes(piece), kind, depth + 1, counter)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


def _time(raw: bytes) -> str | None:
    found = dict(_fields(raw))
    if not found.get(1):
        return None
    seconds, nanos = _number(found[1]), _number(found.get(2, 0))
    try:
        moment = EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1000)
    except OverflowError:
        raise ProtobufError("a time is out of range") from None
    return moment.isoformat().replace("+00:00", "Z")


def _int_or_string(raw: bytes) -> int | str:
    found = dict(_fields(raw))
    if found.get(1):
        return _text(found.get(3, b""))
    return _signed(_number(found.get(2, 0)))


def _embedded_json(raw: bytes) -> Any:
    try:
        text = _bytes(dict(_fields(raw)).get(1, b"null"))
        if find_excess(text, limits.MAX_VALUES, limits.MAX_DEPTH):
            raise ProtobufError(f"the body has more than {limits.MAX_VALUES} values")
        return decode_json(text)
    except JSON_ERRORS:
        raise ProtobufError("an embedded object is not JSON") from None


_SPECIAL: Mapping[str, Callable[[bytes], Any]] = {
    "Duration": lambda raw: f"{_number(dict(_fields(raw)).get(1, 0)) / 1e9:g}s",
    "ExtraValue": lambda raw: [_text(piece) for number, piece in _fields(raw) if number == 1],
    "FieldsV1": _embedded_json,
    "IntOrString": _int_or_string,
    "MicroTime": _time,
    "Quantity": lambda raw: _text(dict(_fields(raw)).get(1, b"0")),
    "RawExtension": _embedded_json,
    "Time": _time,
}
"""Messages whose JSON form is not an object of their fields."""


def _text(piece: WireValue) -> str:
    try:
        return _bytes(piece).decode()
    except UnicodeDecodeError:
        raise ProtobufError("a text is not UTF-8") from None


def _bytes(piece: WireValue) -> bytes:
    if not isinstance(piece, bytes):
        raise ProtobufError("expected a message or text, found a number")
    return piece


def _number(piece: WireValue) -> int:
    if not isinstance(piece, int):
        raise ProtobufError("expected a number, found a message or text")
    return piece


def _fields(raw: bytes) -> Iterator[tuple[int, WireValue]]:
    position = 0
    while position < len(raw):
        tag, position = _varint(raw, position)
        wire = tag & 7
        if wire == VARINT:
            number, position = _varint(raw, position)
            yield tag >> 3, number
            continue
        if wire == LENGTH:
            size, position = _varint(raw, position)
        elif wire in (FIXED64, FIXED32):
            size = 8 if wire == FIXED64 else 4
        else:
            raise ProtobufError(f"unknown wire type {wire}")
        if position + size > len(raw):
            raise ProtobufError("a field is truncated")
        yield tag >> 3, raw[position : position + size]
        position += size


def _varint(raw: bytes, position: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if position >= len(raw):
            raise ProtobufError("a number is truncated")
        byte = raw[position]
        number |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return number & (1 << 64) - 1, position
    raise ProtobufError("a number is too long")
