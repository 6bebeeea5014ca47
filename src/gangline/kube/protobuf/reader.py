"""Messages of built-in kinds into the structs of callers.

The C core of the package ``protobuf`` parses an object; functions that are generated as Python
source from the layouts of its messages then make the structs. For the pods of a scheduler that
takes 10 µs each. A loop over the fields of a message takes twice as long as one call of the struct
whose arguments are attributes of the message. The source contains only field numbers, the names of
the struct's fields, and the defaults ``None``, ``""``, 0 and False; all other values are its
variables.
"""

from collections.abc import Callable, Mapping
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
from gangline.kube.protobuf.scalars import BYTES, Read, read_shared_text

_PLAIN = frozenset("sbin")
"""Types whose absent value reads as zero."""
_TIMES = frozenset({"Time", "MicroTime"})
_EMPTY = {list: "[]", dict: "{}"}
"""Expressions of the empty values that structs make for each object."""


class StructSource:
    """The source of one function.

    Args:
        struct: the struct that it makes.
    """

    def __init__(self, struct: type[msgspec.Struct]) -> None:
        described = inspect.type_info(struct)
        assert isinstance(described, inspect.StructType)
        self._variables: dict[str, Any] = {"make": struct}
        self._statements: list[str] = []
        self._values = {field.name: self._default(field) for field in described.fields}
        """The expression of each field of the struct, in its order."""
        self._positional = frozenset(struct.__match_args__)

    def add_inlined(self, number: int, parent: str = "m") -> str:
        """Add a message whose fields go into the struct; return its name in the source.

        Args:
            number: its field number.
            parent: the name of the message that contains it.
        """
        name = f"{parent}_{number}"
        self._statements.append(f"{name} = {parent}.f{number}")
        return name

    def add_field(self, layout: FieldLayout, read: Read | None, parent: str = "m") -> None:
        """Add a field of the message.

        Args:
            layout: the field.
            read: makes its value from that of the message; None: it is the same.
            parent: the name of the message that contains it.
        """
        source, attribute = layout.source, layout.attribute
        given, absent = f"{parent}.f{layout.number}", self._values[attribute]
        made = f"{self._variable(f'r_{attribute}', read)}(%s)" if read else "%s"
        if layout.skips_zero:
            value = f"{made % given} or {absent}"
        elif source.container or (source.type in _TIMES and absent == "None"):
            value = f"{made % 'v'} if (v := {given}) else {absent}"
        elif source.type in _PLAIN and not source.keeps_zero and read in (None, read_shared_text):
            # Zero is the default, and the value of an absent field.
            value = made % given
        else:
            value = f'{made % given} if {parent}.HasField("f{layout.number}") else {absent}'
        self._values[attribute] = value

    def add_constant(self, attribute: str, value: str) -> None:
        """Set a field of the struct that the message does not have."""
        self._values[attribute] = self._variable(f"c_{attribute}", value)

    def compile(self) -> Read:
        """Return the function."""
        # Positional arguments take a fifth of the time of keywords.
        arguments = ", ".join(
            value if name in self._positional else f"{name}={value}"
            for name, value in self._values.items()
        )
        lines = (*self._statements, f"return make({arguments})")
        exec("def read(m):\n    " + "\n    ".join(lines), self._variables)
        read: Read = self._variables["read"]
        return read

    def _default(self, field: inspect.Field) -> str:
        """Return the expression of the value of an absent field."""
        if field.default_factory is not msgspec.NODEFAULT:
            if (empty := _EMPTY.get(field.default_factory)) is not None:
                return empty
            return f"{self._variable(f'd_{field.name}', field.default_factory)}()"
        if field.required:
            return f"{self._variable('raise_missing', _raise_missing)}({field.name!r})"
        if field.default is None or field.default in ("", 0):
            return repr(field.default)
        return self._variable(f"d_{field.name}", field.default)

    def _variable(self, name: str, value: Any) -> str:
        self._variables[name] = value
        return name


def _raise_missing(attribute: str) -> Any:
    raise ValueError(f"{attribute} is missing")


T = TypeVar("T")

_Plan = dict[Any, tuple[str, bool, Read | None]]
"""By field descriptor: the key, whether zero means absent, and how the value is made."""


class MalformedMessage(ValueError):
    """The bytes are not a message of the expected kind."""


class ObjectReader(Generic[T]):
    """Reads the objects of one kind, or their lists.

    Structs may name fields that are costly and seldom needed in ``SELDOM_READ``. They are read only
    if the property ``needs_all_fields`` of the object is true without them.

    Args:
        completely: whether these fields are always read.

    Raises:
        UnreadableType: a message of the kind lacks a field of its struct.
    """

    def __init__(self, resource: Resource[T], *, completely: bool = False) -> None:
        struct: Any = resource.type
        message = find_message(resource.api_version, resource.kind)
        assert message is not None, resource
        may_need_all = not completely and hasattr(struct, "needs_all_fields")
        class_, self._make = _Compiler(layouts_of(message, struct), may_need_all).object_reader(
            message, struct, api_version=resource.api_version, kind=resource.kind
        )
        self._parse = class_.FromString
        self._complete = ObjectReader(resource, completely=True) if may_need_all else None

    def read(self, raw: bytes) -> T:
        """Return the object in ``raw``.

        Raises:
            MalformedMessage: it is not a message of this kind.
        """
        try:
            message: Any = self._make(self._parse(raw))
            if self._complete is not None and message.needs_all_fields:
                message = self._complete.read(raw)
            made: T = message
        except (DecodeError, ValueError, OverflowError, TypeError) as error:
            raise MalformedMessage(str(error)) from error
        return made


@cache
def object_reader(resource: Resource[Any]) -> ObjectReader[Any]:
    """Return the reader of a kind: making one takes some milliseconds.

    Raises:
        UnreadableType: a message of the kind lacks a field of its struct.
    """
    return ObjectReader(resource)


class _Compiler:
    """Makes functions that read messages from their layouts.

    Args:
        skips_seldom: whether they leave out fields that are seldom read.
    """

    def __init__(self, layouts: Layouts, skips_seldom: bool = False) -> None:
        self._layouts, self._skips_seldom = layouts.found, skips_seldom
        pool = descriptor_pool.DescriptorPool()
        pool.Add(layouts.file)
        self._classes = {
            layout.name: message_factory.GetMessageClass(
                pool.FindMessageTypeByName(f"{PACKAGE}.{layout.name}")
            )
            for layout in layouts.found.values()
        }
        self._readers: dict[str, Read] = {}

    def object_reader(
        self, message: str, struct: type[msgspec.Struct], **constants: str
    ) -> tuple[Any, Read]:
        """Return the class of a message, and the function that makes the struct.

        Args:
            message: the name of the message in the table.
            struct: its target.
            constants: values of fields that the message lacks.
        """
        layout = self._layouts[message, struct]
        return self._classes[layout.name], self._generate(layout, struct, constants)

    def _reader(self, layout: MessageLayout) -> Read:
        """Return the function that makes the target of a message."""
        if (reader := self._readers.get(layout.name)) is not None:
            return reader

        def read(message: Any) -> Any:
            return self._readers[layout.name](message)

        # Found by the readers inside, as a message may contain itself.
        self._readers[layout.name] = read
        self._readers[layout.name] = made = (
            _dict_reader(self._plan(layout))
            if layout.target is None
            else self._generate(layout, layout.target, {})
        )
        return made

    def _generate(
        self, layout: MessageLayout, struct: type[msgspec.Struct], constants: Mapping[str, str]
    ) -> Read:
        source = StructSource(struct)
        self._add_fields(source, layout, "m")
        for attribute, value in constants.items():
            source.add_constant(attribute, value)
        return source.compile()

    def _add_fields(self, source: StructSource, layout: MessageLayout, parent: str) -> None:
        skipped = getattr(layout.target, "SELDOM_READ", ()) if self._skips_seldom else ()
        for field in layout.fields:
            if field.attribute in skipped:
                continue
            if field.attribute:
                source.add_field(field, self._value_reader(field), parent)
            else:
                inlined = self._layouts[field.source.type, field.target]
                self._add_fields(source, inlined, source.add_inlined(field.number, parent))

    def _plan(self, layout: MessageLayout) -> _Plan:
        described = self._classes[layout.name].DESCRIPTOR.fields_by_number
        return {
            described[field.number]: (field.attribute, field.skips_zero, self._value_reader(field))
            for field in layout.fields
        }

    def _value_reader(self, layout: FieldLayout) -> Read | None:
        source = layout.source
        if not layout.attribute:
            return self._reader(self._layouts[source.type, layout.target])
        read = self._message_reader(layout) if is_message(source) else _scalar_reader(layout)
        if source.container == "{}":
            return _map_reader(read)
        if source.container == "[]":
            if layout.is_tuple:
                return tuple if read is None else _tuple_reader(read)
            return list if read is None else _list_reader(read)
        return read

    def _message_reader(self, layout: FieldLayout) -> Read:
        inner = self._layouts[layout.source.type, layout.target]
        read = self._reader(inner)
        if wire_type(layout) != BYTES:
            return read
        parse = self._classes[inner.name].FromString

        def read_bytes(raw: bytes) -> Any:
            return read(parse(raw))

        return scalars.shared_if_short(read_bytes) if is_shared(layout.source) else read_bytes


def _dict_reader(plan: _Plan) -> Read:
    """Return the function that makes a dict of the given fields."""

    def read_dict(message: Any) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for field, value in message.ListFields():
            attribute, skips_zero, read = plan[field]
            made = read(value) if read else value
            if not attribute:
                values.update(made)
            elif made or not skips_zero:
                values[attribute] = made
        return values

    return read_dict


# Readers of repeated fields take a slice, which is a list: iterating over a field takes twice as
# long, as it ends with an IndexError.


def _list_reader(read: Read) -> Read:
    def read_list(values: Any) -> list[Any]:
        return list(map(read, values[:]))

    return read_list


def _tuple_reader(read: Read) -> Read:
    def read_tuple(values: Any) -> tuple[Any, ...]:
        return tuple(map(read, values[:]))

    return read_tuple


def _map_reader(read: Read | None) -> Read:
    def read_entry(raw: bytes) -> tuple[str, Any]:
        entry = scalars.Entry.FromString(raw)
        return entry.key, read(entry.value) if read else entry.value

    read_cached = scalars.shared_if_short(read_entry)

    def read_dict(entries: Any) -> dict[str, Any]:
        # None is Go's zero time: null in JSON, which counts as not given.
        return {key: value for key, value in map(read_cached, entries[:]) if value is not None}

    return read_dict


def _scalar_reader(layout: FieldLayout) -> Read | None:
    """Return how a value is made; None if it is that of the message."""
    kind, type_ = layout.source.type, layout.type
    in_map = layout.source.container == "{}"
    if kind == "s":
        read = scalars.read_shared_text if wire_type(layout) == BYTES else None
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
