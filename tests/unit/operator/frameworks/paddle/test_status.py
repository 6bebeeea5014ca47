"""The status of a PaddleJob in upstream's terms, as a function of the observed replicas."""

import itertools
from typing import Any

import msgspec
import pytest

from gangline.api.jobs.paddle import PaddleJobStatus
from gangline.operator.frameworks.paddle.framework import PaddleFramework
from gangline.operator.model.conditions import is_finished
from gangline.operator.model.job import NormalizedJob
from unit.operator.builders import NOW, a_pod, conditions, created, look, stored
from unit.operator.paddle_jobs import a_job, at_the_barrier, manifest, placed

PENDING = a_pod("worker-0", "Pending")
DONE = placed("worker-0", "10.0.0.1", "Succeeded", code=0)


def fields(job: NormalizedJob, *pods: Any, **extra: Any) -> dict[str, Any]:
    fields = look(job, *pods, **extra).decide().kind_status
    assert fields is not None
    return fields


@pytest.mark.parametrize(
    ("roles", "mode"),
    [
        ({"worker": 1}, "Single"),
        ({"worker": 2}, "Collective"),
        ({"ps": 1, "worker": 1}, "PS"),
        ({"ps": 0, "worker": 2}, "Collective"),
    ],
)
def test_mode_follows_from_the_roles(roles, mode):
    assert fields(a_job(**roles))["mode"] == mode


@pytest.mark.parametrize(
    ("pods", "phase"),
    [
        pytest.param([], "Pending", id="nothing is there"),
        pytest.param([a_pod("ps-0", "Pending")], "Pending", id="waits for a node"),
        pytest.param([at_the_barrier("ps-0"), PENDING], "Starting", id="looks for its peers"),
        pytest.param([at_the_barrier("ps-0", waiting="x")], "Pending", id="fetches its image"),
        pytest.param(
            [placed("ps-0"), a_pod("worker-0", "Pending", waiting="CreateContainerConfigError")],
            "Starting",
            id="waits for the addresses of all",
        ),
        pytest.param([placed("ps-0"), PENDING], "Pending", id="one runs, one waits"),
        pytest.param([placed("ps-0")], "Pending", id="one runs, one is missing"),
        pytest.param([placed("ps-0"), a_pod("worker-0")], "Starting", id="one is not ready"),
        pytest.param([placed("ps-0"), placed("worker-0")], "Running", id="all run"),
        pytest.param(
            [placed("ps-0"), a_pod("worker-0", code=0)], "Running", id="a sidecar is still there"
        ),
        pytest.param([placed("ps-0"), DONE], "Completed", id="the workers are done"),
        pytest.param(
            [a_pod("ps-0", "Failed", code=1), PENDING], "Failed", id="failed before it started"
        ),
        pytest.param([placed("ps-0", deleted=NOW), placed("worker-0")], "Pending", id="one goes"),
    ],
)
def test_the_phase_does_not_depend_on_the_order_of_what_is_seen(pods, phase):
    for order in itertools.permutations(pods):
        assert fields(a_job(ps=1, worker=1), *order)["phase"] == phase


def test_a_replica_that_comes_back_shows_in_the_phase():
    job = a_job(worker=2, intranet="Service")
    lost = a_pod("worker-1", "Failed", reason="Evicted")
    assert fields(job, placed("worker-0"), lost)["phase"] == "Restarting"


def test_a_suspended_job_is_pending():
    held = a_job(worker=1, runPolicy={"suspend": True})
    assert fields(held)["phase"] == "Pending"
    assert conditions(look(held).decide().status)[-1] == "Suspended"


def test_an_invalid_job_is_pending():
    written = manifest(worker=-1)
    reading = PaddleFramework().read(stored(written))
    assert fields(reading.job, spec_errors=reading.spec_errors)["phase"] == "Pending"


def test_condition_and_phase_become_running_together():
    job = a_job(ps=1, worker=1)
    for pods in ([placed("ps-0")], [placed("ps-0"), a_pod("worker-0")]):
        assert "Running" not in conditions(look(job, *pods).decide().status)
    both = look(job, placed("ps-0"), placed("worker-0")).decide()
    assert conditions(both.status)[-1] == "Running"


def test_pods_are_counted_by_stage_and_referred_to_in_order():
    job = a_job(worker=6)
    pods = [
        a_pod("worker-5", "Unknown"),
        a_pod("worker-4", "Pending"),
        at_the_barrier("worker-3"),
        a_pod("worker-2"),
        placed("worker-1"),
        placed("worker-0"),
    ]
    reported = fields(job, *pods)
    refs = reported["worker"].pop("refs")
    assert reported["worker"] == {"pending": 1, "starting": 2, "running": 2, "unknown": 1}
    assert [ref["name"] for ref in refs] == [f"train-worker-{index}" for index in range(6)]
    assert refs[0] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "team",
        "name": "train-worker-0",
        "uid": "uid-train-worker-0",
    }
    assert "ps" not in reported


def test_the_pods_of_a_very_large_role_are_counted_and_not_listed():
    pods = [placed(f"worker-{index}") for index in range(1001)]
    assert fields(a_job(worker=1001), *pods)["worker"] == {"running": 1001}


def test_the_status_has_the_shape_of_its_kind():
    decision = look(a_job(ps=1, worker=1), placed("ps-0"), placed("worker-0")).decide()
    merged = {**(decision.kind_status or {}), **msgspec.to_builtins(decision.status)}
    status = msgspec.convert(merged, PaddleJobStatus)
    assert (status.phase, status.observed_generation) == ("Running", 1)
    assert status.worker is not None
    assert status.worker.running == 1
    assert msgspec.to_builtins(status) == merged


@pytest.mark.parametrize(("phase", "end"), [("Completed", "Succeeded"), ("Failed", "Failed")])
def test_a_job_that_upstream_finished_stays_finished(phase, end):
    written = manifest(worker=1)
    written["status"] = {
        "phase": phase,
        "mode": "Single",
        "startTime": "2026-11-20T10:00:00Z",
        "completionTime": "2026-11-20T11:00:00Z",
        "worker": {"succeeded": 1, "refs": [{"name": "train-worker-0"}]},
    }
    status = PaddleFramework().read_status(stored(written))
    assert conditions(status) == [end]
    assert status.completion_time is not None
    decision = look(a_job(worker=1), status=status).decide()
    assert decision.creations == ()
    assert decision.kind_status is not None
    assert decision.kind_status["phase"] == phase


def test_a_job_that_upstream_finished_is_removed_when_its_time_is_over():
    written = manifest(worker=1)
    written["status"] = {"phase": "Completed", "completionTime": "2026-11-20T11:00:00Z"}
    status = PaddleFramework().read_status(stored(written))
    job = a_job(worker=1, runPolicy={"ttlSecondsAfterFinished": 60})
    (deletion,) = look(job, status=status).decide().deletions
    assert deletion.target == "Job"


@pytest.mark.parametrize("phase", ["", "Pending", "Starting", "Running"])
def test_job_that_upstream_did_not_finish_continues(phase):
    written = manifest(worker=1)
    written["status"] = {"phase": phase, "startTime": "2026-11-20T10:00:00Z"}
    status = PaddleFramework().read_status(stored(written))
    assert not is_finished(status.conditions)
    assert created(look(a_job(worker=1), status=status).decide()) == ["worker-0"]


def test_a_status_of_our_own_is_read_as_it_was_written():
    decision = look(a_job(worker=1), DONE).decide()
    written = manifest(worker=1)
    written["status"] = {**(decision.kind_status or {}), **msgspec.to_builtins(decision.status)}
    assert PaddleFramework().read_status(stored(written)) == decision.status


def test_a_job_without_a_status_has_none():
    assert PaddleFramework().read_status(stored(manifest(worker=1))).conditions == []
