"""Authorization by RBAC: roles and their bindings, evaluated as in Kubernetes.

Members of ``system:masters`` may do everything. Other users may do what the roles bound to them or
to their groups allow. There are no rules that deny. Nodes have the rights of ``node_authorizer``
as well.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

from gangline.local.apiserver.auth.builtin_roles import RBAC
from gangline.local.apiserver.auth.node_authorizer import NodeAuthorizer, node_of
from gangline.local.apiserver.auth.pki import ADMIN_GROUP
from gangline.local.apiserver.auth.rules import (
    AccessAttributes,
    index_rule,
    names_of,
    rule_allows,
    selected_value,
    subject_names,
)
from gangline.local.apiserver.core.errors import StatusError, forbidden, qualified_resource
from gangline.local.apiserver.core.negotiation import read_json
from gangline.local.apiserver.core.registry import Json
from gangline.local.apiserver.core.request import ApiRequest, RequestUser
from gangline.local.apiserver.storage.store import ObjectStore
from gangline.local.apiserver.storage.watch_cache import CacheEvent

STREAMS_INTO_PODS = ("attach", "exec", "portforward")
"""Subresources of pods that require ``create`` for every HTTP method: a WebSocket is a GET."""


class _Role(NamedTuple):
    """A role, decoded once: each request may need all roles of its user."""

    rules: list[Json]
    indexed: list[Json]
    """The same rules with sets in place of lists."""


class _Binding(NamedTuple):
    """A binding, decoded once: each request compares its user with all bindings."""

    subjects: frozenset[tuple[str, str]]
    reference: Json
    namespace: str
    origin: str
    """The binding and its role, in the words of audit events."""


class Authorizer:
    """Decides whether a user may perform an action."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._nodes = NodeAuthorizer(store)
        self._roles: dict[tuple[str, str], _Role] = {}
        self._bindings: dict[tuple[str, str], _Binding] = {}
        for plural in ("roles", "clusterroles"):
            store.add_listener(f"{plural}.{RBAC}", partial(_forget, self._roles, plural))
        for plural in ("rolebindings", "clusterrolebindings"):
            store.add_listener(f"{plural}.{RBAC}", partial(_forget, self._bindings, plural))

    def authorize(self, request: ApiRequest) -> str:
        """Refuse a request that its user is not authorized to make. Returns why it is allowed.

        Raises:
            StatusError: 403.
        """
        return self.require(request.user, request_attributes(request))

    def authorize_path(self, user: RequestUser, method: str, path: str) -> str:
        """Refuse a request for a non-resource path. Returns why it is allowed.

        Raises:
            StatusError: 403.
        """
        return self.require(user, AccessAttributes(method.lower(), path=path))

    def require(self, user: RequestUser, attributes: AccessAttributes) -> str:
        """Refuse an action that is not allowed. Returns why it is allowed.

        Raises:
            StatusError: 403.
        """
        reason = self.allowed_reason(user, attributes)
        if not reason:
            raise _forbidden(user, attributes)
        return reason

    def allowed_reason(self, user: RequestUser, attributes: AccessAttributes) -> str:
        """Return why an action is allowed; empty if no rule allows it."""
        if ADMIN_GROUP in user.groups:
            return f"RBAC: allowed by membership in {ADMIN_GROUP}"
        node = node_of(user)
        if node is not None and self._nodes.allows(node, attributes):
            return "Node: allowed for its own pods"
        for role, origin in self._roles_of(user, attributes.namespace):
            if any(rule_allows(rule, attributes) for rule in role.indexed):
                return f"RBAC: allowed by {origin}"
        return ""

    def rules_for(self, user: RequestUser, namespace: str) -> Iterator[Json]:
        """Yield the rules of a user, for a namespace or (empty) cluster-wide."""
        for role, _ in self._roles_of(user, namespace):
            yield from role.rules

    def role_rules(self, reference: Json, namespace: str) -> list[Json] | None:
        """Return the rules of the role that a binding names; None if it does not exist."""
        role = self._role(reference, namespace)
        return role.rules if role is not None else None

    def _roles_of(self, user: RequestUser, namespace: str) -> Iterator[tuple[_Role, str]]:
        """Yield the roles of a user with their origin."""
        names = names_of(user)
        yield from self._bound_roles("clusterrolebindings", None, names)
        if namespace:
            yield from self._bound_roles("rolebindings", namespace, names)

    def _bound_roles(
        self, plural: str, namespace: str | None, names: frozenset[tuple[str, str]]
    ) -> Iterator[tuple[_Role, str]]:
        for key in self._store.cache(f"{plural}.{RBAC}").keys(namespace):
            binding = self._binding(plural, key)
            if binding is not None and not names.isdisjoint(binding.subjects):
                role = self._role(binding.reference, binding.namespace)
                if role is not None:
                    yield role, binding.origin

    def _binding(self, plural: str, key: str) -> _Binding | None:
        found = self._bindings.get((plural, key))
        if found is None and (obj := self._read(plural, key)) is not None:
            meta, role = obj["metadata"], obj.get("roleRef") or {}
            namespace = meta.get("namespace", "")
            kind = "RoleBinding" if namespace else "ClusterRoleBinding"
            name = f"{meta['name']}/{namespace}" if namespace else meta["name"]
            found = self._bindings[plural, key] = _Binding(
                subject_names(obj.get("subjects") or (), namespace),
                role,
                namespace,
                f'{kind} "{name}" of {role.get("kind")} "{role.get("name")}"',
            )
        return found

    def _role(self, reference: Json, namespace: str) -> _Role | None:
        own, name = reference.get("kind") == "Role", reference.get("name", "")
        plural = "roles" if own else "clusterroles"
        key = f"{namespace}/{name}" if own else name
        found = self._roles.get((plural, key))
        if found is None and (obj := self._read(plural, key)) is not None:
            rules: list[Json] = obj.get("rules") or []
            found = self._roles[plural, key] = _Role(rules, [index_rule(rule) for rule in rules])
        return found

    def _read(self, plural: str, key: str) -> Json | None:
        record = self._store.cache(f"{plural}.{RBAC}").records.get(key)
        found: Json | None = read_json(record.body) if record is not None else None
        return found


def _forget(known: dict[tuple[str, str], Any], plural: str, event: CacheEvent) -> None:
    known.pop((plural, event.record.key), None)


def request_attributes(request: ApiRequest) -> AccessAttributes:
    """Return the action that a request performs."""
    kind, verb = request.kind, request.verb
    name, namespace = request.name, request.namespace or ""
    if (kind.group, kind.plural) == ("", "namespaces"):
        namespace = name  # a role in a namespace may allow reading this namespace
    elif (kind.group, kind.plural) == ("", "pods") and request.subresource in STREAMS_INTO_PODS:
        verb = "create"
    selector = ""
    if not name and verb in ("list", "watch", "deletecollection"):
        selector = request.params.get("fieldSelector", "")
        # A list that is limited to one name is allowed by rules with this name.
        name = selected_value(selector, "metadata.name")
    return AccessAttributes(
        verb,
        kind.group,
        kind.plural,
        request.subresource,
        namespace,
        name,
        field_selector=selector,
    )


def _forbidden(user: RequestUser, attributes: AccessAttributes) -> StatusError:
    verb, group, name = attributes.verb, attributes.group, attributes.name
    if attributes.path:
        return forbidden(f'forbidden: User "{user.name}" cannot {verb} path "{attributes.path}"')
    shown = qualified_resource(attributes.resource, group)
    named = f'{shown} "{name}"' if name else shown
    where = (
        f'in the namespace "{attributes.namespace}"'
        if attributes.namespace
        else "at the cluster scope"
    )
    return forbidden(
        f'{named} is forbidden: User "{user.name}" cannot {verb} resource '
        f'"{attributes.full_resource}" in API group "{group}" {where}',
        attributes.resource,
        group,
        name,
    )
