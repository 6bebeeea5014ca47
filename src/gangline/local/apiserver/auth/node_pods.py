"""The pods that are bound to each node, and the objects that they refer to.

The pods follow the committed writes. References are read when they are needed.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from gangline.local.apiserver.core.negotiation import read_json
from gangline.local.apiserver.core.registry import Json
from gangline.local.apiserver.storage.store import ObjectStore
from gangline.local.apiserver.storage.watch_cache import DELETED, CacheEvent, ObjectRevision

AUTHORITY_CONFIG_MAP = "kube-root-ca.crt"
"""The certificates of the API server: every pod gets them with the token of its account."""


class PodReferences(NamedTuple):
    """The names of objects in its namespace that a pod refers to."""

    config_maps: frozenset[str] = frozenset()
    secrets: frozenset[str] = frozenset()
    claims: frozenset[str] = frozenset()
    account: str = ""
    audiences: frozenset[str] = frozenset()
    """The audiences of the tokens in its projected volumes."""


class NodePods:
    """The pods of each node by their keys."""

    def __init__(self, store: ObjectStore) -> None:
        self._records = store.cache("pods.").records
        self._by_node: dict[str, set[str]] = {}
        self._references: dict[str, tuple[ObjectRevision, PodReferences]] = {}
        for record in self._records.values():
            self._add(record)
        store.add_listener("pods.", self._on_change)

    def is_bound(self, node: str, key: str) -> bool:
        return key in self._by_node.get(node, ())

    def references(self, node: str, namespace: str = "") -> Iterator[tuple[str, PodReferences]]:
        """Yield namespace and references of a node's pods, optionally of one namespace only."""
        for key in self._by_node.get(node, ()):
            of, _, _ = key.partition("/")
            if namespace in ("", of):
                yield of, self._references_of(self._records[key])

    def _references_of(self, record: ObjectRevision) -> PodReferences:
        known = self._references.get(record.key)
        if known is None or known[0] is not record:
            known = record, pod_references(read_json(record.body))
            self._references[record.key] = known
        return known[1]

    def _add(self, record: ObjectRevision) -> None:
        if node := record.fields.get("spec.nodeName"):
            self._by_node.setdefault(node, set()).add(record.key)

    def _on_change(self, event: CacheEvent) -> None:
        key, before = event.record.key, event.before
        if event.type != DELETED and before is not None:
            # A binding is final, so that a bound pod needs nothing more.
            if not before.fields.get("spec.nodeName"):
                self._add(event.record)
            return
        self._references.pop(key, None)
        if before is not None and (node := before.fields.get("spec.nodeName")):
            pods = self._by_node.get(node, set())
            pods.discard(key)
            if not pods:
                self._by_node.pop(node, None)
        if event.type != DELETED:
            self._add(event.record)


def pod_references(pod: Json) -> PodReferences:
    """Return what a pod refers to."""
    spec = pod.get("spec") or {}
    maps: set[Any] = {AUTHORITY_CONFIG_MAP}
    secrets: set[Any] = {each.get("name") for each in _list(spec, "imagePullSecrets")}
    claims: set[Any] = set()
    audiences: set[Any] = set()
    for name in ("initContainers", "containers", "ephemeralContainers"):
        for container in _list(spec, name):
            for source in _list(container, "envFrom"):
                maps.add(_name(source, "configMapRef"))
                secrets.add(_name(source, "secretRef"))
            for variable in _list(container, "env"):
                origin = variable.get("valueFrom") or {}
                maps.add(_name(origin, "configMapKeyRef"))
                secrets.add(_name(origin, "secretKeyRef"))
    for volume in _list(spec, "volumes"):
        maps.add(_name(volume, "configMap"))
        secrets.add(_name(volume, "secret", "secretName"))
        claims.add(_name(volume, "persistentVolumeClaim", "claimName"))
        if volume.get("ephemeral") is not None:
            claims.add(f"{pod['metadata']['name']}-{volume['name']}")
        secrets.update(_driver_secrets(volume))
        for part in _list(volume.get("projected") or {}, "sources"):
            maps.add(_name(part, "configMap"))
            secrets.add(_name(part, "secret"))
            audiences.add((part.get("serviceAccountToken") or {}).get("audience"))
    return PodReferences(
        frozenset(filter(None, maps)),
        frozenset(filter(None, secrets)),
        frozenset(filter(None, claims)),
        spec.get("serviceAccountName") or "default",
        frozenset(filter(None, audiences)),
    )


def _driver_secrets(volume: Json) -> Iterator[str | None]:
    """Yield the Secrets of volume types such as CSI, which name them in a common form."""
    for source in volume.values():
        if isinstance(source, dict):
            yield _name(source, "secretRef")
            yield _name(source, "nodePublishSecretRef")


def _list(obj: Json, name: str) -> list[Json]:
    return obj.get(name) or []


def _name(obj: Json, reference: str, field: str = "name") -> str | None:
    found = obj.get(reference)
    name = found.get(field) if isinstance(found, dict) else None
    return name if isinstance(name, str) else None
