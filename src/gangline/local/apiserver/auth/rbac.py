"""Authorization by RBAC, and the two checks that depend on it: escalation and impersonation.

Authorization: members of ``system:masters`` may do everything. Other users may do what the roles
bound to them or to their groups allow. No rule denies. Nodes have the rights of
``node_authorizer`` as well.

Escalation: no user grants more than it has. Every rule of a written role must be covered by the
rules of the user, unless the user has the verb ``escalate`` on the role. The rules of the role that
a binding names must be covered as well, unless the user has ``bind`` on that role. An aggregation
rule gathers rules of any role, so its writer needs full rights.

Impersonation (``Impersonate-`` headers): the sender needs the verb ``impersonate`` on the user or
service account, on each group, on the UID and on each extra value.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import unquote

from gangline.local.apiserver.auth.builtin_roles import RBAC
from gangline.local.apiserver.auth.node_authorizer import NodeAuthorizer, node_of
from gangline.local.apiserver.auth.pki import ADMIN_GROUP
from gangline.local.apiserver.auth.rules import (
    FULL_AUTHORITY,
    AccessAttributes,
    format_rule,
    index_rule,
    merge_rules,
    names_of,
    rule_allows,
    selected_value,
    subject_names,
    uncovered_rules,
)
from gangline.local.apiserver.core.errors import (
    StatusError,
    bad_request,
    forbidden,
    forbidden_object,
    not_found,
    qualified_resource,
)
from gangline.local.apiserver.core.registry import Json
from gangline.local.apiserver.core.request import ANONYMOUS, AUTHENTICATED, ApiRequest, RequestUser
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

    def require(self, user: RequestUser, attributes: AccessAttributes) -> str:
        """Return why an action is allowed. Raises StatusError: 403, it is not."""
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
        binding = self._bindings.get((plural, key))
        if binding is None and (obj := self._store.committed(f"{plural}.{RBAC}", key)):
            meta, role = obj["metadata"], obj.get("roleRef") or {}
            namespace = meta.get("namespace", "")
            kind = "RoleBinding" if namespace else "ClusterRoleBinding"
            name = f"{meta['name']}/{namespace}" if namespace else meta["name"]
            binding = self._bindings[plural, key] = _Binding(
                subject_names(obj.get("subjects") or (), namespace),
                role,
                namespace,
                f'{kind} "{name}" of {role.get("kind")} "{role.get("name")}"',
            )
        return binding

    def _role(self, reference: Json, namespace: str) -> _Role | None:
        own, name = reference.get("kind") == "Role", reference.get("name", "")
        plural = "roles" if own else "clusterroles"
        key = f"{namespace}/{name}" if own else name
        role = self._roles.get((plural, key))
        if role is None and (obj := self._store.committed(f"{plural}.{RBAC}", key)):
            rules: list[Json] = obj.get("rules") or []
            role = self._roles[plural, key] = _Role(rules, [index_rule(rule) for rule in rules])
        return role


def _forget(cached: dict[tuple[str, str], Any], plural: str, event: CacheEvent) -> None:
    cached.pop((plural, event.record.key), None)


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
        verb, kind.group, kind.plural, request.subresource, namespace, name, field_selector=selector
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


ROLES, BINDINGS = ("roles", "clusterroles"), ("rolebindings", "clusterrolebindings")
MAX_REPORTED_PARTS = 1000
"""Uncovered parts of rules that a response lists: they are as many as the product of four lists."""


class EscalationGuard:
    """Checks written roles and bindings."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer

    def check(self, request: ApiRequest, old: Json | None, new: Json) -> None:
        """Refuse a write that grants more rights than its user has. ``old`` is None for a creation.
        Raises StatusError: 403; or 404, a binding names a role that does not exist.
        """
        kind = request.kind
        if kind.group != RBAC or ADMIN_GROUP in request.user.groups:
            return
        if old is not None and _without_lifecycle(old) == _without_lifecycle(new):
            return
        if kind.plural in ROLES:
            self._check_role(request, old, new)
        elif kind.plural in BINDINGS:
            self._check_binding(request, new)

    def _check_role(self, request: ApiRequest, old: Json | None, new: Json) -> None:
        # The name of an object to create is in its body, which no rule with names covers.
        name = request.name if old is not None else ""
        plural, namespace = request.kind.plural, request.namespace or ""
        escalate = AccessAttributes("escalate", RBAC, plural, "", namespace, name)
        if self._authorizer.allowed_reason(request.user, escalate):
            return
        self._check_covered(request, new.get("rules") or ())
        if _aggregates(new) or (old is not None and _aggregates(old)):
            held = self._held_rules(request.user, namespace)
            if any(uncovered_rules(held, FULL_AUTHORITY)):
                reason = "must have cluster-admin privileges to use the aggregationRule"
                _refuse(request, reason)

    def _check_binding(self, request: ApiRequest, binding: Json) -> None:
        reference, namespace = binding.get("roleRef"), request.namespace or ""
        if not isinstance(reference, dict) or reference.get("kind") not in ("Role", "ClusterRole"):
            return  # validation refuses it
        plural = "roles" if reference["kind"] == "Role" else "clusterroles"
        name = str(reference.get("name", ""))
        bind = AccessAttributes("bind", RBAC, plural, "", namespace, name)
        if self._authorizer.allowed_reason(request.user, bind):
            return
        rules = self._authorizer.role_rules({**reference, "name": name}, namespace)
        if rules is None:
            raise not_found(plural, RBAC, name)
        self._check_covered(request, rules)

    def _check_covered(self, request: ApiRequest, granted: Iterable[Json]) -> None:
        user = request.user
        uncovered = uncovered_rules(self._held_rules(user, request.namespace or ""), granted)
        missing = list(islice(uncovered, MAX_REPORTED_PARTS))
        if missing:
            groups = ", ".join(f'"{group}"' for group in user.groups)
            listed = "\n".join(sorted(format_rule(rule) for rule in merge_rules(missing)))
            _refuse(
                request,
                f'user "{user.name}" (groups=[{groups}]) is attempting to grant RBAC permissions '
                f"not currently held:\n{listed}",
            )

    def _held_rules(self, user: RequestUser, namespace: str) -> list[Json]:
        return list(self._authorizer.rules_for(user, namespace))


def _refuse(request: ApiRequest, reason: str) -> None:
    raise forbidden_object(request.kind.plural, RBAC, request.name, reason)


def _aggregates(role: Json) -> bool:
    rule = role.get("aggregationRule")
    return isinstance(rule, dict) and bool(rule.get("clusterRoleSelectors"))


def _without_lifecycle(obj: Json) -> Json:
    """Return an object without the fields that the garbage collector writes."""
    meta = obj.get("metadata") or {}
    ignored = ("ownerReferences", "finalizers", "managedFields", "resourceVersion")
    kept = {name: value for name, value in meta.items() if name not in ignored}
    return {**obj, "metadata": kept}


EXTRA_PREFIX = "impersonate-extra-"
UNAUTHENTICATED = ANONYMOUS.groups[0]
_GROUP = "authentication.k8s.io"


class Impersonator:
    """Returns the user that a request acts as."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer

    def impersonated(
        self, sender: RequestUser, headers: Iterable[tuple[str, str]]
    ) -> RequestUser | None:
        """Return the user that the headers name; None if they name none. Raises StatusError: 403,
        the sender may not impersonate this user. 400, the headers name a group, a UID or an extra
        value without a user.
        """
        requested = _requested_user(headers)
        if requested is None:
            return None
        for attributes in _required_rights(requested):
            self._authorizer.require(sender, attributes)
        return _completed(requested)


def _requested_user(headers: Iterable[tuple[str, str]]) -> RequestUser | None:
    name = uid = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}
    for header, value in headers:
        match header.lower():
            case "impersonate-user":
                name = name or value
            case "impersonate-uid":
                uid = uid or value
            case "impersonate-group":
                groups.append(value)
            case other if other.startswith(EXTRA_PREFIX):
                extra.setdefault(unquote(other.removeprefix(EXTRA_PREFIX)), []).append(value)
    if not name:
        if uid or groups or extra:
            raise bad_request(
                "the headers Impersonate-Group, Impersonate-Uid and Impersonate-Extra- require "
                "the header Impersonate-User"
            )
        return None
    frozen = tuple((key, tuple(values)) for key, values in extra.items())
    return RequestUser(name, tuple(groups), uid, frozen)


def _required_rights(user: RequestUser) -> Iterator[AccessAttributes]:
    account = service_account_of(user.name)
    if account is not None:
        namespace, name = account
        yield AccessAttributes("impersonate", "", "serviceaccounts", "", namespace, name)
    else:
        yield AccessAttributes("impersonate", "", "users", name=user.name)
    for group in user.groups:
        yield AccessAttributes("impersonate", "", "groups", name=group)
    for key, values in user.extra:
        for value in values:
            yield AccessAttributes("impersonate", _GROUP, "userextras", key, name=value)
    if user.uid:
        yield AccessAttributes("impersonate", _GROUP, "uids", name=user.uid)


def _completed(user: RequestUser) -> RequestUser:
    """Return the user with the groups that every user of its sort has."""
    groups = list(user.groups)
    account = service_account_of(user.name)
    if account is not None and not groups:
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{account[0]}"]
    if user.name == ANONYMOUS.name:
        added = UNAUTHENTICATED
    else:
        added = "" if UNAUTHENTICATED in groups else AUTHENTICATED
    if added and added not in groups:
        groups.append(added)
    return RequestUser(user.name, tuple(groups), user.uid, user.extra)


def service_account_of(name: str) -> tuple[str, str] | None:
    """Return the namespace and name of a service account's user name; None for other users."""
    match name.split(":"):
        case ["system", "serviceaccount", namespace, account] if namespace and account:
            return namespace, account
    return None
