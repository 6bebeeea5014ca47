"""Tables of pods: readiness, status, restarts."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gangline.local.apiserver.machinery.printing.table import find_printer, render_table

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def ago(**of: float) -> str:
    return (NOW - timedelta(**of)).strftime("%Y-%m-%dT%H:%M:%SZ")


def shown(group: str, kind: str, obj: dict[str, Any]) -> dict[str, Any]:
    obj.setdefault("metadata", {"name": "x"})
    table = render_table(find_printer(group, kind), [obj], now=NOW)
    names = [column["name"] for column in table["columnDefinitions"]]
    (row,) = table["rows"]
    assert len(names) == len(row["cells"])
    return dict(zip(names, row["cells"], strict=True))


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


READY = {"type": "Ready", "status": "True"}


def initializing(*statuses: dict[str, Any], restart: str | None = None) -> dict[str, Any]:
    pod = a_pod(waiting("PodInitializing"), phase="Pending")
    pod["spec"]["initContainers"] = [
        {"name": f"i{place}"} | ({"restartPolicy": restart} if restart else {})
        for place in range(len(statuses))
    ]
    named = [{"name": f"i{place}", **status} for place, status in enumerate(statuses)]
    pod["status"]["initContainerStatuses"] = named
    return pod


@pytest.mark.parametrize(
    ("pod", "ready", "status"),
    [
        pytest.param(
            {"spec": {"containers": [{}]}, "status": {"phase": "Pending"}},
            "0/1",
            "Pending",
            id="new",
        ),
        pytest.param(a_pod(running(), running()), "2/2", "Running", id="running"),
        pytest.param(a_pod(running(), running(ready=False)), "1/2", "Running", id="half ready"),
        pytest.param(
            a_pod(waiting("ContainerCreating"), phase="Pending"),
            "0/1",
            "ContainerCreating",
            id="creating",
        ),
        pytest.param(
            a_pod(waiting("CrashLoopBackOff")), "0/1", "CrashLoopBackOff", id="crash loop"
        ),
        pytest.param(
            a_pod(waiting("ImagePullBackOff"), phase="Pending"),
            "0/1",
            "ImagePullBackOff",
            id="image",
        ),
        pytest.param(
            a_pod(ended(0, "Completed"), phase="Succeeded"), "0/1", "Completed", id="completed"
        ),
        pytest.param(a_pod(ended(1, "Error"), phase="Failed"), "0/1", "Error", id="error"),
        pytest.param(a_pod(ended(137, "OOMKilled"), phase="Failed"), "0/1", "OOMKilled", id="oom"),
        pytest.param(a_pod(ended(3), phase="Failed"), "0/1", "ExitCode:3", id="exit code"),
        pytest.param(a_pod(ended(137, signal=9), phase="Failed"), "0/1", "Signal:9", id="signal"),
        pytest.param(a_pod(phase="Failed", reason="Evicted"), "0/0", "Evicted", id="evicted"),
        pytest.param(
            a_pod(ended(0, "Completed"), running(), conditions=[READY]),
            "1/2",
            "Running",
            id="one is done, the pod is ready",
        ),
        pytest.param(
            a_pod(ended(0, "Completed"), running()),
            "1/2",
            "NotReady",
            id="one is done, the pod is not ready",
        ),
        pytest.param(
            initializing({"state": {"running": {}}}, waiting("")),
            "0/1",
            "Init:0/2",
            id="first of two",
        ),
        pytest.param(
            initializing(ended(0), {"state": {"running": {}}}),
            "0/1",
            "Init:1/2",
            id="second of two",
        ),
        pytest.param(initializing(ended(1, "Error")), "0/1", "Init:Error", id="init error"),
        pytest.param(initializing(ended(2)), "0/1", "Init:ExitCode:2", id="init exit code"),
        pytest.param(initializing(ended(9, signal=9)), "0/1", "Init:Signal:9", id="init signal"),
        pytest.param(
            initializing(waiting("CrashLoopBackOff")),
            "0/1",
            "Init:CrashLoopBackOff",
            id="init crash loop",
        ),
        pytest.param(initializing(ended(0)), "0/1", "PodInitializing", id="initialized"),
        pytest.param(
            initializing({**running(), "started": True}, restart="Always"),
            "1/2",
            "PodInitializing",
            id="sidecar",
        ),
        pytest.param(
            {"metadata": {"name": "x", "deletionTimestamp": ago(seconds=1)}, **a_pod(running())},
            "1/1",
            "Terminating",
            id="terminating",
        ),
        pytest.param(
            {
                "metadata": {"name": "x", "deletionTimestamp": ago(seconds=1)},
                **a_pod(running(), reason="NodeLost"),
            },
            "1/1",
            "Unknown",
            id="node lost",
        ),
        pytest.param(
            {
                "spec": {"containers": [{}]},
                "status": {
                    "phase": "Pending",
                    "conditions": [{"type": "PodScheduled", "reason": "SchedulingGated"}],
                },
            },
            "0/1",
            "SchedulingGated",
            id="gated",
        ),
    ],
)
def test_a_pods_status_says_what_is_going_on(pod: dict[str, Any], ready: str, status: str) -> None:
    cells = shown("", "Pod", pod)
    assert (cells["Ready"], cells["Status"]) == (ready, status)


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
