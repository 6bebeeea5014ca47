"""The last valid specification: where it is stored, and what replaces it if it is unknown."""

import random
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from gangline.api.jobs.kubeflow import JobStatus, ValidSpec
from gangline.operator.engine.status import is_minor_change
from gangline.operator.engine.valid_spec import job_in_force, record_spec
from gangline.operator.frameworks.pytorch import PyTorchFramework
from gangline.operator.model.job import NormalizedJob, RawJob
from gangline.operator.model.plan import ReconcilePlan
from unit.operator.builders import (
    NOW,
    a_pod,
    conditions,
    created,
    deleted,
    look,
    manifest,
    message,
    stored,
)  # fmt: skip

READ = PyTorchFramework().read


def at_generation(written: dict[str, Any], generation: int) -> RawJob:
    raw = stored(written)
    return replace(raw, metadata=replace(raw.metadata, generation=generation))


VALID = at_generation(manifest(None, 2, backoffLimit=3), 4)


def in_force(raw: RawJob, record: ValidSpec | None, *pods: Any) -> tuple[NormalizedJob, bool]:
    status = JobStatus(start_time=NOW, last_valid_spec=record)
    return job_in_force(raw, READ(raw), status, pods, READ)


def invalid(replicas: Any = -1, **policy: Any) -> RawJob:
    written = manifest(None, 2, **policy)
    written["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = replicas
    raw = at_generation(written, 5)
    assert READ(raw).spec_errors
    return raw


@pytest.mark.parametrize("replicas", [-1, 100_000, "many"])
@pytest.mark.parametrize("suspend", [True, False])
def test_invalid_specification_changes_only_whether_the_job_is_suspended(
    replicas: Any, suspend: bool
) -> None:
    record = msgspec.json.decode(msgspec.json.encode(record_spec(VALID, None)), type=ValidSpec)
    job, is_earlier = in_force(invalid(replicas, suspend=suspend, backoffLimit=9), record)
    assert is_earlier
    assert (job.size, job.policy.backoff_limit, job.policy.suspended) == (2, 3, suspend)


def test_record_is_written_again_only_for_another_generation() -> None:
    record = record_spec(VALID, None)
    assert record_spec(VALID, record) is record
    scaled = record_spec(at_generation(manifest(None, 3), 5), record)
    assert scaled.generation == 5
    # A lost update would bring back the size before it.
    assert is_minor_change(JobStatus(), JobStatus(last_valid_spec=record))
    assert not is_minor_change(JobStatus(last_valid_spec=record), JobStatus(last_valid_spec=scaled))


def test_record_that_is_too_large_is_left_out() -> None:
    noise = random.Random(1).randbytes(200_000).hex()
    written = manifest(None, 2)
    template = written["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    template["spec"]["containers"][0]["args"] = [noise]
    assert record_spec(at_generation(written, 7), None) == ValidSpec(7, "")


@pytest.mark.parametrize(
    "record", [None, ValidSpec(4, ""), ValidSpec(4, "e30="), ValidSpec(4, "?")]
)
def test_job_without_a_record_keeps_the_replicas_that_it_has(record: ValidSpec | None) -> None:
    job, is_earlier = in_force(invalid(100_000), record, a_pod("worker-0"), a_pod("worker-1"))
    assert is_earlier
    assert job.count("Worker") == 2


def plan_with_invalid_spec(*pods: Any, **policy: Any) -> ReconcilePlan:
    job = READ(at_generation(manifest(None, 2, **policy), 4)).job
    status = look(job, a_pod("worker-0"), a_pod("worker-1")).decide().status
    return look(
        job, *pods, status=status, spec_errors="spec.x: is wrong", has_earlier_spec=True
    ).decide()


def test_running_job_goes_on_and_says_that_its_specification_is_invalid() -> None:
    decision = plan_with_invalid_spec(a_pod("worker-0"))
    assert conditions(decision.status) == ["Created", "Running", "InvalidSpec"]
    assert message(decision.status, "InvalidSpec") == (
        "spec.x: is wrong. Until this is corrected, the last valid specification stays in force."
    )
    assert created(decision) == ["worker-1"]


def test_success_and_suspension_are_noticed_while_the_specification_is_invalid() -> None:
    done = [a_pod("worker-0", "Succeeded", code=0), a_pod("worker-1", "Succeeded", code=0)]
    assert conditions(plan_with_invalid_spec(*done).status)[-1] == "Succeeded"
    suspended = plan_with_invalid_spec(a_pod("worker-0"), a_pod("worker-1"), suspend=True)
    assert "Suspended" in conditions(suspended.status)
    assert deleted(suspended) == ["worker-0", "worker-1"]
