"""Environment, settings, ports and addresses of PaddleJob pods, and the ConfigMap with them.

Variables come in upstream's order, followed by those that upstream lacks, which never replace
variables of the user. The ConfigMap is upstream's, with these defects fixed:

- The port is the same everywhere, 36000. Upstream draws a random port for the servers, and lists
  them with another one in Service mode. On the host network each replica has a block of ports,
  derived from the job's uid, below the ephemeral ports of Linux and the node ports of Kubernetes.
- Names of Service mode contain a dot; without one ``paddle.distributed.launch`` waits for its rank
  0 for ever.
- Gloo's rendezvous port is 18 above that of the first server, in every mode.
- It has data only while every address in it is valid. A replica that restarts with another address
  waits for the new one, like all containers that start later.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from zlib import crc32

from gangline.api.jobs.paddle import (
    CONTAINER,
    HETER,
    HOST,
    PS,
    ROLES,
    SERVICE,
    WORKER,
    PaddleJobSpec,
)
from gangline.operator.frameworks import kubeflow
from gangline.operator.frameworks.paddle.status import BARRIER_CONTAINER
from gangline.operator.model import pod_template
from gangline.operator.model.job import Manifest, NormalizedJob, ReplicaRole
from gangline.operator.model.labels import replica_name
from gangline.operator.model.replicas import ObservedPod, ReplicaGang

PEERS_KNOWN_KEY = "TRAINER_PORTS_NUM"
"""A key that exists whenever the ConfigMap has data: containers wait for it."""
NAME_LABEL = "paddle-res-name"
"""Upstream's label with the pod name, by which its service selects it."""
PORT = 36000
PORTS_PER_REPLICA = 20
"""Number of ports of each replica, starting with its first: one for each process of a node."""

_GLOO_OFFSET = 18
_HTTP_RENDEZVOUS = "3"
_HOST_PORTS = range(12_000, 30_000, PORTS_PER_REPLICA)
"""Above the kubelet's own ports, below node ports and ephemeral ports."""

_ENDPOINTS = {PS: "PADDLE_PSERVERS_IP_PORT_LIST", WORKER: "PADDLE_TRAINER_ENDPOINTS"}
HETER_ENDPOINTS = "PADDLE_HETER_ENDPOINTS"
TRAINER_ENDPOINTS = _ENDPOINTS[WORKER]


def first_port(job: NormalizedJob, spec: PaddleJobSpec, role: str, index: int) -> int:
    """Return the first port of a replica; it stays the same when other roles are resized."""
    if spec.intranet != HOST:
        return PORT
    place = crc32(job.meta.uid.encode()) + index * len(ROLES) + ROLES.index(role)
    return _HOST_PORTS[place % len(_HOST_PORTS)]


def service_name(job: NormalizedJob, role: str, index: int) -> str:
    """Return the name of a replica that its peers use in Service mode.

    It includes the namespace: Paddle's launcher recognises its own name, and starts the rendezvous
    there, only if the name contains a dot.
    """
    return f"{replica_name(job.name, role, index)}.{job.meta.namespace}"


def service_ports(first: int) -> list[Manifest]:
    return [{"name": f"p-{index}", "port": first + index} for index in range(PORTS_PER_REPLICA)]


def config_map(job: NormalizedJob, spec: PaddleJobSpec, gang: ReplicaGang) -> Manifest:
    """Return the job's ConfigMap; it has no data while an address is unknown.

    It is created nevertheless, so that a name conflict is noticed before pods start with the data
    of another owner's ConfigMap.
    """
    hosts = {role.name: _hosts(job, spec, role, gang) for role in job.roles if role.replicas}
    complete_hosts = {role: names for role, names in hosts.items() if names is not None}
    complete = len(complete_hosts) == len(hosts)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": job.name, "labels": {NAME_LABEL: job.name}},
        "data": dict(_data(job, spec, complete_hosts)) if complete else {},
    }


def _hosts(
    job: NormalizedJob, spec: PaddleJobSpec, role: ReplicaRole, gang: ReplicaGang
) -> list[str] | None:
    """List the addresses of a role's replicas, by index; None if one is unknown."""
    slots = gang[role.name]
    hosts = []
    for index, pod in enumerate(slots.pods):
        name = service_name(job, role.name, index)
        over = index in slots.completed
        host = name if spec.intranet == SERVICE else _host(pod, over=over) or (over and name)
        if not host:
            return None
        hosts.append(host)
    return hosts


def _host(pod: ObservedPod | None, *, over: bool) -> str:
    """Return the address of a pod; empty if it is terminating or has failed."""
    if pod is None or pod.failed or (pod.is_terminating and not over):
        return ""
    address = pod.status.pod_ip
    return f"[{address}]" if ":" in address else address


def _data(
    job: NormalizedJob, spec: PaddleJobSpec, hosts: Mapping[str, list[str]]
) -> Iterator[tuple[str, str]]:
    first = next(iter(hosts))
    yield PEERS_KNOWN_KEY, str(PORTS_PER_REPLICA)
    yield "PADDLE_PORT", str(first_port(job, spec, first, 0))
    endpoints = {
        role: ",".join(
            f"{host}:{first_port(job, spec, role, index)}" for index, host in enumerate(addresses)
        )
        for role, addresses in hosts.items()
    }
    if PS in hosts:
        yield _ENDPOINTS[PS], endpoints[PS]
    if WORKER in hosts:
        yield _ENDPOINTS[WORKER], endpoints[WORKER]
        yield "PADDLE_TRAINERS", ",".join(hosts[WORKER])
        yield "PADDLE_TRAINERS_NUM", str(len(hosts[WORKER]))
    if HETER in hosts:
        yield HETER_ENDPOINTS, endpoints[HETER]
        # The name that the framework reads; it ignores upstream's.
        yield "PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST", endpoints[HETER]
    if PS in hosts and spec.with_gloo:
        meeting = first_port(job, spec, PS, 0) + _GLOO_OFFSET
        yield "PADDLE_WITH_GLOO", str(spec.with_gloo)
        yield "PADDLE_GLOO_RENDEZVOUS", _HTTP_RENDEZVOUS
        yield "PADDLE_GLOO_HTTP_ENDPOINT", f"{hosts[PS][0]}:{meeting}"


PEERS_KNOWN_VARIABLE = "GANGLINE_PEERS_KNOWN"
"""A variable from the ConfigMap: no container starts before the ConfigMap has its data."""
ROLE_LABEL = "paddle-res-type"
"""Upstream's label: the role."""
ROLE_ANNOTATION = "paddle-resource"
"""Upstream's annotation: the role."""

_ROLES = {
    PS: ("PSERVER", "PSERVER"),
    WORKER: ("TRAINER", "TRAINER"),
    HETER: ("HETER_TRAINER", HETER.upper()),
}
"""By role, the value that the framework reads and that of upstream's second variable."""
_SERVER = "PADDLE_ELASTIC_SERVER"
_ELASTIC_TIMEOUT_S = 60
_ELASTIC_ARGUMENTS = ("elastic_server", "etcd://")
_BARRIER_ATTEMPTS = 1000
_DEVICES = {"nvidia.com/gpu": "gpu", "kunlunxin.com/xpu": "xpu"}


@dataclass(frozen=True, slots=True)
class PaddleSettings:
    init_image: str = ""
    """Image of an init container in which pods wait for each other's names, as in upstream. Empty:
    they do not wait, because services publish addresses before pods are ready.
    """
    etcd_server: str = ""
    """``host:port`` of the etcd for the rendezvous of elastic workers. Empty: the template of such
    a job names one, or its workers use the ConfigMap like those of other jobs.
    """


def uses_etcd(spec: PaddleJobSpec, settings: PaddleSettings) -> bool:
    """Return whether the workers of a job find each other through an etcd."""
    if spec.elastic is None or spec.worker is None:
        return False
    trains = pod_template.main_container(spec.worker.template, CONTAINER)
    arguments = [*(trains.get("command") or []), *(trains.get("args") or [])]
    named = any(mark in str(word) for mark in _ELASTIC_ARGUMENTS for word in arguments)
    return bool(settings.etcd_server) or named or _SERVER in _names(trains)


def elastic_range(spec: PaddleJobSpec, settings: PaddleSettings) -> tuple[int, int] | None:
    """Return the minimum and maximum of an elastic job's workers; None if they are not set."""
    worker = spec.worker
    if worker is None or not uses_etcd(spec, settings):
        return None
    if not worker.requests or not worker.limits or worker.requests >= worker.limits:
        return None
    return worker.requests, worker.limits


@dataclass(frozen=True, slots=True)
class PaddleReplica:
    job: NormalizedJob
    spec: PaddleJobSpec
    settings: PaddleSettings
    role: ReplicaRole
    index: int

    def environment(self) -> list[Manifest]:
        spec = self.spec
        training_role, older = _ROLES[self.role.name]
        name = service_name(self.job, self.role.name, self.index)
        by_name = spec.intranet == SERVICE
        variables = [
            _value("POD_IP", name)
            if by_name
            else kubeflow.field_variable("POD_IP", "status.podIP"),
            _value("PADDLE_TRAINER_ID", self.index),
            _value("TRAINING_ROLE", training_role),
            _value("PADDLE_TRAINING_ROLE", older),
        ]
        if spec.elastic is not None:
            variables += self._elastic()
        if spec.intranet == HOST:
            variables.append(_value("PADDLE_PORT", self._port))
        return [*variables, *self._additional_variables()]

    def shape(self, pod: Manifest) -> Manifest:
        """Add upstream's labels and host names, the network settings and the ConfigMap."""
        own = {NAME_LABEL: self._name, ROLE_LABEL: self.role.name}
        pod = pod_template.with_metadata(pod, own, {ROLE_ANNOTATION: self.role.name})
        pod = pod_template.with_spec(pod, hostname=self._name, subdomain=self._name)
        if self.spec.intranet == HOST:
            pod = pod_template.with_cluster_dns(pod_template.with_spec(pod, hostNetwork=True))
        if image := self.settings.init_image:
            pod = pod_template.with_init_container(pod, _barrier(self.job, image))
        trains = pod_template.main_container(pod, CONTAINER)
        ready = self._with_port(pod, trains)
        if not uses_etcd(self.spec, self.settings):
            source = {"configMapRef": {"name": self.job.name}}
            ready = {**ready, "envFrom": [*(trains.get("envFrom") or []), source]}
        containers = [
            ready if container is trains else container
            for container in pod_template.list_containers(pod)
        ]
        return pod_template.with_spec(pod, containers=containers)

    @property
    def _name(self) -> str:
        return replica_name(self.job.name, self.role.name, self.index)

    @property
    def _port(self) -> int:
        return first_port(self.job, self.spec, self.role.name, self.index)

    def _elastic(self) -> Iterator[Manifest]:
        bounds = elastic_range(self.spec, self.settings)
        workers = self.spec.worker.count if self.spec.worker else 0
        yield _value("PADDLE_ELASTIC_JOB_ID", f"{self.job.meta.namespace}-{self.job.name}")
        yield _value("PADDLE_ELASTIC_NP", "{}:{}".format(*bounds) if bounds else workers)
        yield _value("PADDLE_ELASTIC_TIMEOUT", _ELASTIC_TIMEOUT_S)

    def _additional_variables(self) -> Iterator[Manifest]:
        """Variables that upstream leaves to scripts."""
        spec = self.spec
        if uses_etcd(spec, self.settings):
            if self.settings.etcd_server:
                yield _value(_SERVER, self.settings.etcd_server)
            return
        yield _config_map_variable(self.job, PEERS_KNOWN_VARIABLE, PEERS_KNOWN_KEY)
        yield _value("PADDLE_CURRENT_ENDPOINT", f"$(POD_IP):{self._port}")
        servers, heter = spec.ps and spec.ps.count, spec.heter and spec.heter.count
        if servers and heter and self.role.name != PS:
            yield from self._pipeline_stage()

    def _pipeline_stage(self) -> Iterator[Manifest]:
        """Variables of a pipeline with two stages: workers, then heterogeneous workers."""
        counts = [given.count for given in (self.spec.worker, self.spec.heter) if given]
        first = self.role.name == WORKER
        yield _value("STAGE_ID", 1 if first else 2)
        yield _value("STAGE_NUM", 2)
        yield _value("PADDLE_STAGE_TRAINERS_NUM", counts)
        yield _value("HETER_DEVICE_TYPE", "cpu" if first else _device(self.role))
        side, key = ("NEXT", HETER_ENDPOINTS) if first else ("PREVIOUS", TRAINER_ENDPOINTS)
        yield _config_map_variable(self.job, f"PADDLE_{side}_HETER_TRAINER_IP_PORT_LIST", key)

    def _with_port(self, pod: Manifest, container: Manifest) -> Manifest:
        """Declare the port, so that on the host network the scheduler avoids port conflicts."""
        number = self._port
        listed: list[Manifest] = container.get("ports") or []
        if pod_template.declares_port(pod, number) or self.spec.intranet not in (SERVICE, HOST):
            return container
        entry = {"containerPort": number}
        if self.spec.intranet == HOST:
            entry["hostPort"] = number
        return {**container, "ports": [*listed, entry]}


def _device(role: ReplicaRole) -> str:
    resources = pod_template.main_container(role.template, CONTAINER).get("resources") or {}
    asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return next((device for name, device in _DEVICES.items() if name in asked), "cpu")


def _barrier(job: NormalizedJob, image: str) -> Manifest:
    names = " ".join(
        replica_name(job.name, role.name, index)
        for role in job.roles
        for index in range(role.replicas)
    )
    script = (
        f"for name in {names}; do attempt=0; "
        "until getent hosts $name >/dev/null 2>&1 || nslookup $name >/dev/null 2>&1; do "
        f"attempt=$((attempt + 1)); [ $attempt -ge {_BARRIER_ATTEMPTS} ] && exit 1; sleep 1; "
        "done; done"
    )
    return {
        "name": BARRIER_CONTAINER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", script],
        "resources": {
            "requests": {"cpu": "10m", "memory": "10Mi"},
            "limits": {"cpu": "100m", "memory": "20Mi"},
        },
    }


def _names(container: Manifest) -> frozenset[str]:
    return frozenset(variable.get("name", "") for variable in container.get("env") or [])


def _value(name: str, value: object) -> Manifest:
    return {"name": name, "value": str(value)}


def _config_map_variable(job: NormalizedJob, name: str, key: str) -> Manifest:
    return {"name": name, "valueFrom": {"configMapKeyRef": {"name": job.name, "key": key}}}
