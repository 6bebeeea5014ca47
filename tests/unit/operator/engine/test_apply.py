"""The order of the operator's creations."""

from typing import Any

import pytest

from gangline.api.jobs.kubeflow import JobStatus
from gangline.api.meta.objects import Object, Status
from gangline.kube.errors import Invalid
from gangline.operator.engine.apply import PlanExecutor
from gangline.operator.engine.observe import RESOURCES, JobObservation
from gangline.operator.engine.plan import plan_reconcile
from gangline.operator.model.plan import EngineSettings, ObservedJob
from unit.operator.builders import NOW, a_job, manifest, stored


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
