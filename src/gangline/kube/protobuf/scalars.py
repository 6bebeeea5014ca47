"""Texts, times, quantities and other small messages, from their bytes.

Nearly all of them occur in many objects: the phase of a pod, its node, the time of its creation.
They are read as bytes, and values of equal bytes are the same Python object. That is faster than
making another one, and 150,000 pods need a third less memory.
"""

import base64
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Read = Callable[[Any], Any]

CACHED = 1 << 14
"""Values that each cache keeps."""
MAX_CACHED_BYTES = 512
"""Longer values are not kept: they are mostly unique, and would take much memory."""

_FIELD = descriptor_pb2.FieldDescriptorProto
INT64: int = _FIELD.TYPE_INT64
BOOL: int = _FIELD.TYPE_BOOL
STRING: int = _FIELD.TYPE_STRING
BYTES: int = _FIELD.TYPE_BYTES
MESSAGE: int = _FIELD.TYPE_MESSAGE
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def shared(read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return ``read`` with a cache of its values."""
    return lru_cache(maxsize=CACHED)(read)


def shared_if_short(read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return ``read`` with a cache of the values of short bytes."""
    remembered = shared(read)

    def read_cached(raw: bytes) -> Any:
        return remembered(raw) if len(raw) <= MAX_CACHED_BYTES else read(raw)

    return read_cached


def small_message(**fields: tuple[int, int]) -> Any:
    """Return the class of a message with these fields: number and type by name."""
    file = descriptor_pb2.FileDescriptorProto(name="small.proto", package="small", syntax="proto2")
    message = file.message_type.add(name="Small")
    for name, (number, type_) in fields.items():
        message.field.add(name=name, number=number, type=type_, label=_FIELD.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("small.Small"))


_Time = small_message(seconds=(1, INT64), nanos=(2, INT64))
_Quantity = small_message(string=(1, STRING))
_IntOrString = small_message(is_text=(1, INT64), number=(2, INT64), text=(3, STRING))
_Raw = small_message(raw=(1, BYTES))
_Duration = small_message(nanos=(1, INT64))
Entry = small_message(key=(1, STRING), value=(2, BYTES))
"""An entry of a map whose values are texts or messages."""


def read_text(raw: bytes) -> str:
    """Read a text."""
    return raw.decode()


read_shared_text = shared(read_text)
"""Read a text that is mostly equal in many objects."""


def read_time(raw: bytes) -> datetime | None:
    """Read a time of seconds, as JSON has it; None for Go's zero time."""
    time = _Time.FromString(raw)
    return EPOCH + timedelta(seconds=time.seconds) if time.seconds else None


def read_micro_time(raw: bytes) -> datetime | None:
    """Read a time of microseconds; None for Go's zero time."""
    time = _Time.FromString(raw)
    if not time.seconds:
        return None
    return EPOCH + timedelta(seconds=time.seconds, microseconds=time.nanos // 1000)


def time_text(precision: str, read: Callable[[bytes], datetime | None]) -> Read:
    """Return a reader of times as JSON's text."""

    def read_as_text(raw: bytes) -> str | None:
        moment = read(raw)
        if moment is None:
            return None
        return moment.isoformat(timespec=precision).replace("+00:00", "Z")

    return read_as_text


def read_quantity(raw: bytes) -> str:
    """Read a quantity in its text form."""
    text: str = _Quantity.FromString(raw).string
    return text or "0"


def read_int_or_string(raw: bytes) -> int | str:
    """Read a number or a text."""
    union = _IntOrString.FromString(raw)
    value: int | str = union.text if union.is_text else union.number
    return value


def read_embedded(raw: bytes) -> Any:
    """Read an object that is embedded as JSON."""
    return msgspec.json.decode(_Raw.FromString(raw).raw or b"null")


def read_duration(raw: bytes) -> str:
    """Read a duration as text, such as ``1.5s``."""
    return f"{_Duration.FromString(raw).nanos / 1e9:g}s"


def read_base64(raw: bytes) -> str:
    """Read bytes in the form that JSON has for them."""
    return base64.b64encode(raw).decode()


SPECIAL: dict[str, Callable[[bytes], Any]] = {
    "Duration": shared(read_duration),
    "FieldsV1": read_embedded,
    "IntOrString": shared(read_int_or_string),
    "MicroTime": read_micro_time,
    "Quantity": shared(read_quantity),
    "RawExtension": read_embedded,
    "Time": shared(read_time),
}
"""Readers of messages whose JSON form is not an object of their fields."""
