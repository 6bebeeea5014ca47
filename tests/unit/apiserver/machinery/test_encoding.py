"""Protobuf bodies: recorded from kubectl, generated, and damaged."""

import base64
import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.local.apiserver.machinery import encoding
from gangline.local.apiserver.machinery.encoding import (
    JSON_ERRORS,
    ProtobufError,
    UnknownProtobufKind,
    decode_json,
    decode_protobuf,
    find_excess,
)

DEPLOYMENT = base64.b64decode(
    "azhzAAoVCgdhcHBzL3YxEgpEZXBsb3ltZW50EroBCh8KA3dlYhIAGgAiACoAMgA4AEIAWgoKA2FwcBIDd2ViEogBCAASDAoK"
    "CgNhcHASA3dlYhpuChwKABIAGgAiACoAMgA4AEIAWgoKA2FwcBIDd2ViEk4SMAoFbmdpbngSB25naW54OjEqADIKCgAQABhQ"
    "IgAqAEIAagByAIABAIgBAJABAKIBABoAMgBCAEoAUgBYAGAAaACCAQCKAQCaAQDCAQAiAgoAKAA4ABoMCAAQABgAIAAoADgA"
    "GgAiAA=="
)
SERVICE = base64.b64decode(
    "azhzAAoNCgJ2MRIHU2VydmljZRJmChsKAXMSABoAIgAqADIAOABCAFoICgNhcHASAXMSQwoeCgc4MC1odHRwEgNUQ1AYUCIK"
    "CAEQABoEaHR0cCgAEggKA2FwcBIBcxoAIglDbHVzdGVySVA6AEIAUgBaAGAAaAAaAgoAGgAiAA=="
)


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(number: int, value: Any) -> bytes:
    """Encode a number, a text or a message; a list is a message of its members."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value & (1 << 64) - 1)
    raw = value.encode() if isinstance(value, str) else b"".join(value)
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def a_body(api_version: str, kind: str, *fields: bytes) -> bytes:
    type_ = [field(1, api_version), field(2, kind)]
    return b"k8s\x00" + field(1, type_) + field(2, fields)


NAMED_X = field(1, [field(1, "x")])


def test_a_deployment_of_kubectl_reads_as_its_json() -> None:
    container = {"name": "nginx", "image": "nginx:1", "ports": [{"containerPort": 80}]}
    assert decode_protobuf(DEPLOYMENT) == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [container]},
            },
        },
    }


def test_a_service_of_kubectl_keeps_the_name_of_its_target_port() -> None:
    (port,) = decode_protobuf(SERVICE)["spec"]["ports"]
    assert port == {"name": "80-http", "protocol": "TCP", "port": 80, "targetPort": "http"}


def test_bytes_times_amounts_and_maps_are_written_as_in_json() -> None:
    meta = field(1, [field(1, "x"), field(8, [field(1, 1_700_000_000), field(2, 5)])])
    secret = decode_protobuf(a_body("v1", "Secret", meta, field(2, [field(1, "k"), field(2, "v")])))
    assert secret["data"] == {"k": "dg=="}
    assert secret["metadata"]["creationTimestamp"] == "2023-11-14T22:13:20Z"
    hard = field(1, [field(1, "cpu"), field(2, [field(1, "500m")])])
    quota = decode_protobuf(a_body("v1", "ResourceQuota", NAMED_X, field(2, [hard])))
    assert quota["spec"] == {"hard": {"cpu": "500m"}}


def test_parts_without_a_name_lie_flat_in_their_parent() -> None:
    volume = field(1, [field(1, "v"), field(2, [field(2, [])])])
    secret = field(1, [field(1, "s"), field(2, [field(6, [field(1, "name")])])])
    pod = decode_protobuf(a_body("v1", "Pod", NAMED_X, field(2, [volume, secret])))
    # emptyDir is an empty message, and still a volume source.
    assert pod["spec"]["volumes"] == [
        {"name": "v", "emptyDir": {}},
        {"name": "s", "secret": {"secretName": "name"}},
    ]


def test_negative_numbers_are_negative() -> None:
    classed = decode_protobuf(a_body("scheduling.k8s.io/v1", "PriorityClass", field(2, -5)))
    assert classed["value"] == -5


FIXED = varint(99 << 3 | 1) + bytes(8)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([NAMED_X, field(77, "odd")], "unknown field 77 in Namespace"),
        ([field(1, [field(99, 1)])], "unknown field 99 in ObjectMeta"),
        ([FIXED], "unknown field 99 in Namespace"),
        ([field(1, [field(8, [field(3, 1)])])], "unknown field 3 in Time"),
        ([field(1, [field(11, [field(3, "x")])])], "unknown field 3 in an entry of labels"),
    ],
)
def test_unknown_field_is_an_error_with_its_number(fields: list[bytes], message: str) -> None:
    with pytest.raises(ProtobufError, match=message):
        decode_protobuf(a_body("v1", "Namespace", *fields))


def test_unknown_field_of_the_envelope_is_an_error() -> None:
    with pytest.raises(ProtobufError, match="unknown field 5 in Unknown"):
        decode_protobuf(a_body("v1", "Namespace") + field(5, "x"))


def test_field_that_older_clients_write_is_read() -> None:
    body = a_body("v1", "Namespace", field(1, [field(1, "x"), field(15, "")]))
    assert decode_protobuf(body)["metadata"] == {"name": "x"}


def test_events_of_both_groups_have_their_own_numbers() -> None:
    event = decode_protobuf(
        a_body("events.k8s.io/v1", "Event", NAMED_X, field(2, [field(1, 1_700_000_000)]),
               field(7, "Bound"), field(10, "placed"))
    )  # fmt: skip
    assert event["eventTime"] == "2023-11-14T22:13:20.000000Z"
    assert (event["reason"], event["note"]) == ("Bound", "placed")
    event = decode_protobuf(a_body("v1", "Event", NAMED_X, field(3, "Bound"), field(4, "placed")))
    assert (event["reason"], event["message"]) == ("Bound", "placed")


def test_unknown_kind_is_reported() -> None:
    with pytest.raises(UnknownProtobufKind, match="Odd"):
        decode_protobuf(a_body("v1", "Odd"))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"{}", id="JSON"),
        pytest.param(DEPLOYMENT[:40], id="cut short"),
        pytest.param(a_body("v1", "Namespace", field(1, 5)), id="number for a message"),
        pytest.param(a_body("v1", "Namespace", field(1, [field(7, "x")])), id="text for a number"),
        pytest.param(a_body("v1", "Namespace", field(1, [field(1, [b"\xff"])])), id="no UTF-8"),
        pytest.param(a_body("v1", "Namespace", b"\xff" * 12), id="endless number"),
        pytest.param(a_body("v1", "Namespace", b"\x0b"), id="unknown wire type"),
    ],
)
def test_what_is_no_message_is_refused(body: bytes) -> None:
    with pytest.raises(ProtobufError):
        decode_protobuf(body)


@given(st.integers(0, len(DEPLOYMENT) - 1), st.integers(0, 255))
def test_a_damaged_body_is_read_or_refused(place: int, byte: int) -> None:
    body = DEPLOYMENT[:place] + bytes([byte]) + DEPLOYMENT[place + 1 :]
    try:
        found = decode_protobuf(body)
    except ProtobufError:
        return
    assert json.loads(json.dumps(found)) == found


LEAVES = (
    "",
    "plain",
    '"quoted"',
    "back\\slash",
    '\\"',
    "[{,:}]",
    "ü€",
    0,
    -1.5,
    None,
    True,
    [],
    {},
)


def random_value(random_source: random.Random, depth: int) -> Any:
    if depth == 0 or random_source.random() < 0.2:
        return random_source.choice(LEAVES)
    members = [random_value(random_source, depth - 1) for _ in range(random_source.randrange(5))]
    if random_source.random() < 0.5:
        return members
    return {f"{random_source.choice(LEAVES)}{n}": member for n, member in enumerate(members)}


def count_values(value: Any) -> int:
    """The definition: 1, and each field and each element at any depth."""
    members = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(members, list):
        return 1
    return 1 + sum(count_values(member) for member in members)


@pytest.mark.parametrize("slice_bytes", [1, 7, 64])
def test_decoding_in_slices_gives_the_value_of_the_text(
    monkeypatch: pytest.MonkeyPatch, slice_bytes: int
) -> None:
    monkeypatch.setattr(encoding, "SLICE_BYTES", slice_bytes)
    source = random.Random(slice_bytes)
    for _ in range(200):
        value = random_value(source, 6)
        for indent in (None, 2):
            text = json.dumps(value, indent=indent, ensure_ascii=source.random() < 0.5).encode()
            assert decode_json(b" \n" + text) == value


@pytest.mark.parametrize(
    "text",
    [
        b'{"a": [1, 2, tru], "b": 1}',
        b'{"a": {"b": "\xff\xff\xff\xff\xff"}}',
        b'{"a": [1, 2, 3, 4, 5, 6]',
        b'{"a": "a text with a bad escape \\x"}',
        b"[1, 2, 3, 4, 5, 6]]",
        b"[1, 2, 3, 4, 5, 06]",
        b"[" * 100_000,
    ],
)
def test_text_that_is_not_json_is_an_error_in_any_slice(
    monkeypatch: pytest.MonkeyPatch, text: bytes
) -> None:
    with pytest.raises(JSON_ERRORS):
        msgspec.json.decode(text)
    for slice_bytes in (1, 4, 16):
        monkeypatch.setattr(encoding, "SLICE_BYTES", slice_bytes)
        with pytest.raises(JSON_ERRORS) as caught:
            decode_json(text)
        assert "(byte" not in str(caught.value)


@pytest.mark.parametrize("scan_bytes", [1, 2, 3, 10, 1000])
def test_values_are_counted_as_the_decoded_ones(
    monkeypatch: pytest.MonkeyPatch, scan_bytes: int
) -> None:
    monkeypatch.setattr(encoding, "SCAN_BYTES", scan_bytes)
    source = random.Random(scan_bytes)
    for _ in range(200):
        value = random_value(source, 5)
        text = json.dumps(value, indent=source.choice([None, 1])).encode()
        count = count_values(value)
        assert not find_excess(text, count, 100)
        assert find_excess(text, count - 1, 100) == "values"


def test_long_lists_and_objects_are_refused_before_their_end() -> None:
    assert find_excess(b"[" + b"1," * 1_000_000, 100_000, 100) == "values"
    assert find_excess(b'{"a":[' + b"{}," * 900_000, 100_000, 100) == "values"
    assert find_excess(b"[" * 1_000_000, 100_000, 100) == "depth"
    assert not find_excess(b'["' + b",[{" * 900_000 + b'"]', 100_000, 100)
