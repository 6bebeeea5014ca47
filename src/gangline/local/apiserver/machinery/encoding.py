"""Request bodies: JSON, decoded in slices, and the protobuf encoding of Kubernetes.

JSON: one call of a C function holds the interpreter lock until it returns, so a thread that decodes
a long text stops the event loop as well: 20,000 ``managedFields`` take 30 ms, 99,000 numbers such
as ``1.5e-300`` take 600 ms. Long texts are therefore read in slices, between which other threads
run.

Protobuf, which clients in Go send: a body is an envelope (four magic bytes, the type, the bytes of
the object) around messages with numbered fields. ``api.schema.field_table`` has their names and
types. An unknown field is an error: an object without it would mean something else.
"""

import base64
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeAlias

import msgspec

from gangline.api.schema.field_table import find_message, message_fields
from gangline.local import limits
from gangline.local.apiserver.machinery.schema.nodes import Json

__all__ = [
    "JSON_ERRORS",
    "MEDIA",
    "Excess",
    "ProtobufError",
    "UnknownProtobufKind",
    "decode_json",
    "decode_protobuf",
    "find_excess",
    "to_integer",
]

Excess: TypeAlias = Literal["", "values", "depth"]
"""The limit that a text is certainly beyond; empty if there is none."""

SLICE_BYTES = 16 << 10
"""Text that is decoded in one call: 5 ms for the numbers that take longest."""
SCAN_BYTES = 64 << 10
"""Text that is scanned in one step."""
MAX_SLICED_DEPTH = 200
"""Levels that are taken apart. Deeper values are beyond any limit of this server."""
JSON_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The exceptions of ``decode_json``."""


def to_integer(number: float) -> float | int:
    """Return a number without a fraction as an integer, as the API server of Kubernetes prints it:
    ``10.0`` and ``1e1`` are 10. A typed client cannot read ``10.0`` as an integer.
    """
    if number.is_integer() and limits.MIN_INTEGER <= number < limits.MAX_INTEGER:
        return int(number)
    return number


def _to_number(text: str) -> float | int:
    number = float(text)
    if math.isinf(number):  # which JSON cannot express
        raise msgspec.DecodeError(f"the number {text[:20]} is out of range")
    return to_integer(number)


_decode = msgspec.json.Decoder(float_hook=_to_number).decode
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_WHITESPACE = b" \t\r\n"


def decode_json(text: bytes) -> Any:
    """Decode JSON in slices of ``SLICE_BYTES``. Raises JSON_ERRORS: it is not JSON, or is nested
    too deeply.
    """
    if len(text) <= SLICE_BYTES:
        return _decode(text)
    try:
        return _decode_long(text.lstrip(_WHITESPACE), 0)
    except msgspec.DecodeError as error:
        # The position in it is that within a slice.
        raise msgspec.DecodeError(str(error).partition(" (byte")[0]) from None


def _decode_long(text: bytes | msgspec.Raw, depth: int) -> Any:
    """Split a value into its members, which takes a twentieth of the time of decoding them."""
    if depth > MAX_SLICED_DEPTH:
        raise RecursionError("nested too deeply")
    first = bytes(memoryview(text)[:1])
    if first == b"{":
        members = _decode_object(text)
        return {
            name: _decode_long(part, depth + 1) if len(part) > SLICE_BYTES else _decode(part)
            for name, part in members.items()
        }
    if first == b"[":
        return [
            _decode_long(part, depth + 1) if len(part) > SLICE_BYTES else _decode(part)
            for part in _decode_list(text)
        ]
    return _decode(text)


def find_excess(text: bytes, max_values: int, max_depth: int) -> Excess:
    """Return ``values`` if JSON has more of them, each field and each element being one.

    Nothing is decoded: the punctuation outside of strings is counted. In n members of a list or an
    object there are n - 1 commas. ``depth`` is returned if the text has too many values, and is too
    deep where that was found; a deep text with few values is not. Text that is not JSON gets any
    answer.
    """
    if text.count(b",") + text.count(b"{") + text.count(b"[") < max_values:
        return ""
    count, depth, before, in_string, start = 1, 0, b"", False, 0
    while start < len(text):
        part = text[start : start + SCAN_BYTES]
        if (len(part) - len(part.rstrip(b"\\"))) % 2:  # ends within an escape
            part = text[start : start + SCAN_BYTES + 1]
        start += len(part)
        pieces = part.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = b'"'.join(pieces[in_string::2]).translate(None, _WHITESPACE)
        in_string ^= len(pieces) % 2 == 0
        depth += outside.count(b"{") + outside.count(b"[")
        depth -= outside.count(b"}") + outside.count(b"]")
        outside = before + outside
        empty = outside.count(b"{}") + outside.count(b"[]")
        count += outside.count(b",") + outside.count(b"{") + outside.count(b"[") - empty
        before = outside[-1:] if not in_string else b'"'
        if before in (b",", b"{", b"["):
            count -= 1  # counted again with the next part
        if count > max_values:
            return "depth" if depth > max_depth else "values"
    return ""


MEDIA = "application/vnd.kubernetes.protobuf"
MAGIC = b"k8s\x00"
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

WireValue: TypeAlias = int | bytes


class ProtobufError(ValueError):
    """The bytes are not a valid message; HTTP 400."""


class UnknownProtobufKind(ProtobufError):
    """The kind is not in the table; HTTP 415."""


def decode_protobuf(body: bytes) -> Json:
    """Return the object in a body.

    Raises:
        UnknownProtobufKind: the table does not contain the kind.
        ProtobufError: the bytes are not in this encoding.
    """
    if not body.startswith(MAGIC):
        raise ProtobufError("the body is not in Kubernetes' protobuf form")
    envelope = _known(body[len(MAGIC) :], "Unknown", _ENVELOPE)
    type_, raw = _known(_bytes(envelope.get(1, b"")), "TypeMeta", 2), _bytes(envelope.get(2, b""))
    api_version, kind = _text(type_.get(1, b"")), _text(type_.get(2, b""))
    message = find_message(api_version, kind)
    if message is None:
        raise UnknownProtobufKind(f"the kind {kind!r} of {api_version!r} has no protobuf table")
    return {"apiVersion": api_version, "kind": kind, **_message(raw, message, 0, _ValueCounter())}


_ENVELOPE = 4
"""Fields of the envelope: type, object, encoding and media type of the object."""


def _known(raw: bytes, message: str, last: int) -> dict[int, WireValue]:
    """Return the fields of a small message, whose numbers are 1 to ``last``."""
    pieces: dict[int, WireValue] = {}
    for number, piece in _fields(raw):
        if not 1 <= number <= last:
            raise _unknown(number, message)
        pieces[number] = piece
    return pieces


def _unknown(number: int, message: str) -> ProtobufError:
    return ProtobufError(f"unknown field {number} in {message.rpartition('#')[2]}")


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
    fields = message_fields(name)
    obj: Json = {}
    for number, piece in _fields(raw):
        counter.add_one()
        field = fields.get(number)
        if field is None:
            raise _unknown(number, name)
        if field.container == "{}":
            entry = _known(_bytes(piece), f"an entry of {field.name}", 2)
            value = _value(entry.get(2, b""), field.type, depth, counter)
            obj.setdefault(field.name, {})[_text(entry.get(1, b""))] = value
        elif field.container:
            obj.setdefault(field.name, []).append(_value(piece, field.type, depth, counter))
        elif not field.name:
            obj.update(_value(piece, field.type, depth, counter))
        elif (value := _value(piece, field.type, depth, counter)) not in _ZEROS or field.keeps_zero:
            obj[field.name] = value
    return obj


_ZEROS: tuple[Any, ...] = (None, "", 0, {}, [])
"""Values that Go writes for absent fields."""


def _value(piece: WireValue, kind: str, depth: int, counter: _ValueCounter) -> Any:
    match kind:
        case "s":
            return _text(piece)
        case "i" | "n":
            return _signed(_number(piece))
        case "b":
            return bool(_number(piece))
        case "d":
            return _double(piece)
        case "y":
            return base64.b64encode(_bytes(piece)).decode()
    if (special := _SPECIAL.get(kind)) is not None:
        return special(_bytes(piece))
    value = _message(_bytes(piece), kind, depth + 1, counter)
    if kind in _UNIONS:
        return value.get("schema", value.get("items", value.get("allows", False)))
    return value


_UNIONS = frozenset(
    f"apiextensions.k8s.io/v1#JSONSchemaPropsOr{other}"
    for other in ("Array", "Bool", "StringArray")
)
"""Messages of which JSON has one of the fields."""


def _double(piece: WireValue) -> float | int:
    raw = _bytes(piece)
    if len(raw) != struct.calcsize(_DOUBLE):
        raise ProtobufError("a number has the wrong size")
    number: float = struct.unpack(_DOUBLE, raw)[0]
    if not math.isfinite(number):
        raise ProtobufError("a number is not finite")
    return to_integer(number)


_DOUBLE = "<d"


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


def _moment(raw: bytes, precision: str) -> str | None:
    pieces = _known(raw, "Time", 2)
    if not pieces.get(1):
        return None
    seconds, nanos = _signed(_number(pieces[1])), _number(pieces.get(2, 0))
    try:
        moment = EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1000)
    except OverflowError:
        raise ProtobufError("a time is out of range") from None
    return moment.isoformat(timespec=precision).replace("+00:00", "Z")


def _int_or_string(raw: bytes) -> int | str:
    pieces = _known(raw, "IntOrString", 3)
    if pieces.get(1):
        return _text(pieces.get(3, b""))
    return _signed(_number(pieces.get(2, 0)))


def _embedded_json(raw: bytes) -> Any:
    try:
        text = _bytes(_known(raw, "RawExtension", 1).get(1, b"null"))
        if find_excess(text, limits.MAX_VALUES, limits.MAX_DEPTH):
            raise ProtobufError(f"the body has more than {limits.MAX_VALUES} values")
        return decode_json(text)
    except JSON_ERRORS:
        raise ProtobufError("an embedded object is not JSON") from None


def _texts(raw: bytes) -> list[str]:
    """Return the texts of a list that is a message of its own."""
    texts: list[str] = []
    for number, piece in _fields(raw):
        if number != 1:
            raise _unknown(number, "ExtraValue")
        texts.append(_text(piece))
    return texts


_SPECIAL: Mapping[str, Callable[[bytes], Any]] = {
    "Duration": lambda raw: f"{_number(_known(raw, 'Duration', 1).get(1, 0)) / 1e9:g}s",
    "ExtraValue": _texts,
    "FieldsV1": _embedded_json,
    "IntOrString": _int_or_string,
    "JSON": _embedded_json,
    "MicroTime": lambda raw: _moment(raw, "microseconds"),
    "Quantity": lambda raw: _text(_known(raw, "Quantity", 1).get(1, b"0")),
    "RawExtension": _embedded_json,
    "Time": lambda raw: _moment(raw, "seconds"),
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
