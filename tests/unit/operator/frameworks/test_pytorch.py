"""PyTorchJob: environment, ports, labels, the master's role."""

from typing import Any

import pytest

from gangline.operator.frameworks.pytorch import PyTorchFramework
from gangline.operator.model.job import NormalizedJob, OwnsObjects
from gangline.operator.model.replicas import ReplicaGang
from unit.operator.builders import a_job, look, manifest, manifests_of, read, stored, template
from unit.operator.kubeflow_jobs import services, variables


def pods(job: NormalizedJob) -> dict[str, dict[str, Any]]:
    return manifests_of(look(job).decide())


def environment(pod: dict[str, Any], container: int = 0) -> dict[str, str]:
    return dict(variables(pod, container))


def job_with(master: int | None = 1, workers: int | None = 2, **spec: Any) -> NormalizedJob:
    written = manifest(master, workers)
    written["spec"] |= spec
    return read(written)


MEETING = {
    "MASTER_PORT": "23456",
    "PET_MASTER_PORT": "23456",
    "MASTER_ADDR": "train-master-0",
    "PET_MASTER_ADDR": "train-master-0",
}


@pytest.mark.parametrize(
    ("replica", "rank"), [("master-0", "0"), ("worker-0", "1"), ("worker-1", "2")]
)
def test_replicas_get_rendezvous_address_and_rank(replica, rank):
    expected = {
        "PYTHONUNBUFFERED": "1",
        **MEETING,
        "WORLD_SIZE": "3",
        "RANK": rank,
        "PET_NODE_RANK": rank,
        "PET_NPROC_PER_NODE": "auto",
        "PET_NNODES": "3",
    }
    # In upstream's order.
    assert list(environment(pods(a_job(1, 2))[replica]).items()) == list(expected.items())


def test_the_world_counts_processes_when_their_number_is_given():
    reported = environment(pods(job_with(1, 1, nprocPerNode="4"))["worker-0"])
    assert (reported["WORLD_SIZE"], reported["RANK"], reported["PET_NPROC_PER_NODE"]) == (
        "8",
        "1",
        "4",
    )


@pytest.mark.parametrize("word", ["auto", "cpu", "gpu"])
def test_named_number_of_processes_counts_as_one(word):
    reported = environment(pods(job_with(1, 1, nprocPerNode=word))["worker-0"])
    assert (reported["WORLD_SIZE"], reported["PET_NPROC_PER_NODE"]) == ("2", word)


def test_workers_without_a_master_meet_at_the_first_of_them():
    made = pods(a_job(None, 2))
    reported = environment(made["worker-1"])
    assert (reported["MASTER_ADDR"], reported["RANK"], reported["WORLD_SIZE"]) == (
        "train-worker-0",
        "1",
        "2",
    )
    assert made["worker-0"]["metadata"]["labels"]["training.kubeflow.org/job-role"] == "master"
    assert "training.kubeflow.org/job-role" not in made["worker-1"]["metadata"]["labels"]


def test_an_elastic_job_without_a_master_gets_a_rendezvous_and_no_ranks():
    job = job_with(None, 3, elasticPolicy={"minReplicas": 1, "maxReplicas": 5, "maxRestarts": 7})
    assert environment(pods(job)["worker-2"]) == {
        "PYTHONUNBUFFERED": "1",
        "PET_NPROC_PER_NODE": "auto",
        "PET_RDZV_ENDPOINT": "train-worker-0:23456",
        "PET_RDZV_BACKEND": "c10d",
        "PET_NNODES": "1:5",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "PET_MAX_RESTARTS": "7",
    }


def test_every_rendezvous_setting_is_passed_on():
    policy = {
        "minReplicas": 2,
        "rdzvBackend": "etcd-v2",
        "rdzvHost": "etcd.infra",
        "rdzvPort": 2379,
        "rdzvId": "run-7",
        "rdzvConf": [{"key": "timeout", "value": "60"}, {"key": "ttl", "value": "5"}],
        "standalone": True,
        "nProcPerNode": 4,
        "maxRestarts": 0,
    }
    reported = environment(pods(job_with(None, 2, elasticPolicy=policy))["worker-0"])
    assert reported == {
        "PYTHONUNBUFFERED": "1",
        "PET_NPROC_PER_NODE": "4",
        "PET_RDZV_ENDPOINT": "etcd.infra:2379",
        "PET_RDZV_BACKEND": "etcd-v2",
        "PET_NNODES": "2:2",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "PET_MAX_RESTARTS": "0",
        "PET_RDZV_ID": "run-7",
        "PET_RDZV_CONF": "timeout=60,ttl=5",
        "PET_STANDALONE": "",
    }


@pytest.mark.parametrize(
    ("policy", "nodes"),
    [
        ({}, "3:3"),
        ({"minReplicas": 1}, "1:1"),
        ({"maxReplicas": 5}, "5:5"),
        ({"minReplicas": 2, "maxReplicas": 4}, "2:4"),
    ],
)
def test_the_range_of_an_elastic_job(policy, nodes):
    assert environment(pods(job_with(None, 3, elasticPolicy=policy))["worker-0"])["PET_NNODES"] == (
        nodes
    )


def test_the_master_of_an_elastic_job_counts_as_a_node():
    policy = {"minReplicas": 1, "maxReplicas": 3}
    made = pods(job_with(1, 2, elasticPolicy=policy))
    for replica in ("master-0", "worker-1"):
        assert environment(made[replica])["PET_NNODES"] == "2:4"


def test_empty_rendezvous_settings_set_no_variable():
    reported = environment(pods(job_with(None, 1, elasticPolicy={"rdzvConf": []}))["worker-0"])
    assert "PET_RDZV_CONF" not in reported


def test_every_container_gets_the_environment_before_the_users_variables():
    written = manifest(1, None)
    url = {"name": "URL", "value": "tcp://$(MASTER_ADDR):1"}
    own = [{"name": "RANK", "value": "mine"}, url, {"name": "PYTHONUNBUFFERED", "value": ""}]
    written["spec"]["pytorchReplicaSpecs"]["Master"]["template"] = {
        "spec": {
            "containers": [
                {"name": "sidecar", "image": "x"},
                {"name": "pytorch", "image": "x", "env": own},
            ],
            "initContainers": [{"name": "fetch", "image": "x"}],
        }
    }
    pod = pods(read(written))["master-0"]
    assert environment(pod)["RANK"] == "0"
    assert pod["spec"]["containers"][1]["env"][-2:] == own[1:]
    assert environment(pod, 1)["RANK"] == "0"
    (fetch,) = pod["spec"]["initContainers"]
    assert "env" not in fetch
    assert fetch["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_the_users_port_is_used_and_no_other_added():
    written = manifest(1, 1)
    container = {
        "name": "pytorch",
        "image": "x",
        "ports": [{"name": "pytorchjob-port", "containerPort": 1234}, {"containerPort": 80}],
    }
    written["spec"]["pytorchReplicaSpecs"]["Master"]["template"] = {
        "spec": {"containers": [container]}
    }
    job = read(written)
    assert environment(pods(job)["worker-0"])["MASTER_PORT"] == "1234"
    assert pods(job)["master-0"]["spec"]["containers"][0]["ports"] == container["ports"]
    assert [(p["name"], p["port"]) for p in services(job)["master-0"]["spec"]["ports"]] == [
        ("pytorchjob-port", 1234),
        ("port-80", 80),
    ]


def test_a_replica_is_found_by_upstreams_names_and_labels():
    pod, service = pods(a_job(1, 2))["worker-1"], services(a_job(1, 2))["worker-1"]
    labels = {
        "training.kubeflow.org/job-name": "train",
        "training.kubeflow.org/operator-name": "pytorchjob-controller",
        "training.kubeflow.org/replica-type": "worker",
        "training.kubeflow.org/replica-index": "1",
    }
    assert pod["metadata"]["labels"] == labels
    assert service["metadata"]["labels"] == service["spec"]["selector"] == labels
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    for thing in (pod, service):
        assert thing["metadata"]["name"] == "train-worker-1"
        (owner,) = thing["metadata"]["ownerReferences"]
        assert owner == {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "name": "train",
            "uid": "job-uid",
            "controller": True,
            "blockOwnerDeletion": True,
        }


def test_pod_settings_of_the_user_stay():
    written = manifest(1, None)
    written["metadata"] |= {"labels": {"team": "a"}, "annotations": {"note": "job"}}
    meta = {
        "labels": {"app": "digits", "training.kubeflow.org/job-name": "lie"},
        "annotations": {"sidecar.istio.io/inject": "false"},
        "finalizers": ["example.com/keep"],
        "name": "mine",
    }
    spec = template(tolerations=[{"operator": "Exists"}], unheardOf={"x": 1}, restartPolicy="Never")
    written["spec"]["pytorchReplicaSpecs"]["Master"]["template"] = {"metadata": meta, **spec}
    pod = pods(read(written))["master-0"]
    assert pod["metadata"]["labels"]["app"] == "digits"
    assert pod["metadata"]["labels"]["training.kubeflow.org/job-name"] == "train"
    assert "team" not in pod["metadata"]["labels"]
    assert pod["metadata"]["annotations"] == {"sidecar.istio.io/inject": "false"}
    assert pod["metadata"]["finalizers"] == ["example.com/keep"]
    assert pod["metadata"]["name"] == "train-master-0"
    assert pod["spec"]["unheardOf"] == {"x": 1}
    assert pod["spec"]["restartPolicy"] == "OnFailure"


@pytest.mark.parametrize(
    ("written", "policy"),
    [(None, "OnFailure"), ("Always", "Always"), ("Never", "Never"), ("ExitCode", "Never")],
)
def test_the_roles_restart_policy_becomes_the_pods(written, policy):
    assert pods(a_job(1, 0, restart=written))["master-0"]["spec"]["restartPolicy"] == policy


def test_workers_wait_for_the_masters_name_only_when_asked_to():
    assert "initContainers" not in pods(a_job(1, 1))["worker-0"]["spec"]
    job = read(manifest(1, 1), init_image="busybox:1")
    (waiting,) = pods(job)["worker-0"]["spec"]["initContainers"]
    assert (waiting["name"], waiting["image"]) == ("init-pytorch", "busybox:1")
    assert "nslookup train-master-0" in waiting["command"][-1]
    assert "initContainers" not in pods(job)["master-0"]["spec"]
    alone = read(manifest(None, 2), init_image="busybox:1")
    assert "initContainers" not in pods(alone)["worker-1"]["spec"]


@pytest.mark.parametrize("spelling", ["worker", "WORKER", "Worker"])
def test_roles_are_known_in_any_capitalisation(spelling):
    written = manifest(1, None)
    roles = written["spec"]["pytorchReplicaSpecs"]
    roles[spelling] = {"replicas": 2, "template": template()}
    assert set(pods(read(written))) == {"master-0", "worker-0", "worker-1"}


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"pytorchReplicaSpecs": {}}, "pytorchReplicaSpecs"),
        ({"pytorchReplicaSpecs": "none"}, "pytorchReplicaSpecs"),
        ({"runPolicy": {"cleanPodPolicy": "Sometimes"}}, "cleanPodPolicy"),
        ({"runPolicy": {"backoffLimit": "three"}}, "backoffLimit"),
        ({"runPolicy": {"activeDeadlineSeconds": 0}}, "activeDeadlineSeconds"),
    ],
)
def test_invalid_job_is_read_nevertheless(change, reported):
    written = manifest(1, 1)
    written["spec"] |= change
    reading = PyTorchFramework().read(stored(written))
    assert reported in reading.spec_errors
    assert reading.job.name == "train"


CPU = [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization"}}}]


def test_metrics_make_an_autoscaler_of_the_jobs_workers():
    policy = {"minReplicas": 1, "maxReplicas": 4, "metrics": CPU}
    job = job_with(None, 2, elasticPolicy=policy)
    assert isinstance(job.rules, OwnsObjects)
    (scaler,) = job.rules.owned_objects(job, ReplicaGang({}, ()))
    assert job.kind.owned_kinds == (scaler["kind"],)
    assert scaler == {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "train"},
        "spec": {
            "scaleTargetRef": {
                "apiVersion": "kubeflow.org/v1",
                "kind": "PyTorchJob",
                "name": "train",
            },
            "minReplicas": 1,
            "maxReplicas": 4,
            "metrics": CPU,
        },
    }


@pytest.mark.parametrize("policy", [None, {"minReplicas": 1}, {"minReplicas": 1, "metrics": []}])
def test_nothing_scales_a_job_that_names_no_metrics(policy):
    job = job_with(None, 2, **({"elasticPolicy": policy} if policy else {}))
    assert isinstance(job.rules, OwnsObjects)
    assert job.rules.owned_objects(job, ReplicaGang({}, ())) == []
