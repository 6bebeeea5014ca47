"""Ports and addresses of a PaddleJob's replicas, and the ConfigMap that distributes them.

The ConfigMap is upstream's, with these defects fixed:

- The port is the same everywhere. Upstream draws a random port for the servers, and lists them with
  another one in Service mode, so that no server finds itself. Here it is 36000. On the host
  network, where pods share ports, each replica has a block of its own: it is derived from the job's
  uid, below the ephemeral ports of Linux and the node ports of Kubernetes.
- Names of Service mode contain a dot; without one ``paddle.distributed.launch`` waits for its rank
  0 for ever.
- Gloo's rendezvous port is 18 above that of the first server, in every mode.
- It has data only while every address in it is valid. A replica that restarts with another address
  waits for the new one, like all containers that start later.
"""

from collections.abc import Iterator, Mapping
from zlib import crc32

from gangline.api.jobs.paddle import HETER, HOST, PS, ROLES, SERVICE, WORKER, PaddleJobSpec
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
    known = {role: found for role, found in hosts.items() if found is not None}
    complete = len(known) == len(hosts)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": job.name, "labels": {NAME_LABEL: job.name}},
        "data": dict(_data(job, spec, known)) if complete else {},
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
            f"{host}:{first_port(job, spec, role, index)}" for index, host in enumerate(found)
        )
        for role, found in hosts.items()
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
