"""Requests to an API server, generated from the schemas of its own OpenAPI document.

Each starts from a valid object of ``valid_objects.yaml``: as it is, with one value changed, removed
or added, or with several. The same seed gives the same requests.
"""

import copy
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import yaml

Json: TypeAlias = dict[str, Any]
FieldPath: TypeAlias = tuple[str | int, ...]

NAMESPACE = "generated"
VALID_OBJECTS = Path(__file__).parent / "valid_objects.yaml"
CLUSTER_WIDE = {
    "Namespace", "Node", "PersistentVolume", "PriorityClass", "StorageClass", "CSIDriver",
    "CSINode", "VolumeAttachment", "RuntimeClass", "ClusterRole", "ClusterRoleBinding",
    "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration", "CustomResourceDefinition",
    "APIService",
}  # fmt: skip
WITH_STATUS = {
    "Namespace", "Node", "Pod", "Service", "PersistentVolume", "PersistentVolumeClaim", "Job",
    "ResourceQuota", "Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "CronJob", "Ingress",
    "PodDisruptionBudget", "ReplicationController", "HorizontalPodAutoscaler", "VolumeAttachment",
}  # fmt: skip
TEXTS = ("", "x", "Not Valid!", "a" * 300, "a/b", "../a", "1", "10.0.0.300", "-a")
NUMBERS = (0, 1, -1, 70_000, 2**31)
PATCHES = {
    "json": "application/json-patch+json",
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
}
SELECTORS = (
    "labelSelector=app=a", "labelSelector=app!=a", "labelSelector=app in (a,b)",
    "labelSelector=!app", "labelSelector=app in", "labelSelector=-a=b", "labelSelector=app=B!",
    "fieldSelector=metadata.name=base", "fieldSelector=metadata.name!=base",
    "fieldSelector=metadata.namespace=generated", "fieldSelector=spec.nothing=1",
    "fieldSelector=status.phase=Running", "fieldSelector=type=Opaque",
    "fieldSelector=metadata.name", "limit=1", "limit=-1", "limit=x", "continue=nonsense",
    "resourceVersion=0", "resourceVersion=x", "resourceVersionMatch=Exact", "timeoutSeconds=x",
    "resourceVersion=1&resourceVersionMatch=NotOlderThan",
)  # fmt: skip
DELETE_OPTIONS: Sequence[Json] = (
    {}, {"propagationPolicy": "Background"}, {"propagationPolicy": "Sideways"},
    {"propagationPolicy": "Orphan", "orphanDependents": True}, {"orphanDependents": True},
    {"gracePeriodSeconds": -5}, {"gracePeriodSeconds": 0}, {"gracePeriodSeconds": "x"},
    {"preconditions": {"uid": "x"}}, {"preconditions": {"resourceVersion": "1"}},
    {"dryRun": ["Some"]}, {"kind": "Pod"}, {"kind": "DeleteOptions", "apiVersion": "v1"},
    {"surprise": 1},
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    """Path and query."""
    body: Any = None
    media: str = "application/json"
    about: str = ""
    """The kind, and what was changed."""


def valid_objects() -> list[Json]:
    text = VALID_OBJECTS.read_text().replace("NAMESPACE", NAMESPACE)
    return list(yaml.safe_load_all(text))


def collection(obj: Json) -> str:
    """The path of the objects of the kind of ``obj``."""
    version, kind = obj["apiVersion"], obj["kind"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    plural = kind.lower()
    if plural.endswith(("ss", "ch")):
        plural += "es"
    elif plural.endswith("y"):
        plural = plural[:-1] + "ies"
    elif not plural.endswith("s"):
        plural += "s"
    return f"{root}/{plural}" if kind in CLUSTER_WIDE else f"{root}/namespaces/{NAMESPACE}/{plural}"


@dataclass
class Generator:
    definitions: Json
    """Of the OpenAPI document of version 2."""
    random: random.Random
    _schemas: dict[tuple[str, str], Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for schema in self.definitions.values():
            for named in schema.get("x-kubernetes-group-version-kind", ()):
                group = f"{named['group']}/" if named["group"] else ""
                self._schemas[group + named["version"], named["kind"]] = schema

    def requests(self, count: int) -> list[Request]:
        makers = [self._create] * 5 + [self._update] * 2 + [self._patch] * 4
        makers += [self._apply, self._list, self._delete, self._status]
        objects = valid_objects()
        first = [
            Request(
                "POST", f"{collection(obj)}?dryRun=All", _new(obj), about=f"{obj['kind']} valid"
            )
            for obj in objects
        ]
        made = [self.random.choice(makers)(self.random.choice(objects)) for _ in range(count)]
        return (first + made)[:count]

    def schema_of(self, obj: Json) -> Json:
        return self._schemas[obj["apiVersion"], obj["kind"]]

    def known(self, obj: Any, schema: Json) -> Any:
        """Return a copy of an object without the fields that its schema does not have."""
        schema = self._resolve(schema)
        if isinstance(obj, list):
            return [self.known(item, schema.get("items", {})) for item in obj]
        if not isinstance(obj, dict) or not (named := schema.get("properties")):
            more = schema.get("additionalProperties")
            if isinstance(obj, dict) and more:
                return {name: self.known(value, more) for name, value in obj.items()}
            return obj
        return {n: self.known(value, named[n]) for n, value in obj.items() if n in named}

    def _create(self, base: Json) -> Request:
        obj, about = self._changed(_new(base))
        return Request("POST", f"{collection(base)}?dryRun=All", obj, about=about)

    def _update(self, base: Json) -> Request:
        obj, about = self._changed(base)
        return Request("PUT", f"{_one(base)}?dryRun=All", obj, about=about)

    def _status(self, base: Json) -> Request:
        if base["kind"] not in WITH_STATUS:
            return self._update(base)
        obj = copy.deepcopy(base)
        schema = self._resolve(self.schema_of(base)["properties"]["status"])
        obj["status"] = self._value(schema, 2)
        about = f"{base['kind']} status {json.dumps(obj['status'])[:200]}"
        return Request("PUT", f"{_one(base)}/status?dryRun=All", obj, about=about)

    def _patch(self, base: Json) -> Request:
        kind = self.random.choice(list(PATCHES))
        path, value, removes = self._change(base)
        if kind == "json":
            pointer = "/" + "/".join(
                str(part).replace("~", "~0").replace("/", "~1") for part in path
            )
            step: Json = {"op": "remove" if removes else "add", "path": pointer}
            patch: Any = [step if removes else {**step, "value": value}]
        else:
            patch = None if removes else value
            for part in reversed(path):
                patch = [patch] if isinstance(part, int) else {part: patch}
        return Request("PATCH", f"{_one(base)}?dryRun=All", patch, PATCHES[kind],
                       f"{base['kind']} {kind} {json.dumps(patch)[:200]}")  # fmt: skip

    def _apply(self, base: Json) -> Request:
        obj, about = self._changed(base)
        force = self.random.choice(("", "&force=true"))
        path = f"{_one(base)}?dryRun=All&fieldManager=tester{force}"
        return Request("PATCH", path, obj, "application/apply-patch+yaml", about)

    def _list(self, base: Json) -> Request:
        query = self.random.choice(SELECTORS).replace(" ", "%20").replace("!", "%21")
        return Request("GET", f"{collection(base)}?{query}", about=f"{base['kind']} {query}")

    def _delete(self, base: Json) -> Request:
        options = {"dryRun": ["All"]} | self.random.choice(DELETE_OPTIONS)
        return Request("DELETE", _one(base), options, about=f"{base['kind']} {options}")

    def _changed(self, base: Json) -> tuple[Json, str]:
        obj = copy.deepcopy(base)
        notes = []
        for _ in range(self.random.choice((1, 1, 1, 2))):
            path, value, removes = self._change(obj)
            _set(obj, path, value, removes)
            notes.append(
                f"{'.'.join(map(str, path))} {'-' if removes else json.dumps(value)[:120]}"
            )
        return obj, f"{base['kind']} {'; '.join(notes)}"

    def _change(self, obj: Json) -> tuple[FieldPath, Any, bool]:
        """Return the path of a value, what it becomes, and whether it is removed instead."""
        schema = self.schema_of(obj)
        places = [place for place in _places(obj, schema, self._resolve)
                  if place[0] and place[0][0] not in ("apiVersion", "kind", "status")]  # fmt: skip
        path, inner = self.random.choice(places or [(("surprise",), {})])
        what = self.random.random()
        if what < 0.15:
            return path, None, True
        resolved = self._resolve(inner)
        if what < 0.5 and resolved.get("properties"):
            name = self.random.choice([*resolved["properties"], "surprise"])
            if (*path, name)[0] != "status":
                value = self._value(resolved["properties"].get(name, {}), 2)
                return (*path, name), value, False
        if what < 0.6:
            return path, self.random.choice(("text", 7, True, None, [], {})), False
        return path, self._value(resolved, 2), False

    def _value(self, schema: Json, depth: int) -> Any:
        schema = self._resolve(schema)
        match schema.get("type"):
            case "string" if schema.get("format") == "date-time":
                return self.random.choice(("2026-01-01T00:00:00Z", "yesterday"))
            case "string":
                return self.random.choice(TEXTS)
            case "integer" | "number":
                return self.random.choice(NUMBERS)
            case "boolean":
                return self.random.choice((True, False))
            case "array":
                return [self._value(schema.get("items", {}), depth)] * self.random.choice(
                    (0, 1, 1, 2)
                )
            case "object" if "additionalProperties" in schema:
                key = self.random.choice(TEXTS[1:])
                return {key: self._value(schema["additionalProperties"], depth)}
            case _ if schema.get("properties"):
                names = [
                    n for n in schema["properties"] if depth or n in schema.get("required", ())
                ]
                chosen = self.random.sample(names, min(len(names), self.random.choice((0, 1, 2))))
                chosen += [n for n in schema.get("required", ()) if self.random.random() < 0.8]
                return {n: self._value(schema["properties"][n], max(0, depth - 1)) for n in chosen}
        return self.random.choice(TEXTS)

    def _resolve(self, schema: Json) -> Json:
        while "$ref" in schema:
            schema = self.definitions[schema["$ref"].rpartition("/")[2]]
        return schema


def _new(base: Json) -> Json:
    """A copy of an object with another name, where the name is not part of its content."""
    obj = copy.deepcopy(base)
    if obj["metadata"]["name"].startswith("base") and obj["kind"] != "CustomResourceDefinition":
        obj["metadata"]["name"] = "created"
    return obj


def _one(base: Json) -> str:
    return f"{collection(base)}/{base['metadata']['name']}"


def _set(obj: Any, path: FieldPath, value: Any, removes: bool) -> None:
    for part in path[:-1]:
        obj = obj[part]
    if removes:
        del obj[path[-1]]
    elif not isinstance(obj, bool | int | str | None):  # which an earlier change made of it
        obj[path[-1]] = value


def _places(
    obj: Any, schema: Json, resolve: Any, path: FieldPath = ()
) -> Iterator[tuple[FieldPath, Json]]:
    """Yield the paths of all values of an object, with their schemas."""
    schema = resolve(schema)
    yield path, schema
    if isinstance(obj, list):
        for index, item in enumerate(obj):
            yield from _places(item, schema.get("items", {}), resolve, (*path, index))
    elif isinstance(obj, dict):
        named, other = schema.get("properties", {}), schema.get("additionalProperties", {})
        for name, value in obj.items():
            inner = named.get(name, other if isinstance(other, dict) else {})
            yield from _places(value, inner, resolve, (*path, name))
