"""Memory at /dev/shm: which pods mount it, its size, and user volumes that take precedence."""

from typing import Any

import pytest

from gangline.operator.model.plan import TargetKind
from unit.operator.builders import look
from unit.operator.builders import manifest as pytorch_job
from unit.operator.builders import read as read_pytorch_job
from unit.operator.elastic_jobs import ElasticWorld, role

NOTE = "gangline.dev/shared-memory"


def memory_of(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """The volumes that the main container mounts at /dev/shm."""
    mounts = pod["spec"]["containers"][0].get("volumeMounts", [])
    names = {mount["name"] for mount in mounts if mount["mountPath"] == "/dev/shm"}
    return [volume for volume in pod["spec"].get("volumes", []) if volume["name"] in names]


def pods_of(world: ElasticWorld) -> dict[str, dict[str, Any]]:
    return world.made(world.decide())


def test_pods_that_train_get_memory_and_the_master_does_not() -> None:
    pods = pods_of(ElasticWorld(1, strategy="ParameterServerStrategy", roles={"ps": 1}))
    for name, pod in pods.items():
        directories = [volume["emptyDir"] for volume in memory_of(pod)]
        assert directories == ([] if name == "master-0" else [{"medium": "Memory"}]), name


@pytest.mark.parametrize(
    ("note", "directories"),
    [("false", []), ("true", [{"medium": "Memory"}]),
     ("8Gi", [{"medium": "Memory", "sizeLimit": "8Gi"}])],
)  # fmt: skip
def test_annotation_sets_whether_and_how_much(note: str, directories: list) -> None:
    pods = pods_of(ElasticWorld(1, annotations={NOTE: note}))
    assert [volume["emptyDir"] for volume in memory_of(pods["worker-0"])] == directories


@pytest.mark.parametrize("path", ["/dev/shm", "/dev/shm/", "/dev"])
def test_what_is_mounted_there_stays(path: str) -> None:
    worker = role(1, pod={"volumes": [{"name": "own", "emptyDir": {}}]})
    mount = {"name": "own", "mountPath": path}
    worker["template"]["spec"]["containers"][0]["volumeMounts"] = [mount]
    spec = pods_of(ElasticWorld(worker))["worker-0"]["spec"]
    assert spec["volumes"] == [{"name": "own", "emptyDir": {}}]
    assert spec["containers"][0]["volumeMounts"] == [mount]


def test_the_nodes_own_is_left_alone() -> None:
    assert memory_of(pods_of(ElasticWorld(role(1, pod={"hostIPC": True})))["worker-0"]) == []


@pytest.mark.parametrize(("notes", "count"), [({}, 0), ({NOTE: "1Gi"}, 1)])
def test_jobs_of_other_kinds_get_it_when_they_ask(notes: dict[str, str], count: int) -> None:
    written = pytorch_job(1, 1)
    written["metadata"]["annotations"] = notes
    decision = look(read_pytorch_job(written)).decide()
    made = [creation for creation in decision.creations if creation.target is TargetKind.POD]
    assert made
    for creation in made:
        assert len(memory_of(creation.manifest)) == count
