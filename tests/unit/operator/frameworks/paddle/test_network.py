"""The ConfigMap through which a PaddleJob's replicas find each other, and elastic jobs."""

from itertools import product

import msgspec
import pytest

from gangline.operator.engine import manifests
from gangline.operator.frameworks.paddle.framework import PaddleFramework
from gangline.operator.frameworks.paddle.pods import first_port
from gangline.operator.model.plan import OwnedObject, TargetKind
from unit.operator.builders import NOW, a_service, created, deleted, look
from unit.operator.kubeflow_jobs import gang_of, pod_of
from unit.operator.paddle_jobs import (
    a_job,
    config_map,
    environment,
    placed,
    role,
)

COUNTS = {"ps": 2, "worker": 2, "heter": 1}
MODES = {
    "Single": {"worker": 1},
    "Collective": {"worker": 2},
    "PS": {"ps": 2, "worker": 2},
    "PS and heter": COUNTS,
}


def all_of(roles):
    """All replicas of these roles, each with an address."""
    names = [f"{name}-{index}" for name, count in roles.items() for index in range(count)]
    return {name: f"10.0.0.{number}" for number, name in enumerate(names, 1)}


def placed_at(addresses):
    return [placed(name, ip) for name, ip in addresses.items()]


@pytest.mark.parametrize("gloo", [None, 0, 1, 2])
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("intranet", [None, "PodIP", "Service", "Host"])
def test_config_map_contains_all_addresses(mode, intranet, gloo):
    job = a_job(**mode, intranet=intranet, withGloo=gloo)
    replicas = all_of(mode)
    hosts = {
        name: f"train-{name}.team" if intranet == "Service" else ip for name, ip in replicas.items()
    }
    where = {
        name: f"{hosts[name]}:{first_port(job, job.rules.spec, *_split(name))}" for name in replicas
    }

    def of(role_name, by_pod):
        return ",".join(
            reported for name, reported in by_pod.items() if name.startswith(f"{role_name}-")
        )

    first = next(iter(where.values()))
    expected = {"TRAINER_PORTS_NUM": "20", "PADDLE_PORT": first.rpartition(":")[2]}
    if "ps" in mode:
        expected["PADDLE_PSERVERS_IP_PORT_LIST"] = of("ps", where)
    expected |= {
        "PADDLE_TRAINER_ENDPOINTS": of("worker", where),
        "PADDLE_TRAINERS": of("worker", hosts),
        "PADDLE_TRAINERS_NUM": str(mode["worker"]),
    }
    if "heter" in mode:
        expected["PADDLE_HETER_ENDPOINTS"] = of("heter", where)
        expected["PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST"] = of("heter", where)
    if gloo and "ps" in mode:
        host, _, number = where["ps-0"].rpartition(":")
        expected |= {
            "PADDLE_WITH_GLOO": str(gloo),
            "PADDLE_GLOO_RENDEZVOUS": "3",
            "PADDLE_GLOO_HTTP_ENDPOINT": f"{host}:{int(number) + 18}",
        }
    reported = config_map(job, *placed_at(replicas))
    assert reported == expected
    assert list(reported) == list(expected)


def _split(name):
    role_name, _, index = name.rpartition("-")
    return role_name, int(index)


@pytest.mark.parametrize("intranet", ["PodIP", "Service", "Host"])
def test_every_replica_finds_its_own_endpoint_in_the_list(intranet):
    """A server stops with an error if its port differs from the listed one."""
    job = a_job(**COUNTS, intranet=intranet)
    replicas = all_of(COUNTS)
    reported = config_map(job, *placed_at(replicas))
    lists = {
        "ps": "PADDLE_PSERVERS_IP_PORT_LIST",
        "worker": "PADDLE_TRAINER_ENDPOINTS",
        "heter": "PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST",
    }
    for name, ip in replicas.items():
        own = dict(environment(job, name))
        host = ip if own["POD_IP"].startswith("=") else own["POD_IP"]
        role_name, index = _split(name)
        endpoint = f"{host}:{own.get('PADDLE_PORT', reported['PADDLE_PORT'])}"
        assert reported[lists[role_name]].split(",")[index] == endpoint
        assert own["PADDLE_CURRENT_ENDPOINT"].replace("$(POD_IP)", host) == endpoint


@pytest.mark.parametrize("intranet", [None, "Host"])
def test_it_waits_for_the_last_address(intranet):
    job = a_job(ps=1, worker=2, intranet=intranet)
    some = [placed("ps-0", "10.0.0.1"), placed("worker-0", "10.0.0.2")]
    assert config_map(job) is None
    assert config_map(job, *some) is None
    assert config_map(job, *some, placed("worker-1", "", "Pending")) is None
    assert config_map(job, *some, placed("worker-1", "10.0.0.3", "Pending")) is not None


def an_extra(job, *pods):
    """The ConfigMap as it is stored after its creation."""
    (creation,) = manifests.desired_objects(job, gang_of(job, *pods))
    meta = {**creation.manifest["metadata"], "uid": "uid-map"}
    return msgspec.convert({"kind": "ConfigMap", "metadata": meta}, OwnedObject)


def test_config_map_is_empty_while_an_address_is_unknown():
    """A pod that starts meanwhile waits for it, instead of connecting to outdated addresses."""
    job = a_job(worker=2, intranet="PodIP")
    first = [placed("worker-0", "10.0.0.1"), placed("worker-1", "10.0.0.2")]
    there = an_extra(job, *first)
    services = [a_service("worker-0"), a_service("worker-1")]
    calm = look(job, *first, owned_objects=[there], services=services).decide()
    assert deleted(calm, TargetKind.CONFIG_MAP) == []
    assert calm.patches == ()
    gone = look(job, first[0], owned_objects=[there], services=services).decide()
    assert written(gone) == {}
    assert created(gone) == ["worker-1"]
    again = [first[0], placed("worker-1", "10.0.0.7", "Pending")]
    silent = an_extra(job, first[0])
    back = look(job, *again, owned_objects=[silent], services=services).decide()
    assert written(back)["PADDLE_TRAINERS"] == "10.0.0.1,10.0.0.7"


def written(decision):
    """The new data in the ConfigMap's patch."""
    (patch,) = [patch for patch in decision.patches if patch.target is TargetKind.CONFIG_MAP]
    return next(
        operation["value"] for operation in patch.operations if operation["path"] == "/data"
    )


@pytest.mark.parametrize(
    "pod",
    [
        placed("worker-1", "10.0.0.2", "Failed", code=137),
        placed("worker-1", "10.0.0.2", deleted=NOW),
    ],
)
def test_address_of_a_terminating_pod_is_not_listed(pod):
    job = a_job(worker=2)
    assert config_map(job, placed("worker-0", "10.0.0.1"), pod) is None


def test_a_replica_that_has_done_its_work_is_still_listed():
    job = a_job(worker=2)
    done = placed("worker-1", "10.0.0.2", "Succeeded", code=0)
    reported = config_map(job, placed("worker-0", "10.0.0.1"), done)
    assert reported["PADDLE_TRAINERS"] == "10.0.0.1,10.0.0.2"


def test_an_address_with_colons_is_put_in_brackets():
    reported = config_map(a_job(worker=1), placed("worker-0", "fd00::7"))
    assert reported["PADDLE_TRAINER_ENDPOINTS"] == "[fd00::7]:36000"
    assert reported["PADDLE_TRAINERS"] == "[fd00::7]"


def test_on_the_network_of_the_nodes_replicas_do_not_share_ports():
    job = a_job(ps=100, worker=100, heter=100, intranet="Host")
    ports = [
        first_port(job, job.rules.spec, name, index)
        for name, index in product(("ps", "worker", "heter"), range(100))
    ]
    assert len(set(ports)) == 300
    assert all(first >= 12_000 and first + 19 < 30_000 for first in ports)


def test_a_replicas_port_stays_when_another_role_grows():
    before, after = (a_job(ps=count, worker=2, intranet="Host") for count in (1, 5))
    ports = [first_port(job, job.rules.spec, "worker", 1) for job in (before, after)]
    assert ports[0] == ports[1]


ETCD = "etcd.infra:2379"


def with_etcd(count=3, **extra):
    worker = role(count)
    env = [{"name": "PADDLE_ELASTIC_SERVER", "value": ETCD}]
    worker["template"]["spec"]["containers"][0]["env"] = env
    return {**worker, **extra}


def test_elastic_job_with_an_etcd_gets_upstreams_variables_and_no_addresses():
    job = a_job(worker=with_etcd(), elastic=1)
    assert environment(job, "worker-1") == [
        ("POD_IP", "=status.podIP"),
        ("PADDLE_TRAINER_ID", "1"),
        ("TRAINING_ROLE", "TRAINER"),
        ("PADDLE_TRAINING_ROLE", "TRAINER"),
        ("PADDLE_ELASTIC_JOB_ID", "team-train"),
        ("PADDLE_ELASTIC_NP", "3"),
        ("PADDLE_ELASTIC_TIMEOUT", "60"),
        ("PADDLE_ELASTIC_SERVER", ETCD),
    ]
    assert "envFrom" not in pod_of(job, "worker-1")["spec"]["containers"][0]
    assert config_map(job, *(placed(f"worker-{i}", "10.0.0.1") for i in range(3))) is None


def test_the_administrators_etcd_serves_jobs_that_name_none():
    framework = PaddleFramework(etcd_server=ETCD)
    reported = dict(environment(a_job(framework=framework, worker=2, elastic=1), "worker-0"))
    assert reported["PADDLE_ELASTIC_SERVER"] == ETCD
    own = environment(
        a_job(framework=PaddleFramework(etcd_server="x:1"), worker=with_etcd(), elastic=1),
        "worker-0",
    )
    assert [value for name, value in own if name == "PADDLE_ELASTIC_SERVER"] == [ETCD]


@pytest.mark.parametrize(
    "arguments", [["--elastic_server=etcd:2379"], ["--master", "etcd://etcd:2379"]]
)
def test_an_etcd_may_be_named_on_the_command_line(arguments):
    worker = role(2)
    worker["template"]["spec"]["containers"][0]["args"] = arguments
    job = a_job(worker=worker, elastic=1)
    assert "envFrom" not in pod_of(job, "worker-0")["spec"]["containers"][0]


def test_an_elastic_job_without_an_etcd_meets_by_its_config_map_and_restarts_when_resized():
    job = a_job(worker=2, elastic=0, intranet="Service")
    reported = dict(environment(job, "worker-0"))
    assert reported["PADDLE_ELASTIC_NP"] == "2"
    (container,) = pod_of(job, "worker-0")["spec"]["containers"]
    assert container["envFrom"] == [{"configMapRef": {"name": "train"}}]
    assert config_map(job) is not None
    assert job.restart_on_resize
    assert not a_job(worker=2).restart_on_resize


def test_elastic_job_may_set_its_minimum_of_workers():
    job = a_job(worker=with_etcd(3, requests=2, limits=4), elastic=1)
    (workers,) = job.roles
    assert (workers.min_replicas, workers.replicas) == (2, 3)
    assert dict(environment(job, "worker-0"))["PADDLE_ELASTIC_NP"] == "2:4"
    assert not job.restart_on_resize


def test_requests_and_limits_mean_nothing_without_an_etcd():
    job = a_job(worker={**role(3), "requests": 2, "limits": 4}, elastic=1)
    assert job.roles[0].min_replicas == 3
    assert dict(environment(job, "worker-0"))["PADDLE_ELASTIC_NP"] == "3"
