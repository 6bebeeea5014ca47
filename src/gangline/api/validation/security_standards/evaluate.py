"""Applies the controls of a level and a version to a pod."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from gangline.api.validation.security_standards import baseline, restricted
from gangline.api.validation.security_standards.pods import Json, PodUnderCheck, Violation
from gangline.api.validation.security_standards.policy import Level, LevelVersion

Control = Callable[[PodUnderCheck, LevelVersion], Violation | None]


class _VersionedControl(NamedTuple):
    control: Control
    since: int = 0
    """The minor version of Kubernetes whose standards have it first."""
    replaced_since: int | None = None
    """The minor version from which on the level restricted has a stricter control instead."""


_BASELINE = (
    _VersionedControl(baseline.app_armor_profile),
    _VersionedControl(baseline.capabilities, replaced_since=22),
    _VersionedControl(baseline.host_namespaces),
    _VersionedControl(baseline.host_path_volumes, replaced_since=0),
    _VersionedControl(baseline.host_ports),
    _VersionedControl(baseline.privileged),
    _VersionedControl(baseline.proc_mount),
    _VersionedControl(baseline.se_linux_options),
    _VersionedControl(baseline.seccomp_profile, replaced_since=19),
    _VersionedControl(baseline.sysctls),
    _VersionedControl(baseline.windows_host_process),
)
_RESTRICTED = (
    _VersionedControl(restricted.allow_privilege_escalation, since=8),
    _VersionedControl(restricted.capabilities, since=22),
    _VersionedControl(restricted.restricted_volumes),
    _VersionedControl(restricted.run_as_non_root),
    _VersionedControl(restricted.run_as_user, since=23),
    _VersionedControl(restricted.seccomp_profile, since=19),
)


def find_violations(metadata: Json, spec: Json, version: LevelVersion) -> list[Violation]:
    """Return what a pod or a pod template violates, of baseline first."""
    if version.level is Level.PRIVILEGED:
        return []
    pod = PodUnderCheck(metadata, spec)
    controls = [each for each in _BASELINE if not _is_replaced(each, version)]
    if version.level is Level.RESTRICTED:
        controls += [each for each in _RESTRICTED if version.is_at_least(each.since)]
    found = (each.control(pod, version) for each in controls)
    return [violation for violation in found if violation is not None]


def _is_replaced(control: _VersionedControl, version: LevelVersion) -> bool:
    since = control.replaced_since
    return version.level is Level.RESTRICTED and since is not None and version.is_at_least(since)


def describe(violations: Sequence[Violation]) -> str:
    """Return reasons and details in one line, as Kubernetes writes them."""
    return ", ".join(map(str, violations))
