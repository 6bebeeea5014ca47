"""Kubernetes' own ``generated.proto`` files and examples, and an encoder that follows them.

``tools/debian-package`` unpacks them from ``golang-k8s-api-dev``, ``golang-k8s-apimachinery-dev``
and ``golang-k8s-apiextensions-apiserver-dev``. ``GANGLINE_KUBERNETES_API`` names their folder.
"""

import base64
import gzip
import json
import os
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

FOLDER = Path(os.environ.get("GANGLINE_KUBERNETES_API", "/var/cache/gangline-kubernetes-api"))
SOURCES = "usr/share/gocode/src/k8s.io"
API = FOLDER / "golang-k8s-api-dev" / SOURCES / "api"
MACHINERY = FOLDER / "golang-k8s-apimachinery-dev" / SOURCES / "apimachinery"
EXTENSIONS = FOLDER / "golang-k8s-apiextensions-apiserver-dev" / SOURCES / "apiextensions-apiserver"
EXAMPLES = API / "testdata/HEAD"
META = "k8s.io.apimachinery.pkg.apis.meta.v1"

CHANGELOG = FOLDER / "golang-k8s-api-dev/usr/share/doc/golang-k8s-api-dev/changelog.Debian.gz"
RELEASE = "0.36"
"""The release that the table was made from. Debian's package moves on."""


def _lacking() -> str:
    """Return why the sources cannot be compared with the table; empty if they can."""
    if not all(path.exists() for path in (API, MACHINERY, EXTENSIONS, CHANGELOG)):
        return (
            f"golang-k8s-api-dev, golang-k8s-apimachinery-dev or "
            f"golang-k8s-apiextensions-apiserver-dev is not in {FOLDER} "
            "(tools/debian-package unpacks them)"
        )
    found = gzip.decompress(CHANGELOG.read_bytes()).decode().partition("(")[2].partition(")")[0]
    if found.startswith(f"{RELEASE}."):
        return ""
    return f"Kubernetes' sources are {found}: bring the table of {RELEASE} up to date with them"


needs_sources = pytest.mark.skipif(bool(_lacking()), reason=_lacking())

_PACKAGE = re.compile(r"^package ([\w.]+);", re.MULTILINE)
_MESSAGE = re.compile(r"^message (\w+) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(
    r"^  (?:(optional|repeated) |(map)<string, ?)\.?([\w.]+)>? (\w+) = (\d+);", re.MULTILINE
)


class ProtoField(NamedTuple):
    """A field of a message in a ``.proto`` file."""

    label: str
    type: str
    """A scalar, or the full name of a message."""
    name: str


@cache
def messages() -> Mapping[str, Mapping[int, ProtoField]]:
    """Return the fields of all messages by full name and number."""
    found: dict[str, dict[int, ProtoField]] = {}
    bodies: list[tuple[str, str, str]] = []
    for path in (
        p for folder in (API, MACHINERY, EXTENSIONS) for p in folder.rglob("generated.proto")
    ):
        text = path.read_text()
        package = _PACKAGE.findall(text)[0]
        bodies += [(package, name, body) for name, body in _MESSAGE.findall(text)]
    names = {f"{package}.{name}" for package, name, _ in bodies}
    for package, name, body in bodies:
        fields = found[f"{package}.{name}"] = {}
        for label, of_map, type_, field, number in _FIELD.findall(body):
            local = f"{package}.{type_}"
            full = local if local in names else type_
            fields[int(number)] = ProtoField(label or of_map, full, field)
    return found


def package_of(api_version: str) -> str:
    """Return the package of an API version: ``k8s.io.api.core.v1`` for ``v1``."""
    group, _, version = api_version.rpartition("/")
    if group == "apiextensions.k8s.io":
        return f"k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.{version}"
    return f"k8s.io.api.{group.partition('.')[0] or 'core'}.{version}"


def encode_body(obj: Mapping[str, Any], *extra: bytes) -> bytes:
    """Return the request body of an object; ``extra`` fields are added to its end."""
    api_version, kind = obj["apiVersion"], obj["kind"]
    name = f"{package_of(api_version)}.{kind}"
    name = name if name in messages() else f"{META}.{kind}"
    content = {key: value for key, value in obj.items() if key not in ("apiVersion", "kind")}
    raw = encode_message(name, content) + b"".join(extra)
    type_ = piece(1, api_version.encode()) + piece(2, kind.encode())
    return b"k8s\x00" + piece(1, type_) + piece(2, raw) + piece(3, b"") + piece(4, b"")


def encode_message(name: str, obj: Mapping[str, Any]) -> bytes:
    """Encode JSON as the message ``name``. Fields that the message lacks are an error."""
    left = dict(obj)
    encoded = b"".join(_encode_field(*item, left) for item in sorted(messages()[name].items()))
    assert not left, f"{name} has no {set(left)}"
    return encoded


def _is_inlined(field: ProtoField) -> bool:
    """Return True if JSON has the fields of this message in the object that contains it."""
    if field.type not in messages():
        return False
    type_ = field.type.rpartition(".")[2]
    return type_.lower() == field.name.lower() or (field.name, type_) == ("handler", "ProbeHandler")


def _json_names(message: str) -> set[str]:
    names = set[str]()
    for field in messages()[message].values():
        names.add(field.name)
        if _is_inlined(field):
            names |= _json_names(field.type)
    return names


def _encode_field(number: int, field: ProtoField, left: dict[str, Any]) -> bytes:
    # A few names of generated.proto differ from those in JSON by case.
    name = next((each for each in left if each.lower() == field.name.lower()), None)
    if name is None:
        if not _is_inlined(field):
            return b""
        part = {each: left.pop(each) for each in _json_names(field.type) & set(left)}
        return piece(number, encode_message(field.type, part)) if part else b""
    value = left.pop(name)
    if field.label == "map":
        entries = (
            piece(1, key.encode()) + _value(2, field.type, each) for key, each in value.items()
        )
        return b"".join(piece(number, entry) for entry in entries)
    values = value if field.label == "repeated" else [value]
    return b"".join(_value(number, field.type, each) for each in values)


def _value(number: int, type_: str, value: Any) -> bytes:
    match type_:
        case "string":
            return piece(number, value.encode())
        case "bytes":
            return piece(number, base64.b64decode(value))
        case "bool" | "int32" | "int64":
            return varint(number << 3) + varint(int(value) & (1 << 64) - 1)
    return piece(number, b"".join(_special(type_.rpartition(".")[2], type_, value)))


def _special(name: str, type_: str, value: Any) -> Iterator[bytes]:
    match name:
        case "Time" | "MicroTime":
            if value is None:  # in a map of times
                return
            moment = datetime.fromisoformat(value)
            yield varint(1 << 3) + varint(int(moment.timestamp()))
            yield varint(2 << 3) + varint(moment.microsecond * 1000)
        case "Quantity":
            yield piece(1, str(value).encode())
        case "IntOrString":
            text = isinstance(value, str)
            yield varint(1 << 3) + varint(int(text))
            yield piece(3, value.encode()) if text else varint(2 << 3) + varint(value)
        case "FieldsV1" | "RawExtension":
            yield piece(1, json.dumps(value).encode())
        case "ExtraValue":
            yield from (piece(1, each.encode()) for each in value)
        case _:
            yield encode_message(type_, value)


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def piece(number: int, raw: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(raw)) + raw
