"""Which fields of a message a struct reads, and the descriptors of exactly these fields.

The table of all messages is ``api.schema.field_table``. A struct's field that the message lacks is
an error, as it would silently keep its default.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import msgspec
from google.protobuf import descriptor_pb2
from msgspec import inspect

from gangline.api.meta.objects import Condition, Object
from gangline.api.schema.field_table import MessageField, message_fields
from gangline.kube.protobuf.scalars import BOOL, BYTES, INT64, MESSAGE, STRING

PACKAGE = "gangline"
_FIELD = descriptor_pb2.FieldDescriptorProto

Target: TypeAlias = type[msgspec.Struct] | None
"""The struct that a message is read into; None: a dict of all its fields by their JSON names."""

SHARED_MESSAGES = frozenset(
    {
        "Affinity",
        "AttachedVolume",
        "Container",
        "ContainerImage",
        "ContainerPort",
        "LabelSelector",
        "NodeAddress",
        "NodeDaemonEndpoints",
        "NodeSystemInfo",
        "OwnerReference",
        "PodSchedulingGate",
        "ResourceRequirements",
        "Taint",
        "Toleration",
        "TopologySpreadConstraint",
    }
)
"""Messages that are mostly equal in many objects: structs of equal bytes are the same object.

Volumes are not: since Kubernetes 1.21 each pod has one for its token whose name is unique
(``kube-api-access-…``).
"""
SHARED_TEXTS = frozenset(
    {
        "effect",
        "key",
        "kind",
        "namespace",
        "nodeName",
        "operator",
        "phase",
        "preemptionPolicy",
        "priorityClassName",
        "protocol",
        "reason",
        "restartPolicy",
        "schedulerName",
        "status",
        "storageClassName",
        "topologyKey",
        "type",
    }
)
"""Fields whose short texts are mostly equal in many objects."""
_ZEROS: Mapping[str, object] = {
    "s": "",
    "b": False,
    "i": 0,
    "n": 0,
    "y": "",
    "Time": None,
    "MicroTime": None,
}
"""Values of types whose zero Go writes for a field that is not given, and JSON omits."""
_NOT_IN_MESSAGES: Mapping[type, frozenset[str]] = {
    Object: frozenset({"api_version", "kind"}),
    Condition: frozenset(Condition.__struct_fields__) - {"type", "status", "reason", "message"},
}
"""Fields that the messages of a struct need not have.

Version and kind are in the envelope. One struct stands for the conditions of all kinds.
"""


class UnreadableType(TypeError):
    """A struct cannot be read from the messages of its kind: they lack a field."""


class FieldLayout(NamedTuple):
    """A field of a message, and where its value goes."""

    number: int
    source: MessageField
    attribute: str
    """Field of the struct, or key of the dict; empty if the fields of this message go there."""
    type: inspect.Type | None
    """The type of the struct's field or of its elements; None in a dict."""
    target: Target
    """What a message is read into."""
    skips_zero: bool
    """True if zero means that the field is not given, and it has another default."""
    is_tuple: bool = False
    """True if the struct has the elements in a tuple instead of a list."""


@dataclass(frozen=True, slots=True)
class MessageLayout:
    """A message, its fields that are read, and the name of its descriptor."""

    name: str
    target: Target
    fields: tuple[FieldLayout, ...]


@dataclass(slots=True)
class Layouts:
    """The messages of a kind, by their name in the table and the target."""

    found: dict[tuple[str, Target], MessageLayout] = field(default_factory=dict)
    file: descriptor_pb2.FileDescriptorProto = field(
        default_factory=lambda: descriptor_pb2.FileDescriptorProto(
            name="gangline.proto", package=PACKAGE, syntax="proto2"
        )
    )

    def add(self, message: str, target: Target, *, inlined: bool = False) -> MessageLayout:
        """Add a message and all messages inside it; ``inlined``: it is a part of the target.

        Raises:
            UnreadableType: the message lacks a field of the target.
        """
        if (finished := self.found.get((message, target))) is not None:
            return finished
        fields = tuple(_fields(message, target))
        if not inlined:
            _check_complete(message, target, fields)
        layout = MessageLayout(f"M{len(self.found)}", target, fields)
        self.found[message, target] = layout
        descriptor = self.file.message_type.add(name=layout.name)
        for field_ in fields:
            self._describe(descriptor, field_)
        return layout

    def _describe(self, descriptor: "descriptor_pb2.DescriptorProto", layout: FieldLayout) -> None:
        many = bool(layout.source.container)
        described = descriptor.field.add(
            name=f"f{layout.number}",
            number=layout.number,
            label=_FIELD.LABEL_REPEATED if many else _FIELD.LABEL_OPTIONAL,
            type=wire_type(layout),
        )
        if is_message(layout.source):
            inner = self.add(layout.source.type, layout.target, inlined=not layout.attribute)
            if described.type == MESSAGE:
                described.type_name = f".{PACKAGE}.{inner.name}"


def is_message(source: MessageField) -> bool:
    """Return True if the values of a field are messages with a layout."""
    return "#" in source.type


def wire_type(layout: FieldLayout) -> int:
    """Return the type of a field in its descriptor."""
    source = layout.source
    if source.container == "{}":
        return BYTES
    match source.type:
        case "s":
            return BYTES if source.name in SHARED_TEXTS else STRING
        case "b":
            return BOOL
        case "i" | "n":
            return INT64
    return MESSAGE if is_message(source) and not is_shared(source) else BYTES


def is_shared(source: MessageField) -> bool:
    """Return True if the messages of a field are read once for equal bytes."""
    return source.type.rpartition("#")[2] in SHARED_MESSAGES


def _fields(message: str, target: Target) -> Iterator[FieldLayout]:
    """Yield the fields of a message that the target has."""
    struct_fields = None if target is None else _struct_fields(target)
    for number, source in sorted(message_fields(message).items()):
        if source.type == "ExtraValue":
            continue  # only in requests
        if not source.name:
            if _has_any(source, target):
                yield FieldLayout(number, source, "", None, target, False)
            continue
        may_be_zero = source.keeps_zero or source.container or source.type not in _ZEROS
        if struct_fields is None:
            yield FieldLayout(number, source, source.name, None, None, not may_be_zero)
        elif (struct_field := struct_fields.get(source.name)) is not None:
            type_ = _element(struct_field.type)
            inner = type_.cls if isinstance(type_, inspect.StructType) else None
            skips = not may_be_zero and struct_field.default != _ZEROS[source.type]
            is_tuple = _is_tuple(struct_field.type)
            yield FieldLayout(number, source, struct_field.name, type_, inner, skips, is_tuple)


def _has_any(source: MessageField, target: Target) -> bool:
    return any(True for _ in _fields(source.type, target))


def _struct_fields(target: type[msgspec.Struct]) -> dict[str, inspect.Field]:
    described = inspect.type_info(target)
    assert isinstance(described, inspect.StructType)
    return {field_.encode_name: field_ for field_ in described.fields}


def _element(type_: inspect.Type) -> inspect.Type:
    """Return the type of a value, of the elements of a list, or of the values of a map."""
    if isinstance(type_, inspect.Metadata):
        return _element(type_.type)
    if isinstance(type_, inspect.UnionType):
        given = [variant for variant in type_.types if not isinstance(variant, inspect.NoneType)]
        return _element(given[0]) if len(given) == 1 else type_
    if isinstance(type_, inspect.ListType | inspect.VarTupleType):
        return _element(type_.item_type)
    if isinstance(type_, inspect.DictType):
        return _element(type_.value_type)
    return type_


def _is_tuple(type_: inspect.Type) -> bool:
    if isinstance(type_, inspect.Metadata):
        return _is_tuple(type_.type)
    if isinstance(type_, inspect.UnionType):
        return any(map(_is_tuple, type_.types))
    return isinstance(type_, inspect.VarTupleType)


def _check_complete(message: str, target: Target, fields: tuple[FieldLayout, ...]) -> None:
    if target is None:
        return
    attributes = {layout.attribute for layout in fields}
    for layout in fields:
        if not layout.attribute:
            attributes |= {field_.attribute for field_ in _fields(layout.source.type, target)}
    lacking = {
        name
        for name in set(target.__struct_fields__) - attributes
        if not any(
            issubclass(target, base) and name in names for base, names in _NOT_IN_MESSAGES.items()
        )
    }
    if lacking:
        raise UnreadableType(
            f"{message} has no {', '.join(sorted(lacking))}, which {target.__name__} reads"
        )


def layouts_of(message: str, target: type[msgspec.Struct]) -> Layouts:
    """Return the messages that are read for a kind.

    Raises:
        UnreadableType: a message lacks a field of its struct.
    """
    layouts = Layouts()
    layouts.add(message, target)
    return layouts
