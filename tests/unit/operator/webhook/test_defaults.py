"""Defaults that the webhook writes: they change the manifest, never the behaviour."""

import copy
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.api.jobs.kubeflow import JobStatus
from gangline.api.validation.validate import check_manifest
from gangline.local.apiserver.machinery.patches import merge_patch
from gangline.operator.engine.plan import plan_reconcile
from gangline.operator.main import all_frameworks
from gangline.operator.model.job import JobRunPolicy, ReplicaRole
from gangline.operator.model.plan import EngineSettings, ObservedJob, ReconcilePlan
from gangline.operator.settings import OperatorSettings
from gangline.operator.webhook.defaults import JobDefaulter
from unit.operator.builders import NOW, manifest, stored
from unit.operator.kinds import KINDS, KindUnderTest

Json = dict[str, Any]
DrawnJob = tuple[KindUnderTest, Json]

FRAMEWORKS = all_frameworks(OperatorSettings())
DEFAULTING = JobDefaulter(FRAMEWORKS)


SORTS = tuple(
    kind for kind in KINDS.values() if kind.framework.kind.kind not in ("ElasticJob", "TrainJob")
)
"""The kinds of these tests: all roles have the fields of Kubeflow's."""

POLICIES = st.sampled_from([None, "Always", "OnFailure", "Never", "ExitCode"])
CLEAN_UP = st.sampled_from([None, "All", "Running", "None"])


def _given(**fields: Any) -> Json:
    return {name: value for name, value in fields.items() if value is not None}


@st.composite
def replica_specs(draw: st.DrawFn, sort: KindUnderTest) -> Json:
    container = {"name": sort.framework.kind.container, "image": "train:1"}
    pod = {
        "containers": [container],
        **_given(restartPolicy=draw(st.sampled_from([None, "Never"]))),
    }
    return {
        **_given(
            replicas=draw(st.sampled_from([None, 1, 1, 2, 3])),
            restartPolicy=draw(POLICIES) if sort.specs else None,
        ),
        "template": {"spec": pod},
    }


@st.composite
def jobs(draw: st.DrawFn) -> DrawnJob:
    """A random job of any kind with omitted fields; most are valid."""
    sort = draw(st.sampled_from(SORTS))
    chosen = draw(st.lists(st.sampled_from(sort.all_roles), min_size=1, unique=True))
    spell = draw(st.sampled_from([str, str, str, str.lower, str.upper]))
    roles = {spell(role) if sort.specs else role: draw(replica_specs(sort)) for role in chosen}
    spec: Json = {sort.specs: roles} if sort.specs else roles
    if sort.specs and draw(st.booleans()):
        spec["runPolicy"] = _given(cleanPodPolicy=draw(CLEAN_UP), backoffLimit=draw(COUNTS))
    if sort.framework.kind.kind == "MPIJob":
        spec |= _given(cleanPodPolicy=draw(CLEAN_UP))
    if sort.framework.kind.kind == "PyTorchJob" and draw(st.booleans()):
        spec["elasticPolicy"] = _given(minReplicas=draw(COUNTS), maxReplicas=draw(COUNTS))
    meta = {"name": "train", "namespace": "team", "uid": "job-uid"}
    named = {"apiVersion": sort.api_version, "kind": sort.framework.kind.kind}
    return sort, {**named, "metadata": meta, "spec": spec}


COUNTS = st.sampled_from([None, 1, 2, 3])
CHANGES = (
    "replicas",
    "restartPolicy",
    "clean-up",
    "older clean-up",
    "elastic",
    "processes",
    "older processes",
    "remove role",
    "run policy",
)


@st.composite
def later_change(draw: st.DrawFn, sort: KindUnderTest, job: Json) -> Json:
    """A merge patch, as ``kubectl apply`` sends it when the user's file has changed."""
    role = draw(st.sampled_from(roles_of(sort, job)))
    table: dict[str, Json] = {
        "replicas": _at_role(sort, role, {"replicas": draw(st.sampled_from([None, 1, 4]))}),
        "restartPolicy": _at_role(sort, role, {"restartPolicy": draw(POLICIES)}),
        "clean-up": {"runPolicy": {"cleanPodPolicy": draw(CLEAN_UP)}},
        "older clean-up": {"cleanPodPolicy": draw(CLEAN_UP)},
        "elastic": {"elasticPolicy": {"maxReplicas": 4, "minReplicas": draw(COUNTS)}},
        "processes": {"nprocPerNode": "2"},
        "older processes": {"elasticPolicy": {"nProcPerNode": 2, "maxReplicas": 4}},
        "remove role": _at_role(sort, role, None),
        "run policy": {"runPolicy": None},
    }
    change = draw(st.sampled_from(CHANGES if sort.specs else CHANGES[:1]))
    return {"spec": table[change]}


def roles_of(sort: KindUnderTest, job: Json) -> list[str]:
    """The roles of a job, with its spelling."""
    specs = job["spec"].get(sort.specs, {}) if sort.specs else job["spec"]
    roles = {role.lower() for role in sort.all_roles}
    return sorted(key for key in specs if key.lower() in roles)


def _at_role(sort: KindUnderTest, role: str, value: Json | None) -> Json:
    return {sort.specs: {role: value}} if sort.specs else {role: value}


def defaulted(job: Json) -> Json:
    patched: Json = jsonpatch.apply_patch(copy.deepcopy(job), DEFAULTING.patch_operations(job))
    return patched


def done_with(job: Json) -> tuple[ReconcilePlan, JobRunPolicy, list[ReplicaRole], str]:
    """The plan for a new job, its continuation, and its errors."""
    framework = next(
        framework
        for framework in FRAMEWORKS
        if framework.kind.kind == job["kind"]
        and job["apiVersion"] in framework.kind.entry.api_versions
    )
    reading = framework.read(stored(job))
    observed = ObservedJob(reading.job, JobStatus(), spec_errors=reading.spec_errors)
    decision = plan_reconcile(observed, NOW, EngineSettings(gang_scheduling=True))
    return decision, reading.job.policy, list(reading.job.roles), reading.spec_errors


@given(jobs())
def test_the_operator_does_the_same_with_and_without_defaults(
    drawn: DrawnJob,
) -> None:
    _, job = drawn
    assert done_with(defaulted(job)) == done_with(job)


@given(st.data())
def test_a_later_change_means_the_same_with_and_without_defaults(data: st.DataObject) -> None:
    sort, job = data.draw(jobs())
    plain, shown = job, defaulted(job)
    for _ in range(data.draw(st.integers(1, 3))):
        change = data.draw(later_change(sort, plain))
        plain, shown = merge_patch(plain, change), merge_patch(shown, change)
        if not roles_of(sort, plain):
            break
        assert done_with(shown) == done_with(plain), change
        shown = defaulted(shown)
        assert done_with(shown) == done_with(plain), change


@given(jobs())
def test_a_second_apply_of_the_same_file_finds_nothing_to_do(
    drawn: DrawnJob,
) -> None:
    """A client compares its file with the stored object: maps by field, lists completely."""
    _, job = drawn
    assert merge_patch(defaulted(job), job) == defaulted(job)
    assert DEFAULTING.patch_operations(defaulted(job)) == []


@given(jobs())
def test_defaults_cause_no_warning(drawn: DrawnJob) -> None:
    _, job = drawn
    before, after = (check_manifest(written) for written in (job, defaulted(job)))
    assert list(map(str, after.warnings)) == list(map(str, before.warnings))


def test_defaults_of_a_later_version_are_written_into_its_own_fields() -> None:
    sort = next(sort for sort in SORTS if sort.api_version == "kubeflow.org/v2beta1")
    pod = {"spec": {"containers": [{"name": "mpi", "image": "x"}]}}
    roles = {"Launcher": {"template": pod}, "Worker": {"replicas": 1, "template": pod}}
    job = {"apiVersion": sort.api_version, "kind": "MPIJob", "metadata": {"name": "train"},
           "spec": {sort.specs: roles}}  # fmt: skip
    spec = defaulted(job)["spec"]
    assert (spec["runPolicy"], "cleanPodPolicy" in spec) == ({"cleanPodPolicy": "None"}, False)


def test_defaults_are_written() -> None:
    job = manifest(1, 2)
    del job["spec"]["runPolicy"]
    del job["spec"]["pytorchReplicaSpecs"]["Master"]["replicas"]
    spec = defaulted(job)["spec"]
    assert spec["runPolicy"] == {"cleanPodPolicy": "None"}
    roles = spec["pytorchReplicaSpecs"]
    assert {name: (role["replicas"], role["restartPolicy"]) for name, role in roles.items()} == {
        "Master": (1, "OnFailure"),
        "Worker": (2, "OnFailure"),
    }


def test_a_role_keeps_the_spelling_that_its_user_gave_it() -> None:
    job = manifest(None, 2)
    job["spec"]["pytorchReplicaSpecs"]["worker"] = job["spec"]["pytorchReplicaSpecs"].pop("Worker")
    assert defaulted(job)["spec"]["pytorchReplicaSpecs"].keys() == {"worker"}


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(manifest(3, 2), id="one with mistakes"),
        pytest.param(manifest(1, managedBy="kueue.x-k8s.io/multikueue"), id="another's"),
        pytest.param({"apiVersion": "v1", "kind": "Pod", "spec": {}}, id="another kind"),
        pytest.param({}, id="nothing"),
        pytest.param(manifest(1) | {"spec": None}, id="no specification"),
    ],
)
def test_some_jobs_are_left_as_they_are(job: Json) -> None:
    assert DEFAULTING.patch_operations(job) == []
