"""Applies the controls of a Pod Security level and version to a pod.

Levels and versions come from the labels of a namespace. *Baseline* prevents known privilege
escalations; *restricted* adds the current practice of hardening pods.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, NamedTuple, Self

from gangline.api.meta.objects import StatusCause

PREFIX = "pod-security.kubernetes.io/"
_VERSION = re.compile(r"v1\.(0|[1-9][0-9]{0,9})")


class Level(IntEnum):
    """Ordered from the most permissive to the strictest."""

    PRIVILEGED = 0
    BASELINE = 1
    RESTRICTED = 2


@dataclass(frozen=True, slots=True)
class LevelVersion:
    """A level as it was in a version of Kubernetes."""

    level: Level = Level.PRIVILEGED
    minor: int | None = None
    """Minor version of Kubernetes 1; None for the latest."""

    def __str__(self) -> str:
        version = "latest" if self.minor is None else f"v1.{self.minor}"
        return f"{self.level.name.lower()}:{version}"

    def is_at_least(self, minor: int) -> bool:
        """True if the rules that came with a minor version apply."""
        return self.minor is None or self.minor >= minor


@dataclass(frozen=True, slots=True)
class PodSecurityPolicy:
    """What a namespace demands of its pods."""

    enforce: LevelVersion = LevelVersion()
    audit: LevelVersion = LevelVersion()
    warn: LevelVersion = LevelVersion()

    @classmethod
    def of_labels(cls, labels: Mapping[str, str]) -> tuple[Self, list[StatusCause]]:
        """Return the policy of a namespace, and the errors in its labels.

        With an error ``enforce`` is restricted, ``audit`` and ``warn`` are privileged. Without
        labels for ``warn``, users are warned of what is enforced: of templates of refused pods.
        """
        errors: list[StatusCause] = []
        enforce = _read(labels, "enforce", Level.RESTRICTED, errors)
        audit = _read(labels, "audit", Level.PRIVILEGED, errors)
        warn = _read(labels, "warn", Level.PRIVILEGED, errors)
        refused = f"metadata.labels[{PREFIX}enforce]"
        valid = f"{PREFIX}enforce" in labels and all(error.field != refused for error in errors)
        if valid and f"{PREFIX}warn" not in labels and enforce.level > warn.level:
            given = f"{PREFIX}warn-version" in labels
            warn = replace(warn, level=enforce.level) if given else enforce
        return cls(enforce, audit, warn), errors


def _read(
    labels: Mapping[str, str], mode: str, fallback: Level, errors: list[StatusCause]
) -> LevelVersion:
    level, minor = Level.PRIVILEGED, None
    name = f"{PREFIX}{mode}"
    if (text := labels.get(name)) is not None:
        try:
            level = Level[text.upper()] if text == text.lower() else fallback
            valid = text == text.lower()
        except KeyError:
            level, valid = fallback, False
        if not valid:
            errors.append(_invalid(name, text, "must be one of privileged, baseline, restricted"))
    name = f"{PREFIX}{mode}-version"
    if (text := labels.get(name)) is not None and text != "latest":
        if match := _VERSION.fullmatch(text):
            minor = int(match[1])
        else:
            errors.append(_invalid(name, text, 'must be "latest" or "v1.x"'))
    return LevelVersion(level, minor)


def _invalid(label: str, value: str, why: str) -> StatusCause:
    message = f'Invalid value: "{value}": {why}'
    return StatusCause("FieldValueInvalid", message, f"metadata.labels[{label}]")


Json = Mapping[str, Any]


class Violation(NamedTuple):
    reason: str
    detail: str

    def __str__(self) -> str:
        return f"{self.reason} ({self.detail})" if self.detail else self.reason


@dataclass(frozen=True, slots=True)
class PodUnderCheck:
    metadata: Json
    spec: Json

    @property
    def context(self) -> Json:
        return self.spec.get("securityContext") or {}

    @property
    def annotations(self) -> Json:
        return self.metadata.get("annotations") or {}

    @property
    def is_windows(self) -> bool:
        return (self.spec.get("os") or {}).get("name") == "windows"

    def containers(self) -> Iterator[tuple[str, Json, Json]]:
        """Yield name, container and security context of containers of all sorts."""
        for field in ("initContainers", "containers", "ephemeralContainers"):
            for container in self.spec.get(field) or ():
                yield container.get("name", ""), container, container.get("securityContext") or {}

    def volumes(self) -> Sequence[Json]:
        return self.spec.get("volumes") or ()


def quote(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def count(noun: str, names: Sequence[str]) -> str:
    """Return such as ``containers "a", "b"``."""
    return f"{noun if len(names) == 1 else noun + 's'} {quote(names)}"


def setters(pod: bool, containers: Sequence[str]) -> str:
    """Return the pod and the containers that set something; empty for none."""
    subjects = ["pod"] if pod else []
    return " and ".join([*subjects, count("container", containers)] if containers else subjects)


def _setters_of(pod: PodUnderCheck, is_bad: Callable[[Any], bool]) -> str:
    """Return the setters with such a security context, the pod first; empty for none."""
    bad_pod = is_bad(pod.context)
    return setters(bad_pod, [name for name, _, context in pod.containers() if is_bad(context)])


_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
_SECCOMP_POD = "seccomp.security.alpha.kubernetes.io/pod"
_SECCOMP = "container.seccomp.security.alpha.kubernetes.io/"
_SECCOMP_VALUES = ("runtime/default", "docker/default")
SECCOMP_TYPES = ("RuntimeDefault", "Localhost")
_SECCOMP_FIELDS_FROM = 19
_HOST_FIELDS = ("hostNetwork", "hostPID", "hostIPC")
_SELINUX_TYPES = ("", "container_t", "container_init_t", "container_kvm_t")
_SELINUX_ENGINE = (31, "container_engine_t")
DEFAULT_CAPABILITIES = frozenset(
    (
        *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD"),
        *("NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
    )
)
_SYSCTLS = {
    "kernel.shm_rmid_forced": 0,
    "net.ipv4.ip_local_port_range": 0,
    "net.ipv4.ip_unprivileged_port_start": 0,
    "net.ipv4.ping_group_range": 0,
    "net.ipv4.tcp_syncookies": 0,
    "net.ipv4.ip_local_reserved_ports": 27,
    "net.ipv4.tcp_fin_timeout": 29,
    "net.ipv4.tcp_keepalive_intvl": 29,
    "net.ipv4.tcp_keepalive_probes": 29,
    "net.ipv4.tcp_keepalive_time": 29,
    "net.ipv4.tcp_rmem": 32,
    "net.ipv4.tcp_wmem": 32,
}
"""Safe kernel parameters, with the minor version from which on each is allowed."""


def app_armor_profile(pod: PodUnderCheck, version: LevelVersion) -> Violation | None:
    types: set[str] = set()

    def is_bad(context: Any) -> bool:
        forbidden = {_profile_type(context, "appArmorProfile")} - {"", *SECCOMP_TYPES}
        types.update(forbidden)
        return bool(forbidden)

    subjects = []
    if who := _setters_of(pod, is_bad):
        listed = quote(sorted(types))
        subjects.append(f"{who} must not set securityContext.appArmorProfile.type to {listed}")
    annotations = sorted(
        f'{key}="{value}"'
        for key, value in pod.annotations.items()
        if key.startswith(_APPARMOR)
        and value not in ("", "runtime/default")
        and not value.startswith("localhost/")
    )
    if not subjects and not annotations:
        return None
    profiles = "profile" if len(subjects) + len(annotations) == 1 else "profiles"
    return Violation(f"forbidden AppArmor {profiles}", ", ".join([*subjects, *annotations]))


def _profile_type(context: Any, field: str) -> str:
    profile = context.get(field)
    return "" if profile is None else str(profile.get("type", ""))


def capabilities(pod: PodUnderCheck, version: LevelVersion) -> Violation | None:
    added = {
        name: set((context.get("capabilities") or {}).get("add") or ()) - DEFAULT_CAPABILITIES
        for name, _, context in pod.containers()
    }
    bad = [name for name, forbidden in added.items() if forbidden]
    if not bad:
        return None
    forbidden = quote(sorted(set().union(*added.values())))
    detail = (
        f"{count('container', bad)} must not include {forbidden} in "
        "securityContext.capabilities.add"
    )
    return Violation("non-default capabilities", detail)


def host_namespaces(pod: PodUnderCheck, version: LevelVersion) -> Violation | None:
    bad = [f"{field}=true" for field in _HOST_FIELDS if pod.spec.get(field)]
    return Violation("host namespaces", ", ".join(bad)) if bad else None


def host_path_volumes(pod: PodUnderCheck, version: LevelVersion) -> Violation | None:
    paths = (volume for volume in pod.volumes() if volume.get("hostPath") is not None)
    bad = [str(volume.get("name", "")) for volume in paths]
    return Violation("hostPath volumes", count("volume", bad)) if bad else None


def host_ports(pod: PodUnderCheck, version: LevelVersion) -> Violation | None:
    ports = {
        name: [port["hostPort"] for port in container.get("ports") or () if port.get("hostPort")]
        for name, container, _ in pod.containers()
    }
    bad = [name for name, used in ports.items() if used]
    if not bad:
        return None
    numbers = sorted({str(port) for used in ports.values() for port in used})
    use, noun = ("uses", "use")[len(bad) > 1], ("hostPort", "hostPorts")[len(numbers) > 1]
    return Violation("hostPort", f"{count('container', bad)} {use} {noun} {', '.join(numbers)}")


def privileged(pod: PodUnderCheck, version: LevelVersion) -> Violation | None:
    bad = [name for name, _, context in pod.containers() if context.get("privileged")]
    detail = f"{count('container', bad)} must not set securityContext.privileged=true"
    return Violation("privileged", detail) if bad else None


def proc_mount(pod: PodUnderCheck, version: LevelVersion) -> Violation | None:
    mounts = {n: c.get("procMount") for n, _, c in pod.containers()}
    bad = {name: mount for name, mount in mounts.items() if mount not in (None, "Default")}
    if not bad:
        return None
    types = quote(sorted({str(mount) for mount in bad.values()}))
    detail = f"{count('container', list(bad))} must not set securityContext.procMount to {types}"
    return Violation("procMount", detail)


def se_linux_options(pod: PodUnderCheck, version: LevelVersion) -> Violation | None:
    minor, engine = _SELINUX_ENGINE
    allowed = (*_SELINUX_TYPES, *([engine] if version.is_at_least(minor) else []))
    types: set[str] = set()
    fields: set[str] = set()

    def is_bad(context: Any) -> bool:
        options = context.get("seLinuxOptions") or {}
        kind = options.get("type") or ""
        types.update({kind} - set(allowed))
        given = {field for field in ("user", "role") if options.get(field)}
        fields.update(given)
        return kind not in allowed or bool(given)

    who = _setters_of(pod, is_bad)
    data = [count("type", sorted(types))] if types else []
    data += [f"{field} may not be set" for field in ("user", "role") if field in fields]
    detail = f"{who} set forbidden securityContext.seLinuxOptions: {'; '.join(data)}"
    return Violation("seLinuxOptions", detail) if who else None


def seccomp_profile(pod: PodUnderCheck, version: LevelVersion) -> Violation | None:
    if not version.is_at_least(_SECCOMP_FIELDS_FROM):
        return _seccomp_annotations(pod)
    types: set[str] = set()

    def is_bad(context: Any) -> bool:
        if context.get("seccompProfile") is None:
            return False
        forbidden = {_profile_type(context, "seccompProfile")} - set(SECCOMP_TYPES)
        types.update(forbidden)
        return bool(forbidden)

    who = _setters_of(pod, is_bad)
    detail = f"{who} must not set securityContext.seccompProfile.type to {quote(sorted(types))}"
    return Violation("seccompProfile", detail) if who else None


def _seccomp_annotations(pod: PodUnderCheck) -> Violation | None:
    keys = [_SECCOMP_POD, *(f"{_SECCOMP}{name}" for name, _, _ in pod.containers())]
    bad = sorted(
        f'{key}="{value}"'
        for key in keys
        if (value := pod.annotations.get(key)) is not None
        and value not in _SECCOMP_VALUES
        and not value.startswith("localhost/")
    )
    noun = "annotation" if len(bad) == 1 else "annotations"
    return Violation("seccompProfile", f"forbidden {noun} {', '.join(bad)}") if bad else None


def sysctls(pod: PodUnderCheck, version: LevelVersion) -> Violation | None:
    bad = [
        name
        for sysctl in pod.context.get("sysctls") or ()
        if (name := str(sysctl.get("name", ""))) not in _SYSCTLS
        or not version.is_at_least(_SYSCTLS[name])
    ]
    return Violation("forbidden sysctls", ", ".join(bad)) if bad else None


def windows_host_process(pod: PodUnderCheck, version: LevelVersion) -> Violation | None:
    who = _setters_of(pod, lambda c: bool((c.get("windowsOptions") or {}).get("hostProcess")))
    detail = f"{who} must not set securityContext.windowsOptions.hostProcess=true"
    return Violation("hostProcess", detail) if who else None


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


def restricted_capabilities(pod: PodUnderCheck, version: LevelVersion) -> Violation | None:
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
            sources = [field for field, value in volume.items() if isinstance(value, dict)]
            types.update(sources[:1] or ["unknown"])
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
    who = _setters_of(pod, lambda context: context.get("runAsUser") == 0)
    return Violation("runAsUser=0", f"{who} must not set runAsUser=0") if who else None


def restricted_seccomp_profile(pod: PodUnderCheck, version: LevelVersion) -> Violation | None:
    if _is_exempt(pod, version):
        return None
    if explicit := seccomp_profile(pod, version):
        return explicit
    silent = [name for name, _, c in pod.containers() if c.get("seccompProfile") is None]
    if pod.context.get("seccompProfile") is not None or not silent:
        return None
    types = " or ".join(f'"{type_}"' for type_ in SECCOMP_TYPES)
    who = count("container", silent)
    detail = f"pod or {who} must set securityContext.seccompProfile.type to {types}"
    return Violation("seccompProfile", detail)


Control = Callable[[PodUnderCheck, LevelVersion], Violation | None]


class _VersionedControl(NamedTuple):
    control: Control
    since: int = 0
    """The minor version of Kubernetes whose standards have it first."""
    replaced_since: int | None = None
    """The minor version from which on the level restricted has a stricter control instead."""


_BASELINE = (
    _VersionedControl(app_armor_profile),
    _VersionedControl(capabilities, replaced_since=22),
    _VersionedControl(host_namespaces),
    _VersionedControl(host_path_volumes, replaced_since=0),
    _VersionedControl(host_ports),
    _VersionedControl(privileged),
    _VersionedControl(proc_mount),
    _VersionedControl(se_linux_options),
    _VersionedControl(seccomp_profile, replaced_since=19),
    _VersionedControl(sysctls),
    _VersionedControl(windows_host_process),
)
_RESTRICTED = (
    _VersionedControl(allow_privilege_escalation, since=8),
    _VersionedControl(restricted_capabilities, since=22),
    _VersionedControl(restricted_volumes),
    _VersionedControl(run_as_non_root),
    _VersionedControl(run_as_user, since=23),
    _VersionedControl(restricted_seccomp_profile, since=19),
)


def find_violations(metadata: Json, spec: Json, version: LevelVersion) -> list[Violation]:
    """Return what a pod or a pod template violates, of baseline first."""
    if version.level is Level.PRIVILEGED:
        return []
    pod = PodUnderCheck(metadata, spec)
    controls = [control for control in _BASELINE if not _is_replaced(control, version)]
    if version.level is Level.RESTRICTED:
        controls += [control for control in _RESTRICTED if version.is_at_least(control.since)]
    violations = (control.control(pod, version) for control in controls)
    return [violation for violation in violations if violation is not None]


def _is_replaced(control: _VersionedControl, version: LevelVersion) -> bool:
    since = control.replaced_since
    return version.level is Level.RESTRICTED and since is not None and version.is_at_least(since)


def describe(violations: Sequence[Violation]) -> str:
    """Return reasons and details in one line, as Kubernetes writes them."""
    return ", ".join(map(str, violations))
