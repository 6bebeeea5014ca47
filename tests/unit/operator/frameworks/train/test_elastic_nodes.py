"""TrainJobs whose number of nodes changes while they run."""

import copy
from typing import Any

import msgspec
import pytest

from gangline.api.jobs.kubeflow import JobStatus
from gangline.operator.engine.plan import plan_reconcile
from gangline.operator.engine.status import decode_status
from gangline.operator.engine.valid_spec import job_in_force, record_spec
from gangline.operator.frameworks.train.framework import KIND, TrainFramework
from gangline.operator.model.framework import ParsedJob
from gangline.operator.model.job import RawJob
from gangline.operator.model.plan import ObservedJob, ReconcilePlan, TargetKind
from unit.api.trainer.jobs import SHIPPED, train_job
from unit.operator.builders import NOW, a_pod, stored
from unit.operator.kubeflow_jobs import variables
from unit.operator.train_jobs import runtime_copy
from unit.operator.world import SETTINGS

RANGE = {"minNodes": 2, "maxNodes": 4}


def read(trainer: dict[str, Any], status: Any = None, *, elastic: bool = True) -> ParsedJob:
    return _read(_stored(trainer, status), elastic=elastic)


def _stored(trainer: dict[str, Any], status: Any = None, **spec: Any) -> RawJob:
    return stored({**train_job(trainer=trainer, **spec), "status": status or {}})


def _read(job: RawJob, *, elastic: bool = True) -> ParsedJob:
    runtime = copy.deepcopy(SHIPPED["torch-distributed"])
    if elastic:
        runtime["spec"]["mlPolicy"] = {"numNodes": 2, "torch": {"elasticPolicy": RANGE}}
    return TrainFramework().read_with_runtime(job, runtime_copy(runtime), is_known=True)


def plan(trainer: dict[str, Any], *pods: Any) -> ReconcilePlan:
    parsed = read(trainer)
    assert not parsed.spec_errors
    status = decode_status(KIND, msgspec.Raw(b"{}"))
    return plan_reconcile(ObservedJob(parsed.job, status, pods=pods), NOW, SETTINGS)


def nodes(*indexes: int, phase: str = "Running") -> list[Any]:
    return [a_pod(f"node-{index}", phase, job="digits", job_uid="job-uid") for index in indexes]


def created_pods(decision: ReconcilePlan) -> list[dict[str, Any]]:
    return [c.manifest for c in decision.creations if c.target is TargetKind.POD]


def environment(pod: dict[str, Any]) -> dict[str, str]:
    return dict(variables(pod))


def test_variables_of_a_node_do_not_depend_on_the_number_of_nodes() -> None:
    first, other = created_pods(plan({"numNodes": 2}))
    assert first["spec"] == created_pods(plan({"numNodes": 4}))[0]["spec"]
    given = environment(first)
    assert given == {
        "PET_MAX_RESTARTS": "3",
        "PET_NNODES": "2:4",
        "PET_NPROC_PER_NODE": "1",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_CONF": "is_host=true",
        "PET_RDZV_ENDPOINT": "digits-node-0-0.digits:29500",
        "PET_RDZV_ID": "=metadata.annotations['jobset.sigs.k8s.io/jobset-uid']",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    assert environment(other) == given | {"PET_RDZV_CONF": "is_host=false"}


def test_settings_of_the_rendezvous_are_kept() -> None:
    own = [
        {"name": "PET_RDZV_CONF", "value": "timeout=9"},
        {"name": "PET_MAX_RESTARTS", "value": "7"},
    ]
    given = environment(created_pods(plan({"numNodes": 2, "env": own}))[1])
    assert given["PET_RDZV_CONF"] == "timeout=9,is_host=false"
    assert given["PET_MAX_RESTARTS"] == "7"
    policy = {**RANGE, "maxRestarts": 0}
    limited = plan({"numNodes": 2, "env": own, "elasticPolicy": policy})
    assert environment(created_pods(limited)[0])["PET_MAX_RESTARTS"] == "0"


def test_gang_starts_with_the_fewest_nodes() -> None:
    (group,) = [c for c in plan({"numNodes": 4}).creations if c.target is TargetKind.POD_GROUP]
    assert group.manifest["spec"]["minTaskMember"] == {"node": 2}


def test_last_nodes_do_not_end_the_job_while_the_first_runs() -> None:
    decision = plan({"numNodes": 3}, *nodes(0, 1), *nodes(2, phase="Succeeded"))
    assert "Succeeded" not in {c.type for c in decision.status.conditions}


@pytest.mark.parametrize(
    "pods",
    [
        pytest.param([*nodes(0, phase="Succeeded"), *nodes(1, 2)], id="the first"),
        pytest.param([*nodes(0, phase="Pending"), *nodes(2, phase="Succeeded")], id="the last"),
    ],
)
def test_one_node_that_succeeds_ends_the_job(pods: list[Any]) -> None:
    decision = plan({"numNodes": 3}, *pods)
    assert [c.type for c in decision.status.conditions if c.status == "True"][-1] == "Succeeded"
    assert decision.kind_status is not None
    (step,) = decision.kind_status["jobsStatus"]
    assert (step["succeeded"], step["active"]) == (1, 0)
    assert decision.kind_status["gangline"]["nodeRange"] == RANGE


def test_each_node_has_the_limit_of_restarts() -> None:
    """A node that leaves may restart all others once."""
    assert [role.backoff_limit for role in read({"numNodes": 2}).job.roles] == [6 * 4]
    assert [role.backoff_limit for role in read({"numNodes": 2}, elastic=False).job.roles] == [6]


@pytest.mark.parametrize(
    ("size", "elastic", "error"),
    [
        pytest.param(4, True, "", id="within the range"),
        pytest.param(5, True, "5 is not within elasticPolicy", id="beyond the range"),
        pytest.param(3, False, "neither the job nor its runtime is elastic", id="not elastic"),
        pytest.param(2, False, "", id="unchanged"),
    ],
)
def test_size_that_no_webhook_has_reviewed_is_refused(size: int, elastic: bool, error: str) -> None:
    before = _stored({"numNodes": 2})
    record = msgspec.to_builtins(record_spec(before, None))
    changed = _stored({"numNodes": size}, {"gangline": {"lastValidSpec": record}})
    parsed = _read(changed, elastic=elastic)
    assert error in parsed.spec_errors
    assert bool(error) == bool(parsed.spec_errors)
    status = JobStatus(start_time=NOW, last_valid_spec=record_spec(before, None))
    job, _ = job_in_force(
        changed, parsed, status, nodes(0, 1), lambda job: _read(job, elastic=elastic)
    )
    assert job.size == (2 if error else size)


def test_suspended_job_of_a_fixed_runtime_may_be_resized() -> None:
    record = msgspec.to_builtins(record_spec(_stored({"numNodes": 2}, suspend=True), None))
    resumed = _stored({"numNodes": 3}, {"gangline": {"lastValidSpec": record}})
    assert _read(resumed, elastic=False).spec_errors == ""
