"""The parsers of a client's input, as functions of bytes, with the errors that they may raise."""

import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any

from gangline.api.jsonpath import JSONPath, JSONPathError
from gangline.api.meta.selectors import SelectorError, parse_field_selector, parse_label_selector
from gangline.api.quantity import QuantityError, parse_quantity
from gangline.local.apiserver.core import conversion, negotiation, prepare, request
from gangline.local.apiserver.core.errors import StatusError
from gangline.local.apiserver.core.registry import Registry, ServedKind, all_builtin_kinds
from gangline.local.apiserver.core.request import ApiRequest
from gangline.local.apiserver.kubelet_proxy.spdy import DICTIONARY, SpdyError, SpdySession
from gangline.local.apiserver.kubelet_proxy.streams import decode_channel_message
from gangline.local.apiserver.machinery.managed_fields import decode_fields, encode_fields
from gangline.local.apiserver.machinery.schema.value_rules import PatternError, compile_pattern
from gangline.local.apiserver.verbs.read import _decode_continue_token, parse_revision
from gangline.local.apiserver.verbs.rest import make_patcher
from gangline.local.apiserver.verbs.write import apply_configuration, read_apply_patch
from gangline.local.kubelet.server import parse_terminal_size
from gangline.operator.webhook.progress_endpoint import RefusedReport, parse_report
from security.fuzz import jobs
from security.fuzz.mutations import mutate_bytes, mutate_json

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Target:
    """One parser."""

    run: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]
    """What it may raise for invalid input."""
    seeds: tuple[bytes, ...]
    tokens: tuple[bytes, ...] = ()
    """Pieces of its language."""
    mutate: Callable[..., bytes] = field(default=mutate_bytes)


POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "p",
        "namespace": "default",
        "uid": "u",
        "resourceVersion": "1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"a": "b"},
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"},
        "finalizers": ["a/b"],
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": "o"}],
        "managedFields": [
            {"manager": m, "operation": o, "apiVersion": "v1", "time": "2026-01-01T00:00:00Z",
             "fieldsType": "FieldsV1", "fieldsV1": {
                 "f:metadata": {"f:labels": {".": {}, "f:a": {}}},
                 "f:spec": {"f:containers": {'k:{"name":"c"}': {".": {}, "f:image": {}}}}}}
            for m, o in (("kubectl", "Apply"), ("other", "Update"))
        ],
    },
    "spec": {
        "containers": [{
            "name": "c", "image": "i:1", "command": ["sh"],
            "ports": [{"containerPort": 80, "name": "web"}],
            "env": [{"name": "A", "value": "b"}],
            "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
            "readinessProbe": {"httpGet": {"path": "/", "port": "web"}},
            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        }],
        "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}],
        "tolerations": [{"key": "k", "operator": "Exists", "tolerationSeconds": 5}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [
                {"key": "k", "operator": "In", "values": ["v"]}]}]}}},
    },
    "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
}  # fmt: skip
SERVICE = {
    "apiVersion": "v1", "kind": "Service", "metadata": {"name": "p", "namespace": "default"},
    "spec": {"type": "NodePort", "selector": {"a": "b"},
             "ports": [{"name": "p", "port": 80, "targetPort": "web"}]},
}  # fmt: skip
DEPLOYMENT = {
    "apiVersion": "apps/v1", "kind": "Deployment",
    "metadata": {"name": "p", "namespace": "default"},
    "spec": {"replicas": 1, "selector": {"matchLabels": {"a": "b"}},
             "template": {"metadata": {"labels": {"a": "b"}}, "spec": POD["spec"]}},
}  # fmt: skip
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": "things.example.com"},
    "spec": {
        "group": "example.com", "scope": "Namespaced",
        "names": {"plural": "things", "kind": "Thing", "shortNames": ["th"]},
        "versions": [{
            "name": "v1", "served": True, "storage": True,
            "subresources": {"status": {}, "scale": {
                "specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n"}},
            "additionalPrinterColumns": [{"name": "N", "type": "string", "jsonPath": ".spec.n"}],
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                "spec": {"type": "object", "required": ["n"], "properties": {
                    "n": {"type": "integer", "minimum": 1, "default": 2, "enum": [2, 3]},
                    "m": {"type": "array", "x-kubernetes-list-type": "set",
                          "items": {"type": "string", "pattern": "^a"}},
                    "o": {"anyOf": [{"type": "string", "format": "quantity"}]},
                }}}}}}],
    },
}  # fmt: skip
WEBHOOK = {
    "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
    "metadata": {"name": "w"},
    "webhooks": [{
        "name": "a.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
        "clientConfig": {"url": "https://example.com/x"},
        "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"],
                   "resources": ["pods"]}]}],
}  # fmt: skip
OBJECTS = tuple(json.dumps(each).encode() for each in (POD, SERVICE, DEPLOYMENT, CRD, WEBHOOK))
NAMES = (b"metadata", b"spec", b"status", b"managedFields", b"name", b"f:a", b"k:{}", b"v:1", b".")


@cache
def kinds() -> dict[tuple[str, str], ServedKind]:
    return {(kind.api_version, kind.kind): kind for kind in all_builtin_kinds()}


@cache
def registry() -> Registry:
    found = Registry()
    found.add(all_builtin_kinds())
    return found


def _request(kind: ServedKind, verb: str, body: bytes, content_type: str) -> ApiRequest:
    namespace = "default" if kind.namespaced else None
    found = ApiRequest(kind, verb, namespace, "" if verb == "create" else "p", "", {})
    found.body, found.content_type = body, content_type
    found.params = {"fieldManager": "fuzz", "fieldValidation": "Strict", "force": "true"}
    return found


def read_json(body: bytes) -> None:
    value = negotiation.read_json_document(body)
    negotiation.encode_json(value)
    negotiation.find_duplicate_fields(body, "application/json")


def read_yaml(body: bytes) -> None:
    negotiation.encode_json(negotiation.read_yaml(body))


def read_protobuf(body: bytes) -> None:
    known = [b"Pod", b"RoleBinding", b"CustomResourceDefinition", b"DeleteOptions", b"Lease"]
    kind = known[body[0] % len(known)] if body else b"Pod"
    type_ = b"\x12" + bytes([len(kind)]) + kind
    size = len(body) - 1 if body else 0
    varint = b""
    while True:
        size, digit = size >> 7, size & 0x7F
        varint += bytes([digit | (0x80 if size else 0)])
        if not size:
            break
    whole = b"k8s\0\x0a" + bytes([len(type_)]) + type_ + b"\x12" + varint + body[1:]
    for content in (whole, b"k8s\0" + body):
        value = negotiation.read_body(content, "application/vnd.kubernetes.protobuf")
        negotiation.encode_json(value)


def write_object(body: bytes) -> None:
    """Creation of an object, up to what the store would do."""
    obj = negotiation.read_json_document(body)
    if not isinstance(obj, dict):
        return
    key = (str(obj.get("apiVersion")), str(obj.get("kind")))
    kind = kinds().get(key)
    if kind is None:
        return
    found = _request(kind, "create", body, "application/json")
    meta = prepare.check_identity(found, obj)
    meta.pop("resourceVersion", None)
    prepare.assign_name(found, meta)
    prepare.prune_unknown_fields(found, obj)
    _complete(kind, found, None, conversion.to_stored(kind, obj))


def _complete(kind: ServedKind, found: ApiRequest, old: Any, obj: Any) -> None:
    with prepare.report_type_errors(kind, obj):
        prepare.apply_defaults(kind, obj)
        prepare.track_managed_fields(found, old, obj, NOW)
    if old is None:
        prepare.validate_creation(kind, obj)
    else:
        prepare.validate_change(found, old, obj)
    prepare.check_size(found, obj, may_have_grown=True)


def _patcher(content_type: str) -> Callable[[bytes], None]:
    def run(body: bytes) -> None:
        kind = kinds()["v1", "Pod"]
        found = _request(kind, "patch", body, content_type)
        old = json.loads(OBJECTS[0])
        new = make_patcher(found, kind.schema.schema)(json.loads(OBJECTS[0]))
        prepare.check_identity(found, new)
        prepare.prune_unknown_fields(found, new)
        _complete(kind, found, old, new)

    return run


def server_side_apply(body: bytes) -> None:
    kind = kinds()["v1", "Pod"]
    found = _request(kind, "patch", body, "application/apply-patch+yaml")
    applied = read_apply_patch(found)
    old = json.loads(OBJECTS[0])
    for live in (old, None):
        new = apply_configuration(found, live, applied)
        prepare.check_identity(found, new)
        with prepare.report_type_errors(kind, new):
            prepare.apply_defaults(kind, new)
        prepare.validate_creation(kind, new)


def managed_fields(body: bytes) -> None:
    value = negotiation.read_json_document(body)
    encode_fields(decode_fields(value))
    kind = kinds()["v1", "Pod"]
    obj = json.loads(OBJECTS[0])
    obj["metadata"]["managedFields"] = value if isinstance(value, list) else [value]
    _complete(kind, _request(kind, "update", body, "application/json"), json.loads(OBJECTS[0]), obj)


def spdy(body: bytes) -> None:
    """Frames: a type byte, a length byte, then the payload; headers are deflated here."""
    session = SpdySession(lambda _: None, lambda _: None)
    deflate = zlib.compressobj(zdict=DICTIONARY)
    position = 0
    while position + 2 <= len(body):
        type_, size = body[position], body[position + 1] * 4
        payload = body[position + 2 : position + 2 + size]
        position += 2 + size
        if type_ % 8 == 0:
            block = deflate.compress(payload) + deflate.flush(zlib.Z_SYNC_FLUSH)
            payload = struct.pack(">IIBB", type_ >> 3, 0, 0, 0) + block
            session.feed(struct.pack(">HHI", 0x8003, 1, len(payload)) + payload)
        elif type_ % 8 == 1:
            session.feed(struct.pack(">II", type_ >> 3, len(payload)) + payload)
        else:
            session.feed(payload)
    session.end_streams()


def websocket(body: bytes) -> None:
    parse_terminal_size(body)
    decode_channel_message(body, encoded=False)
    decode_channel_message(body, encoded=True)


def text_parser(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda body: parse(body.decode(errors="surrogateescape"))


def _find(text: str) -> None:
    JSONPath(text).find(POD)


def _match_labels(text: str) -> None:
    selector = parse_label_selector(text)
    selector.matches({"a": "b", "n": "5"})
    parse_label_selector(str(selector))


def _pattern(text: str) -> None:
    pattern, _, value = text.partition("\n")
    compiled = compile_pattern(pattern)
    compiled.occurs_in((value * 50)[: compiled.max_chars])


def _target(text: str) -> None:
    path, options = request.split_target(text)
    found = request.resolve_request(registry(), "GET", path, options)
    for name in ("limit", "timeoutSeconds"):
        found.int_param(name)
    parse_revision(found.params.get("resourceVersion", ""))


JSON_SEED = b'{"a": [1, -2.5e3, "\\u00e9", null, true, {"b": {}}]}'
YAML_SEEDS = (
    b"apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n- a: &x 1\n  b: *x\n  <<: {c: 2}\n",
    b"- 1:30:00\n- 0o17\n- 0x1f\n- 1e3\n- .inf\n- 2026-01-01\n- !!str 5\n- |\n  text\n- ~\n- yes\n",
)
YAML_TOKENS = (b"&a ", b"*a", b"<<: ", b"!!int ", b"!!float ", b"!!bool ", b"? ", b": ", b"- ",
               b"{", b"}", b"[", b"]", b"---\n", b"...\n", b"%YAML 1.1\n", b"|", b">", b"0x",
               b"0b", b"1:1", b".", b"_", b"e9", b"'", b'"', b"\n  ", b"#", b"\\u",
               b"\xc3\xa9")  # fmt: skip
JSON_PATCH_SEED = json.dumps([
    {"op": "add", "path": "/metadata/labels/x", "value": "y"},
    {"op": "test", "path": "/spec/containers/0/name", "value": "c"},
    {"op": "copy", "from": "/spec/containers/0", "path": "/spec/containers/-"},
    {"op": "move", "from": "/metadata/labels/a", "path": "/metadata/labels/z"},
    {"op": "replace", "path": "/spec/containers/0/image", "value": "j"},
    {"op": "remove", "path": "/spec/volumes/0"},
]).encode()  # fmt: skip
PATH_TOKENS = (b"op", b"path", b"from", b"value", b"add", b"copy", b"move", b"test", b"remove",
               b"/metadata", b"/spec/containers/0", b"-", b"~0", b"~1")  # fmt: skip
STRATEGIC_SEED = json.dumps({
    "metadata": {"labels": {"a": None, "c": "d"}, "$deleteFromPrimitiveList/finalizers": ["a/b"]},
    "spec": {
        "containers": [{"name": "c", "image": "k"}, {"name": "d", "$patch": "delete"}],
        "$setElementOrder/containers": [{"name": "c"}],
        "volumes": [{"name": "v", "$retainKeys": ["name", "emptyDir"], "emptyDir": {}}],
        "tolerations": [{"$patch": "replace"}]},
}).encode()  # fmt: skip
STRATEGIC_TOKENS = (b"$patch", b"replace", b"delete", b"merge", b"$retainKeys", b"containers",
                    b"$deleteFromPrimitiveList/finalizers", b"$setElementOrder/containers", b"name",
                    b"finalizers")  # fmt: skip
SELECTOR_TOKENS = (b",", b"=", b"==", b"!=", b"!", b" in (", b" notin (", b")", b">", b"<", b"\\",
                   b"a", b"9", b" ", b"metadata.name")  # fmt: skip
REPORT = json.dumps({"trainerStatus": {
    "progressPercentage": 45, "estimatedRemainingSeconds": 130,
    "metrics": [{"name": "loss", "value": "0.12"}], "lastUpdatedTime": "2026-01-01T00:00:00+14:00",
}}).encode()  # fmt: skip
REPORT_TOKENS = (b"null", b"NaN", b"[" * 2000, b"9" * 5000, b"1e999", b"0001-01-01", b"9999-12-31",
                 b"\\ud800", b"\xff", b"-", b'"')  # fmt: skip
JSON_ERRORS = (StatusError,)
APPLIED = json.dumps({key: POD[key] for key in ("apiVersion", "kind", "spec")}).encode()

TARGETS: dict[str, Target] = {
    "json": Target(read_json, JSON_ERRORS, (JSON_SEED, OBJECTS[0]), (b"[", b"{", b'"', b"9", b"e")),
    "yaml": Target(read_yaml, JSON_ERRORS, YAML_SEEDS, YAML_TOKENS),
    "protobuf": Target(
        read_protobuf,
        JSON_ERRORS,
        (b"\x00\x0a\x03\x0a\x01p\x12\x08\x12\x06\x0a\x01c\x12\x01i", b"\x01\x12\x00\x12\x00",
         b"\x02\x0a\x03\x0a\x01p\x12\x10\x0a\x01g"),
        (b"\x0a\x00", b"\x12\x02", b"\xff\xff\xff\xff\x0f", b"\x08\x01", b"\x0a\x80\x01"),
    ),
    "objects": Target(write_object, JSON_ERRORS, OBJECTS, NAMES, mutate_json),
    "jobs": Target(jobs.run_job, JSON_ERRORS, jobs.SEEDS, jobs.TOKENS, mutate_json),
    "progress": Target(parse_report, (RefusedReport,), (REPORT,), REPORT_TOKENS),
    "json_patch": Target(
        _patcher("application/json-patch+json"), JSON_ERRORS, (JSON_PATCH_SEED,), PATH_TOKENS,
        mutate_json,
    ),
    "merge_patch": Target(
        _patcher("application/merge-patch+json"), JSON_ERRORS, (OBJECTS[0], b"{}"), NAMES,
        mutate_json,
    ),
    "strategic_merge_patch": Target(
        _patcher("application/strategic-merge-patch+json"),
        JSON_ERRORS, (STRATEGIC_SEED, OBJECTS[0]), STRATEGIC_TOKENS, mutate_json,
    ),
    "apply": Target(server_side_apply, JSON_ERRORS, (APPLIED,), NAMES, mutate_json),
    "managed_fields": Target(
        managed_fields, JSON_ERRORS, (json.dumps(POD["metadata"]["managedFields"]).encode(),),
        NAMES, mutate_json,
    ),
    "spdy": Target(
        spdy, (SpdyError,),
        (b"\x08\x04\0\0\0\1\0\0\0\1a\0\0\0\1b\0\0\x09\x01abcd\x02\x03\x80\x03\0\6\0\0\0\4\0\0\0\1",),
        (b"\0\0\0\1", b"\xff\xff\xff\xff", b"\x80\x03\0\1", b"\x80\x03\0\3"),
    ),
    "websocket": Target(
        websocket, (ValueError,), (b"\x00abc", b"0YWJj", b'{"Width": 80, "Height": 24}'), (b"0",)
    ),
    "label_selector": Target(
        text_parser(_match_labels), (SelectorError,), (b"a=b,c!=d,e in (f,g),!h,i>4",),
        SELECTOR_TOKENS,
    ),
    "field_selector": Target(
        text_parser(parse_field_selector), (SelectorError,), (b"metadata.name!=a,b=c\\,d",),
        SELECTOR_TOKENS,
    ),
    "jsonpath": Target(
        text_parser(_find), (JSONPathError,),
        (b'.status.conditions[?(@.type=="Ready")].status', b"{.spec['containers'][0:-1:1].*}"),
        (b"[", b"]", b"[*]", b"[?(@", b")]", b".", b"'", b'"', b"\\", b":", b"-1", b"==", b" "),
    ),
    "quantity": Target(
        text_parser(parse_quantity), (QuantityError,), (b"1.5Gi", b"-3e-7", b"250m"),
        (b"e", b"E", b"Ki", b"9", b".", b"-", b"+", b"n"),
    ),
    "pattern": Target(
        text_parser(_pattern), (PatternError,), (b"^(a+)+$\naaaa", b"[a-z]{1,9}(?P<x>\\d)\\z\nx"),
        (b"(", b")", b"*", b"+", b"{1000}", b"{2}", b"[^", b"]", b"\\p{L}", b"|", b"?:", b"\\b"),
    ),
    "target": Target(
        text_parser(_target), JSON_ERRORS,
        (b"/api/v1/namespaces/default/pods/p?watch=1&limit=5&resourceVersion=3",
         b"/apis/apps/v1/deployments?continue=x"),
        (b"/", b"%", b"%00", b"&", b"=", b"namespaces", b"watch", b"status", b"9" * 30),
    ),
    "continue": Target(
        text_parser(_decode_continue_token), JSON_ERRORS,
        (b"eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiJhIn0",), (b"=", b"e", b"_", b"-"),
    ),
    "accept": Target(
        text_parser(negotiation.choose_format), JSON_ERRORS,
        (b"application/json;as=Table;v=v1;g=meta.k8s.io;q=0.5,*/*",), (b";", b",", b"=", b"q=nan"),
    ),
}  # fmt: skip
