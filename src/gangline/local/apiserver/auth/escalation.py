"""Writes of roles and bindings: no user grants more than it has.

As in Kubernetes: every rule of a written role must be covered by the rules of the user, unless the
user has the verb ``escalate`` on the role. The rules of the role that a binding names must be
covered as well, unless the user has the verb ``bind`` on that role. An aggregation rule gathers
rules of any role, so its writer needs full rights.
"""

from collections.abc import Iterable
from itertools import islice

from gangline.local.apiserver.auth.builtin_roles import RBAC
from gangline.local.apiserver.auth.pki import ADMIN_GROUP
from gangline.local.apiserver.auth.rbac import Authorizer
from gangline.local.apiserver.auth.rule_coverage import uncovered_rules
from gangline.local.apiserver.auth.rules import (
    FULL_AUTHORITY,
    AccessAttributes,
    format_rule,
    merge_rules,
)
from gangline.local.apiserver.core.errors import forbidden, not_found, qualified_resource
from gangline.local.apiserver.core.registry import Json
from gangline.local.apiserver.core.request import ApiRequest, RequestUser

ROLES, BINDINGS = ("roles", "clusterroles"), ("rolebindings", "clusterrolebindings")
MAX_REPORTED_PARTS = 1000
"""Uncovered parts of rules that a response lists: they are as many as the product of four lists."""


class EscalationGuard:
    """Checks written roles and bindings."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer

    def check(self, request: ApiRequest, old: Json | None, new: Json) -> None:
        """Refuse a write that grants more rights than its user has. ``old`` is None for a creation.

        Raises:
            StatusError: 403; or 404, a binding names a role that does not exist.
        """
        kind = request.kind
        if kind.group != RBAC or ADMIN_GROUP in request.user.groups:
            return
        if old is not None and _changes_lifecycle_only(old, new):
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
    plural = request.kind.plural
    shown = qualified_resource(plural, RBAC)
    message = f'{shown} "{request.name}" is forbidden: {reason}'
    raise forbidden(message, plural, RBAC, request.name)


def _aggregates(role: Json) -> bool:
    rule = role.get("aggregationRule")
    return isinstance(rule, dict) and bool(rule.get("clusterRoleSelectors"))


def _changes_lifecycle_only(old: Json, new: Json) -> bool:
    """Return True if only fields change that the garbage collector writes."""
    return _without_lifecycle(old) == _without_lifecycle(new)


def _without_lifecycle(obj: Json) -> Json:
    meta = obj.get("metadata") or {}
    ignored = ("ownerReferences", "finalizers", "managedFields", "resourceVersion")
    kept = {name: value for name, value in meta.items() if name not in ignored}
    return {**obj, "metadata": kept}
