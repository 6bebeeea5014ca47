"""The webhook configurations, which register the webhook for its resources with the API server.

The operator owns one of each kind and keeps it current by server-side apply. Fields that are not
set here (an object selector, for instance) are left to the administrator.

Registers the webhook: keeps the two webhook configurations current.

Lasting problems are logged once, and again only after a change (``DeduplicatedWarnings``).
"""

import base64
import binascii
import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from gangline.api.job_resources import find_job_kind
from gangline.api.meta.json_objects import objects_in, subobject
from gangline.api.meta.objects import OwnerReference
from gangline.api.meta.resource import Resource
from gangline.api.resources import KUBERNETES_POD_GROUPS, POD_GROUPS, PODS
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import ApiError, ConfigError, NotFound
from gangline.operator.model.job import JobKindInfo
from gangline.operator.webhook.certificate import (
    CertificateAuthority,
    CertificateSet,
    UnusableCertificate,
    read_authorities,
    sort_authorities,
)
from gangline.operator.webhook.settings import CertificateValidity, WebhookSettings

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
CONFIGURATION_RESOURCES = (MUTATING, VALIDATING)
PATHS = {VALIDATING.kind: "/validate", MUTATING.kind: "/default"}
SYSTEM_NAMESPACE = "kube-system"
_SCALED_AT = PATHS[VALIDATING.kind]
"""Path of the webhook that also reviews ``kubectl scale``."""
_NAMES = {VALIDATING.kind: "validate.jobs.gangline.dev", MUTATING.kind: "default.jobs.gangline.dev"}

QUEUE_ACCESS_PATH = "/queue-access"
QUEUE_ACCESS_NAME = "queues.jobs.gangline.dev"

OWNER_LABELS = {"app.kubernetes.io/managed-by": "gangline-operator"}
"""The label of objects that the operator created and may change."""
FILLED_LABELS = {"gangline.dev/webhook": "operator"}
"""The label of webhook configurations that an installer created for the operator to fill in.

They belong to the installer (a Helm release), which removes them. Their metadata is not changed.
"""

Manifest = Mapping[str, Any]


def is_owned(manifest: Manifest) -> bool:
    labels = subobject(manifest, "metadata", "labels")
    return OWNER_LABELS.items() <= labels.items()


def is_filled(manifest: Manifest | None) -> bool:
    """Return whether an installer created the configuration for the operator to fill in."""
    labels = subobject(manifest or {}, "metadata", "labels")
    return FILLED_LABELS.items() <= labels.items()


def desired_configuration(
    resource: Resource[dict[str, Any]],
    settings: WebhookSettings,
    kinds: Sequence[JobKindInfo],
    authorities: Iterable[CertificateAuthority],
    port: int,
) -> dict[str, Any]:
    """Build a webhook configuration that trusts these authorities."""
    bundle = base64.b64encode("".join(authority.pem for authority in authorities).encode()).decode()

    def webhook(
        name: str, path: str, resources: Iterable[Resource[Any]], selector: dict[str, Any]
    ) -> dict[str, Any]:
        ordered = sorted(resources, key=lambda reviewed: (reviewed.group, reviewed.plural))
        return {
            "name": name,
            "clientConfig": {**_client(settings, path, port), "caBundle": bundle},
            "rules": [_rule(reviewed, with_scale=path == _SCALED_AT) for reviewed in ordered],
            "namespaceSelector": selector,
            "failurePolicy": str(settings.failure_policy),
            "matchPolicy": "Equivalent",
            "sideEffects": "None",
            "timeoutSeconds": settings.timeout_s,
            "admissionReviewVersions": ["v1"],
        }

    reviewed = [kind.resource for kind in kinds]
    if resource is VALIDATING:  # the related resources have no defaults
        reviewed += [related for kind in kinds for related in kind.related_resources]
    name, path = _NAMES[resource.kind], PATHS[resource.kind]
    webhooks = [webhook(name, path, reviewed, _namespaces(settings.namespaces))]
    if settings.queue_access and resource is VALIDATING:
        # The scheduler reads the queue of a pod whenever its annotations change, so a change is
        # reviewed like a creation. The kubelet's reports (pods/status) match no rule on pods.
        users = [*(kind.resource for kind in kinds), POD_GROUPS, KUBERNETES_POD_GROUPS, PODS]
        # What serves the webhook must start while it does not respond.
        excluded = (settings.namespace, SYSTEM_NAMESPACE)
        selector = _namespaces(settings.namespaces, excluded)
        webhooks.append(webhook(QUEUE_ACCESS_NAME, QUEUE_ACCESS_PATH, users, selector))
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": settings.configuration, "labels": dict(OWNER_LABELS)},
        "webhooks": webhooks,
    }


def authorities_for(
    keyring: CertificateSet, existing: Manifest | None, now: datetime, validity: CertificateValidity
) -> tuple[CertificateAuthority, ...]:
    """Return the CAs that a configuration should contain.

    While certificates are rotated, the CAs that it contains already stay: a replica of the operator
    that has not read the Secret yet may serve under one of them.
    """
    if not keyring.is_rotating(now, validity):
        return keyring.trusted
    before = [authority for authority in authorities_in(existing) if now < authority.expires]
    return sort_authorities([*keyring.trusted, *before])


def authorities_in(existing: Manifest | None) -> tuple[CertificateAuthority, ...]:
    """Parse the CAs in a configuration; empty if they cannot be parsed."""
    webhooks = objects_in((existing or {}).get("webhooks"))
    bundle = subobject(webhooks[0], "clientConfig").get("caBundle") if webhooks else ""
    try:
        return tuple(read_authorities(base64.b64decode(bundle or "", validate=True).decode()))
    except (binascii.Error, ValueError, UnusableCertificate):
        return ()


def contains(existing: Any, manifest: Any) -> bool:
    """Return whether ``existing`` contains ``manifest``; {} stands for nothing."""
    if manifest == {}:
        return not existing
    if isinstance(manifest, Mapping) and isinstance(existing, Mapping):
        return all(contains(existing.get(name), value) for name, value in manifest.items())
    if isinstance(manifest, list) and isinstance(existing, list):
        pairs = zip(existing, manifest, strict=False)
        return len(existing) == len(manifest) and all(contains(old, new) for old, new in pairs)
    return bool(existing == manifest)


def _rule(kind: Resource[Any], *, with_scale: bool) -> dict[str, Any]:
    job_kind = find_job_kind(kind.api_version, kind.kind)
    # The webhook must see in which version a job is written.
    others = job_kind.other_versions if job_kind else ()
    is_scaled = with_scale and job_kind is not None and job_kind.is_scalable
    return {
        "operations": ["CREATE", "UPDATE"],
        "apiGroups": [kind.group],
        "apiVersions": [kind.version, *others],
        "resources": [kind.plural, *([f"{kind.plural}/scale"] if is_scaled else [])],
        "scope": "Namespaced" if kind.namespaced else "Cluster",
    }


def _namespaces(names: Sequence[str], excluded: Sequence[str] = ()) -> dict[str, Any]:
    """Return a selector of these namespaces; without names, of all but the excluded ones."""
    values, operator = (names, "In") if names else (excluded, "NotIn")
    if not values:
        return {}
    key = "kubernetes.io/metadata.name"
    named = {"key": key, "operator": operator, "values": sorted(set(values))}
    return {"matchExpressions": [named]}


def _client(settings: WebhookSettings, path: str, port: int) -> dict[str, Any]:
    if not settings.url:
        service = {"namespace": settings.namespace, "name": settings.service, "port": 443}
        return {"service": {**service, "path": path}}
    parts = urlsplit(settings.url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    place = "" if parts.port is None else f":{parts.port or port}"
    return {"url": f"https://{host}{place}{parts.path.rstrip('/')}{path}"}


class DeduplicatedWarnings:
    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._logged: dict[str, str] = {}

    def warn(self, subject: str, text: str) -> None:
        """Log a warning, unless it equals the last one about the subject."""
        if self._logged.get(subject) != text:
            self._logged[subject] = text
            self._log.warning("%s", text)

    def clear(self, subject: str) -> None:
        """Record that a problem is resolved."""
        self._logged.pop(subject, None)


log = logging.getLogger(__name__)

FIELD_MANAGER = "gangline-operator"


class WebhookRegistration:
    def __init__(
        self, client: ApiClient, settings: WebhookSettings, kinds: Sequence[JobKindInfo]
    ) -> None:
        self._client = client
        self._settings = settings
        self._kinds = kinds
        self._complaints = DeduplicatedWarnings(log)

    async def register(
        self, ring: CertificateSet, port: int, now: datetime
    ) -> frozenset[CertificateAuthority]:
        """Update both configurations; return the CAs that both contain.

        Raises:
            Conflict: another writer has just changed one: retry.
            ApiError: one cannot be read or written.
        """
        registered = [
            await self._register_one(resource, ring, port, now)
            for resource in CONFIGURATION_RESOURCES
        ]
        return frozenset(ring.trusted) if all(registered) else frozenset()

    async def remove(self) -> None:
        """Delete or empty the configurations: the API server must not call a stopped webhook."""
        for resource in CONFIGURATION_RESOURCES:
            try:
                existing = await self._get(resource)
                if is_filled(existing):
                    await self._client.patch(
                        resource, self._settings.configuration, {"webhooks": None}
                    )
                elif existing is not None and is_owned(existing):
                    await self._client.delete(resource, self._settings.configuration)
            except (ApiError, ConfigError) as error:
                log.debug("%s is not deleted: %s", resource.kind, error)

    async def find_owner(self) -> OwnerReference | None:
        """Return the configuration that an installer made, or None: the operator made its own.

        The installer's release removes it; what it owns is removed with it. Raises ApiError: it
        cannot be read.
        """
        existing = await self._get(VALIDATING)
        if existing is None or not is_filled(existing):
            return None
        resource, metadata = VALIDATING, existing["metadata"]
        version = f"{resource.group}/{resource.version}"
        return OwnerReference(version, resource.kind, metadata["name"], metadata["uid"])

    async def _register_one(
        self, resource: Resource[dict[str, Any]], ring: CertificateSet, port: int, now: datetime
    ) -> bool:
        existing = await self._get(resource)
        filled = is_filled(existing)
        if existing is not None and not filled and not is_owned(existing):
            self._complaints.warn(resource.kind, self._not_owned_message(resource.kind))
            return False
        self._complaints.clear(resource.kind)
        bundle = authorities_for(ring, existing, now, self._settings.validity)
        manifest = desired_configuration(resource, self._settings, self._kinds, bundle, port)
        if filled:
            del manifest["metadata"]["labels"]
        if not contains(existing, manifest):
            if existing is not None:
                # Require the version that was read: another replica may have added a CA meanwhile.
                manifest["metadata"]["resourceVersion"] = existing["metadata"]["resourceVersion"]
            await self._client.apply(resource, manifest, manager=FIELD_MANAGER, force=True)
            log.info("webhook is registered", extra={"kind": resource.kind})
        return True

    async def _get(self, resource: Resource[dict[str, Any]]) -> dict[str, Any] | None:
        try:
            return await self._client.get(resource, self._settings.configuration)
        except NotFound:
            return None

    def _not_owned_message(self, kind: str) -> str:
        return (
            f"{kind} {self._settings.configuration} does not belong to the operator (it has "
            f"neither the label {OWNER_LABELS} nor "
            f"{FILLED_LABELS}) and is not changed: jobs are validated when they "
            "run, not when they are written. Remove it, or choose another name with "
            "--webhook-configuration"
        )
