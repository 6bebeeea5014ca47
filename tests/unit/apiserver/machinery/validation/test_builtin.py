"""Validation of built-in kinds on creation and update: each error with path and message."""

import base64
import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.local.apiserver.machinery.defaults import apply_builtin_defaults
from gangline.local.apiserver.machinery.validation.builtin import (
    VALIDATORS,
    validate_create,
    validate_update,
)

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def an_object(group: str, kind: str, **fields: Any) -> dict[str, Any]:
    obj: dict[str, Any] = {"metadata": {"name": "x", "namespace": "n"}, **copy.deepcopy(fields)}
    apply_builtin_defaults(group, kind, obj)
    return obj


def mistakes(group: str, kind: str, **fields: Any) -> dict[str, str]:
    causes = validate_create(group, kind, an_object(group, kind, **fields), namespaced=True)
    return {cause.field: cause.message for cause in causes}


def base64_of(size: int) -> str:
    return base64.b64encode(bytes(size)).decode()


def in_pod(container: dict[str, Any] | None = None, **spec: Any) -> dict[str, str]:
    containers = [{"name": "c", "image": "i"} | (container or {})]
    return mistakes("", "Pod", spec={"containers": containers, **spec})


def in_metadata(**metadata: Any) -> dict[str, str]:
    return mistakes("", "ConfigMap", metadata={"name": "x", "namespace": "n"} | metadata)


def changes(group: str, kind: str, old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    causes = validate_update(group, kind, old, new, namespaced=True)
    return [f"{cause.field}: {cause.message}" for cause in causes]


CONTAINER = "spec.containers[0]"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


@pytest.mark.parametrize(
    ("container", "field", "message"),
    [
        ({"name": ""}, "name", "Required value"),
        ({"name": "A_B"}, "name", "Invalid value"),
        ({"image": ""}, "image", "Required value"),
        ({"image": " i"}, "image", "whitespace"),
        ({"imagePullPolicy": "Maybe"}, "imagePullPolicy", "Unsupported value"),
        ({"ports": [{"containerPort": 99999}]}, "ports[0].containerPort", "between 1 and 65535"),
        ({"ports": [{}]}, "ports[0].containerPort", "Required value"),
        ({"ports": [{"containerPort": 1, "protocol": "X"}]}, "ports[0].protocol", "Unsupported"),
        ({"ports": [{"containerPort": 1, "name": "--"}]}, "ports[0].name", "Invalid value"),
        ({"env": [{"value": "x"}]}, "env[0].name", "Required value"),
        ({"env": [{"name": "1A"}]}, "env[0].name", "Invalid value"),
        ({"env": [{"name": "A", "valueFrom": {}}]}, "env[0].valueFrom", "must specify one of"),
        ({"envFrom": [{"prefix": "A"}]}, "envFrom[0]", "must specify one of"),
        ({"envFrom": [{"secretRef": {}}]}, "envFrom[0].secretRef.name", "Required value"),
        ({"livenessProbe": {"httpGet": {"port": "a/b"}}}, "livenessProbe.httpGet.port", "port"),
        (
            {"volumeMounts": [{"name": "v", "mountPath": "/a"}]},
            "volumeMounts[0].name",
            "Not found",
        ),
        (
            {"volumeMounts": [{"name": "v", "mountPath": "/", "subPath": "a", "subPathExpr": "b"}]},
            "volumeMounts[0].subPathExpr",
            "mutually exclusive",
        ),
        ({"restartPolicy": "Always"}, "restartPolicy", "Forbidden"),
        ({"livenessProbe": {}}, "livenessProbe", "must specify a handler type"),
        (
            {"livenessProbe": {"exec": {"command": ["a"]}, "successThreshold": 2}},
            "livenessProbe.successThreshold",
            "must be 1",
        ),
        (
            {"readinessProbe": {"exec": {"command": ["a"]}, "tcpSocket": {"port": 1}}},
            "readinessProbe.tcpSocket",
            "more than 1 handler",
        ),
        (
            {"resources": {"limits": {"cpu": "-1"}}},
            "resources.limits[cpu]",
            "greater than or equal",
        ),
        ({"resources": {"limits": {"cpu": "1GB"}}}, "resources.limits[cpu]", "Invalid value"),
        ({"resources": {"limits": {"gpu": 1}}}, "resources.limits[gpu]", "standard resource"),
        (
            {"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}},
            "resources.requests[cpu]",
            "less than or equal to cpu limit of 1",
        ),
        (
            {"resources": {"requests": {"nvidia.com/gpu": 1}}},
            "resources.limits[nvidia.com/gpu]",
            "Limit must be set",
        ),
    ],
)
def test_a_mistake_in_a_container_is_found(
    container: dict[str, Any], field: str, message: str
) -> None:
    errors = in_pod(container)
    assert message in errors[f"{CONTAINER}.{field}"]


@pytest.mark.parametrize(
    ("spec", "field", "message"),
    [
        ({"containers": []}, "spec.containers", "Required value"),
        ({"restartPolicy": "Sometimes"}, "spec.restartPolicy", 'Unsupported value: "Sometimes"'),
        ({"dnsPolicy": "None"}, "spec.dnsConfig.nameservers", "at least one DNS nameserver"),
        ({"terminationGracePeriodSeconds": -1}, "spec.terminationGracePeriodSeconds", "greater"),
        ({"activeDeadlineSeconds": 0}, "spec.activeDeadlineSeconds", "between 1 and 2147483647"),
        ({"nodeSelector": {"a b": "c"}}, "spec.nodeSelector", "Invalid value"),
        ({"hostname": "A.b"}, "spec.hostname", "Invalid value"),
        ({"volumes": [{"name": "V"}]}, "spec.volumes[0].name", "Invalid value"),
        ({"volumes": [{"name": "v"}, {"name": "v"}]}, "spec.volumes[1].name", "Duplicate value"),
        (
            {"volumes": [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}]},
            "spec.volumes[0].hostPath",
            "more than 1 volume type",
        ),
        ({"volumes": [{"name": "v", "secret": {}}]}, "spec.volumes[0].secret.secretName", "Req"),
        (
            {"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "-1"}}]},
            "spec.volumes[0].emptyDir.sizeLimit",
            "Forbidden: SizeLimit field must be a valid resource quantity",
        ),
        ({"overhead": {"cpu": "-1"}}, "spec.overhead[cpu]", "greater than or equal to 0"),
        (
            {"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}},
            "spec.resources.requests[cpu]",
            "limit of 1",
        ),
        ({"tolerations": [{"effect": "X", "key": "a"}]}, "spec.tolerations[0].effect", "Unsupp"),
        ({"tolerations": [{"value": "x"}]}, "spec.tolerations[0].operator", "must be Exists"),
        ({"tolerations": [{"key": "a", "value": "a/b"}]}, "spec.tolerations[0].operator", "label"),
        (
            {
                "affinity": {
                    "podAntiAffinity": {
                        PREFERRED: [{"weight": 1, "podAffinityTerm": {"topologyKey": "a b"}}]
                    }
                }
            },
            f"spec.affinity.podAntiAffinity.{PREFERRED}[0].podAffinityTerm.topologyKey",
            "label key",
        ),
        ({"initContainers": [{"name": "c", "image": "i"}]}, CONTAINER + ".name", "Duplicate value"),
        (
            {
                "hostNetwork": True,
                "containers": [
                    {
                        "name": "c",
                        "image": "i",
                        "ports": [
                            {"containerPort": 5},
                            {"containerPort": 5, "protocol": "UDP"},
                            {"containerPort": 5},
                        ],
                    }
                ],
            },
            CONTAINER + ".ports[2].hostPort",
            'Duplicate value: "TCP//5"',
        ),
        (
            {
                "hostNetwork": True,
                "containers": [
                    {"name": "c", "image": "i", "ports": [{"containerPort": 5, "hostPort": 6}]}
                ],
            },
            CONTAINER + ".ports[0].hostPort",
            "must match `containerPort`",
        ),
    ],
)
def test_a_mistake_in_a_pod_is_found(spec: dict[str, Any], field: str, message: str) -> None:
    assert message in in_pod(**spec)[field]


RELATIVE, INSIDE = "must be a relative path", "must not contain '..'"


def one_item(**item: Any) -> list[dict[str, Any]]:
    return [{"key": "k", **item}]


@pytest.mark.parametrize(
    ("type_", "source", "field", "message"),
    [
        ("hostPath", {"path": "/a/../b"}, "path", INSIDE),
        ("secret", {"secretName": "s", "defaultMode": 512}, "defaultMode", "0777 (octal)"),
        ("secret", {"secretName": "s", "items": one_item(path="/x")}, "items[0].path", RELATIVE),
        ("configMap", {"items": one_item(path="a/../../b")}, "items[0].path", INSIDE),
        ("configMap", {"items": one_item(path="..d")}, "items[0].path", "must not start with '..'"),
        ("configMap", {"items": one_item(path="k", mode=-1)}, "items[0].mode", "0777 (octal)"),
        ("secret ", {"items": one_item(path="../k")}, "items[0].path", INSIDE),
        ("serviceAccountToken ", {"path": "/token"}, "path", RELATIVE),
        ("serviceAccountToken ", {}, "path", "Required value"),
    ],
)
def test_path_or_mode_of_a_volume_is_checked(
    type_: str, source: dict[str, Any], field: str, message: str
) -> None:
    """A type with a space is a source of a projected volume."""
    name, path = type_.strip(), f"spec.volumes[0].{type_}"
    volume: dict[str, Any] = {"name": "v", name: {"name": "c", **source}}
    if name != type_:
        path = f"spec.volumes[0].projected.sources[0].{name}"
        volume = {"name": "v", "projected": {"sources": [{name: source}]}}
    assert message in in_pod(volumes=[volume])[f"{path}.{field}"]


@pytest.mark.parametrize("field", ["subPath", "subPathExpr"])
@pytest.mark.parametrize(
    ("path", "message"),
    [("/a", "must be a relative path"), ("a/../b", "must not contain '..'"), ("a/..b", "")],
)
def test_part_of_a_volume_is_inside(field: str, path: str, message: str) -> None:
    mount = {"name": "v", "mountPath": "/v", field: path}
    errors = in_pod({"volumeMounts": [mount]}, volumes=[{"name": "v", "emptyDir": {}}])
    assert message in errors.get(f"{CONTAINER}.volumeMounts[0].{field}", "")
    assert bool(message) == bool(errors)


def test_a_correct_pod_passes() -> None:
    container = {
        "ports": [{"containerPort": 80, "name": "http"}],
        "env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}],
        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        "resources": {"limits": {"cpu": "1", "nvidia.com/gpu": 1}},
        "readinessProbe": {"httpGet": {"port": "http"}},
    }
    assert in_pod(container, volumes=[{"name": "v"}], hostname="a", nodeSelector={"a": "b"}) == {}


@pytest.mark.parametrize(
    ("metadata", "field", "message"),
    [
        ({"name": ""}, "metadata.name", "name or generateName is required"),
        ({"name": "A"}, "metadata.name", "Invalid value"),
        ({"name": "a" * 254}, "metadata.name", "at most 253 characters"),
        ({"name": "", "generateName": "A-"}, "metadata.generateName", "Invalid value"),
        ({"namespace": ""}, "metadata.namespace", "Required value"),
        ({"labels": {"a b": "c"}}, "metadata.labels", "Invalid value"),
        ({"labels": {"a": "b c"}}, "metadata.labels[a]", "Invalid value"),
        ({"labels": {"a": "b" * 64}}, "metadata.labels[a]", "at most 63 characters"),
        ({"annotations": {"a": "x" * 300_000}}, "metadata.annotations", "262144 bytes"),
        ({"finalizers": ["a b"]}, "metadata.finalizers[0]", "Invalid value"),
        ({"ownerReferences": [{"kind": "X"}]}, "metadata.ownerReferences[0].uid", "not be empty"),
    ],
)
def test_a_mistake_in_metadata_is_found(metadata: dict[str, Any], field: str, message: str) -> None:
    assert message in in_metadata(**metadata)[field]


TEMPLATE = {
    "metadata": {"labels": {"a": "b"}},
    "spec": {"containers": [{"name": "c", "image": "i"}]},
}
WORKLOAD = {"selector": {"matchLabels": {"a": "b"}}, "template": TEMPLATE}


NO_ROLLING = {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 0}}
OTHER_LABELS = {"matchLabels": {"a": "c"}}


@pytest.mark.parametrize(
    ("kind", "spec", "field", "message"),
    [
        ("/Service", {}, "ports", "Required value"),
        ("/Service", {"ports": [{"port": 1}, {"port": 2}]}, "ports[1].name", "Required value"),
        ("/Service", {"type": "ExternalName"}, "externalName", "Required value"),
        ("apps/Deployment", {}, "selector", "Required value"),
        ("apps/Deployment", WORKLOAD | {"selector": {}}, "selector", "empty"),
        (
            "apps/Deployment",
            WORKLOAD | {"selector": OTHER_LABELS},
            "template.metadata.labels",
            "does not match",
        ),
        (
            "apps/Deployment",
            WORKLOAD | {"strategy": NO_ROLLING},
            "strategy.rollingUpdate.maxUnavailable",
            "may not be 0",
        ),
        ("/PersistentVolumeClaim", {}, "accessModes", "Required value"),
        ("/PersistentVolumeClaim", {}, "resources[storage]", "Required value"),
        ("/PersistentVolume", {}, "capacity", "Required value"),
    ],
)
def test_a_mistake_in_another_specification_is_found(
    kind: str, spec: dict[str, Any], field: str, message: str
) -> None:
    assert message in mistakes(*kind.split("/"), spec=spec)[f"spec.{field}"]


@pytest.mark.parametrize(
    ("kind", "fields", "field", "message"),
    [
        ("ConfigMap", {"data": {"a b": "c"}}, "data[a b]", "Invalid value"),
        ("ConfigMap", {"data": {"a": "x" * 1_100_000}}, "", "Too long"),
        ("ConfigMap", {"binaryData": {"a": base64_of(2**20 + 1)}}, "", "Too long"),
        ("Secret", {"data": {"a": base64_of(2**20 + 1)}}, "", "Too long"),
        ("Secret", {"data": {"a": "?"}}, "data[a]", "base64"),
    ],
)
def test_a_mistake_in_data_is_found(
    kind: str, fields: dict[str, Any], field: str, message: str
) -> None:
    assert message in mistakes("", kind, **fields)[field]


def test_data_in_base64_counts_as_what_it_stands_for() -> None:
    full = base64_of(2**20)
    assert mistakes("", "Secret", data={"a": full}) == {}
    assert mistakes("", "ConfigMap", binaryData={"a": full}) == {}


def a_stored_pod() -> dict[str, Any]:
    return an_object("", "Pod", spec={"containers": [{"name": "c", "image": "i:1"}]})


def test_a_pods_image_and_tolerations_may_change() -> None:
    old = a_stored_pod()
    new = copy.deepcopy(old)
    new["spec"]["containers"][0]["image"] = "i:2"
    new["spec"]["tolerations"].append({"key": "k", "operator": "Exists"})
    new["spec"]["tolerations"][0]["tolerationSeconds"] = 5
    assert changes("", "Pod", old, new) == []


def test_other_parts_of_a_pod_may_not_change() -> None:
    old = a_stored_pod()
    new = copy.deepcopy(old)
    new["spec"]["hostname"] = "h"
    new["spec"]["tolerations"] = []
    first, second = changes("", "Pod", old, new)
    assert first.startswith("spec.tolerations: Forbidden")
    assert second.startswith("spec: Forbidden: pod updates may not change fields other than")
    assert second.endswith("changed: spec.hostname")


CLAIM = {"volumeName": "v", "accessModes": ["ReadWriteOnce"]}
PORTS = [{"port": 1}]


@pytest.mark.parametrize(
    ("kind", "old", "new", "field"),
    [
        (
            "/Service",
            {"spec": {"clusterIP": "10.0.0.1", "ports": PORTS}},
            {"spec": {"clusterIP": "10.0.0.2", "ports": PORTS}},
            "spec.clusterIP",
        ),
        ("/Secret", {"type": "a"}, {"type": "b"}, "type"),
        ("/ConfigMap", {"immutable": True, "data": {"a": "1"}}, {"immutable": True}, "data"),
        (
            "/PersistentVolumeClaim",
            {"spec": CLAIM},
            {"spec": CLAIM | {"accessModes": ["ReadOnlyMany"]}},
            "spec",
        ),
    ],
)
def test_what_is_fixed_for_life_may_not_change(
    kind: str, old: dict[str, Any], new: dict[str, Any], field: str
) -> None:
    of = kind.split("/")
    errors = changes(*of, an_object(*of, **old), an_object(*of, **new))
    assert any(error.startswith(f"{field}: ") for error in errors)


def test_a_claim_is_bound_once() -> None:
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    old = an_object("", "PersistentVolumeClaim", spec=claim)
    new = an_object("", "PersistentVolumeClaim", spec={**claim, "volumeName": "v"})
    assert changes("", "PersistentVolumeClaim", old, new) == []
    assert changes("", "PersistentVolumeClaim", new, old) != []


def test_an_object_that_is_going_takes_no_new_finalizers() -> None:
    old = {
        "metadata": {"name": "x", "namespace": "n", "deletionTimestamp": "t", "finalizers": ["a/b"]}
    }
    new = copy.deepcopy(old)
    new["metadata"]["finalizers"] = ["a/b", "c/d"]  # type: ignore[index]
    (errors,) = changes("", "ConfigMap", old, new)
    assert "c/d" in errors


NAMES = (
    "spec containers resources limits ports template volumes name metadata strategy rollingUpdate "
    "data labels secret selector tolerations matchExpressions env valueFrom items taints port"
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 70_000) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(NAMES.split()), inner, max_size=4)
    ),
    max_leaves=15,
)
OBJECTS = st.dictionaries(st.sampled_from(["spec", "metadata", "data", "type"]), ANYTHING)


@given(st.sampled_from(sorted(VALIDATORS)), OBJECTS, OBJECTS)
def test_odd_objects_are_judged_without_falling_over(
    of: tuple[str, str], old: dict[str, Any], new: dict[str, Any]
) -> None:
    assert isinstance(validate_create(*of, new, namespaced=True), list)
    assert isinstance(validate_update(*of, old, new, namespaced=True), list)


RBAC = "rbac.authorization.k8s.io"


def fields(kind: str, **content: Any) -> list[str]:
    """Return the fields with errors of a new object."""
    obj = {"metadata": {"name": "r", "namespace": "n"}, **content}
    if kind.startswith("Cluster"):
        del obj["metadata"]["namespace"]
    apply_builtin_defaults(RBAC, kind, obj)
    causes = validate_create(RBAC, kind, obj, not kind.startswith("Cluster"))
    return [cause.field for cause in causes]


GET = {"verbs": ["get"]}
URLS = {"nonResourceURLs": ["/a"], **GET}
OF_VIEW = {"kind": "ClusterRole", "name": "view", "apiGroup": ""}


@pytest.mark.parametrize(
    ("kind", "rule", "expected"),
    [
        ("Role", {"apiGroups": [""], "resources": ["pods"], **GET}, []),
        ("Role", {"resources": ["pods"], **GET}, ["rules[0].apiGroups"]),
        ("Role", {"apiGroups": [""], **GET}, ["rules[0].resources"]),
        ("Role", URLS, ["rules[0].nonResourceURLs"]),
        ("ClusterRole", URLS, []),
        ("ClusterRole", URLS | {"resources": ["pods"]}, ["rules[0].nonResourceURLs"]),
    ],
)
def test_rules(kind: str, rule: dict[str, Any], expected: list[str]) -> None:
    assert fields(kind, rules=[rule]) == expected


@pytest.mark.parametrize(
    ("kind", "content", "expected"),
    [
        ("RoleBinding", {"kind": "User", "name": "u", "apiGroup": ""}, []),
        ("RoleBinding", {"kind": "ServiceAccount", "name": "a"}, []),
        ("ClusterRoleBinding", {"kind": "ServiceAccount", "name": "a"}, ["subjects[0].namespace"]),
        ("RoleBinding", {"kind": "Thing", "name": "a"}, ["subjects[0].kind"]),
        ("RoleBinding", {"kind": "User", "name": "a", "apiGroup": "x"}, ["subjects[0].apiGroup"]),
        ("RoleBinding", {"kind": "Role", "name": "r"}, []),
        ("ClusterRoleBinding", {"kind": "Role", "name": "r"}, ["roleRef.kind"]),
    ],
)
def test_subjects_and_role_references(
    kind: str, content: dict[str, Any], expected: list[str]
) -> None:
    if content["kind"] == "Role":
        assert fields(kind, roleRef=content) == expected
    else:
        assert fields(kind, roleRef=OF_VIEW, subjects=[content]) == expected


def in_job(template: dict[str, Any] | None = None, **spec: Any) -> dict[str, str]:
    pod = {
        "restartPolicy": "Never",
        "containers": [{"name": "c", "image": "i"}],
        **(template or {}),
    }
    body = {"spec": {"template": {"spec": pod}, **spec}}
    found = mistakes("batch", "Job", **body)
    found.pop("spec.selector", None)  # made from the uid, which the server sets
    return found


def failure_rule(**rule: Any) -> dict[str, Any]:
    return {"podFailurePolicy": {"rules": [{"action": "FailJob", **rule}]}}


CODES = {"operator": "In", "values": [1, 3]}
INDEXED = {"completionMode": "Indexed", "completions": 2}
RULE = "spec.podFailurePolicy.rules[0]"


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"backoffLimitPerIndex": 1}, "spec.backoffLimitPerIndex"),
        ({"maxFailedIndexes": 1, **INDEXED}, "spec.backoffLimitPerIndex"),
        ({"successPolicy": {"rules": [{"succeededCount": 1}]}}, "spec.successPolicy"),
        ({"successPolicy": {"rules": [{}]}, **INDEXED}, "spec.successPolicy.rules[0]"),
        (
            {"successPolicy": {"rules": [{"succeededIndexes": "1-"}]}, **INDEXED},
            "spec.successPolicy.rules[0].succeededIndexes",
        ),
        (failure_rule(), RULE),
        (failure_rule(onExitCodes={**CODES, "values": [0]}), f"{RULE}.onExitCodes.values[0]"),
        (failure_rule(onExitCodes={**CODES, "values": [3, 1]}), f"{RULE}.onExitCodes.values"),
        (
            failure_rule(onExitCodes={**CODES, "containerName": "x"}),
            f"{RULE}.onExitCodes.containerName",
        ),
        (failure_rule(action="FailIndex", onExitCodes=CODES), f"{RULE}.action"),
        (
            {"template": {"restartPolicy": "OnFailure"}, **failure_rule(onExitCodes=CODES)},
            "spec.template.spec.restartPolicy",
        ),
    ],
)
def test_a_mistake_in_the_policies_of_a_job_is_found(spec: dict[str, Any], field: str) -> None:
    assert set(in_job(**spec)) == {field}


def test_policies_of_a_job_may_be_combined() -> None:
    rules = [
        {"action": "FailIndex", "onExitCodes": {**CODES, "containerName": "c"}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]
    assert not in_job(
        podFailurePolicy={"rules": rules},
        successPolicy={"rules": [{"succeededIndexes": "0,1-1", "succeededCount": 1}]},
        backoffLimitPerIndex=1, maxFailedIndexes=1, managedBy="acme.io/other", **INDEXED,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("schedule", "right"),
    [
        ("*/5 0-23/2 1,15 jan-MAR mon-fri", True),
        ("@daily", True),
        ("@every 1h30m", True),
        ("bad", False),
        ("* * * *", False),
        ("60 * * * *", False),
        ("* 5-3 * * *", False),
        ("*/0 * * * *", False),
        ("* * 0 * *", False),
        ("@never", False),
        ("TZ=UTC * * * * *", False),
    ],
)
def test_the_schedule_of_a_cron_job_can_be_read(schedule: str, right: bool) -> None:
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}
    job = {"spec": {"template": {"spec": pod}}}
    found = mistakes("batch", "CronJob", spec={"schedule": schedule, "jobTemplate": job})
    assert set(found) == (set() if right else {"spec.schedule"})


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (
            {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": []}}}},
            f"affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms",
        ),
        (
            {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1", "2"]}]}]}}}},
            f"affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms[0].matchExpressions[0].values",
        ),
        ({"securityContext": {"sysctls": [{"name": "a b", "value": "1"}]}},
         "securityContext.sysctls[0].name"),
    ],
)  # fmt: skip
def test_a_mistake_in_what_a_pod_asks_of_its_node_is_found(
    spec: dict[str, Any], field: str
) -> None:
    assert set(in_pod(**spec)) == {f"spec.{field}"}
    assert not in_pod(securityContext={"sysctls": [{"name": "net.ipv4.tcp_syncookies"}]})


def test_only_fields_that_a_container_can_see_may_be_named() -> None:
    def env(path: str) -> dict[str, Any]:
        return {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": path}}}]}

    where = "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath"
    for path in ("metadata.foo", "metadata.labels", "spec"):
        assert set(in_pod(env(path))) == {where}
    for path in ("metadata.name", "metadata.labels['a']", "status.podIPs"):
        assert not in_pod(env(path))


@pytest.mark.parametrize(
    ("group", "kind", "body", "field"),
    [
        ("", "ConfigMap", {"metadata": {"name": "x", "namespace": "n", "finalizers": ["bare"]}},
         "metadata.finalizers[0]"),
        ("", "Secret", {"type": "kubernetes.io/tls", "data": {"tls.crt": ""}}, "data[tls.key]"),
        ("", "Secret", {"type": "kubernetes.io/basic-auth"}, "data[username]"),
        ("", "Secret", {"type": "kubernetes.io/dockerconfigjson"}, "data[.dockerconfigjson]"),
        ("policy", "PodDisruptionBudget",
         {"spec": {"minAvailable": 1, "maxUnavailable": 1}}, "spec"),
        ("policy", "PodDisruptionBudget", {"spec": {"minAvailable": "x"}}, "spec.minAvailable"),
        ("scheduling.k8s.io", "PriorityClass",
         {"metadata": {"name": "system-x", "namespace": "n"}, "value": 1}, "metadata.name"),
        ("apps", "StatefulSet",
         {"spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {
             "metadata": {"labels": {"a": "c"}},
             "spec": {"containers": [{"name": "c", "image": "i"}]}}}},
         "spec.template.metadata.labels"),
    ],
)  # fmt: skip
def test_what_kubernetes_refuses_is_refused(
    group: str, kind: str, body: dict[str, Any], field: str
) -> None:
    assert set(mistakes(group, kind, **body)) == {field}
