"""Decoding of JSON into typed objects: pages of lists, watch events, lines of a stream.

An object that does not fit its type (its CRD allows more) does not spoil its list: it is returned
separately, as ``MalformedObject``. A null field counts as not given.
"""

import gc
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Generic, TypeVar

import msgspec

from gangline.api.meta.json_objects import without_nulls
from gangline.api.meta.objects import ListMeta, ObjectMeta

T = TypeVar("T")

GC_PAUSE_BYTES = 256 * 1024
"""From this size on, the garbage collector is paused during decoding.

It cannot free anything that a decoder makes, and would traverse all of it repeatedly (a large list
takes seven times longer).
"""


@dataclass(frozen=True, slots=True)
class MalformedObject:
    """An object that does not fit its type, with the metadata that could be read."""

    metadata: ObjectMeta
    error: str


@dataclass(frozen=True, slots=True)
class ListResult(Generic[T]):
    """All objects of a list, and its revision."""

    items: list[T]
    resource_version: str = ""
    malformed: list[MalformedObject] = field(default_factory=list)
    decode_s: float = 0.0
    """Time that decoding took; 0 if it was not measured."""
    is_protobuf: bool = False

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T]):
    """One change: ADDED, MODIFIED or DELETED; or a BOOKMARK, which only advances the revision.

    MALFORMED replaces any of the first three if the object does not fit its type.
    """

    type: str
    object: T
    resource_version: str
    malformed: MalformedObject | None = None


class _Page(msgspec.Struct, Generic[T]):
    metadata: ListMeta = ListMeta()
    items: list[T] | None = None


class _Event(msgspec.Struct, Generic[T]):
    type: str
    object: T


class _RawEvent(msgspec.Struct):
    type: str = ""
    object: msgspec.Raw = msgspec.Raw(b"{}")


class _Envelope(msgspec.Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


class _Identity(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class _IdentityEnvelope(msgspec.Struct, frozen=True):
    metadata: _Identity = _Identity()


def decoder_for(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Return the cached decoder of a type: making one costs more than using it."""
    key: Any = kind
    decoder: msgspec.json.Decoder[T] = _decoder(key)
    return decoder


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


@cache
def _page_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    page: Any = _Page
    return msgspec.json.Decoder(page[kind])


@cache
def _event_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    event: Any = _Event
    return msgspec.json.Decoder(event[kind])


_NULL = b"null"


@contextmanager
def pause_garbage_collector(size_bytes: int) -> Iterator[None]:
    """Pause the garbage collector while a large body is decoded."""
    pause = size_bytes >= GC_PAUSE_BYTES and gc.isenabled()
    if pause:
        gc.disable()
    try:
        yield
    finally:
        if pause:
            gc.enable()


def decode_object(kind: type[T], raw: bytes | msgspec.Raw) -> T:
    """Decode one object.

    Raises:
        msgspec.ValidationError: it does not fit its type.
        msgspec.DecodeError: it is not JSON.
    """
    return _decode(decoder_for(kind), raw)


def _decode(decoder: msgspec.json.Decoder[T], raw: bytes | msgspec.Raw) -> T:
    """Decode; if a null does not fit, decode again without the null fields.

    The second step is slower and rarely necessary, as most types declare the fields that may be
    null.
    """
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError:
        if _NULL not in bytes(raw):
            raise
    return decoder.decode(msgspec.json.encode(without_nulls(msgspec.json.decode(raw))))


def decode_page(kind: type[T], body: bytes) -> tuple[ListMeta, list[T], list[MalformedObject]]:
    """Decode one page of a list: its metadata, its objects, and the malformed ones."""
    key: Any = kind
    with pause_garbage_collector(len(body)):
        try:
            page = _page_decoder(key).decode(body)
        except msgspec.ValidationError:
            return _decode_one_by_one(kind, body)
    return page.metadata, page.items or [], []


def _decode_one_by_one(
    kind: type[T], body: bytes
) -> tuple[ListMeta, list[T], list[MalformedObject]]:
    page = _page_decoder(msgspec.Raw).decode(body)
    items, malformed = decode_objects(kind, page.items or [])
    return page.metadata, items, malformed


def decode_objects(
    kind: type[T], objects: Iterable[msgspec.Raw]
) -> tuple[list[T], list[MalformedObject]]:
    """Decode each object by itself; return the objects, and the malformed ones."""
    items: list[T] = []
    malformed: list[MalformedObject] = []
    for raw in objects:
        try:
            items.append(decode_object(kind, raw))
        except msgspec.ValidationError as error:
            malformed.append(MalformedObject(read_metadata(raw), str(error)))
    return items, malformed


def decode_event(kind: type[T], line: bytes) -> WatchEvent[T] | bytes:
    """Decode one line of a watch; for an ERROR event, return the bytes of its Status."""
    key: Any = kind
    try:
        event: _Event[T] = _decode(_event_decoder(key), line)
    except msgspec.ValidationError as error:
        return _malformed_event(line, str(error))
    if event.type == "ERROR":
        return bytes(decoder_for(_RawEvent).decode(line).object)
    version = getattr(getattr(event.object, "metadata", None), "resource_version", None)
    if version is None:
        version = read_metadata(decoder_for(_RawEvent).decode(line).object).resource_version
    return WatchEvent(event.type, event.object, version)


def _malformed_event(line: bytes, error: str) -> WatchEvent[T] | bytes:
    event = decoder_for(_RawEvent).decode(line)
    if event.type == "ERROR":
        return bytes(event.object)
    malformed = MalformedObject(read_metadata(event.object), error.replace("$.object", "$"))
    nothing: Any = None
    return WatchEvent("MALFORMED", nothing, malformed.metadata.resource_version, malformed)


def read_metadata(raw: bytes | msgspec.Raw) -> ObjectMeta:
    """Decode the metadata of any object; only its identity if the other fields do not fit."""
    try:
        return decoder_for(_Envelope).decode(raw).metadata
    except msgspec.ValidationError:
        pass
    try:
        identity = decoder_for(_IdentityEnvelope).decode(raw).metadata
    except msgspec.ValidationError:
        return ObjectMeta()
    return ObjectMeta(
        name=identity.name,
        namespace=identity.namespace,
        uid=identity.uid,
        resource_version=identity.resource_version,
    )


async def split_lines(
    chunks: AsyncIterator[bytes], *, keep_last: bool = False, bars: bool = False
) -> AsyncIterator[bytes]:
    """Split a stream into its lines, without their line ends.

    Text after the last line end was cut off and is dropped, unless ``keep_last``. With ``bars``, a
    line with carriage returns is also yielded before its end, in parts that end with one: what
    follows the last one is the present state of a progress bar, and is part of the next one too.
    Such a line that has no end is yielded in parts only, and other lines do not end with one.
    """
    pending: list[bytes] = []
    async for chunk in chunks:
        head, *rest = chunk.split(b"\n")
        pending.append(head)
        for part in rest:
            line = b"".join(pending)
            yield line.rstrip(b"\r") if bars else line
            pending = [part]
        if bars and b"\r" in (text := b"".join(pending))[:-1]:
            yield text + b"\r"
            pending = [text[text.rindex(b"\r", 0, -1) :]]
    text = b"".join(pending)
    if keep_last and text and not (bars and text.startswith(b"\r")):
        yield text
