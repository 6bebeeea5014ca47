"""Resolves the target of a port forwarding: a job, a service or a pod."""

from dataclasses import dataclass

from gangline.api.core.pod import Pod
from gangline.api.resources import PODS, SERVICES
from gangline.kube.client.client import ApiClient
from gangline.sdk.client import JobClient, JobError


@dataclass(frozen=True, slots=True)
class PortTarget:
    """A target as the user writes it."""

    namespace: str
    resource: str
    """``JOB``, ``svc/SERVICE`` or ``pod/POD``."""
    kind: str = ""
    instance: str = ""


async def resolve_port_target(client: ApiClient, place: PortTarget, port: int) -> tuple[str, int]:
    """Return the pod and its port.

    Raises:
        JobError: there is no such pod now, or the job and the pod have ended.
        NotFound: there is no such service or pod.
    """
    prefix, slash, name = place.resource.partition("/")
    if slash and prefix in {"svc", "service", "services"}:
        return await _service_pod(client, place.namespace, name, port)
    if slash and prefix in {"pod", "pods", "po"}:
        return (await client.get(PODS, name, place.namespace)).metadata.name, port
    job = await JobClient(client, place.kind).get(place.resource, place.namespace)
    for replica in job.replicas:
        named = place.instance in {replica.name, replica.short_name}
        if named or (not place.instance and replica.chief):
            if job.state.finished and replica.status != "Running":
                raise JobError(
                    f"job {job.name!r} has {str(job.state).lower()}: {replica.short_name} has "
                    f"ended ({replica.status}), and nothing listens on its ports"
                )
            return replica.name, port
    if job.state.finished and not job.replicas:
        raise JobError(f"job {job.name!r} has {str(job.state).lower()}, and its pods are deleted")
    raise JobError(f"job {job.name!r} has no replica {place.instance or 'yet'}")


async def _service_pod(client: ApiClient, namespace: str, name: str, port: int) -> tuple[str, int]:
    service = await client.get(SERVICES, name, namespace)
    labels = ",".join(f"{key}={value}" for key, value in service.spec.selector.items())
    pods = (await client.list(PODS, namespace, labels=labels)).items if labels else []
    running = sorted((pod for pod in pods if _serves(pod)), key=lambda pod: pod.metadata.name)
    if not running:
        raise JobError(f"no pod behind service {name!r} is running")
    for each in service.spec.ports:
        if each.port == port and isinstance(each.target_port, int) and each.target_port:
            return running[0].metadata.name, each.target_port
    return running[0].metadata.name, port


def _serves(pod: Pod) -> bool:
    return pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None
