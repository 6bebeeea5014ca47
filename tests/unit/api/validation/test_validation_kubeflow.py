"""Errors in jobs with replica specs and a run policy: common ones, and those of one kind."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from gangline.api.jobs.jax import JAXJob
from gangline.api.jobs.kubeflow import PyTorchJob
from gangline.api.jobs.mindspore import MSJob
from gangline.api.jobs.mpi import V2BETA1, MPIJob
from gangline.api.jobs.tensorflow import TFJob
from gangline.api.jobs.xgboost import XGBoostJob
from gangline.api.meta.objects import Object
from gangline.api.schema.field_error import FieldError
from gangline.api.validation.validate import check_manifest, validate_job, validate_manifest

KINDS: dict[str, tuple[str, str, dict[str, int], type[Object]]] = {
    "MSJob": ("msReplicaSpecs", "mindspore", {"Scheduler": 1, "Worker": 2}, MSJob),
    "PyTorchJob": ("pytorchReplicaSpecs", "pytorch", {"Master": 1, "Worker": 2}, PyTorchJob),
    "TFJob": ("tfReplicaSpecs", "tensorflow", {"PS": 1, "Worker": 2}, TFJob),
    "JAXJob": ("jaxReplicaSpecs", "jax", {"Worker": 2}, JAXJob),
    "XGBoostJob": ("xgbReplicaSpecs", "xgboost", {"Master": 1, "Worker": 2}, XGBoostJob),
    "MPIJob": ("mpiReplicaSpecs", "mpi", {"Launcher": 1, "Worker": 2}, MPIJob),
}
NAMED = [kind for kind in KINDS if kind != "MPIJob"]
"""The kinds whose container has to have a certain name."""

every_kind = pytest.mark.parametrize("kind", KINDS)


def replica(container: str, replicas: int | None = 1, **fields: Any) -> dict[str, Any]:
    given = {} if replicas is None else {"replicas": replicas}
    template = {"spec": {"containers": [{"name": container, "image": "train:1"}]}}
    return {**given, "template": template, **fields}


def job(kind: str, roles: dict[str, int | None] | None = None, **spec: Any) -> dict[str, Any]:
    field, container, usual, _ = KINDS[kind]
    counts = usual if roles is None else roles
    return {
        "apiVersion": "mindspore.gitee.com/v1" if kind == "MSJob" else "kubeflow.org/v1",
        "kind": kind,
        "metadata": {"name": "train", "namespace": "team"},
        "spec": {field: {role: replica(container, n) for role, n in counts.items()}, **spec},
    }


def specs(written: dict[str, Any]) -> dict[str, Any]:
    roles: dict[str, Any] = written["spec"][KINDS[written["kind"]][0]]
    return roles


def worker(written: dict[str, Any]) -> dict[str, Any]:
    role: dict[str, Any] = specs(written)["Worker"]
    return role


def pod(written: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = worker(written)["template"]["spec"]
    return pod


def path(kind: str, rest: str = "") -> str:
    return f"spec.{KINDS[kind][0]}{rest}"


def messages(written: dict[str, Any]) -> dict[str, str]:
    """What is wrong, by the path of the field."""
    return {error.path: str(error) for error in validate_manifest(written)}


def errors_of_change(written: dict[str, Any], before: dict[str, Any]) -> Iterator[FieldError]:
    type_ = KINDS[written["kind"]][3]
    yield from validate_job(msgspec.convert(written, type_), msgspec.convert(before, type_))


@every_kind
def test_a_usual_job_has_no_mistakes(kind):
    assert messages(job(kind)) == {}
    assert validate_job(msgspec.convert(job(kind), KINDS[kind][3])) == []


@every_kind
def test_role_without_replicas_is_valid(kind):
    assert messages(job(kind, dict.fromkeys(KINDS[kind][2]))) == {}


@every_kind
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("train_digits", "'train-digits'"),
        ("Train", "'train'"),
        ("1st", "start with a lower-case letter"),
        ("a.b", "'a-b'"),
        ("t" * 56, "characters"),
        ("t" * 200, "characters"),
    ],
)
def test_a_name_from_which_no_service_can_be_named(kind, name, expected):
    written = job(kind)
    written["metadata"]["name"] = name
    assert expected in messages(written)["metadata.name"]


@every_kind
def test_a_name_is_as_long_as_the_longest_replicas_allows(kind):
    written = job(kind)
    worker(written)["replicas"] = 101
    longest = 63 - max(len("-worker-100"), *(len(f"-{role}-0") for role in specs(written)))
    written["metadata"]["name"] = "t" * longest
    assert messages(written) == {}
    written["metadata"]["name"] = "t" * (longest + 1)
    assert f"use at most {longest} characters" in messages(written)["metadata.name"]


@every_kind
@pytest.mark.parametrize("none", [{}, None])
def test_a_job_without_roles(kind, none):
    written = job(kind)
    written["spec"][KINDS[kind][0]] = none
    assert "is missing" in messages(written)[path(kind)]


@every_kind
def test_a_role_that_the_kind_does_not_have_and_which_may_be_meant(kind):
    written = job(kind)
    specs(written)["Wroker"] = specs(written).pop("Worker")
    assert "did you mean 'Worker'?" in messages(written)[path(kind, ".Wroker")]


@every_kind
def test_a_role_that_resembles_none(kind):
    written = job(kind)
    specs(written)["Xyz"] = replica(KINDS[kind][1])
    assert "use " in messages(written)[path(kind, ".Xyz")]


@every_kind
def test_a_role_in_two_spellings(kind):
    written = job(kind)
    specs(written)["wORKER"] = worker(written)
    assert "another spelling of 'Worker'" in messages(written)[path(kind, ".wORKER")]


@every_kind
@pytest.mark.parametrize("spelling", ["worker", "WORKER"])
def test_one_spelling_in_any_capitalisation_is_fine(kind, spelling):
    written = job(kind)
    specs(written)[spelling] = specs(written).pop("Worker")
    assert messages(written) == {}


@every_kind
@pytest.mark.parametrize(("containers", "expected"), [([], "Required"), (None, "is missing")])
def test_no_containers(kind, containers, expected):
    written = job(kind)
    pod(written)["containers"] = containers
    where = path(kind, ".Worker.template.spec.containers")
    assert expected in messages(written)[where]


@pytest.mark.parametrize("kind", NAMED)
def test_no_container_of_the_name_that_trains(kind):
    written = job(kind)
    pod(written)["containers"][0]["name"] = "main"
    where = path(kind, ".Worker.template.spec.containers")
    assert f"name the main container {KINDS[kind][1]!r}" in messages(written)[where]


@every_kind
def test_no_pods_at_all(kind):
    written = job(kind)
    for spec in specs(written).values():
        spec["replicas"] = 0
    (text,) = messages(written).values()
    assert "without pods" in text or "is not 1" in text


@every_kind
@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("replicas", -1, "at least 0"),
        ("replicas", "two", "write a whole number"),
        ("restartPolicy", "Onfailure", "did you mean 'OnFailure'?"),
        ("restartPolicy", "Sometimes", "use one of"),
        ("schedulerName", "volcano", "template.spec"),
        ("image", "x", "template.spec.containers"),
    ],
)
def test_fields_of_a_replica(kind, field, value, expected):
    written = job(kind)
    worker(written)[field] = value
    assert expected in messages(written)[path(kind, f".Worker.{field}")]


@every_kind
@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("schedulerName", "volcano", "it belongs to spec."),
        ("restartPolicy", "Never", "it belongs to spec."),
        ("backoffLimit", 3, "it belongs to spec.runPolicy"),
        ("activeDeadlineSeconds", 3, "it belongs to spec.runPolicy"),
        ("queue", "q", "it belongs to spec.runPolicy.schedulingPolicy"),
    ],
)
def test_fields_at_the_wrong_level(kind, field, value, expected):
    written = job(kind)
    written["spec"][field] = value
    assert expected in messages(written)[f"spec.{field}"]


@every_kind
@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("cleanPodPolicy", "none", "did you mean 'None'?"),
        ("cleanPodPolicy", "", "is not allowed"),
        ("cleanPodPolicy", "Sometimes", "use one of"),
        ("ttlSecondsAfterFinished", -1, "at least 0"),
        ("activeDeadlineSeconds", 0, "at least 1"),
        ("activeDeadlineSeconds", -5, "at least 1"),
        ("backoffLimit", -1, "at least 0"),
        ("backoffLimit", "three", "write a whole number"),
        ("suspend", "yes", "true or false"),
        ("managedBy", "me", "use one of"),
        ("managedBy", "", "is not allowed"),
    ],
)
def test_the_run_policy(kind, field, value, expected):
    written = job(kind, runPolicy={field: value})
    assert expected in messages(written)[f"spec.runPolicy.{field}"]


@every_kind
@pytest.mark.parametrize(
    ("field", "value", "where", "expected"),
    [
        ("minAvailable", 9, "minAvailable", "at most"),
        ("minAvailable", -1, "minAvailable", "at least 0"),
        ("queue", "My Queue", "queue", "DNS name"),
        ("priorityClass", "high_er", "priorityClass", "'high-er'"),
        ("minResources", {"cpu": "-1"}, "minResources.cpu", "0 or more"),
        ("minResources", {"cpu": "many"}, "minResources.cpu", "many"),
        ("scheduleTimeoutSeconds", -1, "scheduleTimeoutSeconds", "at least 0"),
    ],
)
def test_errors_in_the_scheduling_policy(kind, field, value, where, expected):
    written = job(kind, runPolicy={"schedulingPolicy": {field: value}})
    assert expected in messages(written)[f"spec.runPolicy.schedulingPolicy.{where}"]


@every_kind
@pytest.mark.parametrize(
    ("before", "after", "where"),
    [
        ({}, {"managedBy": "kueue.x-k8s.io/multikueue"}, "managedBy"),
        (
            {"managedBy": "kubeflow.org/training-operator"},
            {"managedBy": "kueue.x-k8s.io/multikueue"},
            "managedBy",
        ),
        (
            {"schedulingPolicy": {"queue": "a"}},
            {"schedulingPolicy": {"queue": "b"}},
            "schedulingPolicy.queue",
        ),
    ],
)
def test_what_cannot_be_changed(kind, before, after, where):
    """Upstream compares PyTorchJob's managedBy with itself, and lets every change pass."""
    changed = list(errors_of_change(job(kind, runPolicy=after), job(kind, runPolicy=before)))
    assert [error.path for error in changed] == [f"spec.runPolicy.{where}"]


@every_kind
def test_a_change_of_the_number_of_workers_is_allowed(kind):
    assert list(errors_of_change(job(kind), job(kind, {**KINDS[kind][2], "Worker": 1}))) == []


@pytest.mark.parametrize(
    ("roles", "where", "expected"),
    [
        ({"Chief": 1, "Master": 1}, ".Master", "remove one of the two"),
        ({"chief": 1, "MASTER": 1}, ".Master", "remove one of the two"),
        ({"Chief": 2}, ".Chief.replicas", "further pods as Worker"),
        ({"Master": 2}, ".Master.replicas", "further pods as Worker"),
        ({"PS": 2}, "", "add a Worker, a Chief or a Master"),
        ({"PS": 1, "Evaluator": 1, "Worker": 0}, "", "Evaluator and PS only"),
    ],
)
def test_tfjob_that_cannot_end_is_refused(roles, where, expected):
    assert expected in messages(job("TFJob", roles))[path("TFJob", where)]


@pytest.mark.parametrize("kind", ["TFJob", "MSJob"])
def test_success_policy(kind):
    (text,) = messages(job(kind, successPolicy="allworkers")).values()
    assert "did you mean 'AllWorkers'" in text
    assert "spec.successPolicy" in messages(job(kind, successPolicy="ChiefWorker"))
    for policy in ("", "AllWorkers"):
        assert messages(job(kind, successPolicy=policy)) == {}


@pytest.mark.parametrize(
    ("roles", "spec"),
    [
        ({"Worker": 1}, {}),
        ({"Scheduler": 1, "PS": 2, "Worker": 1}, {}),
        ({"scheduler": 1, "ps": 2, "WORKER": 4}, {}),
        ({"Scheduler": 0, "PS": 0, "Worker": 1}, {}),
        (None, {"enableDynamicWorker": True}),
    ],
)
def test_an_msjob_without_mistakes_has_none(roles, spec):
    written = job("MSJob", roles, **spec)
    assert messages(written) == {}
    assert validate_job(msgspec.convert(written, MSJob)) == []


@pytest.mark.parametrize(
    ("roles", "where", "expected"),
    [
        ({"Scheduler": 1, "Worker": 0}, ".Worker.replicas", "without a worker"),
        ({"Scheduler": 1, "PS": 1}, ".Worker", "never ends"),
        ({"Scheduler": 2, "Worker": 2}, ".Scheduler.replicas", "more than 1"),
        ({"Worker": 2}, ".Scheduler", "train alone"),
        ({"Scheduler": 0, "Worker": 2}, ".Scheduler", "train alone"),
    ],
)
def test_msjob_whose_replicas_cannot_meet_is_refused(roles, where, expected):
    assert expected in messages(job("MSJob", roles))[path("MSJob", where)]


def test_port_of_an_msjob_is_not_one_of_the_systems():
    written = job("MSJob")
    pod(written)["containers"][0]["ports"] = [{"name": "msjob-port", "containerPort": 80}]
    where = path("MSJob", ".Worker.template.spec.containers[0].ports[0].containerPort")
    assert "1024 to 65535" in messages(written)[where]


@pytest.mark.parametrize(("roles", "number"), [(None, 1), ({"Worker": 1}, 0)])
def test_variable_of_an_msjob_is_the_users_where_there_is_no_scheduler(roles, number):
    written = job("MSJob", roles)
    pod(written)["containers"][0]["env"] = [{"name": "MS_ROLE", "value": "MS_WORKER"}]
    assert messages(written) == {}
    warnings = check_manifest(written).warnings
    where = path("MSJob", ".Worker.template.spec.containers[0].env[0]")
    assert [warning.path for warning in warnings] == [where] * number
    assert all("MS_ROLE" in str(warning) for warning in warnings)


@pytest.mark.parametrize("masters", [0, 2])
@pytest.mark.parametrize("kind", ["PyTorchJob", "XGBoostJob"])
def test_one_master_no_more_no_less(kind, masters):
    text = messages(job(kind, {"Master": masters, "Worker": 1}))
    assert "is not 1" in text[path(kind, ".Master.replicas")]


def test_an_xgboostjob_needs_its_master():
    text = messages(job("XGBoostJob", {"Worker": 1}))
    assert "is missing" in text[path("XGBoostJob", ".Master")]


@pytest.mark.parametrize(
    ("roles", "where", "expected"),
    [
        ({"Worker": 2}, ".Launcher", "is missing"),
        ({"Launcher": 2, "Worker": 2}, ".Launcher.replicas", "is not 1"),
        ({"Launcher": 0, "Worker": 2}, ".Launcher.replicas", "is not 1"),
    ],
)
def test_one_launcher_no_more_no_less(roles, where, expected):
    assert expected in messages(job("MPIJob", roles))[path("MPIJob", where)]


@pytest.mark.parametrize(("workers", "problem"), [(None, "is missing"), (0, "is not positive")])
def test_workers_of_v2beta1_are_counted(workers, problem):
    """With upstream's default of 0 the launcher would run alone, and its job succeed."""
    written = job("MPIJob", {"Launcher": 1, "Worker": workers}) | {"apiVersion": V2BETA1}
    assert problem in messages(written)[path("MPIJob", ".Worker.replicas")]


@pytest.mark.parametrize(
    ("version", "workers", "longest"),
    [(V2BETA1, 1, 54), (V2BETA1, 10, 54), (V2BETA1, 11, 53), ("kubeflow.org/v1", 1, 54)],
)
def test_the_longest_name_of_an_mpijob_is_upstreams(version, workers, longest):
    written = job("MPIJob", {"Launcher": 1, "Worker": workers}) | {"apiVersion": version}
    for length in (longest, longest + 1):
        written["metadata"]["name"] = "a" * length
        assert ("metadata.name" in messages(written)) == (length > longest)


@pytest.mark.parametrize("roles", [{"Launcher": 1}, {"Launcher": 1, "Worker": 0}])
def test_a_launcher_may_be_alone(roles):
    assert messages(job("MPIJob", roles)) == {}


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("slotsPerWorker", 0, "at least 1"),
        ("cleanPodPolicy", "running", "did you mean 'Running'?"),
        ("mainContainer", "train", "name one of mpi"),
    ],
)
def test_fields_of_an_mpijob(field, value, expected):
    assert expected in messages(job("MPIJob", **{field: value}))[f"spec.{field}"]


def test_min_available_of_an_mpijob_counts_explicit_and_default_workers():
    """The default number of workers is 0."""
    policy = {"schedulingPolicy": {"minAvailable": 2}}
    text = messages(job("MPIJob", {"Launcher": 1, "Worker": None}, runPolicy=policy))
    assert "more than the 1 pods" in text["spec.runPolicy.schedulingPolicy.minAvailable"]
