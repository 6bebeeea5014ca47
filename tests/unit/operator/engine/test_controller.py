"""The log contains each transition of a job once, and none of its program's output."""

import logging

import pytest

from gangline.api.jobs.kubeflow import JobStatus
from gangline.operator.engine import controller
from gangline.operator.engine.plan import plan_reconcile
from gangline.operator.model.plan import ObservedJob
from unit.operator.builders import SETTINGS, a_job, a_pod, at


def test_each_condition_is_logged_when_it_begins_to_hold(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    job, running = a_job(1, 1), [a_pod("master-0"), a_pod("worker-0")]
    status = JobStatus()
    for pods in (running, running, [a_pod("master-0", "Succeeded", code=0)]):
        after = plan_reconcile(ObservedJob(job, status, pods=pods), at(0), SETTINGS).status
        controller.log_transitions(status, after)
        status = after
    reported = [(record.getMessage(), record.levelname) for record in caplog.records]
    assert reported == [
        ("job is Created", "INFO"),
        ("job is Running", "INFO"),
        ("job is Succeeded", "INFO"),
    ]


def test_a_failure_is_logged_with_its_reason_only(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    job = a_job(1, 1, restart="Never")
    pods = [a_pod("master-0"), a_pod("worker-0", "Failed", code=3)]
    after = plan_reconcile(ObservedJob(job, JobStatus(), pods=pods), at(0), SETTINGS).status
    controller.log_transitions(JobStatus(), after)
    record = caplog.records[-1]
    assert record.getMessage() == "job is Failed"
    assert vars(record)["reason"] == "PyTorchJobFailed"
    assert "exit code" not in caplog.text
