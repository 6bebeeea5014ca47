"""Pod Security admission: the labels of a namespace limit its pods.

As Kubernetes' plug-in without exemptions and with the default level *privileged*. Pods are refused
by ``enforce``; ``warn`` and ``audit`` report violations of pods and of templates of workloads.
"""

import time
from typing import Any

from gangline.api.validation.security_standards import (
    PREFIX,
    Level,
    LevelVersion,
    PodSecurityPolicy,
    describe,
    find_violations,
)
from gangline.local.apiserver.core.errors import forbidden_object, invalid
from gangline.local.apiserver.core.negotiation import read_json
from gangline.local.apiserver.core.registry import Json
from gangline.local.apiserver.core.request import ApiRequest
from gangline.local.apiserver.machinery.defaults import POD_TEMPLATES
from gangline.local.apiserver.storage.store import ObjectStore

_SECCOMP_POD = "seccomp.security.alpha.kubernetes.io/pod"
_SECCOMP = "container.seccomp.security.alpha.kubernetes.io/"
_CONTAINERS = ("initContainers", "containers")
MAX_CHECKED_PODS = 3000
CHECK_TIMEOUT_S = 0.25
"""Limit of the check of existing pods: it holds the event loop."""


class PodSecurityAdmission:
    """Checks pods, workloads and the labels of namespaces."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def check(self, request: ApiRequest, old: Json | None, new: Json) -> None:
        """Refuse or report a write. ``old`` is None for a creation. Raises StatusError: 403, the
        namespace forbids the pod; 422, wrong labels of a namespace.
        """
        kind = request.kind
        if request.subresource:
            return
        if (kind.group, kind.plural) == ("", "namespaces"):
            self._check_namespace(request, old, new)
        elif (kind.group, kind.plural) == ("", "pods"):
            if old is None or _is_significant(old, new):
                self._check_pod(request, new)
        elif path := POD_TEMPLATES.get((kind.group, kind.kind)):
            template: Any = new
            for field in path:
                template = template.get(field) or {}
            self._report(request, self._policy(request), template)

    def _policy(self, request: ApiRequest) -> PodSecurityPolicy:
        """Return the policy of the request's namespace."""
        record = self._store.cache("namespaces.").latest(request.namespace or "")
        labels = record.labels if record is not None else {}
        if not any(label.startswith(PREFIX) for label in labels):
            return _PERMISSIVE
        policy, errors = PodSecurityPolicy.of_labels(labels)
        if errors:
            text = ", ".join(f"{error.field}: {error.message}" for error in errors)
            request.audit_annotations[f"{PREFIX}error"] = f"Failed to parse policy: {text}"
        return policy

    def _check_pod(self, request: ApiRequest, pod: Json) -> None:
        policy = self._policy(request)
        if policy is _PERMISSIVE:
            return
        request.audit_annotations[f"{PREFIX}enforce-policy"] = str(policy.enforce)
        violated = _violations(pod, policy.enforce)
        self._report(request, policy, pod, warn=not violated)
        if violated:
            why = f'violates PodSecurity "{policy.enforce}": {violated}'
            raise forbidden_object("pods", "", request.name, why)

    def _report(
        self, request: ApiRequest, policy: PodSecurityPolicy, pod: Json, *, warn: bool = True
    ) -> None:
        """Note violations for the audit log, and for the user unless the pod is refused anyway."""
        if violated := _violations(pod, policy.audit):
            text = f'would violate PodSecurity "{policy.audit}": {violated}'
            request.audit_annotations[f"{PREFIX}audit-violations"] = text
        if warn and (violated := _violations(pod, policy.warn)):
            request.warnings.append(f'would violate PodSecurity "{policy.warn}": {violated}')

    def _check_namespace(self, request: ApiRequest, old: Json | None, new: Json) -> None:
        policy, errors = PodSecurityPolicy.of_labels(new["metadata"].get("labels") or {})
        before, old_errors = _PERMISSIVE, None
        if old is not None:
            before, old_errors = PodSecurityPolicy.of_labels(old["metadata"].get("labels") or {})
        if errors and errors != old_errors:
            raise invalid("", "Namespace", request.name, errors)
        stricter = (
            policy.enforce.minor != before.enforce.minor
            or policy.enforce.level > before.enforce.level
        )
        if old is not None and stricter and policy.enforce.level is not Level.PRIVILEGED:
            request.warnings += self._warn_of_pods(request.name, policy.enforce)

    def _warn_of_pods(self, namespace: str, enforce: LevelVersion) -> list[str]:
        """Return warnings for existing pods that a new level would refuse."""
        prefix = f"{namespace}/"
        records = self._store.cache("pods.").records
        pods = [record for key, record in list(records.items()) if key.startswith(prefix)]
        names: dict[str, list[str]] = {}
        deadline = time.monotonic() + CHECK_TIMEOUT_S
        checked = 0
        for record in pods[:MAX_CHECKED_PODS]:
            pod = read_json(record.body)
            checked += 1
            violations = find_violations(pod["metadata"], pod.get("spec") or {}, enforce)
            if violations:
                reason = ", ".join(violation.reason for violation in violations)
                names.setdefault(reason, []).append(pod["metadata"]["name"])
            if time.monotonic() > deadline:
                break
        warnings = []
        if checked < len(pods):
            warnings.append(
                "new PodSecurity enforce level only checked against the first "
                f"{checked} of {len(pods)} existing pods"
            )
        if names:
            warnings.append(
                f'existing pods in namespace "{namespace}" violate the new PodSecurity enforce '
                f'level "{enforce}"'
            )
        return warnings + sorted(f"{_named(pod_names)}: {why}" for why, pod_names in names.items())


_PERMISSIVE = PodSecurityPolicy()


def _violations(pod: Json, version: LevelVersion) -> str:
    return describe(find_violations(pod.get("metadata") or {}, pod.get("spec") or {}, version))


def _named(pods: list[str]) -> str:
    """Return such as ``a (and 2 other pods)``."""
    others = len(pods) - 1
    if not others:
        return pods[0]
    return f"{min(pods)} (and {others} other pod{'s' if others > 1 else ''})"


def _is_significant(old: Json, new: Json) -> bool:
    """True if an update changes what the standards read and a pod lets change."""
    before, after = (container["metadata"].get("annotations") or {} for container in (old, new))
    keys = {key for key in (*before, *after) if key == _SECCOMP_POD or key.startswith(_SECCOMP)}
    if any(before.get(key) != after.get(key) for key in keys):
        return True
    for field in _CONTAINERS:
        images = [
            [container.get("image") for container in pod["spec"].get(field) or ()]
            for pod in (old, new)
        ]
        if images[0] != images[1]:
            return True
    return False
