"""Defaults of workloads that controllers of other projects run."""

from typing import Any

from gangline.local.apiserver.machinery.defaults.builtin import (
    apply_builtin_defaults,
    initial_status,
)

TEMPLATE = {"spec": {"containers": [{"name": "c", "image": "i"}]}}


def spec(group: str, kind: str, **fields: Any) -> dict[str, Any]:
    """The defaulted specification, without its template."""
    obj = {"metadata": {"name": "x"}, "spec": {"template": {**TEMPLATE}, **fields}}
    apply_builtin_defaults(group, kind, obj)
    found: dict[str, Any] = obj["spec"]
    assert found.pop("template")["spec"]["dnsPolicy"] == "ClusterFirst"
    return found


def test_stateful_set_rolls_and_retains_its_claims() -> None:
    claim = {"metadata": {"name": "data"}, "spec": {}}
    assert spec("apps", "StatefulSet", volumeClaimTemplates=[claim]) == {
        "replicas": 1,
        "podManagementPolicy": "OrderedReady",
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
        "revisionHistoryLimit": 10,
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
        "volumeClaimTemplates": [
            {
                "metadata": {"name": "data"},
                "spec": {"volumeMode": "Filesystem"},
                "status": {"phase": "Pending"},
            }
        ],
    }
    on_delete = spec("apps", "StatefulSet", updateStrategy={"type": "OnDelete"})
    assert on_delete["updateStrategy"] == {"type": "OnDelete"}


def test_daemon_set_updates_one_node_after_another() -> None:
    rolling = {"maxUnavailable": 1, "maxSurge": 0}
    assert spec("apps", "DaemonSet") == {
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": rolling},
        "revisionHistoryLimit": 10,
    }


def test_cron_job_allows_concurrent_jobs_and_keeps_a_history() -> None:
    obj = {"metadata": {"name": "x"}, "spec": {"schedule": "* * * * *", "jobTemplate": {}}}
    apply_builtin_defaults("batch", "CronJob", obj)
    assert obj["spec"] == {
        "schedule": "* * * * *",
        "jobTemplate": {},
        "concurrencyPolicy": "Allow",
        "suspend": False,
        "successfulJobsHistoryLimit": 3,
        "failedJobsHistoryLimit": 1,
    }


def test_new_workload_counts_no_pods() -> None:
    assert initial_status("apps", "StatefulSet", {}) == {"replicas": 0, "availableReplicas": 0}
    counts = initial_status("apps", "DaemonSet", {})
    assert counts is not None
    assert (counts["desiredNumberScheduled"], counts["numberReady"]) == (0, 0)
