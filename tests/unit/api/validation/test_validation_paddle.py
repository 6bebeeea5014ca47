"""Errors and warnings for PaddleJobs."""

from typing import Any

import msgspec
import pytest

from gangline.api.jobs.paddle import PaddleJob
from gangline.api.validation.validate import check_manifest, validate_job, validate_manifest

POD = "spec.worker.template.spec"


def role(count: Any = 1, **pod: Any) -> dict[str, Any]:
    containers = [{"name": "paddle", "image": "train:1"}]
    return {"replicas": count, "template": {"spec": {"containers": containers, **pod}}}


def job(*, meta: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """``job(ps=1, worker=2)``; one worker if no role is given."""
    roles = ("ps", "worker", "heter")
    given_spec = spec if any(name in spec for name in roles) else {"worker": 1, **spec}
    return {
        "apiVersion": "batch.paddlepaddle.org/v1",
        "kind": "PaddleJob",
        "metadata": meta or {"name": "train", "namespace": "team"},
        "spec": {
            name: role(given) if name in roles and isinstance(given, int) else given
            for name, given in given_spec.items()
        },
    }


def container(**fields: Any) -> dict[str, Any]:
    return job(worker=role(containers=[{"name": "paddle", "image": "x", **fields}]))


@pytest.mark.parametrize(
    "written",
    [
        pytest.param(
            job(ps=2, worker=2, withGloo=1, intranet="PodIP", cleanPodPolicy="OnCompletion"),
            id="servers",
        ),
        pytest.param(job(ps=2, worker=2, withGloo=2, intranet="Service"), id="by name"),
        pytest.param(job(ps=1, worker=1, heter=1, intranet="Host"), id="heterogeneous"),
        pytest.param(job(ps=2), id="servers only"),
        pytest.param(job(ps=0, worker=2), id="a role without replicas"),
        pytest.param(job(worker=3, elastic=1), id="elastic"),
        pytest.param(job(worker=3, elastic=0), id="elastic with zero"),
        pytest.param(job(worker={**role(3), "requests": 2, "limits": 4}, elastic=1), id="range"),
        pytest.param(
            job(
                worker=2,
                schedulingPolicy={
                    "minAvailable": 2,
                    "queue": "q",
                    "priorityClass": "high",
                    "minResources": {"cpu": "4", "nvidia.com/gpu": 2},
                },
            ),
            id="gang",
        ),
        pytest.param(
            job(
                runPolicy={
                    "backoffLimit": 3,
                    "ttlSecondsAfterFinished": 0,
                    "activeDeadlineSeconds": 1,
                    "suspend": True,
                    "managedBy": "kubeflow.org/training-operator",
                }
            ),
            id="our run policy",
        ),
        pytest.param(job(worker=role(containers=[{"name": "m", "image": "x"}])), id="any name"),
    ],
)
def test_a_job_without_mistakes_has_none(written):
    assert validate_manifest(written) == []
    assert validate_job(msgspec.convert(written, PaddleJob)) == []


@pytest.mark.parametrize("policy", ["Always", "Never", "OnFailure", "OnCompletion", "OnFailed"])
def test_every_clean_pod_policy_of_upstreams_samples_is_accepted(policy):
    assert validate_manifest(job(cleanPodPolicy=policy)) == []


@pytest.mark.parametrize(
    ("written", "path", "expected"),
    [
        pytest.param(job(ps=1, elastic=1), "spec.elastic", "only workers", id="elastic servers"),
        pytest.param(
            job(ps=1, worker=0, elastic=1),
            "spec.elastic",
            "only workers",
            id="elastic without workers",
        ),
        pytest.param(
            {**job(), "spec": {"withGloo": 1}}, "spec", "ps or worker or heter", id="no role"
        ),
        pytest.param(
            job(cleanPodPolicy="Oncompletion"),
            "spec.cleanPodPolicy",
            "did you mean 'OnCompletion'",
            id="clean pod policy",
        ),
        pytest.param(
            job(cleanPodPolicy="All"), "spec.cleanPodPolicy", "Always", id="another kind's word"
        ),
        pytest.param(job(ps=1, withGloo=3), "spec.withGloo", "at most 2", id="gloo"),
        pytest.param(
            job(worker=role(restartPolicy="ExitCode")),
            f"{POD}.restartPolicy",
            "not allowed",
            id="restart policy",
        ),
        pytest.param(
            job(worker={**role(3), "requests": 4, "limits": 2}, elastic=1),
            "spec.worker.requests",
            "at most 2",
            id="range",
        ),
        pytest.param(
            job(worker=2, schedulingPolicy={"minAvailable": 3}),
            "spec.schedulingPolicy.minAvailable",
            "at most 2",
            id="more members than pods",
        ),
        pytest.param(
            job(runPolicy={"schedulingPolicy": {}}),
            "spec.runPolicy.schedulingPolicy",
            "it belongs to spec",
            id="gang at the wrong level",
        ),
    ],
)
def test_each_mistake_is_named_with_what_would_be_right(written, path, expected):
    messages = {error.path: str(error) for error in validate_manifest(written)}
    assert path in messages
    assert expected in messages[path]


@pytest.mark.parametrize(
    ("field", "before", "after"),
    [
        (
            ("runPolicy", "managedBy"),
            "kubeflow.org/training-operator",
            "kueue.x-k8s.io/multikueue",
        ),
        (("schedulingPolicy", "queue"), "a", "b"),
    ],
)
def test_what_cannot_be_changed_is_named(field, before, after):
    def written(value: str) -> PaddleJob:
        return msgspec.convert(job(**{field[0]: {field[1]: value}}), PaddleJob)

    (error,) = validate_job(written(after), written(before))
    assert error.path == ".".join(("spec", *field))
    assert before in error.remedy
    assert validate_job(written(before), written(before)) == []


@pytest.mark.parametrize(
    ("written", "path", "expected"),
    [
        pytest.param(
            job(cleanPodPolicy="OnFailed"),
            "spec.cleanPodPolicy",
            "did you mean 'OnFailure'",
            id="a word that means nothing",
        ),
        pytest.param(job(withGloo=1), "spec.withGloo", "add spec.ps", id="gloo without servers"),
        pytest.param(
            job(worker=role(restartPolicy="Always")),
            f"{POD}.restartPolicy",
            "OnFailure",
            id="a worker that never ends",
        ),
        pytest.param(job(worker=role(hostname="me")), f"{POD}.hostname", "omit it", id="hostname"),
        pytest.param(
            container(env=[{"name": "POD_IP", "value": "x"}]),
            f"{POD}.containers[0].env[0]",
            "POD_IP",
            id="our variable",
        ),
        pytest.param(
            job(worker=role(containers=[{"name": "a", "image": "x"}, {"name": "b", "image": "x"}])),
            f"{POD}.containers",
            "the first one is used",
            id="which container",
        ),
    ],
)
def test_what_is_hardly_meant_is_advised_against_and_no_mistake(written, path, expected):
    assert validate_manifest(written) == []
    messages = {error.path: str(error) for error in check_manifest(written).warnings}
    assert expected in messages[path]


def test_usual_job_has_no_warnings():
    assert check_manifest(job(ps=1, worker=2, withGloo=1)).warnings == []


def test_variables_of_other_containers_are_their_own():
    env = [{"name": "POD_IP", "value": "x"}]
    containers = [
        {"name": "paddle", "image": "x"},
        {"name": "sidecar", "image": "x", "env": env},
    ]
    assert check_manifest(job(worker=role(containers=containers))).warnings == []


def test_a_template_of_any_role_is_checked_down_to_its_fields():
    for name in ("ps", "worker", "heter"):
        written = job(**{name: role(restartPolcy="Never")})
        (error,) = validate_manifest(written)
        assert error.path == f"spec.{name}.template.spec.restartPolcy"
