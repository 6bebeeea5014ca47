"""Defaults of workloads that controllers of other projects run."""

from typing import Any

import pytest

from gangline.local.apiserver.machinery.defaults.builtin import apply_builtin_defaults
from gangline.local.apiserver.machinery.defaults.workloads import complete_job

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


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"completions": 1, "parallelism": 1, "backoffLimit": 6}),
        ({"completions": 5}, {"completions": 5, "parallelism": 1}),
        ({"backoffLimitPerIndex": 1}, {"backoffLimit": 2147483647}),
        ({"podFailurePolicy": {"rules": []}}, {"podReplacementPolicy": "Failed"}),
    ],
)
def test_job_runs_one_pod_with_six_retries(given: dict[str, Any], expected: dict[str, Any]) -> None:
    found = spec("batch", "Job", **given)
    common = {
        "completionMode": "NonIndexed",
        "suspend": False,
        "manualSelector": False,
        "podReplacementPolicy": "TerminatingOrFailed",
    }
    assert {name: found[name] for name in common | expected} == common | expected


def test_work_queue_job_gets_no_completions() -> None:
    assert "completions" not in spec("batch", "Job", parallelism=3)


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


def test_new_job_selects_its_pods_by_its_uid() -> None:
    job: dict[str, Any] = {"metadata": {"name": "x", "uid": "u"}, "spec": {"template": {}}}
    complete_job(job)
    assert job["spec"]["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": "u"}}
    assert job["spec"]["template"]["metadata"]["labels"] == {
        "batch.kubernetes.io/controller-uid": "u",
        "controller-uid": "u",
        "batch.kubernetes.io/job-name": "x",
        "job-name": "x",
    }


@pytest.mark.parametrize("spec", [{"manualSelector": True, "template": {}}, {"template": "odd"}])
def test_selector_of_a_job_that_selects_itself_or_is_malformed_is_unchanged(
    spec: dict[str, Any],
) -> None:
    job = {"metadata": {"name": "x", "uid": "u"}, "spec": dict(spec)}
    complete_job(job)
    assert job["spec"] == spec
