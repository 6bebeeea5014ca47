"""Jobs with mutated manifests: a response, a plan, and no object that the API server refuses."""

import json
import random
from contextlib import suppress
from typing import Any

import pytest

from gangline.api.validation.validate import MAX_JOB_REPLICAS
from gangline.local.apiserver.core.errors import StatusError
from gangline.operator.frameworks.train.framework import TrainFramework
from gangline.operator.main import all_frameworks
from gangline.operator.settings import OperatorSettings
from gangline.operator.webhook import review
from gangline.operator.webhook.defaults import JobDefaulter
from security.fuzz.jobs import SEEDS, TOKENS, admit, run_job
from security.fuzz.mutations import mutate_json
from unit.operator.builders import manifest, stored
from unit.operator.train_jobs import a_runtime, runtime_copy

DEFAULTER = JobDefaulter(all_frameworks(OperatorSettings()))


@pytest.mark.parametrize("content", SEEDS, ids=lambda content: json.loads(content)[-1]["kind"])
def test_unchanged_jobs_are_admitted_and_run(content: bytes) -> None:
    for written in json.loads(content):
        admit(written)
        request = review.ReviewRequest(uid="u", operation="CREATE", object=written)
        assert review.validate(request).allowed, written
    run_job(content)


def test_mutated_jobs_run_or_are_refused() -> None:
    chance = random.Random(36)
    for _ in range(100):
        content = mutate_json(chance, chance.choice(SEEDS), chance.choice(SEEDS), list(TOKENS))
        with suppress(StatusError):
            try:
                run_job(content)
            except Exception as error:
                error.add_note(content.decode(errors="replace")[:3000])
                raise


def _with_template(**spec: Any) -> dict[str, Any]:
    job = manifest(1, None)
    job["spec"]["pytorchReplicaSpecs"]["Master"]["template"] = {"spec": spec}
    return job


@pytest.mark.parametrize(
    ("job", "path"),
    [
        pytest.param(
            _with_template(containers={"name": "pytorch", "image": "x"}),
            "spec.pytorchReplicaSpecs.Master.template.spec.containers",
            id="containers are an object",
        ),
        pytest.param(
            _with_template(containers=["pytorch"]),
            "spec.pytorchReplicaSpecs.Master.template.spec.containers[0]",
            id="a container is text",
        ),
        pytest.param(manifest(1) | {"metadata": []}, "metadata", id="metadata are a list"),
    ],
)
def test_a_malformed_job_gets_no_defaults_and_an_error_that_names_the_field(
    job: dict[str, Any], path: str
) -> None:
    request = review.ReviewRequest(uid="u", operation="CREATE", object=job)
    assert review.mutate(request, DEFAULTER.patch_operations).patch is None
    status = review.validate(request).status
    assert status is not None
    assert f"{path}: " in status.message


def _train_job(**trainer: Any) -> Any:
    spec = {"runtimeRef": {"name": "own"}, "trainer": trainer}
    meta = {"name": "train", "namespace": "team", "uid": "job-uid"}
    return stored({"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob",
                   "metadata": meta, "spec": spec})  # fmt: skip


@pytest.mark.parametrize(
    ("policies", "where"),
    [
        ([{"templates": [{"metadata": [{"name": "scratch"}]}]}], "templates[0].metadata"),
        ([{"templates": [{"metadata": {"name": "scratch"}}]}], "templates[0].spec.accessModes"),
        ({"templates": []}, "volumeClaimPolicies"),
    ],
    ids=["metadata are a list", "no access mode", "policies are an object"],
)
def test_a_malformed_claim_of_a_runtime_is_reported_on_its_jobs(policies: Any, where: str) -> None:
    runtime = a_runtime(volumeClaimPolicies=policies)
    copied = runtime_copy(runtime)
    parsed = TrainFramework().read_with_runtime(_train_job(), copied, is_known=True)
    assert where in parsed.spec_errors


def test_replicas_of_an_invalid_job_fill_no_memory() -> None:
    job = _train_job(numNodes=(1 << 31) - 1)
    parsed = TrainFramework().read_with_runtime(job, runtime_copy(a_runtime()), is_known=True)
    assert parsed.spec_errors
    assert max(role.replicas for role in parsed.job.roles) == MAX_JOB_REPLICAS
