"""Manifests of stored jobs: server-set fields removed, copies renamed, roles scaled."""

from typing import Any

import pytest

from gangline.sdk.manifests import (
    iterate_roles,
    rename_objects,
    replica_count,
    scale_patch,
    to_submittable,
)

JOB: dict[str, Any] = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "metadata": {
        "name": "a",
        "uid": "u",
        "resourceVersion": "7",
        "labels": {"release": "a"},
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"},
        "managedFields": [{}],
    },
    "spec": {
        "runPolicy": {"cleanPodPolicy": "None"},
        "pytorchReplicaSpecs": {
            "Master": {"template": {"spec": {"volumes": [{"configMap": {"name": "a-code-0"}}]}}},
            "Worker": {"replicas": 3, "template": {"spec": {"containers": [{"image": "a-image"}]}}},
        },
    },
    "status": {"conditions": []},
}
PADDLE: dict[str, Any] = {
    "metadata": {"name": "p"},
    "spec": {"cleanPodPolicy": "Never", "worker": {"replicas": 2, "template": {}}},
}


def test_what_the_server_added_is_taken_away() -> None:
    found = to_submittable(JOB)
    assert found["metadata"] == {"name": "a", "labels": {"release": "a"}}
    assert "status" not in found
    assert found["spec"] == JOB["spec"]


def test_a_service_leaves_its_address_behind() -> None:
    service = {
        "kind": "Service",
        "metadata": {"name": "s"},
        "spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 1, "nodePort": 30000}]},
    }
    assert to_submittable(service)["spec"] == {"ports": [{"port": 1}]}


def test_a_copy_has_new_names_wherever_the_old_ones_stood() -> None:
    belongings = {"metadata": {"name": "a-code-0", "labels": {"release": "a"}}}
    job, code = rename_objects([to_submittable(JOB), belongings], "a", "b")
    assert (job["metadata"]["name"], job["metadata"]["labels"]["release"]) == ("b", "b")
    specs = job["spec"]["pytorchReplicaSpecs"]
    assert specs["Master"]["template"]["spec"]["volumes"][0]["configMap"]["name"] == "b-code-0"
    assert specs["Worker"]["template"]["spec"]["containers"][0]["image"] == "a-image"
    assert code["metadata"] == {"name": "b-code-0", "labels": {"release": "b"}}


def test_roles_are_found_in_jobs_of_any_kind() -> None:
    assert [path[-1] for path, _ in iterate_roles(JOB)] == ["Master", "Worker"]
    assert [path for path, _ in iterate_roles(PADDLE)] == [["spec", "worker"]]


def test_a_role_is_scaled_by_a_patch_of_nothing_else() -> None:
    patch = {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 5}}}}
    assert scale_patch(JOB, "worker", 5) == patch
    assert scale_patch(PADDLE, "Worker", 1) == {"spec": {"worker": {"replicas": 1}}}
    with pytest.raises(KeyError, match="Master, Worker"):
        scale_patch(JOB, "ps", 1)


def test_replicas_are_counted_as_the_kinds_do() -> None:
    assert replica_count(JOB, "worker") == 3
    assert replica_count(JOB, "master") == 1
    assert replica_count(JOB, "ps") == 0


def test_workers_of_a_train_job_are_its_nodes() -> None:
    job = {"kind": "TrainJob", "spec": {"trainer": {"numNodes": 3}}}
    for role in ("worker", "node"):
        assert scale_patch(job, role, 5) == {"spec": {"trainer": {"numNodes": 5}}}
        assert replica_count(job, role) == 3
    roles = {"gangline": {"roles": {"node": {"replicas": 2}}}}
    assert replica_count({"kind": "TrainJob", "spec": {}, "status": roles}, "worker") == 2
    with pytest.raises(KeyError, match="node"):
        scale_patch(job, "launcher", 2)
