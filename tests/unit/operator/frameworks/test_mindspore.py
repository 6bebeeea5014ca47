"""MSJob: the environment and creation order of its replicas, and how a job ends."""

from typing import Any

import pytest

from gangline.operator.frameworks.mindspore import MindSporeFramework
from gangline.operator.model.conditions import FAILED
from gangline.operator.model.job import NormalizedJob
from gangline.operator.model.plan import TargetKind
from gangline.operator.model.replicas import ObservedService, ObservedServiceSpec
from unit.operator.builders import (
    a_pod,
    a_service,
    conditions,
    created,
    deleted,
    look,
    message,
)
from unit.operator.kubeflow_jobs import (
    gang_of,
    job_manifest,
    pod_of,
    read_job,
    replica,
    services,
    variables,
)

ADDRESS = "10.96.3.7"


def a_job(spec: dict[str, Any] | None = None, **roles: Any) -> NormalizedJob:
    return read_job(MindSporeFramework(), job_manifest("MSJob", roles, **(spec or {})))


def scheduler_service(address: str = ADDRESS) -> ObservedService:
    service = a_service("scheduler-0")
    return ObservedService(metadata=service.metadata, spec=ObservedServiceSpec(address))


def environment(job: NormalizedJob, name: str, *, address: str = ADDRESS) -> list[tuple[str, str]]:
    services = {"train-scheduler-0": scheduler_service(address)}
    return variables(pod_of(job, name, gang_of(job, services=services)))


@pytest.mark.parametrize(
    ("name", "host", "role"),
    [
        ("scheduler-0", "=status.podIP", "MS_SCHED"),
        ("ps-1", ADDRESS, "MS_PSERVER"),
        ("worker-2", ADDRESS, "MS_WORKER"),
    ],
)
def test_each_role_gets_upstreams_six_variables_in_order(name, host, role):
    assert environment(a_job(Scheduler=1, PS=2, Worker=4), name) == [
        ("MS_SCHED_HOST", host),
        ("MS_NODE_ID", "=metadata.name"),
        ("MS_SCHED_PORT", "2222"),
        ("MS_SERVER_NUM", "2"),
        ("MS_WORKER_NUM", "4"),
        ("MS_ROLE", role),
    ]


def test_port_of_the_scheduler_is_passed_on_and_served():
    scheduler = replica("mindspore", 1)
    container = scheduler["template"]["spec"]["containers"][0]
    container["ports"] = [
        {"name": "msjob-port", "containerPort": 8118},
        {"containerPort": 9000},
        {"containerPort": 9001, "protocol": "UDP"},
    ]
    job = a_job(Scheduler=scheduler, Worker=2)
    assert dict(environment(job, "worker-0"))["MS_SCHED_PORT"] == "8118"
    served = services(job)["scheduler-0"]["spec"]["ports"]
    assert [(port["name"], port["port"], port["protocol"]) for port in served] == [
        ("msjob-port", 8118, "TCP"),
        ("port-9000", 9000, "TCP"),
        ("port-9001", 9001, "UDP"),
    ]


def test_only_the_main_container_gets_the_environment():
    worker = replica("mindspore", 2)
    worker["template"]["spec"]["containers"].insert(0, {"name": "sidecar", "image": "x"})
    pod = pod_of(
        a_job(Scheduler=1, Worker=worker),
        "worker-0",
        gang_of(a_job(Scheduler=1, Worker=2), services={"train-scheduler-0": scheduler_service()}),
    )
    assert pod["spec"]["containers"][0] == {"name": "sidecar", "image": "x"}
    assert pod["spec"]["containers"][1]["env"][-1] == {"name": "MS_ROLE", "value": "MS_WORKER"}


@pytest.mark.parametrize("roles", [{"Worker": 1}, {"Scheduler": 0, "Worker": 1, "PS": 0}])
def test_a_single_worker_without_a_scheduler_trains_alone(roles):
    job = a_job(**roles)
    assert environment(job, "worker-0") == []
    decision = look(job).decide()
    assert created(decision) == ["worker-0"]
    assert created(decision, TargetKind.SERVICE) == []


def test_only_the_scheduler_has_a_service_and_it_has_an_address_of_its_own():
    made = services(a_job(Scheduler=1, PS=1, Worker=2))
    assert list(made) == ["scheduler-0"]
    spec = made["scheduler-0"]["spec"]
    assert "clusterIP" not in spec
    assert spec["selector"] == {
        "training.kubeflow.org/job-name": "train",
        "training.kubeflow.org/operator-name": "msjob-controller",
        "training.kubeflow.org/replica-type": "scheduler",
        "training.kubeflow.org/replica-index": "0",
    }


def test_the_others_are_not_made_before_the_schedulers_address_is_known():
    job = a_job(Scheduler=1, PS=1, Worker=2)
    assert created(look(job).decide()) == ["scheduler-0"]
    for address in ("", "None"):
        unknown = look(job, a_pod("scheduler-0"), services=[scheduler_service(address)])
        assert created(unknown.decide()) == []
    world = look(job, a_pod("scheduler-0"), services=[scheduler_service()])
    assert created(world.decide()) == ["ps-0", "worker-0", "worker-1"]


def test_pods_carry_the_labels_by_which_upstreams_services_choose_them():
    job = a_job(Scheduler=1, Worker=1)
    labels = pod_of(job, "scheduler-0")["metadata"]["labels"]
    for key, value in {
        "group-name": "mindspore.gitee.com",
        "job-name": "train",
        "training.kubeflow.org/job-name": "train",
        "training.kubeflow.org/operator-name": "msjob-controller",
        "replica-type": "scheduler",
        "training.kubeflow.org/replica-type": "scheduler",
        "replica-index": "0",
        "training.kubeflow.org/replica-index": "0",
    }.items():
        assert labels[key] == value


def dynamic(restart: str = "Never", **spec: Any) -> NormalizedJob:
    worker = {**replica("mindspore", 2), "restartPolicy": restart}
    return a_job({"enableDynamicWorker": True, **spec}, Scheduler=1, Worker=worker)


def test_dynamic_job_continues_without_a_failed_worker_and_does_not_replace_it():
    pods = [a_pod("scheduler-0"), a_pod("worker-0"), a_pod("worker-1", "Failed", code=1)]
    decision = look(dynamic(), *pods, services=[scheduler_service()]).decide()
    assert conditions(decision.status)[-1] == "Running"
    assert created(decision) == deleted(decision) == []


@pytest.mark.parametrize(
    ("spec", "first"),
    [({}, "Failed"), ({"successPolicy": "AllWorkers"}, "Succeeded")],
)
def test_a_dynamic_job_that_can_no_longer_succeed_fails(spec, first):
    pods = [
        a_pod("scheduler-0"),
        a_pod("worker-0", first, code=0 if first == "Succeeded" else 1),
        a_pod("worker-1", "Failed", code=1),
    ]
    status = look(dynamic(**spec), *pods).decide().status
    assert conditions(status)[-1] == "Failed"
    assert "had to succeed" in message(status, FAILED)


def test_a_dynamic_job_that_restarts_together_does_not_fail():
    worker = {**replica("mindspore", 2), "restartPolicy": "Never"}
    roles = {"Scheduler": 1, "Worker": worker}
    written = job_manifest("MSJob", roles, enableDynamicWorker=True)
    written["metadata"]["annotations"] = {"gangline.dev/restart": "gang"}
    pods = [
        a_pod("scheduler-0"),
        a_pod("worker-0", "Failed", code=1),
        a_pod("worker-1", "Failed", code=1),
    ]
    status = look(read_job(MindSporeFramework(), written), *pods).decide().status
    assert conditions(status)[-1] == "Restarting"
