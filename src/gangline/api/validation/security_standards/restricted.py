"""The controls that the level *restricted* adds: the current practice of hardening pods."""

from gangline.api.validation.security_standards import baseline
from gangline.api.validation.security_standards.baseline import SECCOMP_TYPES
from gangline.api.validation.security_standards.pods import (
    PodUnderCheck,
    Violation,
    count,
    quote,
    setters,
)
from gangline.api.validation.security_standards.policy import LevelVersion

_WINDOWS_EXEMPT_FROM = 25
_ALLOWED_VOLUMES = (
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
)


def _is_exempt(pod: PodUnderCheck, version: LevelVersion) -> bool:
    """Windows has no such fields."""
    return pod.is_windows and version.is_at_least(_WINDOWS_EXEMPT_FROM)


def allow_privilege_escalation(pod: PodUnderCheck, version: LevelVersion) -> Violation | None:
    if _is_exempt(pod, version):
        return None
    bad = [n for n, _, c in pod.containers() if c.get("allowPrivilegeEscalation") is not False]
    detail = f"{count('container', bad)} must set securityContext.allowPrivilegeEscalation=false"
    return Violation("allowPrivilegeEscalation != false", detail) if bad else None


def capabilities(pod: PodUnderCheck, version: LevelVersion) -> Violation | None:
    if _is_exempt(pod, version):
        return None
    not_dropping, adding, forbidden = [], [], set()
    for name, _, context in pod.containers():
        given = context.get("capabilities") or {}
        if "ALL" not in (given.get("drop") or ()):
            not_dropping.append(name)
        if extra := set(given.get("add") or ()) - {"NET_BIND_SERVICE"}:
            adding.append(name)
            forbidden |= extra
    details = []
    if not_dropping:
        who = count("container", not_dropping)
        details.append(f'{who} must set securityContext.capabilities.drop=["ALL"]')
    if adding:
        details.append(
            f"{count('container', adding)} must not include {quote(sorted(forbidden))} in "
            "securityContext.capabilities.add"
        )
    return Violation("unrestricted capabilities", "; ".join(details)) if details else None


def restricted_volumes(pod: PodUnderCheck, version: LevelVersion) -> Violation | None:
    bad, types = [], set()
    for volume in pod.volumes():
        if not any(volume.get(field) is not None for field in _ALLOWED_VOLUMES):
            bad.append(str(volume.get("name", "")))
            found = [field for field, value in volume.items() if isinstance(value, dict)]
            types.update(found[:1] or ["unknown"])
    if not bad:
        return None
    use = "uses" if len(bad) == 1 else "use"
    detail = f"{count('volume', bad)} {use} {count('restricted volume type', sorted(types))}"
    return Violation("restricted volume types", detail)


def run_as_non_root(pod: PodUnderCheck, version: LevelVersion) -> Violation | None:
    of_pod = pod.context.get("runAsNonRoot")
    values = {name: context.get("runAsNonRoot") for name, _, context in pod.containers()}
    explicit = [name for name, value in values.items() if value is False]
    if of_pod is False or explicit:
        who = setters(of_pod is False, explicit)
        detail = f"{who} must not set securityContext.runAsNonRoot=false"
        return Violation("runAsNonRoot != true", detail)
    silent = [name for name, value in values.items() if value is None]
    if of_pod or not silent:
        return None
    who = count("container", silent)
    detail = f"pod or {who} must set securityContext.runAsNonRoot=true"
    return Violation("runAsNonRoot != true", detail)


def run_as_user(pod: PodUnderCheck, version: LevelVersion) -> Violation | None:
    bad_pod = pod.context.get("runAsUser") == 0
    bad = [name for name, _, context in pod.containers() if context.get("runAsUser") == 0]
    if not bad_pod and not bad:
        return None
    return Violation("runAsUser=0", f"{setters(bad_pod, bad)} must not set runAsUser=0")


def seccomp_profile(pod: PodUnderCheck, version: LevelVersion) -> Violation | None:
    if _is_exempt(pod, version):
        return None
    if explicit := baseline.seccomp_profile(pod, version):
        return explicit
    silent = [name for name, _, c in pod.containers() if c.get("seccompProfile") is None]
    if pod.context.get("seccompProfile") is not None or not silent:
        return None
    types = " or ".join(f'"{each}"' for each in SECCOMP_TYPES)
    who = count("container", silent)
    detail = f"pod or {who} must set securityContext.seccompProfile.type to {types}"
    return Violation("seccompProfile", detail)
