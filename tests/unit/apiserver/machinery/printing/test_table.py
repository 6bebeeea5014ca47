"""Tables of ``kubectl get`` by kind: columns, cells, ages."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gangline.local.apiserver.machinery.printing.printer import format_age, format_duration
from gangline.local.apiserver.machinery.printing.table import (
    find_printer,
    partial_object_metadata_list,
    render_table,
)

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def ago(**of: float) -> str:
    return (NOW - timedelta(**of)).strftime("%Y-%m-%dT%H:%M:%SZ")


def shown(group: str, kind: str, obj: dict[str, Any]) -> dict[str, Any]:
    obj.setdefault("metadata", {"name": "x", "creationTimestamp": ago(hours=5)})
    table = render_table(find_printer(group, kind), [obj], now=NOW)
    names = [column["name"] for column in table["columnDefinitions"]]
    (row,) = table["rows"]
    assert len(names) == len(row["cells"])
    return dict(zip(names, row["cells"], strict=True))


READY = {"type": "Ready", "status": "True"}


@pytest.mark.parametrize(
    ("kind", "obj", "cells"),
    [
        (
            "/Node",
            {
                "status": {"conditions": [READY], "nodeInfo": {"kubeletVersion": "v1"}},
                "spec": {"unschedulable": True},
            },
            {"Status": "Ready,SchedulingDisabled", "Roles": "<none>", "Version": "v1", "Age": "5h"},
        ),
        (
            "/Node",
            {
                "metadata": {
                    "name": "n",
                    "labels": {
                        "node-role.kubernetes.io/control-plane": "",
                        "node-role.kubernetes.io/b": "",
                    },
                },
                "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]},
            },
            {"Status": "NotReady", "Roles": "b,control-plane", "Age": "<unknown>"},
        ),
        (
            "/Service",
            {
                "spec": {
                    "clusterIP": "10.0.0.1",
                    "ports": [{"port": 80}, {"port": 53, "protocol": "UDP", "nodePort": 30000}],
                    "selector": {"b": "2", "a": "1"},
                }
            },
            {
                "Type": "ClusterIP",
                "External-IP": "<none>",
                "Port(s)": "80/TCP,53:30000/UDP",
                "Selector": "a=1,b=2",
            },
        ),
        (
            "/Service",
            {"spec": {"type": "ExternalName", "externalName": "a.b"}},
            {"Cluster-IP": "<none>", "External-IP": "a.b", "Port(s)": "<none>"},
        ),
        (
            "/Service",
            {"spec": {"type": "LoadBalancer", "clusterIP": "None"}},
            {"Cluster-IP": "None", "External-IP": "<pending>"},
        ),
        (
            "/Endpoints",
            {
                "subsets": [
                    {
                        "addresses": [{"ip": f"10.0.0.{i}"} for i in range(5)],
                        "ports": [{"port": 80}],
                    }
                ]
            },
            {"Endpoints": "10.0.0.0:80,10.0.0.1:80,10.0.0.2:80 + 2 more..."},
        ),
        (
            "apps/Deployment",
            {
                "spec": {
                    "replicas": 3,
                    "template": {"spec": {"containers": [{"name": "a", "image": "i"}]}},
                    "selector": {
                        "matchLabels": {"a": "b"},
                        "matchExpressions": [
                            {"key": "k", "operator": "In", "values": ["y", "x"]},
                            {"key": "n", "operator": "DoesNotExist"},
                        ],
                    },
                },
                "status": {"readyReplicas": 2},
            },
            {
                "Ready": "2/3",
                "Up-to-date": 0,
                "Containers": "a",
                "Images": "i",
                "Selector": "a=b,k in (x,y),!n",
            },
        ),
        ("/ConfigMap", {"data": {"a": "1"}, "binaryData": {"b": ""}}, {"Data": 2}),
        (
            "/Event",
            {
                "type": "Warning",
                "reason": "Failed",
                "message": "no\n",
                "involvedObject": {"kind": "Pod", "name": "p"},
                "firstTimestamp": ago(hours=1),
                "lastTimestamp": ago(minutes=3),
                "count": 4,
                "source": {"component": "kubelet", "host": "n"},
            },
            {
                "Last Seen": "3m",
                "Object": "pod/p",
                "Message": "no",
                "First Seen": "60m",
                "Count": 4,
                "Source": "kubelet, n",
            },
        ),
        (
            "events.k8s.io/Event",
            {
                "regarding": {"kind": "Pod", "name": "p"},
                "note": "hi",
                "eventTime": ago(seconds=5),
                "reportingController": "c",
            },
            {"Last Seen": "5s", "Object": "pod/p", "Message": "hi", "Source": "c", "Count": 1},
        ),
        (
            "/PersistentVolume",
            {
                "spec": {
                    "capacity": {"storage": "1Gi"},
                    "accessModes": ["ReadWriteOnce", "ReadOnlyMany"],
                    "claimRef": {"namespace": "n", "name": "c"},
                },
                "status": {"phase": "Bound"},
            },
            {"Capacity": "1Gi", "Access Modes": "RWO,ROX", "Claim": "n/c", "Status": "Bound"},
        ),
        (
            "/PersistentVolumeClaim",
            {
                "spec": {"volumeName": "v"},
                "status": {
                    "phase": "Bound",
                    "capacity": {"storage": "1Gi"},
                    "accessModes": ["ReadWriteMany"],
                },
            },
            {"Status": "Bound", "Volume": "v", "Capacity": "1Gi", "Access Modes": "RWX"},
        ),
        (
            "/PersistentVolumeClaim",
            {"metadata": {"name": "c", "deletionTimestamp": ago(seconds=1)}, "spec": {}},
            {"Status": "Terminating", "Capacity": ""},
        ),
        (
            "resource.k8s.io/ResourceClaim",
            {"status": {"allocation": {"devices": {}}, "reservedFor": [{"name": "p"}]}},
            {"State": "allocated,reserved"},
        ),
        (
            "storage.k8s.io/StorageClass",
            {
                "metadata": {
                    "name": "s",
                    "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
                },
                "provisioner": "p",
            },
            {"Name": "s (default)", "Provisioner": "p"},
        ),
        ("odd.io/Odd", {}, {"Name": "x", "Age": "5h"}),
    ],
)
def test_kinds_have_the_columns_that_people_know(
    kind: str, obj: dict[str, Any], cells: dict[str, Any]
) -> None:
    found = shown(*kind.split("/"), obj)
    assert {name: found[name] for name in cells} == cells


COLUMNS = [
    {"name": "State", "type": "string", "jsonPath": ".status.conditions[-1:].type"},
    {"name": "Pods", "type": "integer", "jsonPath": ".spec.replicas"},
    {"name": "Since", "type": "date", "jsonPath": ".status.start", "priority": 1},
    {"name": "Odd", "type": "string", "jsonPath": ".spec[[", "description": "a broken path"},
    {"name": "Map", "type": "string", "jsonPath": ".spec"},
]


@pytest.mark.parametrize(
    ("group", "kind", "obj", "cells"),
    [
        ("apps", "DaemonSet", {"status": {"desiredNumberScheduled": 3, "numberReady": 2}},
         "x|3|0|2|0|0|<none>|5h|<none>|<none>|<none>"),
        ("batch", "CronJob", {"spec": {"schedule": "@daily", "suspend": True}},
         "x|@daily|<none>|True|0|<none>|5h|<none>|<none>|<none>"),
        ("networking.k8s.io", "Ingress",
         {"spec": {"tls": [{}], "rules": [{"host": name} for name in "abcd"]},
          "status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.1"}, {"hostname": "h"}]}}},
         "x|<none>|a,b,c + 1 more...|10.0.0.1,h|80, 443|5h"),
        ("rbac.authorization.k8s.io", "RoleBinding",
         {"roleRef": {"kind": "Role", "name": "r"},
          "subjects": [{"kind": "User", "name": "u"},
                       {"kind": "ServiceAccount", "name": "s", "namespace": "n"}]},
         "x|Role/r|5h|u||n/s"),
        ("", "ResourceQuota",
         {"status": {"hard": {"limits.cpu": "2", "pods": "3"}, "used": {"pods": "1"}}},
         "x|pods: 1/3|limits.cpu: /2|5h"),
        ("certificates.k8s.io", "CertificateSigningRequest",
         {"status": {"conditions": [{"type": "Approved"}]}},
         "x|5h|<none>|<none>|<none>|Approved"),
    ],
)  # fmt: skip
def test_stored_kinds_have_the_columns_of_kubernetes(
    group: str, kind: str, obj: dict[str, Any], cells: str
) -> None:
    assert "|".join(map(str, shown(group, kind, obj).values())) == cells


def test_custom_kinds_show_the_columns_of_their_definition() -> None:
    printer = find_printer("x.io", "X", COLUMNS)
    status = {"conditions": [{"type": "A"}, {"type": "B"}], "start": ago(days=3)}
    obj = {"metadata": {"name": "x"}, "spec": {"replicas": 3}, "status": status}
    table = render_table(printer, [obj, {"metadata": {"name": "y"}}], now=NOW)
    assert [row["cells"] for row in table["rows"]] == [
        ["x", "B", 3, "3d", None, '{"replicas":3}'],
        ["y", None, None, None, None, None],
    ]
    assert [column["priority"] for column in table["columnDefinitions"]] == [0, 0, 0, 1, 0, 0]


def test_rows_carry_as_much_of_the_object_as_is_asked_for() -> None:
    obj = {"kind": "X", "metadata": {"name": "x"}, "spec": {}}
    printer = find_printer("", "X")

    def row(include: str) -> dict[str, Any]:
        found: dict[str, Any] = render_table(printer, [obj], now=NOW, include_object=include)[
            "rows"
        ][0]
        return found

    assert row("Object")["object"] == obj
    assert "object" not in row("None")
    assert row("Metadata")["object"] == {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"name": "x"},
    }


def test_later_events_of_a_watch_have_no_columns() -> None:
    table = render_table(find_printer("", "Pod"), [], now=NOW, with_columns=False)
    assert table["columnDefinitions"] == []


def test_lists_are_cut_down_to_metadata() -> None:
    found = partial_object_metadata_list(
        {"metadata": {"continue": "c"}, "items": [{"metadata": {"name": "x"}}]}
    )
    assert found["kind"] == "PartialObjectMetadataList"
    assert found["metadata"] == {"continue": "c"}
    assert found["items"][0]["metadata"] == {"name": "x"}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "<invalid>"), (-1, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (125, "2m5s"),
        (599, "9m59s"), (600, "10m"), (659, "10m"), (10799, "179m"), (10800, "3h"),
        (11000, "3h3m"), (28799, "7h59m"), (28800, "8h"), (172799, "47h"), (172800, "2d"),
        (180000, "2d2h"), (691199, "7d23h"), (691200, "8d"), (63071999, "729d"),
        (63072000, "2y"), (70000000, "2y80d"), (252288000, "8y"),
    ],
)  # fmt: skip
def test_durations_read_as_in_kubectl(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize("timestamp", [None, "", "never", 7, {}])
def test_the_age_of_what_has_no_time_is_unknown(timestamp: Any) -> None:
    assert format_age(timestamp, NOW) == "<unknown>"


def a_pod(*containers: dict[str, Any], **status: Any) -> dict[str, Any]:
    status.setdefault("phase", "Running")
    names = [{"name": f"c{i}"} for i in range(len(containers))]
    return {
        "spec": {"containers": names},
        "status": {"containerStatuses": list(containers), **status},
    }


def running(ready: bool = True, **rest: Any) -> dict[str, Any]:
    return {"ready": ready, "state": {"running": {}}, **rest}


def waiting(reason: str) -> dict[str, Any]:
    return {"state": {"waiting": {"reason": reason}}}


def ended(code: int = 0, reason: str = "", signal: int = 0, **rest: Any) -> dict[str, Any]:
    state = {"exitCode": code, "reason": reason, "signal": signal}
    return {"state": {"terminated": state}, **rest}


def initializing(*statuses: dict[str, Any], restart: str | None = None) -> dict[str, Any]:
    pod = a_pod(waiting("PodInitializing"), phase="Pending")
    pod["spec"]["initContainers"] = [
        {"name": f"i{place}"} | ({"restartPolicy": restart} if restart else {})
        for place in range(len(statuses))
    ]
    named = [{"name": f"i{place}", **status} for place, status in enumerate(statuses)]
    pod["status"]["initContainerStatuses"] = named
    return pod


GOING = {"metadata": {"name": "x", "deletionTimestamp": ago(seconds=1)}}
GATED = [{"type": "PodScheduled", "reason": "SchedulingGated"}]


@pytest.mark.parametrize(
    ("pod", "cells"),
    [
        ({"spec": {"containers": [{}]}, "status": {"phase": "Pending"}}, "0/1 Pending"),
        (a_pod(running(), running()), "2/2 Running"),
        (a_pod(running(), running(ready=False)), "1/2 Running"),
        (a_pod(waiting("ContainerCreating"), phase="Pending"), "0/1 ContainerCreating"),
        (a_pod(waiting("CrashLoopBackOff")), "0/1 CrashLoopBackOff"),
        (a_pod(waiting("ImagePullBackOff"), phase="Pending"), "0/1 ImagePullBackOff"),
        (a_pod(ended(0, "Completed"), phase="Succeeded"), "0/1 Completed"),
        (a_pod(ended(1, "Error"), phase="Failed"), "0/1 Error"),
        (a_pod(ended(137, "OOMKilled"), phase="Failed"), "0/1 OOMKilled"),
        (a_pod(ended(3), phase="Failed"), "0/1 ExitCode:3"),
        (a_pod(ended(137, signal=9), phase="Failed"), "0/1 Signal:9"),
        (a_pod(phase="Failed", reason="Evicted"), "0/0 Evicted"),
        # One container has ended.
        (a_pod(ended(0, "Completed"), running(), conditions=[READY]), "1/2 Running"),
        (a_pod(ended(0, "Completed"), running()), "1/2 NotReady"),
        (initializing({"state": {"running": {}}}, waiting("")), "0/1 Init:0/2"),
        (initializing(ended(0), {"state": {"running": {}}}), "0/1 Init:1/2"),
        (initializing(ended(1, "Error")), "0/1 Init:Error"),
        (initializing(ended(2)), "0/1 Init:ExitCode:2"),
        (initializing(ended(9, signal=9)), "0/1 Init:Signal:9"),
        (initializing(waiting("CrashLoopBackOff")), "0/1 Init:CrashLoopBackOff"),
        (initializing(ended(0)), "0/1 PodInitializing"),
        # A sidecar counts as a container.
        (initializing({**running(), "started": True}, restart="Always"), "1/2 PodInitializing"),
        (GOING | a_pod(running()), "1/1 Terminating"),
        (GOING | a_pod(running(), reason="NodeLost"), "1/1 Unknown"),
        (a_pod(waiting(""), phase="Pending", conditions=GATED), "0/1 SchedulingGated"),
    ],
)
def test_a_pods_status_says_what_is_going_on(pod: dict[str, Any], cells: str) -> None:
    row = shown("", "Pod", pod)
    assert f"{row['Ready']} {row['Status']}" == cells


def test_restarts_say_when_the_last_one_was() -> None:
    last = {"terminated": {"finishedAt": ago(minutes=7)}}
    pod = a_pod(running(restartCount=2, lastState=last), running(restartCount=1))
    assert shown("", "Pod", pod)["Restarts"] == "3 (7m ago)"
    assert shown("", "Pod", a_pod(running()))["Restarts"] == "0"


def test_wide_columns_of_pods_say_where_they_run() -> None:
    pod = a_pod(running(), podIP="10.0.0.1", conditions=[{"type": "gate", "status": "True"}])
    pod["spec"] |= {
        "nodeName": "n1",
        "readinessGates": [{"conditionType": "gate"}, {"conditionType": "b"}],
    }
    cells = shown("", "Pod", pod)
    assert (cells["IP"], cells["Node"], cells["Readiness Gates"]) == ("10.0.0.1", "n1", "1/2")
    assert cells["Nominated Node"] == "<none>"


def test_rows_of_finished_pods_say_so() -> None:
    table = render_table(find_printer("", "Pod"), [a_pod(phase="Succeeded")], now=NOW)
    assert table["rows"][0]["conditions"][0]["type"] == "Completed"
