"""TrainJobs and runtimes for tests."""

from typing import Any

import msgspec

from gangline.api.jobs.train import TrainJob
from gangline.api.jobs.training_runtime import ClusterTrainingRuntime
from gangline.api.trainer.builtin_runtimes import builtin_runtimes
from gangline.api.trainer.effective import EffectiveJob, find_container
from gangline.api.trainer.policy import effective_job

SHIPPED = {
    builtin_runtime["metadata"]["name"]: builtin_runtime for builtin_runtime in builtin_runtimes()
}


def train_job(runtime: str = "torch-distributed", **spec: Any) -> dict[str, Any]:
    """A TrainJob of a shipped runtime."""
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "digits", "namespace": "team", "uid": "job-uid"},
        "spec": {"runtimeRef": {"name": runtime}, **spec},
    }


def effective(written: dict[str, Any], runtime: dict[str, Any] | None = None) -> EffectiveJob:
    """What a job runs, by default in the shipped runtime that it names."""
    manifest = runtime or SHIPPED[written["spec"]["runtimeRef"]["name"]]
    decoded = msgspec.convert(manifest, ClusterTrainingRuntime)
    return effective_job(msgspec.convert(written, TrainJob), decoded.spec)


def container(job: EffectiveJob, role: str = "node", name: str = "node") -> dict[str, Any]:
    """A container of a role."""
    effective_role = job.find_role(role)
    assert effective_role is not None
    result = find_container(effective_role.template, name)
    assert result is not None
    return result


def environment(job: EffectiveJob, role: str = "node") -> dict[str, str]:
    """The variables of the container that trains; the index of the pod is ``INDEX``."""
    listed = container(job, role).get("env") or []
    return {variable["name"]: variable.get("value", "INDEX") for variable in listed}
