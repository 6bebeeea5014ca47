"""Roles and bindings, as an administrator of the attacked server writes them."""

from typing import Any

from security.conftest import AttackedServer

RBAC = "/apis/rbac.authorization.k8s.io/v1"
GROUP = "rbac.authorization.k8s.io"


def rule(group: str, resources: str, verbs: str, *names: str) -> dict[str, Any]:
    """Return a rule for resources and verbs that commas separate."""
    named = {"resourceNames": list(names)} if names else {}
    return {
        "apiGroups": [group],
        "resources": resources.split(","),
        "verbs": verbs.split(","),
        **named,
    }


def role(name: str, *rules: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "rules": list(rules), **more}


def binding(name: str, kind: str, role_name: str, user: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": GROUP, "kind": kind, "name": role_name},
        "subjects": [{"apiGroup": GROUP, "kind": "User", "name": user}],
    }


async def grant(attacked: AttackedServer, user: str, *rules: dict[str, Any]) -> None:
    """Give a user rules in all namespaces, in a role and a binding with the user's name."""
    status, body = await attacked.request(
        "POST", f"{RBAC}/clusterroles", json=role(f"of-{user}", *rules)
    )
    assert status == 201, body
    await bind(attacked, user, f"of-{user}")


async def bind(attacked: AttackedServer, user: str, cluster_role: str, namespace: str = "") -> None:
    """Bind a ClusterRole to a user, in one namespace or in all."""
    path = f"namespaces/{namespace}/rolebindings" if namespace else "clusterrolebindings"
    made = binding(f"{user}-{cluster_role}", "ClusterRole", cluster_role, user)
    status, body = await attacked.request("POST", f"{RBAC}/{path}", json=made)
    assert status == 201, body
