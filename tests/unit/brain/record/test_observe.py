"""What the observed states of a job become in its record."""

from dataclasses import replace
from typing import Any

import msgspec

from gangline.api.core.pod import Pod
from gangline.api.jobs.kubeflow import PyTorchJob
from gangline.api.verdict import finding_of_pod
from gangline.brain.facts.job_record import JobRecord, Moment
from gangline.brain.record.observe import JobAtTime, observe
from gangline.sdk.goodput import parse_goodput
from gangline.sdk.jobs import build_job
from gangline.sdk.kinds import JOB_KINDS

KIND = JOB_KINDS[0]
TRAINER_STATUS = {"metrics": [{"name": "loss", "value": "0.5"}, {"name": "note", "value": "nan"}]}


def at(second: int) -> str:
    return f"2026-01-01T00:00:{second:02}Z"


def ms(second: int) -> int:
    return 1_767_225_600_000 + second * 1000


def a_job(*conditions: tuple[str, str, int], workers: int = 2, **status: Any) -> PyTorchJob:
    template = {"spec": {"containers": [{"name": "pytorch"}]}}
    written = [
        {"type": type_, "status": true, "lastTransitionTime": at(second), "message": "it is so"}
        for type_, true, second in conditions
    ]
    raw = {
        "metadata": {"name": "x", "namespace": "d", "uid": "u", "creationTimestamp": at(0)},
        "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": workers, "template": template}}},
        "status": {"conditions": written, **status},
    }
    return msgspec.convert(raw, PyTorchJob)


def a_pod(index: int, *, placed: int | None = None, failed: int | None = None) -> Pod:
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": at(placed or 0)}
    waiting = {**scheduled, "status": "False", "reason": "Unschedulable", "message": "no room"}
    end = {"exitCode": 137, "finishedAt": at(failed or 0)}
    state = {"terminated": end} if failed else {"running": {"startedAt": at(1)}}
    container = {"name": "pytorch", "state": state, "restartCount": 0}
    raw = {
        "metadata": {
            "name": f"x-worker-{index}",
            "labels": {
                "training.kubeflow.org/replica-type": "worker",
                "training.kubeflow.org/replica-index": str(index),
            },
        },
        "spec": {"nodeName": f"n{index}" if placed else "", "containers": [{"name": "pytorch"}]},
        "status": {
            "phase": "Failed" if failed else "Running" if placed else "Pending",
            "conditions": [scheduled if placed else waiting],
            "containerStatuses": [container] if placed else [],
        },
    }
    return msgspec.convert(raw, Pod)


def seen(second: int, job: PyTorchJob, *pods: Pod, **fields: Any) -> JobAtTime:
    built = build_job(KIND, job, pods, [])
    return JobAtTime(built, KIND.status(job), pods, at_ms=ms(second), **fields)


def timeline(record: JobRecord) -> list[tuple[str, int]]:
    return [(entry.what, entry.at_ms - ms(0)) for entry in record.timeline]


WAITING = seen(2, a_job(("Created", "True", 0)), a_pod(0), a_pod(1))
PLACED = (a_pod(0, placed=5), a_pod(1, placed=6))
RUNNING = seen(8, a_job(("Running", "True", 7)), *PLACED)
FAILING = a_pod(1, placed=6, failed=9)
RESTARTED = seen(
    12,
    a_job(("Running", "False", 10), ("Restarting", "True", 10), restarts={"total": 1}),
    PLACED[0],
    FAILING,
    failures=[finding_of_pod(FAILING)],
)
ENDED = seen(30, a_job(("Running", "False", 20), ("Succeeded", "True", 20)))
LIFE = (
    WAITING,
    RUNNING,
    RESTARTED,
    ENDED,
    replace(ENDED, is_deleted=True, at_ms=ms(40)),
)


def test_life_of_a_job_is_its_timeline() -> None:
    record = JobRecord()
    for observation in LIFE:
        record = observe(record, observation)
    assert timeline(record) == [
        (Moment.SUBMITTED, 0),
        (Moment.QUEUED, 0),
        (Moment.PLACED, 6000),
        (Moment.STARTED, 7000),
        (Moment.RESTARTED, 9000),
        (Moment.SUCCEEDED, 20_000),
        (Moment.DELETED, 40_000),
    ]
    restart = next(entry for entry in record.timeline if entry.what == Moment.RESTARTED)
    assert (restart.cause, restart.replica, restart.node) == ("Killed", "worker-1", "n1")
    assert (restart.blame, restart.exit_code, restart.number) == ("platform", 137, 1)
    assert [wait.text for wait in record.explanations][:1] == ["worker-0: no room"]
    # Its pods are deleted with it; the record still has them.
    assert {replica.name for replica in record.replicas} == {"x-worker-0", "x-worker-1"}


def test_state_that_is_observed_again_adds_nothing() -> None:
    record = JobRecord()
    for observation in LIFE:
        record = observe(record, observation)
        again = replace(observation, at_ms=observation.at_ms + 500)
        assert observe(record, again).timeline == record.timeline


def test_change_of_size_and_suspension_are_moments() -> None:
    record = observe(JobRecord(), RUNNING)
    record = observe(record, seen(15, a_job(("Running", "True", 7), workers=3), *PLACED))
    record = observe(record, seen(22, a_job(("Suspended", "True", 21), workers=3)))
    record = observe(record, seen(32, a_job(("Suspended", "False", 31), workers=3)))
    [*_, resized, suspended, resumed] = record.timeline
    assert (resized.what, resized.text) == (Moment.RESIZED, "2 to 3 replicas")
    assert (suspended.what, resumed.what) == (Moment.SUSPENDED, Moment.RESUMED)


def test_numbers_that_the_training_reports_are_points_of_curves() -> None:
    goodput = parse_goodput(
        {"goodput": "0.9", "step": "40", "loss": "1.5", "stepsPerSecond": "2", "nodes": "2",
         "restartStep": "30", "restartCause": "Killed", "restartNode": "1", "restartNumber": "1"}
    )  # fmt: skip
    reported = a_job(("Running", "True", 7), trainerStatus=TRAINER_STATUS)
    record = observe(JobRecord(), seen(8, reported, *PLACED))
    record = observe(record, seen(18, reported, *PLACED, goodput=goodput, global_batch=32))
    table = record.curves["training"]
    assert table.at_ms == (ms(8), ms(18))
    assert table.values["loss"] == (0.5, 1.5)
    assert table.values["samples/s"] == (None, 64.0)
    restart = next(entry for entry in record.timeline if entry.what == Moment.WORKERS_RESTARTED)
    assert (restart.cause, restart.step, restart.number) == ("Killed", 30, 1)
