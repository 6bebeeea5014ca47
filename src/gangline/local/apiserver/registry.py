"""Which kinds are served: the built-in ones, and those that CustomResourceDefinitions add.

A ``Kind`` says all that the generic machinery needs to know of one kind in one version. Versions
of the same kind share a topic of the store and are kept in ``storage_version``.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gangline.local.apiserver.machinery.structural import StructuralSchema

Json = dict[str, Any]

ALL_VERBS = (
    "create", "delete", "deletecollection", "get", "list", "patch", "update", "watch",
)  # fmt: skip
SUBRESOURCES: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    # subresource: group, version, kind, verbs; kinds not listed here are the object's own
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
}
PRESERVE: Json = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


@dataclass(frozen=True)
class Kind:
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
    """Whether ``metadata.generation`` grows with each change of what is wanted."""
    resets_status: bool = False
    """Whether status belongs to the status subresource alone."""
    custom: bool = False
    """Whether a CustomResourceDefinition made this kind."""
    selectable: tuple[str, ...] = ()
    """Paths that field selectors may name, besides name and namespace."""
    schema_source: Callable[[], Json] | None = None
    columns: tuple[Json, ...] | None = field(default=None, hash=False)
    scale: Json | None = field(default=None, hash=False)
    """The paths of a custom kind's scale subresource."""
    note: str = ""
    """A warning for those who create objects of this kind."""

    @cached_property
    def api_version(self) -> str:
        """``v1`` for the core group, else ``group/version``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @cached_property
    def topic(self) -> str:
        """Under which name the store keeps the objects."""
        return TOPIC_ALIASES.get((self.group, self.plural), f"{self.plural}.{self.group}")

    @property
    def list_kind_name(self) -> str:
        """The kind of a list of these."""
        return self.list_kind or f"{self.kind}List"

    @property
    def singular_name(self) -> str:
        """The lower-case name of one."""
        return self.singular or self.kind.lower()

    @property
    def plain_schema(self) -> Json:
        """The schema as documents show it; one that accepts everything, where none is known."""
        return self.schema_source() if self.schema_source else PRESERVE

    @cached_property
    def schema(self) -> StructuralSchema:
        """The compiled schema."""
        return StructuralSchema(self.plain_schema)

    @cached_property
    def selectable_paths(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The selectable fields with their paths split."""
        return tuple(
            (label, tuple(FIELD_PATHS.get(label, label).split("."))) for label in self.selectable
        )

    def fields(self, obj: Json) -> dict[str, str]:
        """The values of the selectable fields of ``obj``."""
        return {
            label: read_path(obj, path) or WHEN_ABSENT.get(label, "")
            for label, path in self.selectable_paths
        }


WHEN_ABSENT = {"spec.unschedulable": "false", "spec.hostNetwork": "false"}
"""What selectors see of fields that are left out when they have their usual value."""
FIELD_PATHS = {"source": "source.component"}
"""Where a selectable field is found, when its label does not say."""
TOPIC_ALIASES = {("events.k8s.io", "events"): "events."}


def read_path(obj: Json, path: tuple[str, ...]) -> str:
    """The text of a field, as field selectors compare it; empty when it is absent."""
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
    """The kinds by path; kinds of custom resources come and go."""

    _kinds: dict[tuple[str, str, str], Kind] = field(default_factory=dict)
    generation: int = 0
    """Grows with each change, so that derived documents know when they are stale."""

    def add(self, kinds: Iterable[Kind]) -> None:
        """Serve these kinds, instead of former ones under the same paths."""
        for kind in kinds:
            self._kinds[kind.group, kind.version, kind.plural] = kind
        self.generation += 1

    def remove(self, group: str, plural: str) -> None:
        """Stop serving a kind in all its versions."""
        for key in [key for key in self._kinds if key[0] == group and key[2] == plural]:
            del self._kinds[key]
        self.generation += 1

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        """The kind served under this path."""
        return self._kinds.get((group, version, plural))

    def by_plural(self, group: str, plural: str) -> Kind | None:
        """The first served version of a resource."""
        found = (k for k in self._kinds.values() if (k.group, k.plural) == (group, plural))
        return next(found, None)

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._kinds.values())

    def groups(self) -> dict[str, list[str]]:
        """The groups in order of their first kind, each with its versions, preferred first."""
        found: dict[str, list[str]] = {}
        for kind in self._kinds.values():
            versions = found.setdefault(kind.group, [])
            if kind.version not in versions:
                versions.append(kind.version)
        return found
