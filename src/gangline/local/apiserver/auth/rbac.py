"""Authorization by RBAC: roles and their bindings, evaluated as in Kubernetes.

Members of ``system:masters`` may do everything. Other users may do what the roles bound to them or
to their groups allow. There are no rules that deny.
"""

from collections.abc import Collection, Iterator
from typing import NamedTuple

from gangline.local.apiserver.auth.pki import ADMIN_GROUP
from gangline.local.apiserver.core.errors import forbidden, qualified_resource
from gangline.local.apiserver.core.negotiation import read_json
from gangline.local.apiserver.core.registry import Json
from gangline.local.apiserver.core.request import AUTHENTICATED, ApiRequest, RequestUser
from gangline.local.apiserver.storage.store import ObjectStore

GROUP = "rbac.authorization.k8s.io"
PUBLIC_PATHS = ("/healthz", "/livez", "/readyz", "/version", "/api", "/apis", "/openapi", "/")
OWN_REVIEWS = ("selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews")


class AccessAttributes(NamedTuple):
    """An action of a user that is authorized or not."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    @property
    def full_resource(self) -> str:
        """The resource with its subresource, in the notation of rules."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


class Authorizer:
    """Decides whether a user may perform an action."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def authorize(self, request: ApiRequest) -> None:
        """Refuse a request that its user is not authorized to make.

        Raises:
            StatusError: 403.
        """
        user, kind = request.user, request.kind
        if ADMIN_GROUP in user.groups or kind.plural in OWN_REVIEWS:
            return
        attributes = AccessAttributes(
            request.verb,
            kind.group,
            kind.plural,
            request.subresource,
            request.namespace or "",
            request.name,
        )
        if self.allowed_reason(user, attributes):
            return
        shown = qualified_resource(kind.plural, kind.group)
        named = f'{shown} "{request.name}"' if request.name else shown
        where = (
            f'in the namespace "{request.namespace}"'
            if request.namespace
            else "at the cluster scope"
        )
        raise forbidden(
            f'{named} is forbidden: User "{user.name}" cannot {request.verb} resource '
            f'"{attributes.full_resource}" in API group "{kind.group}" {where}',
            kind.plural,
            kind.group,
            request.name,
        )

    def impersonate(self, user: RequestUser, name: str, groups: list[str]) -> RequestUser:
        """Return the user that ``user`` impersonates.

        Raises:
            StatusError: 403, ``user`` may not impersonate this user or group.
        """
        required = [AccessAttributes("impersonate", "", "users", name=name)]
        required += [AccessAttributes("impersonate", "", "groups", name=group) for group in groups]
        for attributes in required:
            if not self.allowed_reason(user, attributes):
                resource = attributes.resource
                raise forbidden(
                    f'{resource} "{attributes.name}" is forbidden: User "{user.name}" cannot '
                    f'impersonate resource "{resource}" in API group "" at the cluster scope',
                    resource,
                    "",
                    attributes.name,
                )
        return RequestUser(name, (*groups, AUTHENTICATED))

    def allowed_reason(self, user: RequestUser, attributes: AccessAttributes) -> str:
        """Return why an action is allowed; empty if no rule allows it."""
        if ADMIN_GROUP in user.groups:
            return f"RBAC: allowed by membership in {ADMIN_GROUP}"
        if attributes.path and _is_public(attributes, user):
            return "RBAC: allowed for all authenticated users"
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

    def _bindings(self, plural: str, namespace: str) -> Iterator[Json]:
        cache = self._store.cache(f"{plural}.{GROUP}")
        for key in cache.keys(namespace or None):
            yield read_json(cache.records[key].body)

    def _rules_of(self, binding: Json, user: RequestUser, kind: str) -> Iterator[tuple[Json, str]]:
        if not any(subject_matches(subject, user) for subject in binding.get("subjects") or ()):
            return
        meta, role = binding["metadata"], binding["roleRef"]
        record = self._role(role, meta.get("namespace", ""))
        for rule in record.get("rules") or ():
            yield rule, f'{kind} "{meta["name"]}" of {role["kind"]} "{role["name"]}"'

    def _role(self, role: Json, namespace: str) -> Json:
        own = role["kind"] == "Role"
        key = f"{namespace}/{role['name']}" if own else role["name"]
        cache = self._store.cache(f"{'roles' if own else 'clusterroles'}.{GROUP}")
        record = cache.records.get(key)
        found: Json = read_json(record.body) if record else {}
        return found


def _is_public(attributes: AccessAttributes, user: RequestUser) -> bool:
    known = AUTHENTICATED in user.groups
    inside = any(
        attributes.path == p or attributes.path.startswith(f"{p}/")
        for p in PUBLIC_PATHS
        if p != "/"
    )
    return known and attributes.verb in ("get", "head") and (inside or attributes.path == "/")


def subject_matches(subject: Json, user: RequestUser) -> bool:
    match subject.get("kind"):
        case "User":
            return bool(subject.get("name") == user.name)
        case "Group":
            return subject.get("name") in user.groups
        case "ServiceAccount":
            name = f"system:serviceaccount:{subject.get('namespace')}:{subject.get('name')}"
            return name == user.name
    return False


def rule_allows(rule: Json, attributes: AccessAttributes) -> bool:
    if not _contains(rule.get("verbs"), attributes.verb):
        return False
    if attributes.path:
        return any(
            _path_matches(path, attributes.path) for path in rule.get("nonResourceURLs") or ()
        )
    resources = rule.get("resources") or ()
    named = _contains(resources, attributes.full_resource) or (
        bool(attributes.subresource) and f"*/{attributes.subresource}" in resources
    )
    names = rule.get("resourceNames") or ()
    return (
        named
        and _contains(rule.get("apiGroups"), attributes.group)
        and (not names or attributes.name in names)
    )


def _contains(listed: Collection[str] | None, value: str) -> bool:
    return listed is not None and ("*" in listed or value in listed)


def _path_matches(pattern: str, path: str) -> bool:
    if pattern.endswith("*"):
        return path.startswith(pattern[:-1])
    return pattern == path
