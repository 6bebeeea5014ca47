"""Authorization by RBAC: roles and their bindings, evaluated as in Kubernetes.

Members of ``system:masters`` may do everything. Other users may do what the roles bound to them or
to their groups allow. There are no rules that deny. Nodes have the rights of ``node_authorizer``
as well.
"""

from collections.abc import Iterator
from functools import partial

from gangline.local.apiserver.auth.builtin_roles import RBAC
from gangline.local.apiserver.auth.node_authorizer import NodeAuthorizer, node_of
from gangline.local.apiserver.auth.pki import ADMIN_GROUP
from gangline.local.apiserver.auth.rules import (
    AccessAttributes,
    rule_allows,
    selected_value,
    subject_matches,
)
from gangline.local.apiserver.core.errors import StatusError, forbidden, qualified_resource
from gangline.local.apiserver.core.negotiation import read_json
from gangline.local.apiserver.core.registry import Json
from gangline.local.apiserver.core.request import ApiRequest, RequestUser
from gangline.local.apiserver.storage.store import ObjectStore
from gangline.local.apiserver.storage.watch_cache import CacheEvent

STREAMS_INTO_PODS = ("attach", "exec", "portforward")
"""Subresources of pods that require ``create`` for every HTTP method: a WebSocket is a GET."""


class Authorizer:
    """Decides whether a user may perform an action."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._nodes = NodeAuthorizer(store)
        self._decoded: dict[tuple[str, str], Json] = {}
        for plural in ("roles", "clusterroles", "rolebindings", "clusterrolebindings"):
            topic = f"{plural}.{RBAC}"
            store.add_listener(topic, partial(self._forget, topic))

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
        for rule, origin in self.rules_for(user, attributes.namespace):
            if rule_allows(rule, attributes):
                return f"RBAC: allowed by {origin}"
        return ""

    def rules_for(self, user: RequestUser, namespace: str) -> Iterator[tuple[Json, str]]:
        """Yield the rules of a user with their origin, for a namespace or (empty) cluster-wide."""
        for binding in self._bindings("clusterrolebindings", ""):
            yield from self._rules_of(binding, user, "ClusterRoleBinding")
        if namespace:
            for binding in self._bindings("rolebindings", namespace):
                yield from self._rules_of(binding, user, "RoleBinding")

    def role_rules(self, reference: Json, namespace: str) -> list[Json] | None:
        """Return the rules of the role that a binding names; None if it does not exist."""
        own = reference["kind"] == "Role"
        key = f"{namespace}/{reference['name']}" if own else reference["name"]
        role = self._read("roles" if own else "clusterroles", key)
        if role is None:
            return None
        rules: list[Json] = role.get("rules") or []
        return rules

    def _bindings(self, plural: str, namespace: str) -> Iterator[Json]:
        for key in self._store.cache(f"{plural}.{RBAC}").keys(namespace or None):
            if (binding := self._read(plural, key)) is not None:
                yield binding

    def _rules_of(self, binding: Json, user: RequestUser, kind: str) -> Iterator[tuple[Json, str]]:
        meta, role = binding["metadata"], binding["roleRef"]
        namespace = meta.get("namespace", "")
        subjects = binding.get("subjects") or ()
        if not any(subject_matches(subject, user, namespace) for subject in subjects):
            return
        name = f"{meta['name']}/{namespace}" if namespace else meta["name"]
        for rule in self.role_rules(role, namespace) or ():
            yield rule, f'{kind} "{name}" of {role["kind"]} "{role["name"]}"'

    def _read(self, plural: str, key: str) -> Json | None:
        """Return a committed object, decoded once: each request reads all bindings."""
        topic = f"{plural}.{RBAC}"
        found = self._decoded.get((topic, key))
        if found is None and (record := self._store.cache(topic).records.get(key)) is not None:
            found = self._decoded[topic, key] = read_json(record.body)
        return found

    def _forget(self, topic: str, event: CacheEvent) -> None:
        self._decoded.pop((topic, event.record.key), None)


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
