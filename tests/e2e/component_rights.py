"""Operator and scheduler run with the rights of the chart, and the audit log shows their use.

Without this, missing rights stay unseen: a test's administrator may do everything. Unused ones stay
unseen everywhere.
"""

import json
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from chart_objects import NAMESPACE, OFF, RIGHTS_KINDS, chart_objects

TOKEN_S = 24 * 3600
"""Tokens outlive the suite: nothing renews them outside of a pod."""

Right = tuple[str, str, str]
"""Group, resource with its subresource, verb."""


def manifests(**values: Any) -> list[dict[str, Any]]:
    """The accounts of the components, and their rights; the webhook has tests of its own."""
    objects = chart_objects(webhook=OFF, rbac={"aggregate": False}, **values)
    return [each for each in objects if each["kind"] in RIGHTS_KINDS]


def install(kubeconfig: Path, **values: Any) -> None:
    """Create the accounts and give them their rights."""
    _kubectl(kubeconfig, "apply", "-f", "-", text=yaml.safe_dump_all(manifests(**values)))


def account_of(component: str) -> str:
    """The user name of a component in the cluster."""
    return f"system:serviceaccount:{NAMESPACE}:gangline-{component}"


def write_kubeconfig(admin: Path, component: str, file: Path) -> Path:
    """Write a kubeconfig that acts as the component's account."""
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/gangline-{component}/token"
    wanted = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1"}
    request = json.dumps(wanted | {"spec": {"expirationSeconds": TOKEN_S}})
    answer = _kubectl(admin, "create", "--raw", path, "-f", "-", text=request)
    config = yaml.safe_load(admin.read_text())
    for user in config["users"]:
        user["user"] = {"token": json.loads(answer)["status"]["token"]}
    file.touch(0o600)
    file.write_text(yaml.safe_dump(config))
    return file


@dataclass
class Usage:
    """What the audit log says of one account."""

    used: set[Right] = field(default_factory=set)
    allowed: set[tuple[Right, str]] = field(default_factory=set)
    """Right and namespace of the calls that the server authorised."""
    refused: dict[tuple[Right, str], str] = field(default_factory=dict)
    """Those that it did not authorise, each with the verb and the address of one call."""

    @property
    def lacking(self) -> list[str]:
        """The calls that were refused and never allowed.

        An API server that starts refuses calls until it has read the roles.
        """
        return [call for key, call in self.refused.items() if key not in self.allowed]


def read_usage(lines: Iterable[str], user: str) -> Usage:
    """Read the lines of an audit log."""
    usage = Usage()
    for line in lines:
        event = json.loads(line)
        if event["user"].get("username") != user or "responseStatus" not in event:
            continue
        about = event.get("objectRef") or {"resource": event["requestURI"]}
        name = "/".join(filter(None, (about["resource"], about.get("subresource"))))
        right = (about.get("apiGroup", ""), name, event["verb"])
        key = (right, about.get("namespace", ""))
        # Not by the status: 403 also answers who creates objects in a namespace that ends.
        if event.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid":
            usage.refused[key] = f"{event['verb']} {event['requestURI']}"
        else:
            usage.allowed.add(key)
            usage.used.add(right)
    return usage


def granted(component: str) -> set[Right]:
    """All rights of a component."""
    roles = [each for each in manifests() if "rules" in each]
    own = [each for each in roles if each["metadata"]["name"].startswith(f"gangline-{component}")]
    return {right for role in own for right in _rights(role["rules"])}


def _rights(rules: Iterable[dict[str, Any]]) -> Iterator[Right]:
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    yield group, resource, verb


def _kubectl(kubeconfig: Path, *arguments: str, text: str) -> str:
    done = subprocess.run(
        ["kubectl", "--kubeconfig", str(kubeconfig), *arguments],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
