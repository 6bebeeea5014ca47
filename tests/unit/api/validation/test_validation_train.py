"""Errors in TrainJobs and runtimes, each with the path of its field."""

from typing import Any

import msgspec
import pytest

from gangline.api.jobs.train import TrainJob
from gangline.api.jobs.training_runtime import ClusterTrainingRuntime
from gangline.api.trainer.policy import effective_job
from gangline.api.validation.effective_job import effective_job_errors
from gangline.api.validation.jobs.train import list_warnings
from gangline.api.validation.validate import check_manifest, validate_manifest
from unit.api.trainer.jobs import SHIPPED, train_job

NODE_SPEC = (
    "spec.runtimePatches[0].trainingRuntimeSpec.template.spec.replicatedJobs[0]"
    ".template.spec.template.spec"
)


def patch(job: str = "node", manager: str = "example.com/team", **pod: Any) -> dict[str, Any]:
    """A runtime patch of the pods of one job."""
    change = {"name": job, "template": {"spec": {"template": {"spec": pod}}}}
    return {
        "manager": manager,
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [change]}}},
    }


def runtime(*jobs: dict[str, Any], policy: dict[str, Any] | None = None) -> dict[str, Any]:
    """A runtime of these replicated jobs."""
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": "own"},
        "spec": {"mlPolicy": policy or {}, "template": {"spec": {"replicatedJobs": list(jobs)}}},
    }


def replicated(name: str, container: str = "node", step: str = "", **fields: Any) -> dict[str, Any]:
    """A replicated job of one container."""
    pod = {"containers": [{"name": container, "image": "train:1"}]}
    labels = {"trainer.kubeflow.org/trainjob-ancestor-step": step} if step else {}
    template = {"metadata": {"labels": labels}, "spec": {"template": {"spec": pod}}}
    return {"name": name, "template": template, **fields}


CODES = {"operator": "In", "values": [2]}


def failing(rule: dict[str, Any], restart: str = "Never") -> dict[str, Any]:
    """A replicated job with a rule for failed pods."""
    made = replicated("node", step="trainer")
    made["template"]["spec"]["podFailurePolicy"] = {"rules": [rule]}
    made["template"]["spec"]["template"]["spec"]["restartPolicy"] = restart
    return made


def test_order_by_policy_and_by_dependency_exclude_each_other() -> None:
    waits = {"dependsOn": [{"name": "first", "status": "Ready"}]}
    written = runtime(replicated("first"), replicated("node", **waits))
    assert validate_manifest(written) == []
    written["spec"]["template"]["spec"]["startupPolicy"] = {"startupPolicyOrder": "InOrder"}
    assert paths(validate_manifest(written)) == ["spec.template.spec.replicatedJobs[1].dependsOn"]


def paths(errors: Any) -> list[str]:
    return [error.path for error in errors]


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_shipped_runtimes_have_no_errors(name: str) -> None:
    assert validate_manifest(SHIPPED[name]) == []


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"runtimeRef": {"name": "a", "kind": "Runtime"}}, "spec.runtimeRef.kind"),
        ({"runtimeRef": {"name": "a", "apiGroup": "x.y"}}, "spec.runtimeRef.apiGroup"),
        ({"runtimeRef": {"name": "A b"}}, "spec.runtimeRef.name"),
        ({"trainer": {"numNodes": 0}}, "spec.trainer.numNodes"),
        ({"trainer": {"numNodes": 6000}}, "spec.trainer.numNodes"),
        ({"trainer": {"numProcPerNode": 0}}, "spec.trainer.numProcPerNode"),
        (
            {"initializer": {"model": {"storageUri": "bucket/model"}}},
            "spec.initializer.model.storageUri",
        ),
        (
            {"initializer": {"dataset": {"storageUri": "pvc://Claim_/x"}}},
            "spec.initializer.dataset.storageUri",
        ),
        (
            {
                "initializer": {
                    "dataset": {
                        "storageUri": "hf://a/b",
                        "env": [{"name": "STORAGE_URI", "value": "hf://c/d"}],
                    }
                }
            },
            "spec.initializer.dataset.env[0]",
        ),
        ({"managedBy": "someone"}, "spec.managedBy"),
        ({"activeDeadlineSeconds": 0}, "spec.activeDeadlineSeconds"),
        ({"runtimePatches": [patch(manager="team")]}, "spec.runtimePatches[0].manager"),
        (
            {"runtimePatches": [patch(containers=[{"name": "node", "env": [{"name": "A"}]}])]},
            f"{NODE_SPEC}.containers[0].env",
        ),
        ({"podTemplateOverrides": [{"spec": {}}]}, "spec.podTemplateOverrides"),
        ({"labels": {"a": "b"}}, "spec.labels"),
        ({"annotations": {"a": "b"}}, "spec.annotations"),
        (
            {"runtimePatches": [patch(hostNetwork=True)]},
            f"{NODE_SPEC}.hostNetwork",
        ),
    ],
)
def test_error_names_its_field(spec: dict[str, Any], path: str) -> None:
    assert paths(validate_manifest(train_job(**spec))) == [path]


def test_scheme_of_another_program_is_a_warning() -> None:
    written = train_job(initializer={"dataset": {"storageUri": "cache://schema/table"}})
    assert validate_manifest(written) == []
    job = msgspec.convert(written, TrainJob)
    assert paths(list_warnings(job)) == ["spec.initializer.dataset.storageUri"]


def test_name_is_too_long_for_the_host_names() -> None:
    job = train_job(trainer={"numNodes": 11})
    job["metadata"]["name"] = "a" * 54
    assert paths(validate_manifest(job)) == ["metadata.name"]
    job["metadata"]["name"] = "a" * 53
    assert validate_manifest(job) == []


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"runtimeRef": {"name": "jax-distributed"}}, "spec.runtimeRef"),
        ({"trainer": {"image": "other:1"}}, "spec.trainer"),
        ({"trainer": {"numNodes": 2}}, "spec.trainer.numNodes"),
        ({"runtimePatches": [patch(nodeSelector={"zone": "a"})]}, "spec.runtimePatches"),
        ({"managedBy": "kueue.x-k8s.io/multikueue"}, "spec.managedBy"),
    ],
)
def test_a_running_job_is_not_changed(change: dict[str, Any], path: str) -> None:
    assert paths(validate_manifest(train_job(**change), old=train_job())) == [path]


@pytest.mark.parametrize(
    "change",
    [
        {"trainer": {"numNodes": 2}},
        {"runtimePatches": [patch(nodeSelector={"zone": "a"})]},
    ],
)
def test_a_suspended_job_may_change_nodes_and_patches(change: dict[str, Any]) -> None:
    old = train_job(suspend=True)
    assert validate_manifest(train_job(**change), old=old) == []
    assert validate_manifest(train_job(**change, suspend=True), old=old) == []


RANGE = {"minNodes": 2, "maxNodes": 4}
FIXED = {"status": {"gangline": {"phase": "Running"}}}
ELASTIC = {"status": {"gangline": {"phase": "Running", "nodeRange": RANGE}}}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        pytest.param(FIXED, {}, "neither the job nor its runtime is elastic", id="fixed runtime"),
        pytest.param({}, {}, "repeat the change", id="without a status"),
        pytest.param(ELASTIC, {}, "", id="in the range of the runtime"),
        pytest.param(
            ELASTIC, {"numNodes": 5}, "5 is not within elasticPolicy, minNodes 2 to maxNodes 4",
            id="beyond the runtime's",
        ),
        pytest.param(ELASTIC, {"numNodes": 1}, "give 2 to 4", id="below the runtime's"),
        pytest.param(ELASTIC, {"image": "b:1"}, "spec.trainer: was changed", id="more than nodes"),
        pytest.param(ELASTIC, {"elasticPolicy": RANGE}, "spec.trainer: was", id="another range"),
    ],
)  # fmt: skip
def test_a_running_job_is_resized_within_the_range_of_its_runtime(
    old: dict[str, Any], new: dict[str, Any], message: str
) -> None:
    before = {**train_job(trainer={"numNodes": 2}), **old}
    errors = validate_manifest(train_job(trainer={"numNodes": 3, **new}), old=before)
    assert len(errors) == bool(message)
    assert message in "".join(map(str, errors))


@pytest.mark.parametrize("nodes", [1, 2, 4, 5])
def test_a_job_with_a_range_of_its_own_stays_within_it(nodes: int) -> None:
    old = {**train_job(trainer={"numNodes": 3, "elasticPolicy": RANGE})}
    new = train_job(trainer={"numNodes": nodes, "elasticPolicy": RANGE})
    expected = [] if 2 <= nodes <= 4 else ["spec.trainer.numNodes"]
    assert paths(validate_manifest(new)) == paths(validate_manifest(new, old=old)) == expected


def test_time_of_a_patch_may_change_while_the_job_runs() -> None:
    old, new = patch(), {**patch(), "time": "2026-11-20T12:00:00Z"}
    errors = validate_manifest(train_job(runtimePatches=[new]), old=train_job(runtimePatches=[old]))
    assert errors == []


@pytest.mark.parametrize(
    ("written", "path"),
    [
        (runtime(), "spec.template.spec.replicatedJobs"),
        (
            runtime(replicated("node", step="trainer"), policy={"jax": {}, "torch": {}}),
            "spec.mlPolicy",
        ),
        (
            runtime(replicated("node", "main", step="trainer")),
            "spec.template.spec.replicatedJobs[0].template.spec.template.spec.containers",
        ),
        (
            runtime(replicated("node", step="training")),
            "spec.template.spec.replicatedJobs[0].template.metadata.labels",
        ),
        (
            runtime(replicated("node", step="trainer", replicas=2)),
            "spec.template.spec.replicatedJobs[0].replicas",
        ),
        (
            runtime(replicated("node", dependsOn=[{"name": "later", "status": "Ready"}])),
            "spec.template.spec.replicatedJobs[0].dependsOn[0].name",
        ),
        (runtime(replicated("node"), policy={"mpi": {}}), "spec.template.spec.replicatedJobs"),
        (
            runtime(failing({"action": "FailJob", "onExitCodes": CODES}, restart="OnFailure")),
            "spec.template.spec.replicatedJobs[0].template.spec.podFailurePolicy",
        ),
        (
            runtime(failing({"action": "FailJob"})),
            "spec.template.spec.replicatedJobs[0].template.spec.podFailurePolicy.rules[0]",
        ),
        (
            runtime(replicated("first", "model-initializer", step="model-initializer")),
            "spec.template.spec.replicatedJobs[0].template.spec.template.spec"
            ".containers[model-initializer].volumeMounts",
        ),
    ],
)
def test_error_of_a_runtime_names_its_field(written: dict[str, Any], path: str) -> None:
    assert paths(validate_manifest(written)) == [path]


def test_variable_that_a_policy_sets_is_warned_of() -> None:
    job = replicated("node", step="trainer")
    (node,) = job["template"]["spec"]["template"]["spec"]["containers"]
    node["env"] = [{"name": "OWN", "value": "1"}, {"name": "PET_NNODES", "value": "7"}]
    checked = check_manifest(runtime(job, policy={"torch": {}}))
    assert [str(warning.value) for warning in checked.warnings] == ["PET_NNODES"]
    assert check_manifest(runtime(job, policy={"jax": {}})).warnings == []


def test_a_job_without_step_may_have_any_container_and_several_replicas() -> None:
    jobs = replicated("node", "sshd", replicas=2), replicated("launcher", "node", step="trainer")
    assert validate_manifest(runtime(*jobs, policy={"mpi": {}})) == []


JOB_SPEC = "spec.template.spec.replicatedJobs[0].template.spec"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("activeDeadlineSeconds", 60),
        ("backoffLimitPerIndex", 0),
        ("maxFailedIndexes", 1),
        ("successPolicy", {"rules": []}),
        ("suspend", False),
        ("ttlSecondsAfterFinished", 0),
        ("managedBy", "example.com/own"),
        ("selector", {}),
        ("manualSelector", False),
        ("completionMode", "NonIndexed"),
    ],
)
def test_field_of_a_batch_job_without_effect_is_refused(field: str, value: Any) -> None:
    job = replicated("node", step="trainer")
    job["template"]["spec"][field] = value
    assert paths(validate_manifest(runtime(job))) == [f"{JOB_SPEC}.{field}"]


RULE = {"name": "own", "action": "RestartJobSet"}


@pytest.mark.parametrize(
    ("job_set", "path"),
    [
        ({"suspend": True}, "suspend"),
        ({"managedBy": "example.com/own"}, "managedBy"),
        ({"failurePolicy": {"restartStrategy": "InPlaceRestart"}}, "failurePolicy.restartStrategy"),
        (
            {"failurePolicy": {"rules": [{**RULE, "action": "RestartJob"}]}},
            "failurePolicy.rules[0].action",
        ),
        ({"failurePolicy": {"rules": [RULE, RULE]}}, "failurePolicy.rules[1].name"),
        (
            {"failurePolicy": {"rules": [{**RULE, "targetReplicatedJobs": ["other"]}]}},
            "failurePolicy.rules[0].targetReplicatedJobs[0]",
        ),
        (
            {"failurePolicy": {"rules": [{**RULE, "onJobFailureReasons": ["Other"]}]}},
            "failurePolicy.rules[0].onJobFailureReasons[0]",
        ),
        (
            {"failurePolicy": {"rules": [{**RULE, "onJobFailureMessagePatterns": ["a.*"]}]}},
            "failurePolicy.rules[0].onJobFailureMessagePatterns",
        ),
        ({"coordinator": {"replicatedJob": "other"}}, "coordinator.replicatedJob"),
        (
            {
                "volumeClaimPolicies": [
                    {"templates": [], "retentionPolicy": {"whenDeleted": "Retain"}}
                ]
            },
            "volumeClaimPolicies[0].retentionPolicy.whenDeleted",
        ),
    ],
)
def test_field_of_a_job_set_without_effect_is_refused(job_set: dict[str, Any], path: str) -> None:
    written = runtime(replicated("node", step="trainer"))
    written["spec"]["template"]["spec"] |= job_set
    assert paths(validate_manifest(written)) == [f"spec.template.spec.{path}"]


@pytest.mark.parametrize(
    ("policy", "path"),
    [
        ({"flux": {}}, "spec.mlPolicy.flux"),
        ({"torch": {"numProcPerNode": 2}}, "spec.mlPolicy.torch.numProcPerNode"),
        (
            {
                "torch": {
                    "envInjection": {"targets": [{"jobName": "other", "containerNames": ["a"]}]}
                }
            },
            "spec.mlPolicy.torch.envInjection.targets[0].jobName",
        ),
        (
            {
                "torch": {
                    "envInjection": {"targets": [{"jobName": "node", "containerNames": ["a"]}]}
                }
            },
            "spec.mlPolicy.torch.envInjection.targets[0].containerNames[0]",
        ),
        (
            {"torch": {"elasticPolicy": {"minNodes": 3, "maxNodes": 2}}},
            "spec.mlPolicy.torch.elasticPolicy.minNodes",
        ),
        (
            {"torch": {"elasticPolicy": {"minNodes": 1, "maxNodes": 2, "metrics": [{}]}}},
            "spec.mlPolicy.torch.elasticPolicy.metrics",
        ),
        (
            {"torch": {"elasticPolicy": {"minNodes": 2, "maxNodes": 4}}, "numNodes": 5},
            "spec.mlPolicy.numNodes",
        ),
    ],
)
def test_policy_without_effect_is_refused(policy: dict[str, Any], path: str) -> None:
    written = runtime(replicated("node", step="trainer"), policy=policy)
    assert paths(validate_manifest(written)) == [path]


@pytest.mark.parametrize(
    ("pod", "expected"), [(1, []), (2, ["spec.template.spec.coordinator.podIndex"])]
)
def test_coordinator_is_a_pod_of_the_job(pod: int, expected: list[str]) -> None:
    written = runtime(replicated("node", step="trainer"))
    job_set = written["spec"]["template"]["spec"]
    job_set["coordinator"] = {"replicatedJob": "node", "podIndex": pod}
    assert validate_manifest(written) == []
    job = msgspec.convert(train_job(trainer={"numNodes": 2}), TrainJob)
    spec = msgspec.convert(written, ClusterTrainingRuntime).spec
    assert paths(effective_job_errors(job, spec, effective_job(job, spec))) == expected


def test_a_runtime_without_validation_is_not_checked() -> None:
    written = runtime(replicated("node", step="training"))
    written["metadata"]["labels"] = {"trainer.kubeflow.org/webhook-validation": "disabled"}
    assert validate_manifest(written) == []


def errors_in_runtime(job: dict[str, Any]) -> list[str]:
    decoded = msgspec.convert(job, TrainJob)
    spec = msgspec.convert(SHIPPED[job["spec"]["runtimeRef"]["name"]], ClusterTrainingRuntime).spec
    return paths(effective_job_errors(decoded, spec, effective_job(decoded, spec)))


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"initializer": {"dataset": {}}}, "spec.initializer.dataset"),
        ({"trainer": {"env": [{"name": "PET_NNODES"}]}}, "spec.trainer.env[0].name"),
        (
            {"trainer": {"elasticPolicy": RANGE, "numNodes": 2, "env": [{"name": "PET_RDZV_ID"}]}},
            "spec.trainer.env[0].name",
        ),
        ({"trainer": {"elasticPolicy": RANGE}}, "spec.trainer.numNodes"),
        (
            {"trainer": {"elasticPolicy": RANGE, "numNodes": 2, "args": ["torchrun --nnodes=2"]}},
            "spec.trainer.args[0]",
        ),
        (
            {"runtimePatches": [patch("launcher")]},
            NODE_SPEC.partition(".template.spec.template")[0] + ".name",
        ),
        (
            {"runtimePatches": [patch(containers=[{"name": "other"}])]},
            f"{NODE_SPEC}.containers[0].name",
        ),
        (
            {"runtimePatches": [patch(initContainers=[{"name": "other"}])]},
            f"{NODE_SPEC}.initContainers[0].name",
        ),
    ],
)
def test_error_that_shows_only_with_the_runtime(spec: dict[str, Any], path: str) -> None:
    """trainjob-6 and trainjob-10"""
    assert errors_in_runtime(train_job(**spec)) == [path]


def test_range_of_nodes_needs_the_policy_of_torch() -> None:
    job = train_job("jax-distributed", trainer={"elasticPolicy": RANGE, "numNodes": 2})
    assert errors_in_runtime(job) == ["spec.trainer.elasticPolicy"]


def test_last_node_of_the_range_has_a_host_name() -> None:
    job = train_job(trainer={"elasticPolicy": {**RANGE, "maxNodes": 11}, "numNodes": 2})
    job["metadata"]["name"] = "a" * 54
    assert paths(validate_manifest(job)) == errors_in_runtime(job) == ["metadata.name"]


@pytest.mark.parametrize(
    ("runtime_name", "gpus", "expected"),
    [
        ("torchtune-llama3.2-1b", 1, []),
        ("torchtune-llama3.2-1b", 2, ["spec.trainer.args"]),
        ("torchtune-qwen2.5-1.5b", 1, ["spec.trainer.args"]),
    ],
)
def test_quantized_training_needs_a_recipe_of_torchtune(
    runtime_name: str, gpus: int, expected: list[str]
) -> None:
    limits = {"limits": {"nvidia.com/gpu": gpus}}
    trainer = {"args": ["model.quantize_base=True"], "resourcesPerNode": limits}
    assert errors_in_runtime(train_job(runtime_name, trainer=trainer)) == expected


def test_scheduling_of_kubernetes_is_refused_by_its_name() -> None:
    written = runtime(replicated("node", step="trainer"))
    written["spec"]["scheduling"] = {"policy": {}}
    assert paths(validate_manifest(written)) == ["spec.scheduling"]


def test_deprecated_runtime_is_warned_of() -> None:
    written = runtime(replicated("node", step="trainer"))
    written["metadata"]["labels"] = {"trainer.kubeflow.org/support": "deprecated"}
    (warning,) = check_manifest(written).warnings
    assert warning.path == "metadata.labels[trainer.kubeflow.org/support]"
