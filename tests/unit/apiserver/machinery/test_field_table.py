"""The table of protobuf fields against Kubernetes' own files of every group and version."""

import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gangline.api.schema import field_table
from gangline.api.schema.field_table import find_message, message_fields
from gangline.local.apiserver.core.registry import all_builtin_kinds
from gangline.local.apiserver.machinery.encoding import decode_protobuf
from kubernetes_proto import (
    API,
    EXAMPLES,
    EXTENSIONS,
    MACHINERY,
    META,
    encode_body,
    messages,
    needs_sources,
    package_of,
    varint,
)

TABLE = Path(field_table.__file__).with_name("protobuf_fields.json")
VERSIONS = json.loads(TABLE.read_text())
SCALARS = {"s": "string", "b": "bool", "n": "int32", "i": "int64", "d": "double",
           "y": "bytes"}  # fmt: skip
LABELS = {"": "optional", "[]": "repeated", "{}": "map"}
FORMER = {
    "v1#EphemeralVolumeSource": {2},
    "v1#ServiceSpec": {16},
    "meta.k8s.io/v1#ObjectMeta": {15},
}
"""Fields that only older clients write."""


def served_examples() -> Iterator[Any]:
    """Yield the path and the JSON of each example of a version in the table."""
    for path in sorted(EXAMPLES.glob("*.pb")):
        expected = json.loads(path.with_suffix(".json").read_text())
        if find_message(expected.get("apiVersion", ""), expected.get("kind", "")) is not None:
            yield pytest.param(path, expected, id=path.stem)


def proto_name(api_version: str, name: str) -> str:
    package = META if api_version.startswith("meta.") else package_of(api_version)
    return f"{package}.{name}"


@needs_sources
@pytest.mark.parametrize("api_version", sorted(VERSIONS))
def test_table_has_the_numbers_and_types_of_generated_proto(api_version: str) -> None:
    for name in VERSIONS[api_version]:
        message = f"{api_version}#{name}"
        is_newer = name.startswith(("DeviceTaintRule", "DeviceTaintSelector"))
        in_sources = "resource.k8s.io/v1beta2" if is_newer else api_version
        proto = messages()[proto_name(in_sources, name)]
        former = FORMER.get(message, set())
        fields = {n: field for n, field in message_fields(message).items() if n not in former}
        assert set(fields) == set(proto), message
        for number, field in fields.items():
            expected = proto[number]
            expected_type = (
                expected.type.replace(".v1beta2.", ".v1.") if is_newer else expected.type
            )
            home, separator, bare = field.type.rpartition("#")
            type_ = SCALARS.get(field.type) or (proto_name(home, bare) if separator else bare)
            where = (message, number)
            assert LABELS[field.container] == expected.label, where
            # A few names of generated.proto differ from those in JSON by case or by signs.
            plain = (field.name or expected.name).replace("-", "").lstrip("$")
            if "PropsOr" not in name:  # of which JSON has no names
                assert plain.lower() == expected.name.lower(), where
            assert expected_type == type_ or expected_type.endswith(f".{type_}"), where


@needs_sources
@pytest.mark.parametrize(("path", "expected"), list(served_examples()))
def test_examples_decode_to_the_json_of_kubernetes(path: Path, expected: Any) -> None:
    assert decode_protobuf(path.read_bytes()) == expected


@needs_sources
def test_table_is_what_the_tool_writes() -> None:
    tool = Path(__file__).parents[4] / "tools/kubernetes_protobuf_fields.py"
    command = [sys.executable, str(tool), str(API), str(MACHINERY), str(EXTENSIONS)]
    assert subprocess.check_output(command, text=True) == TABLE.read_text()


JSON_ONLY = (
    "APIService", "ClusterTrustBundle", "NodeMetrics", "PodCertificateRequest",
    "PodGroup", "PodMetrics", "StorageVersionMigration", "Workload",
)  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    [each for each in all_builtin_kinds() if each.kind not in JSON_ONLY],
    ids=lambda kind: f"{kind.api_version}.{kind.kind}",
)
def test_every_built_in_kind_is_in_the_table(kind) -> None:
    assert find_message(kind.api_version, kind.kind) == f"{kind.api_version}#{kind.kind}"


def test_deletion_options_are_read_in_any_group() -> None:
    assert find_message("batch.example.com/v1", "DeleteOptions") == "meta.k8s.io/v1#DeleteOptions"
    assert find_message("batch.example.com/v1", "Job") is None


@needs_sources
@pytest.mark.parametrize(("path", "expected"), list(served_examples()))
def test_encoder_of_the_tests_writes_what_kubernetes_writes(path: Path, expected: Any) -> None:
    assert decode_protobuf(encode_body(expected)) == expected


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def test_a_definition_has_the_schema_that_its_protobuf_form_stands_for() -> None:
    """Texts, doubles, embedded JSON, and the fields that are one of two things."""
    text, flag = field(5, b"string"), bytes([2 << 3, 0])
    number = (
        field(5, b"integer") + varint(9 << 3 | 1) + struct.pack("<d", 3) + field(8, field(1, b"0"))
    )
    listed = field(5, b"array") + field(24, field(1, text))
    mapped = field(5, b"object") + field(30, field(2, text))
    closed = field(5, b"object") + field(30, bytes([1 << 3, 0]))
    members = {b"n": number, b"l": listed, b"m": mapped, b"c": closed}
    schema = field(5, b"object") + b"".join(
        field(29, field(1, name) + field(2, part)) for name, part in members.items()
    )
    version = field(1, b"v1") + flag + field(4, field(1, schema)) + field(5, field(1, b""))
    raw = field(1, field(1, b"x")) + field(2, field(1, b"g") + field(7, version))
    type_ = field(1, b"apiextensions.k8s.io/v1") + field(2, b"CustomResourceDefinition")
    read = decode_protobuf(b"k8s\0" + field(1, type_) + field(2, raw))
    [made] = read["spec"]["versions"]
    assert made["subresources"] == {"status": {}}
    assert made["schema"]["openAPIV3Schema"]["properties"] == {
        "n": {"type": "integer", "maximum": 3, "default": 0},
        "l": {"type": "array", "items": {"type": "string"}},
        "m": {"type": "object", "additionalProperties": {"type": "string"}},
        "c": {"type": "object", "additionalProperties": False},
    }
