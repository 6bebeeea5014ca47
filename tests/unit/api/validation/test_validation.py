"""Validation: every error is reported, each with its path and a remedy."""

import copy
import datetime
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gangline.api.jobs.kubeflow import PyTorchJob
from gangline.api.validation.validate import validate_job, validate_manifest

SAMPLES = Path(__file__).parent / "samples"
POD = "spec.pytorchReplicaSpecs.Worker.template.spec"
CONTAINER = f"{POD}.containers[0]"


def sample(name):
    return yaml.safe_load((SAMPLES / f"{name}.yaml").read_text())


def changed(path, value):
    """The minimal sample with one field set; None takes it away."""
    manifest = sample("minimal")
    *parents, last = path
    node = manifest
    for name in parents:
        node = node[name] if isinstance(name, int) else node.setdefault(name, {})
    if value is None:
        del node[last]
    else:
        node[last] = value
    return manifest


def in_spec(*path, value):
    return changed(("spec", *path), value)


def in_worker(*path, value):
    return in_spec("pytorchReplicaSpecs", "Worker", *path, value=value)


def in_pod(*path, value):
    return in_worker("template", "spec", *path, value=value)


def in_container(*path, value):
    return in_pod("containers", 0, *path, value=value)


@pytest.mark.parametrize("name", ["minimal", "full"])
def test_a_job_without_mistakes_has_none(name):
    manifest = sample(name)
    assert validate_manifest(manifest) == []
    assert validate_job(msgspec.convert(manifest, PyTorchJob)) == []


def test_a_read_job_keeps_every_field_of_its_templates():
    manifest = sample("full")
    job = msgspec.convert(manifest, PyTorchJob)
    written = msgspec.to_builtins(job)["spec"]["pytorchReplicaSpecs"]
    assert written == manifest["spec"]["pytorchReplicaSpecs"]


def test_all_of_forty_mistakes_are_named():
    messages = [str(error) for error in validate_manifest(sample("mistakes"))]
    assert len(messages) >= 40
    assert len(set(messages)) == len(messages)


@pytest.mark.parametrize(
    ("manifest", "path", "expected"),
    [
        pytest.param(changed(("metadata",), {}), "metadata.name", "missing", id="no name"),
        pytest.param(
            changed(("metadata",), {"generateName": "j" * 60}),
            "metadata.generateName",
            "too long",
            id="long generated name",
        ),
        pytest.param(
            in_worker("replicas", value=10**12),
            "spec.pytorchReplicaSpecs.Worker.replicas",
            "above 2147483647",
            id="more than a number holds",
        ),
        pytest.param(
            in_worker("template", value="x"),
            "spec.pytorchReplicaSpecs.Worker.template",
            "not an object",
            id="template of the wrong type",
        ),
        pytest.param(
            in_container("imagePulPolicy", value="Always"),
            f"{CONTAINER}.imagePulPolicy",
            "'imagePullPolicy'",
            id="misspelt field",
        ),
        pytest.param(
            in_container("command", value="python a.py"),
            f"{CONTAINER}.command",
            "[python a.py]",
            id="text for a list",
        ),
        pytest.param(
            in_container("env", value=[{"name": "A", "value": True}]),
            f"{CONTAINER}.env[0].value",
            '"true"',
            id="truth for text",
        ),
        pytest.param(
            in_container(
                "resources",
                value={"limits": {"nvidia.com/gpu": 2}, "requests": {"nvidia.com/gpu": 1}},
            ),
            f"{CONTAINER}.resources.requests[nvidia.com/gpu]",
            "equal to nvidia.com/gpu limit of 2",
            id="devices requested and limited differently",
        ),
        pytest.param(
            in_container("livenessProbe", value={"exec": {}}),
            f"{CONTAINER}.livenessProbe.exec.command",
            "Required",
            id="probe without a command",
        ),
        pytest.param(
            in_worker("template", "metadata", value={"labels": {"a": "b c"}}),
            "spec.pytorchReplicaSpecs.Worker.template.metadata.labels[a]",
            "annotation",
            id="label value",
        ),
        pytest.param(
            in_worker("template", "metadata", value={"creationTimestamp": "yesterday"}),
            "spec.pytorchReplicaSpecs.Worker.template.metadata.creationTimestamp",
            "RFC3339",
            id="a time that is none",
        ),
        pytest.param(
            in_spec("nprocPerNode", value="many"), "spec.nprocPerNode", "auto", id="processes"
        ),
        pytest.param(
            in_spec("nprocPerNode", value="0"), "spec.nprocPerNode", "number", id="no processes"
        ),
        pytest.param(
            in_spec("elasticPolicy", value={"rdzvConf": [{"key": "a,b", "value": "c"}]}),
            "spec.elasticPolicy.rdzvConf[0].key",
            "one setting",
            id="rendezvous settings in one",
        ),
    ],
)
def test_one_mistake_is_named_with_its_place_and_advice(manifest, path, expected):
    (error,) = validate_manifest(manifest)
    assert error.path == path
    assert expected in str(error)


def test_volume_without_source_and_unknown_field_in_a_volume_are_accepted():
    manifest = in_pod("volumes", value=[{"name": "a"}, {"name": "b", "emptyDir": {}, "new": 1}])
    assert validate_manifest(manifest, strict=False) == []


def test_a_master_is_one_pod():
    manifest = sample("minimal")
    roles = manifest["spec"]["pytorchReplicaSpecs"]
    roles["Master"] = {**copy.deepcopy(roles["Worker"]), "replicas": 2}
    (error,) = validate_manifest(manifest)
    assert error.path == "spec.pytorchReplicaSpecs.Master.replicas"
    roles["Master"]["replicas"] = 1
    roles["Worker"]["replicas"] = 0
    assert validate_manifest(manifest) == []


def test_elastic_jobs_need_workers():
    manifest = in_spec("elasticPolicy", value={"maxReplicas": 2})
    roles = manifest["spec"]["pytorchReplicaSpecs"]
    roles["Master"] = roles.pop("Worker")
    (error,) = validate_manifest(manifest)
    assert error.path == "spec.elasticPolicy"


def test_both_fields_for_the_number_of_processes_conflict():
    manifest = in_spec("elasticPolicy", value={"nProcPerNode": 2})
    manifest["spec"]["nprocPerNode"] = "2"
    (error,) = validate_manifest(manifest)
    assert error.path == "spec.elasticPolicy.nProcPerNode"


def test_a_field_that_the_api_server_let_pass_is_no_mistake_of_a_read_job():
    manifest = in_container("fieldOfNextYear", value="x")
    assert [error.path for error in validate_manifest(manifest)] == [f"{CONTAINER}.fieldOfNextYear"]
    assert validate_manifest(manifest, strict=False) == []
    assert validate_job(msgspec.convert(manifest, PyTorchJob)) == []


def test_a_manifest_that_contains_itself_is_refused():
    kind = "{apiVersion: kubeflow.org/v1, kind: PyTorchJob, metadata: {name: a}"
    manifest = yaml.safe_load(kind + ", spec: &again {a: *again}}")
    (error,) = validate_manifest(manifest)
    assert "contains itself" in str(error)


@pytest.mark.parametrize("key", [None, True, (1, 2)])
def test_names_of_fields_that_are_no_text_are_refused(key):
    (error,) = validate_manifest(in_spec("runPolicy", value={key: 1}))
    assert "use text" in str(error)


@pytest.mark.parametrize("value", [10**30, float("nan"), datetime.date(2026, 1, 1), b"x", {1, 2}])
def test_every_yaml_type_is_validated_without_exception(value):
    errors = validate_manifest(in_worker("restartPolicy", value=value))
    assert all(error.path == "spec.pytorchReplicaSpecs.Worker.restartPolicy" for error in errors)


@pytest.mark.parametrize("where", ["job", "template"])
def test_a_megabyte_of_annotation_is_refused_with_the_limit(where):
    notes = {"annotations": {"large": "x" * 2**20}}
    manifest = in_worker("template", "metadata", value=notes)
    if where == "job":
        manifest = changed(("metadata",), {"name": "a", **notes})
    (error,) = validate_manifest(manifest)
    assert error.path.endswith("metadata.annotations")
    assert "262144" in str(error)


@pytest.mark.parametrize(
    ("kind", "spec", "path"),
    [
        ("Queue", {"capability": {"cpu": "x"}}, "spec.capability.cpu"),
        ("Queue", {"weight": 0}, "spec.weight"),
        ("Queue", {"parent": "a"}, "spec.parent"),
        ("Queue", {"guarantee": {"resource": {"cpu": -1}}}, "spec.guarantee.resource.cpu"),
        ("PodGroup", {"minMember": -1}, "spec.minMember"),
        ("PodGroup", {"minResources": {"cpu": "x"}}, "spec.minResources.cpu"),
        ("PodGroup", {"networkTopology": {"mode": "firm"}}, "spec.networkTopology.mode"),
    ],
)
def test_a_mistake_in_a_queue_or_gang(kind, spec, path):
    version = "scheduling.volcano.sh/v1beta1"
    manifest = {"apiVersion": version, "kind": kind, "metadata": {"name": "a"}, "spec": spec}
    (error,) = validate_manifest(manifest)
    assert error.path == path


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3) | st.floats(0, 1),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=5,
)


def places(value, path=()):
    """The paths of all values inside a value."""
    children = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in children:
        yield (*path, key)
        if isinstance(child, dict | list):
            yield from places(child, (*path, key))


FULL = sample("full")
PLACES = [path for path in places(FULL) if path[0] == "spec"]


@given(st.sampled_from(PLACES), JSON)
def test_no_value_anywhere_breaks_validation(path, value):
    manifest = copy.deepcopy(FULL)
    node = manifest
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    for error in validate_manifest(manifest):
        assert error.path.startswith("spec")
        assert error.problem


@pytest.mark.parametrize("number", [float("nan"), float("inf")], ids=str)
def test_a_number_that_json_lacks_is_named(number):
    messages = [str(error) for error in validate_manifest(in_worker("replicas", value=number))]
    assert any("Worker.replicas" in line and "not a JSON number" in line for line in messages)


def test_object_nested_too_deeply_has_an_error():
    value = 1
    for _ in range(600):
        value = {"a": value}
    messages = [str(error) for error in validate_manifest(in_pod("volumes", value=value))]
    assert any("nested too deeply" in line or "contains itself" in line for line in messages)
