"""Processor time of reading a client's input, at sizes n, 2n and 4n: it grows with the size.

There is no peer: a factor of about two from one size to the next means linear time, a factor of
four means that the time grows with the square. Run without a server, in one process.
"""

import gc
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from gangline.api.jsonpath import JSONPath, JSONPathError
from gangline.api.meta.selectors import parse_field_selector, parse_label_selector
from gangline.local.apiserver.core.negotiation import read_json_document, read_yaml
from gangline.local.apiserver.core.registry import all_builtin_kinds
from gangline.local.apiserver.machinery.encoding import decode_protobuf
from gangline.local.apiserver.machinery.managed_fields import track_update
from gangline.local.apiserver.machinery.patches import json_patch, strategic_merge_patch
from gangline.local.apiserver.machinery.printing.table import find_printer, render_table
from gangline.local.apiserver.machinery.schema.structural import StructuralSchema
from gangline.local.apiserver.machinery.schema.value_rules import compile_pattern
from gangline.local.apiserver.machinery.server_side_apply import server_side_apply

Json = dict[str, Any]
NOW = datetime(2026, 1, 1, tzinfo=UTC)
REPEATS = 3
SCHEMAS = {kind.kind: kind.schema.schema for kind in all_builtin_kinds() if kind.version == "v1"}
UNIQUE = StructuralSchema({
    "type": "object",
    "properties": {"spec": {
        "type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}},
})  # fmt: skip


def pod(variables: int) -> Json:
    env = [{"name": f"E{n}", "value": "v"} for n in range(variables)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i", "env": env}]},
    }


def config_map(managers: int) -> Json:
    entries = [
        {"manager": f"m{n}", "operation": "Apply" if n % 2 else "Update", "apiVersion": "v1",
         "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": {"f:a": {}}}
        for n in range(managers)
    ]  # fmt: skip
    data = {f"k{n}": "v" for n in range(managers)}
    metadata = {"name": "c", "managedFields": entries}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def managed_fields(size: int) -> Callable[[], object]:
    new, old = config_map(size), {**config_map(0), "data": {"a": "b"}}
    return lambda: track_update(old, new, SCHEMAS["ConfigMap"], manager="m", now=NOW)


def apply(size: int) -> Callable[[], object]:
    live, applied = config_map(size), {**config_map(0), "data": {"a": "b"}}
    del applied["metadata"]["managedFields"]
    schema = SCHEMAS["ConfigMap"]
    return lambda: server_side_apply(live, applied, schema, manager="m", now=NOW, force=True)


def strategic(size: int) -> Callable[[], object]:
    document, patch = pod(size), pod(size)
    patch["spec"]["containers"][0]["$setElementOrder/env"] = [
        {"name": f"E{n}"} for n in range(size)
    ]
    return lambda: strategic_merge_patch(document, patch, SCHEMAS["Pod"])


def strategic_deletions(size: int) -> Callable[[], object]:
    names = [f"a/{n}" for n in range(size)]
    patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": names[::-1]}}
    return lambda: strategic_merge_patch({"metadata": {"finalizers": names}}, patch, SCHEMAS["Pod"])


def operations(size: int) -> Callable[[], object]:
    patch = [{"op": "add", "path": f"/a/k{n}", "value": {"x": n}} for n in range(size)]
    return lambda: json_patch({"a": {}}, patch)


def protobuf(size: int) -> Callable[[], object]:
    type_ = b"\x0a\x1crbac.authorization.k8s.io/v1\x12\x0bRoleBinding"
    subjects, length = b"\x12\x00" * size, 2 * size
    varint = bytes([length & 0x7F | 0x80, length >> 7 & 0x7F | 0x80, length >> 14])
    body = b"k8s\0\x0a" + bytes([len(type_)]) + type_ + b"\x12" + varint + subjects
    return lambda: decode_protobuf(body)


def duplicates(size: int) -> Callable[[], object]:
    value = {"spec": [f"s{n % (size // 2)}" for n in range(size)]}
    return lambda: UNIQUE.validate(value)


def table(size: int) -> Callable[[], object]:
    column = {"name": "A", "type": "string", "jsonPath": ".spec.x[?(@.a==1)].b"}
    printer = find_printer("example.com", "Thing", [column])
    thing = {"metadata": {"name": "a"}, "spec": {"x": [{"a": n % 2, "b": "c"} for n in range(10)]}}
    return lambda: render_table(printer, [thing] * size, now=NOW)


def json_path(size: int) -> Callable[[], object]:
    def read() -> None:
        try:
            JSONPath(".a" * size)
        except JSONPathError as error:
            raise AssertionError("within the limit") from error

    return read


CASES: tuple[tuple[str, Callable[[int], Callable[[], object]], int], ...] = (
    ("update with n managers", managed_fields, 2000),
    ("apply with n managers", apply, 2000),
    ("strategic merge of n items by key", strategic, 2000),
    ("strategic deletion of n items", strategic_deletions, 5000),
    ("JSON patch of n operations", operations, 2000),
    ("protobuf with n subjects", protobuf, 10_000),
    ("n values of a set", duplicates, 10_000),
    ("table of n rows", table, 2000),
    ("label selector of n terms", lambda n: lambda: parse_label_selector("!a," * n + "b"), 2000),
    ("field selector of n terms", lambda n: lambda: parse_field_selector("a=b," * n + "a=b"), 2000),
    ("JSONPath of n parts", json_path, 500),
    ("pattern ^(a+)+$ on n characters",
     lambda n: lambda: compile_pattern("^(a+)+$").occurs_in("a" * n + "b"), 250_000),
    ("YAML list of n objects", lambda n: lambda: read_yaml(b"- {a: 1}\n" * n), 1500),
    ("JSON of n values", lambda n: lambda: read_json_document(b"[" + b"1," * n + b"1]"), 20_000),
)  # fmt: skip


def seconds(run: Callable[[], object]) -> float:
    started = time.process_time()
    run()
    return time.process_time() - started


def main() -> None:
    print("processor time of reading input of sizes n, 2n, 4n, best of", REPEATS)
    gc.disable()  # it walks all objects now and then, whatever is measured
    for name, prepare, size in CASES:
        found = [
            min(seconds(prepare(size * factor)) for _ in range(REPEATS)) for factor in (1, 2, 4)
        ]
        times = " ".join(f"{each * 1000:8.1f}" for each in found)
        first, second = found[1] / found[0], found[2] / found[1]
        print(f"  {name:34} n={size:7} {times} ms, factors {first:.1f} and {second:.1f}")


if __name__ == "__main__":
    main()
