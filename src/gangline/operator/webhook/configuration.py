"""The webhook configurations: what the API server is told of whom to ask, about what, and how.

One of each sort, written as a whole and kept so. Fields that are not set here (an object selector,
say) are left to the administrator: what is written is declared by server-side apply.
"""

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from gangline.api.resource import Resource
from gangline.operator.job import Kind
from gangline.operator.webhook.certificate import (
    Authority,
    UnusableCertificate,
    read_authorities,
)
from gangline.operator.webhook.keyring import Keyring, ordered
from gangline.operator.webhook.settings import Validity, WebhookSettings

GROUP = "admissionregistration.k8s.io"
VALIDATING = Resource(
    dict[str, Any],
    GROUP,
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
)
MUTATING = Resource(
    dict[str, Any],
    GROUP,
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    namespaced=False,
)
BOTH = (MUTATING, VALIDATING)
PATHS = {VALIDATING.kind: "/validate", MUTATING.kind: "/default"}
_NAMES = {VALIDATING.kind: "validate.jobs.gangline.dev", MUTATING.kind: "default.jobs.gangline.dev"}

OWNED = {"app.kubernetes.io/managed-by": "gangline-operator"}
"""The label of what the operator has made and may change."""

Manifest = Mapping[str, Any]


def is_owned(manifest: Manifest) -> bool:
    """Whether an object is one of the operator's own."""
    labels = _at(manifest, "metadata", "labels") or {}
    return OWNED.items() <= dict(labels).items()


def wanted(
    resource: Resource[dict[str, Any]],
    settings: WebhookSettings,
    kinds: Sequence[Kind],
    authorities: Iterable[Authority],
    port: int,
) -> dict[str, Any]:
    """Write down a configuration.

    Args:
        resource: the sort of configuration.
        settings: how and where the webhook is reached.
        kinds: the kinds whose jobs are looked at, with their companions.
        authorities: what the API server has to trust.
        port: the port that is served.
    """
    bundle = "".join(authority.pem for authority in authorities)
    client = _client(settings, PATHS[resource.kind], port)
    webhook: dict[str, Any] = {
        "name": _NAMES[resource.kind],
        "clientConfig": {**client, "caBundle": base64.b64encode(bundle.encode()).decode()},
        "rules": [_rule(each) for each in sorted(_looked_at(resource, kinds), key=_order)],
        "namespaceSelector": _namespaces(settings.namespaces),
        "failurePolicy": str(settings.failure_policy),
        "matchPolicy": "Equivalent",
        "sideEffects": "None",
        "timeoutSeconds": settings.timeout_s,
        "admissionReviewVersions": ["v1"],
    }
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": settings.configuration, "labels": dict(OWNED)},
        "webhooks": [webhook],
    }


def bundle_for(
    keyring: Keyring, existing: Manifest | None, now: datetime, validity: Validity
) -> tuple[Authority, ...]:
    """Say which authorities a configuration should name.

    While certificates are being replaced those that it names already stay: a copy of the operator
    may serve under one of them that has not seen yet what is in the Secret.
    """
    if not keyring.in_motion(now, validity):
        return keyring.trusted
    before = [each for each in authorities_in(existing) if now < each.expires]
    return ordered([*keyring.trusted, *before])


def authorities_in(existing: Manifest | None) -> tuple[Authority, ...]:
    """Read the authorities that a configuration names; none if they cannot be read."""
    webhooks = (existing or {}).get("webhooks") or []
    bundle = _at(webhooks[0], "clientConfig", "caBundle") if webhooks else ""
    try:
        return tuple(read_authorities(base64.b64decode(bundle or "", validate=True).decode()))
    except (binascii.Error, ValueError, UnusableCertificate):
        return ()


def agrees(existing: Any, manifest: Any) -> bool:
    """Whether all that is wanted is there, perhaps beside other things; {} stands for nothing."""
    if manifest == {}:
        return not existing
    if isinstance(manifest, Mapping) and isinstance(existing, Mapping):
        return all(agrees(existing.get(name), value) for name, value in manifest.items())
    if isinstance(manifest, list) and isinstance(existing, list):
        pairs = zip(existing, manifest, strict=False)
        return len(existing) == len(manifest) and all(agrees(old, new) for old, new in pairs)
    return bool(existing == manifest)


def _looked_at(
    resource: Resource[dict[str, Any]], kinds: Sequence[Kind]
) -> Iterator[Kind | Resource[Any]]:
    """Jobs, and what else is written about them; that has no defaults."""
    for kind in kinds:
        yield kind
        if resource is VALIDATING:
            yield from kind.companions


def _order(kind: Kind | Resource[Any]) -> tuple[str, str]:
    return kind.group, kind.plural


def _rule(kind: Kind | Resource[Any]) -> dict[str, Any]:
    return {
        "operations": ["CREATE", "UPDATE"],
        "apiGroups": [kind.group],
        "apiVersions": [kind.version],
        "resources": [kind.plural],
        "scope": "Namespaced",
    }


def _namespaces(names: Sequence[str]) -> dict[str, Any]:
    if not names:
        return {}
    named = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": sorted(names)}
    return {"matchExpressions": [named]}


def _client(settings: WebhookSettings, path: str, port: int) -> dict[str, Any]:
    if not settings.url:
        service = {"namespace": settings.namespace, "name": settings.service, "port": 443}
        return {"service": {**service, "path": path}}
    parts = urlsplit(settings.url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    place = "" if parts.port is None else f":{parts.port or port}"
    return {"url": f"https://{host}{place}{parts.path.rstrip('/')}{path}"}


def _at(manifest: Any, *way: str) -> Any:
    for step in way:
        manifest = manifest.get(step) if isinstance(manifest, Mapping) else None
    return manifest
