"""CustomResourceDefinitions: from a stored definition to served kinds.

A definition is complete when it is stored: the write checks its names and sets its conditions, and
its kinds are served before the response is sent. Deleting a definition first deletes its objects;
until then a finalizer blocks the deletion.
"""

from gangline.local.apiserver.core.negotiation import read_json
from gangline.local.apiserver.core.registry import ANY_OBJECT_SCHEMA, Json, Registry, ServedKind
from gangline.local.apiserver.storage.store import ObjectStore
from gangline.local.apiserver.storage.watch_cache import DELETED, CacheEvent
from gangline.local.apiserver.watch.broadcast import WatchBroadcasters

CRD_STORAGE_NAME = "customresourcedefinitions.apiextensions.k8s.io"
CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"


def served_kinds(definition: Json) -> list[ServedKind]:
    """Return the served kinds of a definition, preferred version first."""
    spec = definition["spec"]
    served = [version for version in spec.get("versions", []) if version.get("served")]
    stored = next((v["name"] for v in spec["versions"] if v.get("storage")), "")
    return [_kind(spec, version, stored) for version in sorted(served, key=_version_order)]


def _kind(spec: Json, version: Json, stored: str) -> ServedKind:
    names = spec["names"]
    subresources: Json = version.get("subresources") or {}
    schema = (version.get("schema") or {}).get("openAPIV3Schema") or ANY_OBJECT_SCHEMA
    if spec.get("preserveUnknownFields"):
        schema = {**schema, "x-kubernetes-preserve-unknown-fields": True}
    columns = version.get("additionalPrinterColumns")
    fields = version.get("selectableFields") or []
    return ServedKind(
        group=spec["group"],
        version=version["name"],
        kind=names["kind"],
        plural=names["plural"],
        singular=names.get("singular") or names["kind"].lower(),
        list_kind=names.get("listKind") or "",
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        namespaced=spec.get("scope") == "Namespaced",
        subresources=tuple(name for name in ("status", "scale") if name in subresources),
        storage_version=stored,
        counts_generations=True,
        resets_status="status" in subresources,
        custom=True,
        selectable=tuple(found["jsonPath"].removeprefix(".") for found in fields),
        schema_source=lambda: schema,
        columns=tuple(columns) if columns is not None else None,
        scale=subresources.get("scale"),
    )


def _version_order(version: Json) -> tuple[int, int, int, str]:
    """Sort key of versions: v2 before v1 before v1beta1 before v1alpha1 before other names."""
    name: str = version["name"]
    number, stage, step = _version_parts(name)
    if stage < 0:
        return (1, 0, 0, name)
    return (0, stage * 10000 - number, -step, name)


def _version_parts(name: str) -> tuple[int, int, int]:
    for stage, word in ((1, "beta"), (2, "alpha"), (0, "")):
        head, found, tail = name.removeprefix("v").partition(word) if word else (name[1:], "", "")
        if name.startswith("v") and head.isdecimal() and bool(found) == bool(word):
            if not word:
                return int(head), 0, 0
            if tail.isdecimal():
                return int(head), stage, int(tail)
    return 0, -1, 0


class CrdRegistrar:
    """Keeps the registry consistent with the stored definitions."""

    def __init__(self, registry: Registry, broadcasts: WatchBroadcasters) -> None:
        self._registry = registry
        self._broadcasts = broadcasts

    def load(self, store: ObjectStore) -> None:
        for record in store.cache(CRD_STORAGE_NAME).records.values():
            definition = read_json(record.body)
            if is_established(definition):
                self._registry.add(served_kinds(definition))

    def on_change(self, event: CacheEvent) -> None:
        definition: Json = read_json(event.record.body)
        spec = definition["spec"]
        self._registry.remove(spec["group"], spec["names"]["plural"])
        if event.type != DELETED and is_established(definition):
            self._registry.add(served_kinds(definition))
        else:
            self._broadcasts.end_resource(f"{spec['names']['plural']}.{spec['group']}")


def is_established(definition: Json) -> bool:
    conditions = definition.get("status", {}).get("conditions", [])
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


def complete_definition(registry: Registry, definition: Json, at: str) -> None:
    """Set the names and the status of a definition in place. ``at`` is the time of transitions."""
    spec = definition["spec"]
    names = spec["names"]
    names.setdefault("singular", names["kind"].lower())
    names.setdefault("listKind", f"{names['kind']}List")
    spec.setdefault("conversion", {"strategy": "None"})
    problem = _name_conflict(registry, spec)
    status = definition.setdefault("status", {})
    former = {condition["type"]: condition for condition in status.get("conditions") or []}
    accepted = ("True", "NoConflicts", "no conflicts found")
    established = ("True", "InitialNamesAccepted", "the initial names have been accepted")
    if problem:
        accepted = ("False", "NameConflict", problem)
        established = ("False", "NotAccepted", "not all names are accepted")
    status["conditions"] = [
        _condition(former, "NamesAccepted", *accepted, at),
        _condition(former, "Established", *established, at),
    ]
    status["acceptedNames"] = names
    stored = [version["name"] for version in spec.get("versions", []) if version.get("storage")]
    status["storedVersions"] = sorted({*(status.get("storedVersions") or ()), *stored})
    meta = definition["metadata"]
    if "deletionTimestamp" not in meta and CLEANUP_FINALIZER not in meta.get("finalizers", []):
        meta["finalizers"] = [*meta.get("finalizers", []), CLEANUP_FINALIZER]


def _condition(
    former: dict[str, Json], type_: str, status: str, reason: str, message: str, at: str
) -> Json:
    before = former.get(type_)
    since = before["lastTransitionTime"] if before and before["status"] == status else at
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": since,
    }


def _name_conflict(registry: Registry, spec: Json) -> str:
    names = spec["names"]
    for kind in registry:
        if kind.group != spec["group"] or kind.plural == names["plural"]:
            continue
        if kind.kind == names["kind"]:
            return f'"{names["kind"]}" is already in use'
        if shared := {*kind.short_names} & {*(names.get("shortNames") or ())}:
            return f'"{sorted(shared)[0]}" is already in use'
    return ""
