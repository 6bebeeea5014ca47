"""Errors and warnings for MSJobs."""

from typing import Any

import msgspec
import pytest

from gangline.api.jobs.mindspore import MSJob
from gangline.api.validation.validate import check_manifest, validate_job, validate_manifest

SPECS = "spec.msReplicaSpecs"
POD = f"{SPECS}.Worker.template.spec"


def replica(count: int | None = 1, name: str = "mindspore", **fields: Any) -> dict[str, Any]:
    given = {} if count is None else {"replicas": count}
    containers = [{"name": name, "image": "train:1"}]
    return {**given, "template": {"spec": {"containers": containers}}, **fields}


def job(
    roles: dict[str, Any] | None = None, *, meta: dict[str, Any] | None = None, **spec: Any
) -> dict[str, Any]:
    replicas = {"Scheduler": 1, "Worker": 2} if roles is None else roles
    return {
        "apiVersion": "mindspore.gitee.com/v1",
        "kind": "MSJob",
        "metadata": meta or {"name": "train", "namespace": "team"},
        "spec": {
            "msReplicaSpecs": {
                role: replica(given) if isinstance(given, int) else given
                for role, given in replicas.items()
            },
            **spec,
        },
    }


def pod(**fields: Any) -> dict[str, Any]:
    written = replica(2)
    written["template"]["spec"] |= fields
    return written


def container(**fields: Any) -> dict[str, Any]:
    return pod(containers=[{"name": "mindspore", "image": "x", **fields}])


@pytest.mark.parametrize(
    "written",
    [
        pytest.param(job({"Worker": 1}), id="standalone"),
        pytest.param(
            job({"Scheduler": 1, "Worker": 4}, successPolicy="AllWorkers"), id="data parallel"
        ),
        pytest.param(job({"Scheduler": 1, "PS": 2, "Worker": 1}), id="servers, one trainer"),
        pytest.param(job({"scheduler": 1, "ps": 2, "WORKER": 4}), id="any capitalisation"),
        pytest.param(job({"Scheduler": 0, "PS": 0, "Worker": 1}), id="roles without replicas"),
        pytest.param(job(successPolicy=""), id="the default written out"),
        pytest.param(job(runPolicy={"cleanPodPolicy": "None"}), id="upstream's sample"),
        pytest.param(
            job(runPolicy={"suspend": True, "managedBy": "kubeflow.org/training-operator"}),
            id="our run policy",
        ),
        pytest.param(job(enableDynamicWorker=True), id="dynamic"),
    ],
)
def test_a_job_without_mistakes_has_none(written):
    assert validate_manifest(written) == []
    assert validate_job(msgspec.convert(written, MSJob)) == []


def in_worker(given: Any) -> dict[str, Any]:
    return job({"Scheduler": 1, "Worker": given})


@pytest.mark.parametrize(
    ("written", "path", "expected"),
    [
        pytest.param(
            job({"Scheduler": 1, "Worker": 0}),
            f"{SPECS}.Worker.replicas",
            "without a worker",
            id="no workers",
        ),
        pytest.param(
            job({"Scheduler": 1, "PS": 1}), f"{SPECS}.Worker", "never ends", id="no Worker"
        ),
        pytest.param(
            job({"Scheduler": 2, "Worker": 2}),
            f"{SPECS}.Scheduler.replicas",
            "more than 1",
            id="two schedulers",
        ),
        pytest.param(
            job({"Worker": 2}), f"{SPECS}.Scheduler", "train alone", id="workers without scheduler"
        ),
        pytest.param(
            job({"Scheduler": 0, "Worker": 2}),
            f"{SPECS}.Scheduler",
            "train alone",
            id="a scheduler without replicas",
        ),
        pytest.param(
            job(successPolicy="allworkers"),
            "spec.successPolicy",
            "did you mean 'AllWorkers'",
            id="success policy",
        ),
        pytest.param(
            in_worker(container(ports=[{"name": "msjob-port", "containerPort": 80}])),
            f"{POD}.containers[0].ports[0].containerPort",
            "1024 to 65535",
            id="low port",
        ),
    ],
)
def test_each_mistake_is_named_with_what_would_be_right(written, path, expected):
    messages = {error.path: str(error) for error in validate_manifest(written)}
    assert path in messages
    assert expected in messages[path]


@pytest.mark.parametrize(
    ("written", "path", "expected"),
    [
        pytest.param(
            in_worker(container(env=[{"name": "MS_ROLE", "value": "x"}])),
            f"{POD}.containers[0].env[0]",
            "MS_ROLE",
            id="our variable",
        ),
    ],
)
def test_what_is_hardly_meant_is_advised_against_and_no_mistake(written, path, expected):
    assert validate_manifest(written) == []
    messages = {error.path: str(error) for error in check_manifest(written).warnings}
    assert expected in messages[path]


def test_a_job_without_scheduler_may_set_the_variables_itself():
    written = job({"Worker": container(env=[{"name": "MS_ROLE", "value": "MS_WORKER"}])})
    written["spec"]["msReplicaSpecs"]["Worker"]["replicas"] = 1
    assert check_manifest(written).warnings == []
