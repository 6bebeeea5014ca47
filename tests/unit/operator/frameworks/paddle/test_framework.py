"""PaddleJob: the environment of its replicas, how they find each other, and how a job ends."""

from typing import Any

import pytest

from gangline.operator.frameworks.paddle.framework import PaddleFramework
from gangline.operator.model.job import RestartPolicy
from gangline.operator.model.plan import TargetKind
from unit.operator.builders import conditions, created, deleted, look, stored
from unit.operator.kubeflow_jobs import pod_of, services
from unit.operator.paddle_jobs import a_job, environment, manifest, placed, role

MODES = {
    "Single": {"worker": 1},
    "Collective": {"worker": 2},
    "PS": {"ps": 1, "worker": 2},
}


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize(
    ("intranet", "address"),
    [(None, "=status.podIP"), ("PodIP", "=status.podIP"), ("Service", "train-worker-0.team")],
)
def test_a_worker_gets_upstreams_variables_and_its_own_endpoint(mode, intranet, address):
    assert environment(a_job(**mode, intranet=intranet), "worker-0") == [
        ("POD_IP", address),
        ("PADDLE_TRAINER_ID", "0"),
        ("TRAINING_ROLE", "TRAINER"),
        ("PADDLE_TRAINING_ROLE", "TRAINER"),
        ("GANGLINE_PEERS_KNOWN", "@TRAINER_PORTS_NUM"),
        ("PADDLE_CURRENT_ENDPOINT", "$(POD_IP):36000"),
    ]


def test_server_gets_its_role_and_index():
    reported = dict(environment(a_job(ps=2, worker=1), "ps-1"))
    assert (reported["PADDLE_TRAINER_ID"], reported["TRAINING_ROLE"]) == ("1", "PSERVER")
    assert reported["PADDLE_TRAINING_ROLE"] == "PSERVER"


def test_on_the_host_network_each_replica_gets_its_own_port():
    job = a_job(ps=1, worker=2, intranet="Host")
    reported = [dict(environment(job, name)) for name in ("ps-0", "worker-0", "worker-1")]
    ports = [int(variables["PADDLE_PORT"]) for variables in reported]
    assert len(set(ports)) == 3
    for variables, port in zip(reported, ports, strict=True):
        assert variables["POD_IP"] == "=status.podIP"
        assert variables["PADDLE_CURRENT_ENDPOINT"] == f"$(POD_IP):{port}"


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        (
            "worker-1",
            {
                "TRAINING_ROLE": "TRAINER",
                "PADDLE_TRAINING_ROLE": "TRAINER",
                "STAGE_ID": "1",
                "HETER_DEVICE_TYPE": "cpu",
                "PADDLE_NEXT_HETER_TRAINER_IP_PORT_LIST": "@PADDLE_HETER_ENDPOINTS",
            },
        ),
        (
            "heter-0",
            {
                "TRAINING_ROLE": "HETER_TRAINER",
                "PADDLE_TRAINING_ROLE": "HETER",
                "STAGE_ID": "2",
                "HETER_DEVICE_TYPE": "gpu",
                "PADDLE_PREVIOUS_HETER_TRAINER_IP_PORT_LIST": "@PADDLE_TRAINER_ENDPOINTS",
            },
        ),
    ],
)
def test_heterogeneous_training_gets_the_names_that_the_framework_reads(name, reported):
    heter = role(1)
    container = heter["template"]["spec"]["containers"][0]
    container["resources"] = {"limits": {"nvidia.com/gpu": 1}}
    variables = dict(environment(a_job(ps=1, worker=2, heter=heter), name))
    assert variables | reported == variables
    assert (variables["STAGE_NUM"], variables["PADDLE_STAGE_TRAINERS_NUM"]) == ("2", "[2, 1]")


def test_a_server_of_heterogeneous_training_has_no_stage():
    assert "STAGE_ID" not in dict(environment(a_job(ps=1, worker=1, heter=1), "ps-0"))


def test_variables_that_upstream_lacks_give_way_to_the_users():
    worker = role(1)
    own = [{"name": "PADDLE_CURRENT_ENDPOINT", "value": "mine"}, {"name": "POD_IP", "value": "x"}]
    worker["template"]["spec"]["containers"][0]["env"] = own
    reported = environment(a_job(worker=worker), "worker-0")
    assert [value for name, value in reported if name == "PADDLE_CURRENT_ENDPOINT"] == ["mine"]
    assert [value for name, value in reported if name == "POD_IP"] == ["=status.podIP"]


@pytest.mark.parametrize("container", ["paddle", "main"])
def test_the_container_named_paddle_trains_or_else_the_first(container):
    worker = role(1, container)
    worker["template"]["spec"]["containers"].append({"name": "sidecar", "image": "x"})
    trains, sidecar = pod_of(a_job(worker=worker), "worker-0")["spec"]["containers"]
    assert trains["envFrom"] == [{"configMapRef": {"name": "train"}}]
    assert sidecar == {"name": "sidecar", "image": "x"}


def test_a_sidecar_before_the_container_named_paddle_is_left_alone():
    worker = role(1)
    worker["template"]["spec"]["containers"].insert(0, {"name": "sidecar", "image": "x"})
    sidecar, trains = pod_of(a_job(worker=worker), "worker-0")["spec"]["containers"]
    assert sidecar == {"name": "sidecar", "image": "x"}
    assert trains["env"][0]["name"] == "POD_IP"


def test_a_pod_has_upstreams_labels_names_and_annotation_beside_ours():
    worker = role(1, hostname="mine")
    worker["template"]["metadata"] = {"labels": {"team": "a"}, "annotations": {"note": "b"}}
    pod = pod_of(a_job(ps=1, worker=worker), "worker-0")
    meta, spec = pod["metadata"], pod["spec"]
    assert meta["labels"] == {
        "team": "a",
        "paddle-res-name": "train-worker-0",
        "paddle-res-type": "worker",
        "training.kubeflow.org/job-name": "train",
        "training.kubeflow.org/operator-name": "paddlejob-controller",
        "training.kubeflow.org/replica-type": "worker",
        "training.kubeflow.org/replica-index": "0",
        "training.kubeflow.org/job-role": "master",
    }
    assert meta["annotations"] == {"note": "b", "paddle-resource": "worker"}
    assert (spec["hostname"], spec["subdomain"]) == ("train-worker-0", "train-worker-0")
    (owner,) = meta["ownerReferences"]
    assert (owner["apiVersion"], owner["kind"]) == ("batch.paddlepaddle.org/v1", "PaddleJob")


@pytest.mark.parametrize("intranet", ["PodIP", "Service", "Host"])
def test_every_replica_has_a_service_of_twenty_ports_that_finds_upstreams_pods_too(intranet):
    job = a_job(ps=1, worker=1, intranet=intranet)
    made = services(job)
    assert list(made) == ["ps-0", "worker-0"]
    spec = made["worker-0"]["spec"]
    assert spec["clusterIP"] == "None"
    assert spec["publishNotReadyAddresses"] is True
    assert spec["selector"] == {"paddle-res-name": "train-worker-0"}
    first = spec["ports"][0]["port"]
    assert spec["ports"] == [{"name": f"p-{i}", "port": first + i} for i in range(20)]
    assert (first == 36000) == (intranet != "Host")


@pytest.mark.parametrize(
    ("intranet", "ports"), [("PodIP", None), ("Service", [{"containerPort": 36000}])]
)
def test_the_port_is_declared_where_upstream_declares_it(intranet, ports):
    (container,) = pod_of(a_job(worker=1, intranet=intranet), "worker-0")["spec"]["containers"]
    assert container.get("ports") == ports


def test_on_the_host_network_the_port_is_declared_for_the_scheduler():
    job = a_job(worker=1, intranet="Host")
    spec = pod_of(job, "worker-0")["spec"]
    port = int(dict(environment(job, "worker-0"))["PADDLE_PORT"])
    assert spec["hostNetwork"] is True
    assert spec["containers"][0]["ports"] == [{"containerPort": port, "hostPort": port}]


@pytest.mark.parametrize(
    ("given", "policy"),
    [
        (None, "ClusterFirstWithHostNet"),
        ("ClusterFirst", "ClusterFirstWithHostNet"),
        ("Default", "Default"),
        ("None", "None"),
    ],
)
def test_names_are_looked_up_in_the_cluster_also_from_the_network_of_a_node(given, policy):
    own = {"dnsPolicy": given, "dnsConfig": {"nameservers": ["192.0.2.1"]}} if given else {}
    worker = role(1, **own)
    assert pod_of(a_job(worker=worker, intranet="Host"), "worker-0")["spec"]["dnsPolicy"] == policy
    assert "dnsPolicy" not in pod_of(a_job(worker=1), "worker-0")["spec"]


@pytest.mark.parametrize(
    ("spec", "policies"),
    [
        ({}, {"ps": "Never", "worker": "Never"}),
        ({"intranet": "Service"}, {"ps": "Never", "worker": "OnFailure"}),
        ({"intranet": "Host"}, {"ps": "Never", "worker": "Never"}),
        ({"elastic": 0}, {"ps": "OnFailure", "worker": "OnFailure"}),
    ],
)
def test_restarts_are_upstreams(spec, policies):
    job = a_job(ps=1, worker=1, **spec)
    assert {role.name: role.restart for role in job.roles} == policies


@pytest.mark.parametrize(("elastic", "policy"), [(None, "Always"), (1, "OnFailure")])
def test_the_templates_restart_policy_counts_unless_the_job_is_elastic(elastic, policy):
    job = a_job(worker=role(1, restartPolicy="Always"), elastic=elastic)
    assert job.roles[0].restart == RestartPolicy(policy)
    assert pod_of(job, "worker-0")["spec"]["restartPolicy"] == policy


def test_nothing_waits_in_an_init_container_unless_the_administrator_wants_it():
    assert "initContainers" not in pod_of(a_job(ps=1, worker=1), "worker-0")["spec"]
    worker = role(2, initContainers=[{"name": "fetch", "image": "x"}])
    job = a_job(framework=PaddleFramework("alpine:3.10"), ps=1, worker=worker)
    fetch, barrier = pod_of(job, "worker-1")["spec"]["initContainers"]
    assert (fetch["name"], barrier["name"], barrier["image"]) == (
        "fetch",
        "coord-paddle",
        "alpine:3.10",
    )
    for name in ("train-ps-0", "train-worker-0", "train-worker-1"):
        assert name in barrier["command"][-1]
    assert barrier["resources"]["requests"] == {"cpu": "10m", "memory": "10Mi"}
    assert set(barrier["resources"]["limits"]) == {"cpu", "memory"}


def up(*names: str) -> list[Any]:
    return [placed(name, f"10.0.0.{number}") for number, name in enumerate(names, 1)]


def done(name: str) -> Any:
    return placed(name, "10.0.0.9", "Succeeded", code=0)


def test_a_job_waits_for_all_workers_and_heterogeneous_ones():
    job = a_job(ps=1, worker=2, heter=1)
    names = [*up("ps-0", "heter-0"), done("worker-0"), done("worker-1")]
    assert "Succeeded" not in conditions(look(job, *names).decide().status)
    names = [*up("ps-0"), done("heter-0"), done("worker-0"), done("worker-1")]
    assert conditions(look(job, *names).decide().status)[-1] == "Succeeded"


def test_a_job_of_servers_only_waits_for_all_of_them():
    job = a_job(ps=2)
    assert "Succeeded" not in conditions(look(job, *up("ps-0"), done("ps-1")).decide().status)
    both = look(job, done("ps-0"), done("ps-1"))
    assert conditions(both.decide().status)[-1] == "Succeeded"


@pytest.mark.parametrize("failed", ["ps-0", "worker-1"])
def test_the_failure_of_a_pod_fails_the_job(failed):
    names = ("ps-0", "worker-0", "worker-1")
    pods = [placed(n, "10.0.0.1", "Failed", code=1) if n == failed else up(n)[0] for n in names]
    assert conditions(look(a_job(ps=1, worker=2), *pods).decide().status)[-1] == "Failed"


@pytest.mark.parametrize(
    ("policy", "after_success", "after_failure"),
    [
        (None, ["ps-0", "worker-0"], ["ps-0"]),
        ("", ["ps-0", "worker-0"], ["ps-0"]),
        ("Always", ["ps-0", "worker-0"], ["ps-0", "worker-0"]),
        ("OnCompletion", ["ps-0", "worker-0"], ["ps-0"]),
        ("OnFailure", ["ps-0"], ["ps-0", "worker-0"]),
        ("Never", ["ps-0"], []),
        ("OnFailed", ["ps-0"], []),
    ],
)
def test_pods_are_cleaned_by_paddles_policies(policy, after_success, after_failure):
    job = a_job(ps=1, worker=1, cleanPodPolicy=policy)
    won = [*up("ps-0"), done("worker-0")]
    lost = [*up("ps-0"), placed("worker-0", "10.0.0.9", "Failed", code=1)]
    assert deleted(look(job, *won).later(1, *won).decide()) == after_success
    assert deleted(look(job, *lost).later(1, *lost).decide()) == after_failure


def test_the_bounds_of_a_jobs_life_are_read():
    bounds = {
        "backoffLimit": 3,
        "ttlSecondsAfterFinished": 60,
        "activeDeadlineSeconds": 600,
        "suspend": True,
        "managedBy": "kueue.x-k8s.io/multikueue",
    }
    gang = {"minAvailable": 2, "queue": "q", "priorityClass": "high", "minResources": {"cpu": "4"}}
    policy = a_job(worker=3, runPolicy=bounds, schedulingPolicy=gang).policy
    assert (policy.backoff_limit, policy.suspended) == (3, True)
    assert (policy.ttl.total_seconds(), policy.active_deadline.total_seconds()) == (60, 600)
    assert policy.managed_by == "kueue.x-k8s.io/multikueue"
    scheduling = policy.scheduling
    assert (scheduling.min_available, scheduling.queue) == (2, "q")
    assert (scheduling.priority_class, scheduling.min_resources) == ("high", {"cpu": "4"})


def test_the_finalizer_of_upstreams_operator_is_taken_off_and_none_is_added():
    written = manifest(worker=1)
    written["metadata"]["finalizers"] = ["finalizers.paddlepaddle.org", "example.com/mine"]
    written["metadata"]["deletionTimestamp"] = "2026-11-20T12:00:00Z"
    decision = look(PaddleFramework().read(stored(written)).job, *up("worker-0")).decide()
    (patch,) = decision.patches
    assert patch.target is TargetKind.JOB
    assert patch.operations[-1]["value"] == ["example.com/mine"]
    assert created(decision) == []
    assert look(a_job(worker=1)).decide().patches == ()


def test_a_role_without_replicas_is_as_good_as_none():
    job = a_job(ps=0, worker=2)
    decision = look(job, *up("worker-0", "worker-1")).decide()
    assert created(decision) == []
    assert conditions(decision.status)[-1] == "Running"
