"""Defaults of the built-in kinds, and the normal form in which objects are stored."""

import base64
import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.local.apiserver.machinery.defaults import (
    DEFAULTERS,
    apply_builtin_defaults,
    apply_priority,
    initial_pod_status,
    normalize_builtin,
)


def defaulted(group: str, kind: str, **fields: Any) -> dict[str, Any]:
    obj: dict[str, Any] = {"metadata": {"name": "x"}, **fields}
    apply_builtin_defaults(group, kind, obj)
    return obj


def a_pod(container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    containers = [{"name": "c", "image": "i"} | (container or {})]
    return defaulted("", "Pod", spec={"containers": containers, **spec})


def a_container(**fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = a_pod(fields)["spec"]["containers"][0]
    return found


def test_a_pod_gets_what_kubernetes_gives_it() -> None:
    trouble = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    assert a_pod()["spec"] == {
        "containers": [
            {
                "name": "c",
                "image": "i",
                "imagePullPolicy": "Always",
                "resources": {},
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
            }
        ],
        "restartPolicy": "Always",
        "dnsPolicy": "ClusterFirst",
        "terminationGracePeriodSeconds": 30,
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "enableServiceLinks": True,
        "serviceAccountName": "default",
        "serviceAccount": "default",
        "priority": 0,
        "preemptionPolicy": "PreemptLowerPriority",
        "tolerations": [
            {"key": "node.kubernetes.io/not-ready", **trouble},
            {"key": "node.kubernetes.io/unreachable", **trouble},
        ],
    }


def test_what_is_given_stays() -> None:
    spec = a_pod(restartPolicy="Never", terminationGracePeriodSeconds=0, enableServiceLinks=False)[
        "spec"
    ]
    assert spec["restartPolicy"] == "Never"
    assert spec["terminationGracePeriodSeconds"] == 0
    assert spec["enableServiceLinks"] is False


@pytest.mark.parametrize(
    ("given", "account"),
    [
        ({"serviceAccount": "old"}, "old"),
        ({"serviceAccount": "old", "serviceAccountName": "new"}, "new"),
        ({"serviceAccount": "old", "serviceAccountName": ""}, "old"),
    ],
)
def test_service_account_is_an_alias_in_pods_and_templates(
    given: dict[str, str], account: str
) -> None:
    template = defaulted("apps", "Deployment", spec={"template": {"spec": dict(given)}})
    for spec in (a_pod(**given)["spec"], template["spec"]["template"]["spec"]):
        assert (spec["serviceAccountName"], spec["serviceAccount"]) == (account, account)


def test_a_toleration_of_everything_is_enough() -> None:
    assert a_pod(tolerations=[{"operator": "Exists"}])["spec"]["tolerations"] == [
        {"operator": "Exists"}
    ]


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("nginx", "Always"),
        ("nginx:latest", "Always"),
        ("nginx:1.2", "IfNotPresent"),
        ("registry:5000/nginx", "Always"),
        ("registry:5000/nginx:1", "IfNotPresent"),
        ("nginx@sha256:abc", "IfNotPresent"),
        ("../a", "IfNotPresent"),
        ("Not Valid!", "IfNotPresent"),
    ],
)
def test_the_tag_says_when_to_pull(image: str, policy: str) -> None:
    assert a_container(image=image)["imagePullPolicy"] == policy


def test_requests_follow_limits_in_pods_and_not_in_templates() -> None:
    resources = {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}
    assert a_container(resources=resources)["resources"]["requests"] == {
        "cpu": "1",
        "memory": "1Gi",
    }
    template = {"spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "2"}}}]}}
    deployment = defaulted("apps", "Deployment", spec={"template": template})
    assert "requests" not in deployment["spec"]["template"]["spec"]["containers"][0]["resources"]


def test_ports_probes_and_hooks_are_completed() -> None:
    container = a_container(
        ports=[{"containerPort": 80}],
        livenessProbe={"httpGet": {"port": 80}},
        lifecycle={"preStop": {"httpGet": {"port": 80}}},
        env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
    )
    assert container["ports"] == [{"containerPort": 80, "protocol": "TCP"}]
    assert container["livenessProbe"] == {
        "httpGet": {"port": 80, "path": "/", "scheme": "HTTP"},
        "timeoutSeconds": 1,
        "periodSeconds": 10,
        "successThreshold": 1,
        "failureThreshold": 3,
    }
    assert container["lifecycle"]["preStop"]["httpGet"]["scheme"] == "HTTP"
    assert container["env"][0]["valueFrom"]["fieldRef"]["apiVersion"] == "v1"


def test_host_network_takes_the_ports_of_the_host() -> None:
    pod = a_pod({"ports": [{"containerPort": 80}]}, hostNetwork=True)
    assert pod["spec"]["containers"][0]["ports"][0]["hostPort"] == 80


@pytest.mark.parametrize(
    ("group", "kind", "given_fields", "expected"),
    [
        (
            "",
            "Service",
            {"spec": {"ports": [{"port": 80}]}},
            {
                "type": "ClusterIP",
                "sessionAffinity": "None",
                "internalTrafficPolicy": "Cluster",
                "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}],
            },
        ),
        (
            "apps",
            "Deployment",
            {"spec": {}},
            {
                "replicas": 1,
                "revisionHistoryLimit": 10,
                "progressDeadlineSeconds": 600,
                "strategy": {
                    "type": "RollingUpdate",
                    "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"},
                },
            },
        ),
        ("apps", "ReplicaSet", {"spec": {"replicas": 0}}, {"replicas": 0}),
        (
            "",
            "ReplicationController",
            {"spec": {"selector": {}, "template": {"metadata": {"labels": {"a": "b"}}}}},
            {
                "selector": {"a": "b"},
                "replicas": 1,
                "template": {"metadata": {"labels": {"a": "b"}}},
            },
        ),
        ("", "Namespace", {}, {"finalizers": ["kubernetes"]}),
        ("", "PersistentVolumeClaim", {"spec": {"a": 1}}, {"a": 1, "volumeMode": "Filesystem"}),
    ],
)
def test_kinds_get_their_defaults(
    group: str, kind: str, given_fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert defaulted(group, kind, **copy.deepcopy(given_fields))["spec"] == expected


def test_a_namespace_is_labelled_with_its_name() -> None:
    found = defaulted("", "Namespace")
    assert found["metadata"]["labels"] == {"kubernetes.io/metadata.name": "x"}


def test_the_texts_of_a_secret_become_data_and_win() -> None:
    found = defaulted("", "Secret", data={"a": "b2xk", "b": "eA=="}, stringData={"a": "new"})
    assert found["type"] == "Opaque"
    assert found["data"] == {"a": base64.b64encode(b"new").decode(), "b": "eA=="}
    assert "stringData" not in found


def test_a_priority_comes_from_the_class_or_the_default_class() -> None:
    high = {"metadata": {"name": "high"}, "value": 10, "preemptionPolicy": "Never"}
    pod = {"spec": {"priorityClassName": "high"}}
    assert apply_priority(pod, {"high": high}, None)
    assert pod["spec"] == {"priorityClassName": "high", "priority": 10, "preemptionPolicy": "Never"}
    plain: dict[str, Any] = {"spec": {}}
    assert apply_priority(plain, {}, high)
    assert plain["spec"]["priority"] == 10
    assert not apply_priority({"spec": {"priorityClassName": "none"}}, {}, high)


FULL = {"cpu": "1", "memory": "1Gi"}


@pytest.mark.parametrize(
    ("resources", "quality"),
    [
        ([{}], "BestEffort"),
        ([{"limits": FULL, "requests": FULL}], "Guaranteed"),
        ([{"limits": FULL}], "Guaranteed"),
        ([{"limits": FULL, "requests": {"cpu": "1000m", "memory": "1024Mi"}}], "Guaranteed"),
        ([{"limits": FULL, "requests": {"cpu": "500m"}}], "Burstable"),
        ([{"requests": FULL}], "Burstable"),
        ([{"limits": FULL}, {}], "Burstable"),
        ([{"limits": {"cpu": "1"}}], "Burstable"),
        ([{"limits": {"nvidia.com/gpu": 1}}], "BestEffort"),
    ],
)
def test_a_pods_quality_follows_from_its_resources(
    resources: list[dict[str, Any]], quality: str
) -> None:
    containers = [{"name": f"c{i}", "resources": each} for i, each in enumerate(resources)]
    pod = {"spec": {"containers": containers}}
    assert initial_pod_status(pod) == {"phase": "Pending", "qosClass": quality}


def test_new_pod_with_gates_reports_that_they_block_its_scheduling() -> None:
    pod = {"spec": {"containers": [{}], "schedulingGates": [{"name": "kueue.x-k8s.io/topology"}]}}
    status = initial_pod_status(pod)
    (condition,) = status["conditions"]
    assert (condition["type"], condition["status"]) == ("PodScheduled", "False")
    assert condition["reason"] == "SchedulingGated"


ANYTHING = st.recursive(
    st.none() | st.integers(0, 3) | st.sampled_from(["", "1", "x"]),
    lambda inner: st.lists(inner, max_size=2)
    | st.dictionaries(
        st.sampled_from(
            ["spec", "containers", "resources", "limits", "ports", "template", "volumes", "type",
             "metadata", "strategy", "rollingUpdate", "stringData", "data", "labels", "secret",
             "tolerations", "subsets", "names", "kind", "image", "env", "valueFrom", "fieldRef"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=15,
)  # fmt: skip
OBJECTS = st.dictionaries(st.sampled_from(["spec", "metadata", "stringData", "subsets"]), ANYTHING)


@given(st.sampled_from(sorted(DEFAULTERS)), OBJECTS)
def test_defaults_are_idempotent_whatever_the_object_holds(
    of: tuple[str, str], obj: dict[str, Any]
) -> None:
    apply_builtin_defaults(*of, obj)
    once = copy.deepcopy(obj)
    apply_builtin_defaults(*of, obj)
    assert obj == once
    normalize_builtin(*of, obj)
    assert obj == once
