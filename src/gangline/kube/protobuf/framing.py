"""What surrounds objects in responses: envelopes, lists that arrive in parts, frames of a watch.

A response is four magic bytes and a message ``Unknown`` (field 2: the bytes of the object). A list
has its metadata as field 1 and its objects as field 2. A watch consists of frames: four bytes of
length, then a message ``WatchEvent`` whose object has an envelope of its own. See
``k8s.io/apimachinery/pkg/runtime/serializer/protobuf``.
"""

from collections.abc import Iterator
from typing import NamedTuple

from google.protobuf.message import DecodeError

from gangline.api.meta.objects import ListMeta, Status, StatusDetails
from gangline.kube.protobuf.reader import MalformedMessage
from gangline.kube.protobuf.scalars import BYTES, INT64, STRING, small_message

MAGIC = b"k8s\x00"
FRAME_HEAD = 4
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
META, ITEM = 1, 2
OBJECT = 2

_Unknown = small_message(type=(1, BYTES), raw=(2, BYTES))
_ListMeta = small_message(
    resource_version=(2, STRING), continue_=(3, STRING), remaining_item_count=(4, INT64)
)
_Event = small_message(type=(1, STRING), object=(2, BYTES))
_Raw = small_message(raw=(1, BYTES))
_Status = small_message(
    status=(2, STRING), message=(3, STRING), reason=(4, STRING), details=(5, BYTES), code=(6, INT64)
)
_Details = small_message(
    name=(1, STRING), group=(2, STRING), kind=(3, STRING), retry=(5, INT64), uid=(6, STRING)
)


class RawEvent(NamedTuple):
    """One frame of a watch."""

    type: str
    object: bytes


def open_envelope(raw: bytes) -> bytes:
    """Return the bytes of the object in an envelope.

    Raises:
        MalformedMessage: it is not an envelope.
    """
    if not raw.startswith(MAGIC):
        raise MalformedMessage("it does not begin with Kubernetes' magic bytes")
    try:
        content: bytes = _Unknown.FromString(raw[len(MAGIC) :]).raw
    except DecodeError as error:
        raise MalformedMessage(str(error)) from error
    return content


def read_status(raw: bytes) -> Status:
    """Return the Status in the bytes of an object.

    Raises:
        MalformedMessage: it is not a Status.
    """
    try:
        status = _Status.FromString(raw)
        about = _Details.FromString(status.details)
        return Status(
            status=status.status,
            message=status.message,
            reason=status.reason,
            code=status.code,
            details=StatusDetails(
                name=about.name,
                group=about.group,
                kind=about.kind,
                uid=about.uid,
                retry_after_seconds=about.retry,
            ),
        )
    except (DecodeError, ValueError) as error:
        raise MalformedMessage(str(error)) from error


class FrameSplitter:
    """Splits the body of a watch into its events."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, part: bytes) -> Iterator[RawEvent]:
        """Yield the events that are complete now.

        Raises:
            MalformedMessage: a frame is not an event.
        """
        data, position = self._rest + part, 0
        while len(data) - position >= FRAME_HEAD:
            begin = position + FRAME_HEAD
            end = begin + int.from_bytes(data[position:begin], "big")
            if len(data) < end:
                break
            position = end
            yield _read_event(data[begin:end])
        self._rest = data[position:]


def _read_event(raw: bytes) -> RawEvent:
    try:
        event = _Event.FromString(raw)
        content = open_envelope(_Raw.FromString(event.object).raw)
    except (DecodeError, ValueError) as error:
        raise MalformedMessage(str(error)) from error
    return RawEvent(event.type, content)


class ListSplitter:
    """Splits the body of a list into its objects, as they arrive.

    A list of 150,000 pods is never in memory as a whole.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._has_begun = False
        self._left: int | None = None
        """Bytes of the list that have not been read; None outside the list."""
        self._ended = False
        self.metadata = ListMeta()

    def feed(self, part: bytes) -> list[bytes]:
        """Return the bytes of the objects that are complete now.

        Raises:
            MalformedMessage: it is not a list.
        """
        self._rest += part
        if not self._has_begun:
            if len(self._rest) < len(MAGIC):
                return []
            if not self._rest.startswith(MAGIC):
                raise MalformedMessage("it does not begin with Kubernetes' magic bytes")
            self._rest = self._rest[len(MAGIC) :]
            self._has_begun = True
        if self._left is None and not self._ended:
            self._enter_list()
        return self._take_objects() if self._left is not None else []

    def finish(self) -> ListMeta:
        """Return the metadata of the list, after its last part.

        Raises:
            MalformedMessage: the list is not complete.
        """
        if not self._ended:
            raise MalformedMessage("the list ended early")
        return self.metadata

    def _enter_list(self) -> None:
        """Skip the fields of the envelope before the list; they are a few bytes."""
        position = 0
        while (head := _read_head(self._rest, position)) is not None:
            number, begin, size = head
            if number == OBJECT:
                self._rest = self._rest[begin:]
                self._left = size
                return
            if len(self._rest) < begin + size:
                break
            position = begin + size
        self._rest = self._rest[position:]

    def _take_objects(self) -> list[bytes]:
        assert self._left is not None
        records: list[bytes] = []
        data, position = self._rest, 0
        while position < self._left:
            head = _read_head(data, position)
            if head is None:
                break
            number, begin, size = head
            end = begin + size
            if len(data) < end:
                break
            if number == ITEM:
                records.append(data[begin:end])
            elif number == META:
                self._read_metadata(data[begin:end])
            position = end
        self._left -= position
        self._rest = data[position:]
        if self._left < 0:
            raise MalformedMessage("an object is longer than its list")
        if not self._left:
            self._left, self._ended = None, True
        return records

    def _read_metadata(self, raw: bytes) -> None:
        try:
            list_meta = _ListMeta.FromString(raw)
        except DecodeError as error:
            raise MalformedMessage(str(error)) from error
        self.metadata = ListMeta(list_meta.resource_version, list_meta.continue_)


def _read_head(data: bytes, position: int) -> tuple[int, int, int] | None:
    """Return the number of a field, where its value begins, and its size.

    None if they have not arrived completely.
    """
    tag = _varint(data, position)
    if tag is None:
        return None
    key, begin = tag
    wire = key & 7
    if wire in (LENGTH, VARINT):
        decoded = _varint(data, begin)
        if decoded is None:
            return None
        value, end = decoded
        return (key >> 3, end, value) if wire == LENGTH else (key >> 3, begin, end - begin)
    if wire not in (FIXED64, FIXED32):
        raise MalformedMessage(f"unknown wire type {wire}")
    return key >> 3, begin, 8 if wire == FIXED64 else 4


def _varint(data: bytes, position: int) -> tuple[int, int] | None:
    """Return a number and the position after it; None if it has not arrived completely."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            return None
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value, position
    raise MalformedMessage("a number is too long")
