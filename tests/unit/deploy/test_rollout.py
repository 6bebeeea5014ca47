"""Waiting for the pods of a release: what is reported, and when."""

from pathlib import Path
from typing import Any

import pytest

from gangline.deploy import rollout
from gangline.deploy.chart import ReleaseSettings
from gangline.kube.client.client import ApiClient
from gangline.kube.config.config import load_config
from unit.cli.fake_api import FakeApi, serving

NAMESPACE = "gangline-system"
LABELS = {"app": "operator"}
DEPLOYMENT: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "gangline-operator", "namespace": NAMESPACE},
    "spec": {"replicas": 1, "selector": {"matchLabels": LABELS}},
}
POD = f"/api/v1/namespaces/{NAMESPACE}/pods/gangline-operator-x"


def waiting(reason: str, message: str, **more: Any) -> dict[str, Any]:
    status = {"name": "operator", "state": {"waiting": {"reason": reason, "message": message}}}
    return {"containerStatuses": [status | more]}


CRASHED = {"terminated": {"exitCode": 1, "reason": "Error"}}
UNSCHEDULABLE = {
    "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes",
}  # fmt: skip


@pytest.mark.parametrize(
    ("status", "event", "reports"),
    [
        pytest.param(waiting("ImagePullBackOff", "pull of i:1 refused"), {},
                     ["gangline-operator-x: ", "pull of i:1 refused"], id="image"),
        pytest.param(waiting("CrashLoopBackOff", "back-off", restartCount=3, lastState=CRASHED), {},
                     ["gangline-operator-x: ", "exit code 1", "No such file: 'cert.pem'"],
                     id="crash with the line of its log"),
        pytest.param({"conditions": [UNSCHEDULABLE]}, {},
                     ["gangline-operator-x: Unschedulable: 0/1 nodes"], id="no node"),
        pytest.param(waiting("ContainerCreating", ""),
                     {"reason": "FailedMount", "message": "no Secret tls"},
                     ["gangline-operator-x: FailedMount: no Secret tls"], id="volume"),
        pytest.param(None, {"reason": "FailedCreate", "message": "exceeded quota: none"},
                     ["gangline-operator: FailedCreate: exceeded quota"], id="quota"),
        pytest.param(waiting("ContainerCreating", ""), {}, [], id="it starts"),
    ],
)  # fmt: skip
async def test_cause_of_a_delay_is_reported_once_and_at_the_end(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: dict[str, Any] | None,
    event: dict[str, str],
    reports: list[str],
) -> None:
    monkeypatch.setattr(rollout, "POLL_S", 0.01)
    printed: list[str] = []
    async with serving(tmp_path) as (api, kubeconfig):
        cluster_of(api, status, event)
        async with ApiClient(load_config(str(kubeconfig)), "test") as client:
            release = ReleaseSettings(name="gangline", namespace=NAMESPACE)
            waited = rollout.wait_for_rollout(client, [DEPLOYMENT], release, 0.3, printed.append)
            with pytest.raises(rollout.RolloutError, match="not ready after") as failed:
                await waited
    assert len(printed) == bool(reports), printed
    for part in reports:
        assert part in printed[0]
        assert part in str(failed.value)


def cluster_of(api: FakeApi, status: dict[str, Any] | None, event: dict[str, str]) -> None:
    """Fill the server with the Deployment, its pod if there is one, and an event."""
    deployments = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
    api.add(f"{deployments}/gangline-operator", spec=DEPLOYMENT["spec"], status={})
    if status is not None:
        api.add(POD, metadata={"labels": LABELS}, spec={"containers": []}, status=status)
        api.logs["gangline-operator-x before"] = "FileNotFoundError: No such file: 'cert.pem'\n"
    if event:
        subject = {"kind": "Pod" if status else "ReplicaSet", "name": "gangline-operator-x"}
        api.add(
            f"/api/v1/namespaces/{NAMESPACE}/events/e",
            involvedObject=subject, reason=event["reason"], message=event["message"],
        )  # fmt: skip
