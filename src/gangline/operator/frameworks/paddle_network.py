"""How the replicas of a PaddleJob find each other: ports, addresses, the ConfigMap.

The ConfigMap is upstream's, with its mistakes repaired:

- one port throughout. Upstream draws a random one, tells servers that, and lists them under
  another in Service mode, so that no server finds itself. Here it is 36000; on the network of the
  nodes, where pods share ports, each replica has a block of its own, chosen by the job's uid and
  below the ports that Linux and Kubernetes hand out;
- the names of Service mode have a dot in them, without which ``paddle.distributed.launch`` waits
  for its rank 0 for ever;
- Gloo's meeting is 18 ports above the first server's, in every mode;
- it says something only while every address in it is right. A replica that comes back with another
  address waits for the new one, like all containers that start after that.
"""

from collections.abc import Iterator, Mapping
from zlib import crc32

from gangline.api.paddle import HETER, HOST, PS, ROLES, SERVICE, WORKER, PaddleJobSpec
from gangline.operator.job import Manifest, Role, TrainingJob
from gangline.operator.labels import replica_name
from gangline.operator.replicas import Gang, Pod

PEERS_KNOWN = "TRAINER_PORTS_NUM"
"""A key that the ConfigMap has as soon as it says anything: containers wait for it."""
RES_NAME = "paddle-res-name"
"""Label of upstream's: the name of the pod, by which its service finds it."""
PORT = 36000
PORTS = 20
"""Each replica has this many ports from its first one on: one for each process of a node."""

_GLOO_OFFSET = 18
_HTTP_RENDEZVOUS = "3"
_HOST_PORTS = range(12_000, 30_000, PORTS)
"""Above the kubelet's own ports, below node ports and those of outgoing connections."""

_ENDPOINTS = {PS: "PADDLE_PSERVERS_IP_PORT_LIST", WORKER: "PADDLE_TRAINER_ENDPOINTS"}
HETER_ENDPOINTS = "PADDLE_HETER_ENDPOINTS"
TRAINER_ENDPOINTS = _ENDPOINTS[WORKER]


def port(job: TrainingJob, spec: PaddleJobSpec, role: str, index: int) -> int:
    """Return the first port of a replica; it stays when other roles grow or shrink."""
    if spec.intranet != HOST:
        return PORT
    place = crc32(job.meta.uid.encode()) + index * len(ROLES) + ROLES.index(role)
    return _HOST_PORTS[place % len(_HOST_PORTS)]


def service_name(job: TrainingJob, role: str, index: int) -> str:
    """Return the name of a replica as its peers in Service mode know it.

    With the namespace, although they share it: Paddle's launcher takes a name for its own, and
    holds the meeting there, only if there is a dot in it.
    """
    return f"{replica_name(job.name, role, index)}.{job.meta.namespace}"


def service_ports(first: int) -> list[Manifest]:
    """List the ports of a replica as its service offers them."""
    return [{"name": f"p-{index}", "port": first + index} for index in range(PORTS)]


def config_map(job: TrainingJob, spec: PaddleJobSpec, gang: Gang) -> Manifest:
    """Return the job's ConfigMap; it says nothing while an address is not known.

    It is there from the start all the same, so that a name which somebody else has is noticed
    before pods start with what theirs says.
    """
    hosts = {role.name: _hosts(job, spec, role, gang) for role in job.roles if role.replicas}
    known = {role: found for role, found in hosts.items() if found is not None}
    complete = len(known) == len(hosts)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": job.name, "labels": {RES_NAME: job.name}},
        "data": dict(_data(job, spec, known)) if complete else {},
    }


def _hosts(job: TrainingJob, spec: PaddleJobSpec, role: Role, gang: Gang) -> list[str] | None:
    """List where the replicas of a role are, by index; None if one is not known."""
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


def _host(pod: Pod | None, *, over: bool) -> str:
    """Return the address of a pod that counts; one that is going, or has failed, has none."""
    if pod is None or pod.failed or (pod.terminating and not over):
        return ""
    address = pod.status.pod_ip
    return f"[{address}]" if ":" in address else address


def _data(
    job: TrainingJob, spec: PaddleJobSpec, hosts: Mapping[str, list[str]]
) -> Iterator[tuple[str, str]]:
    first = next(iter(hosts))
    yield PEERS_KNOWN, str(PORTS)
    yield "PADDLE_PORT", str(port(job, spec, first, 0))
    endpoints = {
        role: ",".join(f"{host}:{port(job, spec, role, index)}" for index, host in enumerate(found))
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
        # What the framework reads; upstream's name means nothing to it.
        yield "PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST", endpoints[HETER]
    if PS in hosts and spec.with_gloo:
        meeting = port(job, spec, PS, 0) + _GLOO_OFFSET
        yield "PADDLE_WITH_GLOO", str(spec.with_gloo)
        yield "PADDLE_GLOO_RENDEZVOUS", _HTTP_RENDEZVOUS
        yield "PADDLE_GLOO_HTTP_ENDPOINT", f"{hosts[PS][0]}:{meeting}"
