"""The served kinds: built-in ones, and those of CustomResourceDefinitions.

A ``Kind`` describes one kind in one version for the generic code. All versions of a kind share one
cache in the store, in the version ``storage_version``.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gangline.local.apiserver.machinery.schema.structural import StructuralSchema

Json = dict[str, Any]

ALL_VERBS = (
    "create", "delete", "deletecollection", "get", "list", "patch", "update", "watch",
)  # fmt: skip
SUBRESOURCES: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    # subresource: group, version, kind, verbs; an empty kind is that of the object
    "binding": ("", "", "Binding", ("create",)),
    "eviction": ("policy", "v1", "Eviction", ("create",)),
    "scale": ("autoscaling", "v1", "Scale", ("get", "patch", "update")),
    "token": ("authentication.k8s.io", "v1", "TokenRequest", ("create",)),
    "exec": ("", "", "PodExecOptions", ("create", "get")),
    "attach": ("", "", "PodAttachOptions", ("create", "get")),
    "portforward": ("", "", "PodPortForwardOptions", ("create", "get")),
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
    custom: bool = False
    """True for the kind of a CustomResourceDefinition."""
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
        return StructuralSchema(self.plain_schema)

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


FIELD_DEFAULTS = {"spec.unschedulable": "false", "spec.hostNetwork": "false"}
"""Values of absent fields for field selectors."""
FIELD_PATHS = {"source": "source.component"}
"""Paths of selectable fields whose label is not their path."""
STORAGE_NAME_ALIASES = {("events.k8s.io", "events"): "events."}


def read_field(obj: Json, path: tuple[str, ...]) -> str:
    """Return a field as text, as field selectors compare it; empty if it is absent."""
    found: Any = obj
    for part in path:
        if not isinstance(found, dict):
            return ""
        found = found.get(part)
    if isinstance(found, bool):
        return "true" if found else "false"
    return "" if found is None else str(found)


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
        for key in [key for key in self._kinds if key[0] == group and key[2] == plural]:
            del self._kinds[key]
        self.generation += 1

    def find(self, group: str, version: str, plural: str) -> ServedKind | None:
        return self._kinds.get((group, version, plural))

    def by_plural(self, group: str, plural: str) -> ServedKind | None:
        """Return the first served version of a resource."""
        found = (k for k in self._kinds.values() if (k.group, k.plural) == (group, plural))
        return next(found, None)

    def __iter__(self) -> Iterator[ServedKind]:
        return iter(self._kinds.values())

    def groups(self) -> dict[str, list[str]]:
        """Return the versions of each group, preferred first.

        Built-in groups come first, then those of custom kinds by name, as in Kubernetes. kubectl
        uses this order where kinds in two groups have one name.
        """
        found: dict[str, list[str]] = {}
        built_in = [kind for kind in self._kinds.values() if not kind.custom]
        custom = [kind for kind in self._kinds.values() if kind.custom]
        for kind in (*built_in, *sorted(custom, key=lambda kind: kind.group)):
            versions = found.setdefault(kind.group, [])
            if kind.version not in versions:
                versions.append(kind.version)
        return found
