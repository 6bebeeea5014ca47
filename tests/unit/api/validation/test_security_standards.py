"""The Pod Security Standards, control by control, as Kubernetes publishes them."""

from copy import deepcopy
from typing import Any

import pytest

from chart_objects import chart_objects
from gangline.api.validation.security_standards import (
    Level,
    LevelVersion,
    PodSecurityPolicy,
    describe,
    find_violations,
)

PREFIX = "pod-security.kubernetes.io/"
BASELINE, RESTRICTED = LevelVersion(Level.BASELINE), LevelVersion(Level.RESTRICTED)
HARDENED: dict[str, Any] = {
    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    "containers": [
        {
            "name": "a",
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            },
        }
    ],
}


def hardened(of_pod: dict[str, Any] | None = None, **of_container: Any) -> dict[str, Any]:
    """A pod that meets restricted, but for these fields; None removes one."""
    spec = deepcopy(HARDENED)
    for target, changes in (
        (spec["securityContext"], of_pod or {}),
        (spec["containers"][0]["securityContext"], of_container),
    ):
        target.update(changes)
        for key in [key for key, value in target.items() if value is None]:
            del target[key]
    return spec


def violations(spec: dict[str, Any], version: LevelVersion, **annotations: str) -> str:
    return describe(find_violations({"annotations": annotations}, spec, version))


def test_a_hardened_pod_meets_both_levels_and_a_plain_one_meets_baseline() -> None:
    plain = {"containers": [{"name": "a"}]}
    assert violations(HARDENED, RESTRICTED) == violations(HARDENED, BASELINE) == ""
    assert violations(plain, BASELINE) == ""
    assert violations(plain, RESTRICTED) == (
        'allowPrivilegeEscalation != false (container "a" must set '
        "securityContext.allowPrivilegeEscalation=false), "
        'unrestricted capabilities (container "a" must set securityContext.capabilities.drop='
        '["ALL"]), '
        'runAsNonRoot != true (pod or container "a" must set securityContext.runAsNonRoot=true), '
        'seccompProfile (pod or container "a" must set securityContext.seccompProfile.type to '
        '"RuntimeDefault" or "Localhost")'
    )


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (
            {"hostNetwork": True, "hostIPC": True},
            "host namespaces (hostNetwork=true, hostIPC=true)",
        ),
        (
            hardened(privileged=True),
            'privileged (container "a" must not set securityContext.privileged=true)',
        ),
        (
            hardened(capabilities={"drop": ["ALL"], "add": ["CHOWN", "SYS_ADMIN"]}),
            'non-default capabilities (container "a" must not include "SYS_ADMIN" in '
            "securityContext.capabilities.add)",
        ),
        (
            {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]},
            'hostPath volumes (volume "v")',
        ),
        (
            {"containers": [{"name": "a", "ports": [{"hostPort": 80}, {"containerPort": 81}]}]},
            'hostPort (container "a" uses hostPort 80)',
        ),
        (
            hardened(procMount="Unmasked"),
            'procMount (container "a" must not set securityContext.procMount to "Unmasked")',
        ),
        (
            hardened({"seLinuxOptions": {"type": "spc_t", "user": "u"}}),
            "seLinuxOptions (pod set forbidden securityContext.seLinuxOptions: "
            'type "spc_t"; user may not be set)',
        ),
        (
            hardened({"seccompProfile": {"type": "Unconfined"}}),
            'seccompProfile (pod must not set securityContext.seccompProfile.type to "Unconfined")',
        ),
        (
            hardened({"sysctls": [{"name": "kernel.msgmax"}, {"name": "net.ipv4.tcp_syncookies"}]}),
            "forbidden sysctls (kernel.msgmax)",
        ),
        (
            hardened(windowsOptions={"hostProcess": True}),
            'hostProcess (container "a" must not set '
            "securityContext.windowsOptions.hostProcess=true)",
        ),
        (
            hardened(appArmorProfile={"type": "Unconfined"}),
            'forbidden AppArmor profile (container "a" must not set '
            'securityContext.appArmorProfile.type to "Unconfined")',
        ),
    ],
)
def test_baseline_forbids_known_privilege_escalations(spec: dict[str, Any], expected: str) -> None:
    assert violations(spec, BASELINE) == expected
    assert violations(spec, LevelVersion()) == ""
    assert violations(spec, RESTRICTED) != ""


def test_app_armor_is_also_read_from_annotations() -> None:
    key = "container.apparmor.security.beta.kubernetes.io/a"
    assert violations(HARDENED, BASELINE, **{key: "localhost/x"}) == ""
    text = violations(HARDENED, BASELINE, **{key: "unconfined"})
    assert text == f'forbidden AppArmor profile ({key}="unconfined")'


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (hardened(allowPrivilegeEscalation=None), "allowPrivilegeEscalation != false"),
        (hardened(allowPrivilegeEscalation=True), "allowPrivilegeEscalation != false"),
        (hardened(capabilities=None), "unrestricted capabilities"),
        (hardened(capabilities={"drop": ["NET_RAW"]}), "unrestricted capabilities"),
        (hardened(capabilities={"drop": ["ALL"], "add": ["CHOWN"]}), "unrestricted capabilities"),
        (hardened({"runAsNonRoot": None}), "runAsNonRoot != true"),
        (hardened({"runAsNonRoot": False}), "runAsNonRoot != true"),
        (hardened(runAsNonRoot=False), "runAsNonRoot != true"),
        (hardened({"runAsUser": 0}), "runAsUser=0"),
        (hardened(runAsUser=0), "runAsUser=0"),
        (hardened({"seccompProfile": None}), "seccompProfile"),
        (HARDENED | {"volumes": [{"name": "v", "nfs": {}}]}, "restricted volume types"),
    ],
)
def test_restricted_demands_hardening(spec: dict[str, Any], expected: str) -> None:
    assert violations(spec, BASELINE) == ""
    listed = find_violations({}, spec, RESTRICTED)
    assert [violation.reason for violation in listed] == [expected]


@pytest.mark.parametrize(
    "spec",
    [
        hardened(capabilities={"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}),
        hardened({"runAsNonRoot": None}, runAsNonRoot=True),
        hardened({"seccompProfile": None}, seccompProfile={"type": "Localhost"}),
        HARDENED | {"volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "secret": {}}]},
        HARDENED | {"initContainers": HARDENED["containers"]},
    ],
)
def test_restricted_accepts_what_is_equally_safe(spec: dict[str, Any]) -> None:
    assert violations(spec, RESTRICTED) == ""


def test_init_containers_count_and_several_containers_are_listed() -> None:
    context = {"securityContext": {"privileged": True}}
    spec = {
        "initContainers": [{"name": "i", **context}],
        "containers": [{"name": "a", **context}, {"name": "b"}],
    }
    assert 'containers "i", "a" must not set' in violations(spec, BASELINE)


def test_a_volume_type_is_named() -> None:
    spec = HARDENED | {
        "volumes": [{"name": "v", "hostPath": {"path": "/"}}, {"name": "w", "nfs": {}}]
    }
    assert violations(spec, RESTRICTED) == (
        'restricted volume types (volumes "v", "w" use restricted volume types "hostPath", "nfs")'
    )


@pytest.mark.parametrize(
    ("spec", "control", "since"),
    [
        (hardened({"runAsUser": 0}), "runAsUser=0", 23),
        (hardened(capabilities=None), "unrestricted capabilities", 22),
        (hardened({"seccompProfile": None}), "seccompProfile", 19),
        (hardened(allowPrivilegeEscalation=None), "allowPrivilegeEscalation != false", 8),
    ],
)
def test_a_version_has_the_controls_of_its_time(
    spec: dict[str, Any], control: str, since: int
) -> None:
    assert violations(spec, LevelVersion(Level.RESTRICTED, since - 1)) == ""
    assert violations(spec, LevelVersion(Level.RESTRICTED, since)).startswith(control)
    assert violations(spec, LevelVersion(Level.RESTRICTED, 999)).startswith(control)


def test_later_versions_allow_more_kernel_parameters_and_windows() -> None:
    spec = hardened({"sysctls": [{"name": "net.ipv4.tcp_keepalive_time"}]})
    assert violations(spec, LevelVersion(Level.BASELINE, 28)) != ""
    assert violations(spec, LevelVersion(Level.BASELINE, 29)) == ""
    windows = {
        "os": {"name": "windows"},
        "containers": [{"name": "a", "securityContext": {"runAsNonRoot": True}}],
    }
    assert violations(windows, LevelVersion(Level.RESTRICTED, 24)) != ""
    assert violations(windows, LevelVersion(Level.RESTRICTED, 25)) == ""


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({}, ("privileged:latest", "privileged:latest", "privileged:latest")),
        (
            {"enforce": "baseline", "enforce-version": "v1.24"},
            ("baseline:v1.24", "privileged:latest", "baseline:v1.24"),
        ),
        (
            {"enforce": "baseline", "warn": "restricted", "audit": "restricted"},
            ("baseline:latest", "restricted:latest", "restricted:latest"),
        ),
        (
            {"enforce": "restricted", "warn": "privileged"},
            ("restricted:latest", "privileged:latest", "privileged:latest"),
        ),
    ],
)
def test_labels_choose_levels_and_versions(
    labels: dict[str, str], expected: tuple[str, str, str]
) -> None:
    policy, errors = PodSecurityPolicy.of_labels({PREFIX + k: v for k, v in labels.items()})
    assert errors == []
    assert (str(policy.enforce), str(policy.audit), str(policy.warn)) == expected


def test_wrong_labels_are_named_and_fail_closed() -> None:
    labels = {"enforce": "Baseline", "warn": "x", "audit-version": "1.24"}
    policy, errors = PodSecurityPolicy.of_labels({PREFIX + k: v for k, v in labels.items()})
    assert policy.enforce.level is Level.RESTRICTED
    assert policy.warn.level is Level.PRIVILEGED
    assert [f"{error.field}: {error.message}" for error in errors] == [
        f'metadata.labels[{PREFIX}enforce]: Invalid value: "Baseline": must be one of privileged, '
        "baseline, restricted",
        f'metadata.labels[{PREFIX}audit-version]: Invalid value: "1.24": must be "latest" or '
        '"v1.x"',
        f'metadata.labels[{PREFIX}warn]: Invalid value: "x": must be one of privileged, baseline, '
        "restricted",
    ]


def test_pods_of_the_chart_meet_restricted() -> None:
    pods = [
        chart_object
        for chart_object in chart_objects(brain={"enabled": True})
        if chart_object["kind"] == "Deployment"
    ]
    assert len(pods) == 3
    for pod in pods:
        template = pod["spec"]["template"]
        assert violations(template["spec"], RESTRICTED) == "", pod["metadata"]["name"]
