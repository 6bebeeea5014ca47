"""The served kinds: built-in ones, and those of CustomResourceDefinitions.

A ``ServedKind`` describes one kind in one version for the generic code. All versions of a kind
share one cache in the store, in the version ``storage_version``.

The built-in kinds are those of ``kinds.toml``, with the fields of ``ServedKind``; ``resets_status``
is true if there is a subresource ``status``. ``read_in_part`` marks those whose schema is that of
Kubernetes although there are structs. Kinds with a ``note`` are accepted so that manifests
that contain them apply, and for the components of others; their creation returns this warning.
"""

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from importlib import resources
from typing import Any

import msgspec

from gangline.api.cluster.autoscaling import HorizontalPodAutoscalerV1
from gangline.api.cluster.workload import GROUP as SCHEDULING
from gangline.api.meta.objects import LabelSelector, StatusCause
from gangline.api.meta.selectors import NOTHING, Selector, SelectorError, selector_from_object
from gangline.api.resources import BUILT_IN_RESOURCES
from gangline.api.schema.field_table import find_message
from gangline.api.schema.openapi import openapi_schema
from gangline.local.apiserver.machinery.schema.builtin_schemas import (
    REQUIRED_IN_DOCUMENTS,
    message_schema,
)
from gangline.local.apiserver.machinery.schema.structural import StructuralSchema

Json = dict[str, Any]

ALL_VERBS = (
    "create", "delete", "deletecollection", "get", "list", "patch", "update", "watch",
)  # fmt: skip
SUBRESOURCES: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    # subresource: group, version, kind, verbs; an empty kind, or {}, is that of the object
    "binding": ("", "", "Binding", ("create",)),
    "eviction": ("policy", "v1", "Eviction", ("create",)),
    "scale": ("autoscaling", "v1", "Scale", ("get", "patch", "update")),
    "token": ("authentication.k8s.io", "v1", "TokenRequest", ("create",)),
    "exec": ("", "", "PodExecOptions", ("create", "get")),
    "attach": ("", "", "PodAttachOptions", ("create", "get")),
    "portforward": ("", "", "PodPortForwardOptions", ("create", "get")),
    "proxy": ("", "", "{}ProxyOptions", ("create", "delete", "get", "patch", "update")),
    "log": ("", "", "", ("get",)),
    "finalize": ("", "", "", ("update",)),
    "status": ("", "", "", ("get", "patch", "update")),
    "approval": ("", "", "", ("get", "patch", "update")),
}
ANY_OBJECT_SCHEMA: Json = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


@dataclass(frozen=True)
class ServedKind:
    """One kind in one version, as it is served."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    singular: str = ""
    list_kind: str = ""
    storage_version: str = ""
    counts_generations: bool = False
    """True if ``metadata.generation`` counts the changes of the desired state."""
    resets_status: bool = False
    """True if only the status subresource can write the status."""
    initial_status: Json | None = field(default=None, hash=False)
    """The status of a new object; None: it has none."""
    conditional_updates: bool = False
    """True if it is only replaced by those who have seen the present state."""
    returned_when_deleted: bool = False
    """True if its last state, and not a Status, is the response of its deletion."""
    orphans: bool = False
    """True if a deletion without a propagation policy leaves the dependents."""
    custom: bool = False
    """True for the kind of a CustomResourceDefinition."""
    was_changed: bool = False
    """True if the definition has changed: stored objects may lack defaults of the schema, or be of
    a former storage version.
    """
    conversion_webhook: Json | None = field(default=None, hash=False)
    """How versions of a custom kind are converted, if not by a change of ``apiVersion``."""
    selectable: tuple[str, ...] = ()
    """Paths that field selectors may use in addition to name and namespace."""
    schema_source: Callable[[], Json] | None = None
    columns: tuple[Json, ...] | None = field(default=None, hash=False)
    scale: Json | None = field(default=None, hash=False)
    """The paths of the scale subresource of a custom kind."""
    note: str = ""
    """A warning that is returned when an object of this kind is created."""

    @cached_property
    def api_version(self) -> str:
        """``v1`` for the core group, else ``group/version``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @cached_property
    def is_stored_form(self) -> bool:
        """True if objects are stored in exactly this version."""
        return not self.storage_version or self.storage_version == self.version

    @cached_property
    def serves_stored_bytes(self) -> bool:
        """True if objects are served as they are stored."""
        return self.is_stored_form and not (self.custom and self.was_changed)

    @property
    def converts_when_read(self) -> bool:
        """True if a webhook may have to convert stored objects to this version."""
        return self.conversion_webhook is not None and not self.serves_stored_bytes

    @cached_property
    def storage_name(self) -> str:
        """The name of the kind's objects in the store: ``PLURAL.GROUP``."""
        return STORAGE_NAME_ALIASES.get((self.group, self.plural), f"{self.plural}.{self.group}")

    @property
    def list_kind_name(self) -> str:
        return self.list_kind or f"{self.kind}List"

    @property
    def singular_name(self) -> str:
        return self.singular or self.kind.lower()

    @property
    def plain_schema(self) -> Json:
        """The schema for OpenAPI documents; one that accepts every object if none is known."""
        return self.schema_source() if self.schema_source else ANY_OBJECT_SCHEMA

    @cached_property
    def schema(self) -> StructuralSchema:
        return StructuralSchema(self.plain_schema, as_go=not self.custom)

    def rule_causes(self, obj: Json, former: Json | None) -> list[StatusCause]:
        """Return the errors that the CEL rules of a custom kind find in a valid object."""
        return self._rules(obj, former) if self._rules is not None else []

    @cached_property
    def _rules(self) -> Callable[[Json, Json | None], list[StatusCause]] | None:
        if not self.custom or not contains_key(self.plain_schema, "x-kubernetes-validations"):
            return None
        # Most clusters have no rules: the library takes 50 ms to load.
        from gangline.local.apiserver.machinery.cel.rules import SchemaRules

        return SchemaRules(self.schema.schema).validate

    @cached_property
    def selectable_paths(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return tuple(
            (label, tuple(FIELD_PATHS.get(label, label).split("."))) for label in self.selectable
        )

    def selectable_fields(self, obj: Json) -> dict[str, str]:
        return {
            label: read_field(obj, path) or FIELD_DEFAULTS.get(label, "")
            for label, path in self.selectable_paths
        }


def contains_key(value: Any, key: str) -> bool:
    """Return True if an object at any level of a value has a key."""
    if isinstance(value, dict):
        return key in value or any(contains_key(part, key) for part in value.values())
    return isinstance(value, list) and any(contains_key(part, key) for part in value)


FIELD_DEFAULTS = {
    "spec.unschedulable": "false", "spec.hostNetwork": "false", "status.replicas": "0",
    "status.successful": "0",
}  # fmt: skip
"""Values of absent fields for field selectors."""
REGARDING = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
FIELD_PATHS = {
    "source": "source.component",
    "status.successful": "status.succeeded",
    "reportingController": "reportingComponent",
    **{f"regarding.{name}": f"involvedObject.{name}" for name in REGARDING},
}
"""Paths of selectable fields whose label is not their path."""
STORAGE_NAME_ALIASES = {("events.k8s.io", "events"): "events."}


def read_selector(written: Any) -> Selector:
    """Return a label selector of an object; one that selects nothing if it is invalid."""
    try:
        return selector_from_object(msgspec.convert(written, LabelSelector))
    except (SelectorError, msgspec.ValidationError):
        return NOTHING


def read_field(obj: Json, path: tuple[str, ...]) -> str:
    """Return a field as text, as field selectors compare it; empty if it is absent."""
    value: Any = obj
    for part in path:
        if not isinstance(value, dict):
            return ""
        value = value.get(part)
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


@dataclass
class Registry:
    """The served kinds by path. Those of custom resources change at run time."""

    _kinds: dict[tuple[str, str, str], ServedKind] = field(default_factory=dict)
    generation: int = 0
    """Incremented with each change, so that derived documents can be invalidated."""

    def add(self, kinds: Iterable[ServedKind]) -> None:
        """Serve these kinds, replacing former ones with equal paths."""
        for kind in kinds:
            self._kinds[kind.group, kind.version, kind.plural] = kind
        self.generation += 1

    def remove(self, group: str, plural: str) -> None:
        """Stop serving a kind in all versions."""
        for kind in self:
            if (kind.group, kind.plural) == (group, plural):
                del self._kinds[kind.group, kind.version, kind.plural]
        self.generation += 1

    def find(self, group: str, version: str, plural: str) -> ServedKind | None:
        return self._kinds.get((group, version, plural))

    def by_plural(self, group: str, plural: str) -> ServedKind | None:
        """Return the first served version of a resource."""
        kinds = (k for k in self if (k.group, k.plural) == (group, plural))
        return next(kinds, None)

    def builtin(self, group: str, plural: str) -> ServedKind:
        """Return a resource that is always served."""
        kind = self.by_plural(group, plural)
        if kind is None:
            raise ValueError(f"{plural}.{group} is not a built-in resource")
        return kind

    def __iter__(self) -> Iterator[ServedKind]:
        # A copy: definitions are completed in threads, while others are added.
        return iter([*self._kinds.values()])

    def groups(self) -> dict[str, list[str]]:
        """Return the versions of each group, preferred first.

        Built-in groups come first, then those of custom kinds by name, as in Kubernetes. kubectl
        uses this order where kinds in two groups have one name. Unlike there, the group of
        Kubernetes' PodGroups comes last: ``podgroups`` alone means those of Volcano.
        """
        versions_by_group: dict[str, list[str]] = {}
        built_in = [kind for kind in self if not kind.custom]
        custom = [kind for kind in self if kind.custom]
        ordered = [*built_in, *sorted(custom, key=lambda kind: kind.group)]
        for kind in sorted(ordered, key=lambda kind: kind.group == SCHEDULING):
            versions = versions_by_group.setdefault(kind.group, [])
            if kind.version not in versions:
                versions.append(kind.version)
        return versions_by_group


OTHER_VERSIONS = {("autoscaling", "v1", "HorizontalPodAutoscaler"): HorizontalPodAutoscalerV1}
"""Structs of versions without a reader in this package. Only their schemas are used."""


def _schema(group: str, version: str, kind: str, *, read_in_part: bool = False) -> Json:
    """Return the schema of the structs that the code reads, or else that of Kubernetes' types.

    Args:
        read_in_part: the structs lack fields that other components read.
    """
    version_kind = (group, version, kind)
    resource_type = next(
        (r for r in BUILT_IN_RESOURCES if (r.group, r.version, r.kind) == version_kind), None
    )
    type_: Any = resource_type.type if resource_type else OTHER_VERSIONS.get(version_kind)
    message = find_message(f"{group}/{version}" if group else version, kind)
    if type_ and not read_in_part:
        return _with_free_status(openapi_schema(type_))
    return message_schema(message) if message else ANY_OBJECT_SCHEMA


def _with_free_status(schema: Json) -> Json:
    """Return a schema whose status needs no field: Kubernetes leaves that to its writers."""

    def relax(part: Any) -> Any:
        if isinstance(part, list):
            return [relax(item) for item in part]
        if not isinstance(part, dict):
            return part
        names = {"required": REQUIRED_IN_DOCUMENTS} if "properties" in part else {}
        return {names.get(name, name): relax(value) for name, value in part.items()}

    properties = schema.get("properties", {})
    if "status" not in properties:
        return schema
    return schema | {"properties": properties | {"status": relax(properties["status"])}}


def all_builtin_kinds() -> list[ServedKind]:
    """Return all kinds that exist without a CustomResourceDefinition, in the order of discovery."""
    return [
        _builtin_kind(api_version, kind, fields)
        for api_version, kinds in _kind_table().items()
        for kind, fields in kinds.items()
    ]


@cache
def _kind_table() -> Mapping[str, Mapping[str, Json]]:
    return tomllib.loads(resources.files(__package__).joinpath("kinds.toml").read_text())


def _builtin_kind(api_version: str, kind: str, fields: Json) -> ServedKind:
    group, _, version = api_version.rpartition("/")
    more: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in fields.items()}
    more.setdefault("resets_status", "status" in more.get("subresources", ()))
    if "note" in more:
        more["note"] = f"{kind} objects are stored by this cluster, but {more['note']}"
    in_part = bool(more.pop("read_in_part", False))
    source = partial(_schema, group, version, kind, read_in_part=in_part)
    return ServedKind(group, version, kind, schema_source=source, **more)
