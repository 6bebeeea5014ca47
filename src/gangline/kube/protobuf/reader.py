"""Messages of built-in kinds into the structs of callers.

The C core of the package ``protobuf`` parses an object; a table of its fields then makes the
structs. For the pods of a scheduler that takes 10 to 15 µs each.
"""

from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Any, Generic, TypeVar

import msgspec
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from msgspec import inspect

from gangline.api.meta.resource import Resource
from gangline.api.schema.field_table import find_message
from gangline.kube.protobuf import scalars
from gangline.kube.protobuf.layout import (
    PACKAGE,
    FieldLayout,
    Layouts,
    MessageLayout,
    is_message,
    is_shared,
    layouts_of,
    wire_type,
)
from gangline.kube.protobuf.scalars import BYTES, Read

T = TypeVar("T")

_Plan = dict[Any, tuple[str, Read | None]]
"""By field descriptor: the attribute, and how the value is made from that of the message."""
_ABSENT: Any = object()


class MalformedMessage(ValueError):
    """The bytes are not a message of the expected kind."""


class ObjectReader(Generic[T]):
    """Reads the objects of one kind, or their lists.

    Raises:
        UnreadableType: a message of the kind lacks a field of its struct.
    """

    def __init__(self, resource: Resource[T]) -> None:
        struct: Any = resource.type
        message = find_message(resource.api_version, resource.kind)
        assert message is not None, resource
        compiler = _Compiler(layouts_of(message, struct))
        self._class, self._values = compiler.reader_of(message, struct)
        self._struct = struct
        self._type = {"api_version": resource.api_version, "kind": resource.kind}

    def read(self, raw: bytes) -> T:
        """Return the object in ``raw``.

        Raises:
            MalformedMessage: it is not a message of this kind.
        """
        try:
            found: T = self._struct(**self._values(self._class.FromString(raw)), **self._type)
        except (DecodeError, ValueError, OverflowError, TypeError) as error:
            raise MalformedMessage(str(error)) from error
        return found


@cache
def object_reader(resource: Resource[Any]) -> ObjectReader[Any]:
    """Return the reader of a kind: making one takes some milliseconds.

    Raises:
        UnreadableType: a message of the kind lacks a field of its struct.
    """
    return ObjectReader(resource)


class _Compiler:
    """Makes functions that read messages from their layouts."""

    def __init__(self, layouts: Layouts) -> None:
        self._layouts = layouts.found
        pool = descriptor_pool.DescriptorPool()
        pool.Add(layouts.file)
        self._classes = {
            layout.name: message_factory.GetMessageClass(
                pool.FindMessageTypeByName(f"{PACKAGE}.{layout.name}")
            )
            for layout in layouts.found.values()
        }
        self._plans: dict[str, _Plan] = {}

    def reader_of(self, message: str, target: Any) -> tuple[Any, Read]:
        """Return the class of a message, and the function that returns its values by attribute."""
        layout = self._layouts[message, target]
        return self._classes[layout.name], _values_reader(self._plan(layout))

    def _plan(self, layout: MessageLayout) -> _Plan:
        plan = self._plans.get(layout.name)
        if plan is None:
            # Stored before it is complete: a message may contain itself.
            plan = self._plans[layout.name] = {}
            described = self._classes[layout.name].DESCRIPTOR.fields_by_number
            for each in layout.fields:
                plan[described[each.number]] = each.attribute, self._value_reader(each)
        return plan

    def _value_reader(self, layout: FieldLayout) -> Read | None:
        source = layout.source
        if not layout.attribute:
            return self.reader_of(source.type, layout.target)[1]
        read = self._message_reader(layout) if is_message(source) else _scalar_reader(layout)
        if source.container == "{}":
            return _map_reader(read)
        if source.container == "[]":
            if layout.is_tuple:
                return tuple if read is None else _tuple_reader(read)
            return list if read is None else _list_reader(read)
        return _without_zero(read) if layout.skips_zero else read

    def _message_reader(self, layout: FieldLayout) -> Read:
        class_, values = self.reader_of(layout.source.type, layout.target)
        make: Any = layout.target or dict

        def read(message: Any) -> Any:
            return make(**values(message))

        if wire_type(layout) != BYTES:
            return read

        def read_bytes(raw: bytes) -> Any:
            return make(**values(class_.FromString(raw)))

        return scalars.shared(read_bytes) if is_shared(layout.source) else read_bytes


def _values_reader(plan: _Plan) -> Read:
    def read_values(message: Any) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for field, value in message.ListFields():
            attribute, read = plan[field]
            if read is None:
                values[attribute] = value
            elif not attribute:
                values.update(read(value))
            elif (made := read(value)) is not _ABSENT:
                values[attribute] = made
        return values

    return read_values


def _list_reader(read: Read) -> Read:
    def read_list(values: Any) -> list[Any]:
        return [read(value) for value in values]

    return read_list


def _tuple_reader(read: Read) -> Read:
    def read_tuple(values: Any) -> tuple[Any, ...]:
        return tuple(map(read, values))

    return read_tuple


def _map_reader(read: Read | None) -> Read:
    def read_entry(raw: bytes) -> tuple[str, Any]:
        entry = scalars.Entry.FromString(raw)
        return entry.key, read(entry.value) if read else entry.value

    read_cached = scalars.shared_if_short(read_entry)

    def read_dict(entries: Any) -> dict[str, Any]:
        # None is Go's zero time: null in JSON, which counts as not given.
        return {key: value for key, value in map(read_cached, entries) if value is not None}

    return read_dict


def _without_zero(read: Read | None) -> Read:
    def read_nonzero(value: Any) -> Any:
        made = read(value) if read else value
        return made or _ABSENT

    return read_nonzero


_read_text = scalars.shared(scalars.read_text)


def _scalar_reader(layout: FieldLayout) -> Read | None:
    """Return how a value is made; None if it is that of the message."""
    kind, type_ = layout.source.type, layout.type
    in_map = layout.source.container == "{}"
    if kind == "s":
        read = _read_text if wire_type(layout) == BYTES else None
        return _converted(read, type_)
    if kind == "y":
        as_is = isinstance(type_, inspect.BytesType)
        return None if as_is else scalars.read_base64
    if kind in ("b", "i", "n"):
        assert not in_map, layout
        return None
    if kind in ("Time", "MicroTime") and not isinstance(type_, inspect.DateTimeType):
        precision = "seconds" if kind == "Time" else "microseconds"
        moment: Callable[[bytes], datetime | None] = scalars.SPECIAL[kind]
        return scalars.time_text(precision, moment)
    return scalars.SPECIAL[kind]


def _converted(read: Read | None, type_: inspect.Type | None) -> Read | None:
    """Return the reader of a text whose type in the struct may be an enumeration."""
    if not isinstance(type_, inspect.EnumType | inspect.LiteralType):
        return read
    wanted: Any = type_.cls if isinstance(type_, inspect.EnumType) else str

    def read_as(value: Any) -> Any:
        return msgspec.convert(read(value) if read else value, wanted)

    return read_as
