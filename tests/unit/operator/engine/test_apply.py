"""How a plan is carried out: order of writes, delays of the status, and what is logged."""

import logging
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.api.jobs.kubeflow import JobStatus
from gangline.api.meta.objects import Object, Status
from gangline.kube.errors import Invalid
from gangline.operator.engine import controller
from gangline.operator.engine.apply import (
    CREATED_REQUEUE_S,
    MINOR_STATUS_INTERVAL_S,
    MINOR_STATUS_MAX_DELAY_S,
    RUNNING_STATUS_DELAY_S,
    SATURATED_REQUEUE_S,
    PlanExecutor,
    minor_status_delay,
    requeue_delay,
    running_status_delay,
)
from gangline.operator.engine.observe import RESOURCES, JobObservation
from gangline.operator.engine.plan import plan_reconcile
from gangline.operator.model.plan import EngineSettings, ObservedJob
from unit.operator.builders import NOW, SETTINGS, a_job, a_pod, at, manifest, stored


class _Server:
    """An API server that refuses the object of one name; also the operator's cache."""

    def __init__(self, refused: str) -> None:
        self.refused = refused
        self.created: list[str] = []
        self.informers: dict[str, Any] = {}
        self.unobserved = self
        self.resources = RESOURCES

    async def create(self, resource: Any, written: dict[str, Any], namespace: str) -> Object:
        if written["metadata"]["name"] == self.refused and resource.kind == "Service":
            raise Invalid(Status(message=f"{self.refused}: Duplicate value"))
        self.created.append(resource.kind)
        return Object()

    def __getitem__(self, target: str) -> "_Server":
        return self

    def record_created(self, item: Object, seen: Object | None) -> None:
        pass


@pytest.mark.parametrize("refused", ["train-master-0", "train-worker-1", ""])
async def test_no_pod_is_created_when_a_service_is_refused(refused: str) -> None:
    server: Any = _Server(refused)
    observed = ObservedJob(a_job(1, 2), JobStatus())
    plan = plan_reconcile(observed, NOW, EngineSettings(gang_scheduling=True))
    observation = JobObservation(stored(manifest(1, 2)), observed, {})
    result = await PlanExecutor(server, server, 2).execute(observation, plan)
    assert ("Pod" in server.created, bool(result.problems)) == (not refused, bool(refused))
    assert refused in result.problem_message()


SECONDS = st.floats(0, 100)


def test_that_a_job_runs_waits_half_a_second_for_the_rest_of_its_pods() -> None:
    assert running_status_delay(0) == RUNNING_STATUS_DELAY_S
    assert running_status_delay(RUNNING_STATUS_DELAY_S) is None


def test_minor_status_change_is_stored_once_a_second() -> None:
    assert minor_status_delay(0, math.inf, is_saturated=False) == MINOR_STATUS_INTERVAL_S
    assert minor_status_delay(MINOR_STATUS_INTERVAL_S, math.inf, is_saturated=False) is None
    assert minor_status_delay(5, 0.25, is_saturated=False) == MINOR_STATUS_INTERVAL_S - 0.25


def test_in_a_crowd_it_gives_way_and_is_seldom_looked_at() -> None:
    assert (
        minor_status_delay(MINOR_STATUS_INTERVAL_S, math.inf, is_saturated=True)
        == SATURATED_REQUEUE_S
    )
    assert minor_status_delay(MINOR_STATUS_MAX_DELAY_S - 1, math.inf, is_saturated=True) == 1
    assert minor_status_delay(MINOR_STATUS_MAX_DELAY_S, math.inf, is_saturated=True) is None
    assert (requeue_delay(is_saturated=True), requeue_delay(is_saturated=False)) == (
        SATURATED_REQUEUE_S,
        CREATED_REQUEUE_S,
    )


@given(SECONDS, SECONDS, st.booleans())
def test_delayed_change_is_stored_when_requeued_as_requested(
    waited_s: float, since_stored_s: float, crowded: bool
) -> None:
    looks = 0
    while (
        wait_s := minor_status_delay(waited_s, since_stored_s, is_saturated=crowded)
    ) is not None:
        assert wait_s > 0
        # A computer's clock advances in steps, so the measured wait is a little longer.
        waited_s, since_stored_s = waited_s + wait_s + 1e-6, since_stored_s + wait_s + 1e-6
        looks += 1
    assert looks <= MINOR_STATUS_MAX_DELAY_S / SATURATED_REQUEUE_S + 2


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
