"""What hardly anyone means by what they say of replicas, though it is no mistake.

For the kinds with replica specs and a run policy. Each yields a field, what it does (or does not
do), and what was probably meant.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gangline.api.checks import parts
from gangline.api.fielderror import FieldError, child
from gangline.api.kubeflow import RESTART_ANNOTATION, ReplicaSpec, RunPolicy

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ways:
    """What advice has to know of a kind."""

    path: str
    """Where the replica specs are: ``spec.tfReplicaSpecs``."""
    roles: tuple[str, ...]
    restart: str
    """The restart policy of a role that gives none."""
    container: str = ""
    """The only container whose variables are set; empty: all of them."""
    variables: Collection[str] = ()
    """What the operator sets, over what the user gave."""
    endless: Collection[str] = ()
    """Roles that need not come to an end by themselves for the job to do so."""


def advise(
    specs: Mapping[str, ReplicaSpec], job: parts.KubeflowJob, ways: Ways
) -> Iterator[FieldError]:
    """Everything that all kinds with replica specs have in common."""
    together = job.metadata.annotations.get(RESTART_ANNOTATION) == "gang"
    spelt = {role.lower(): role for role in ways.roles}
    several = sum(parts.count(replica) for replica in specs.values()) > 1
    for key, replica in specs.items():
        where = child(ways.path, key)
        role = spelt.get(key.lower(), key)
        if key != role:
            problem = f"is taken for {role!r}; kubectl scale does not find it like this"
            yield FieldError(where, key, problem, f"write {role}")
        endless = role in ways.endless or together
        if replica.restart_policy == "Always" and not endless:
            problem = "starts a replica again when it has done its work: the job never succeeds"
            yield FieldError(f"{where}.restartPolicy", "Always", problem, "use OnFailure")
        pod = replica.template.get("spec")
        if isinstance(pod, Mapping):
            yield from _restart(replica, pod, where, ways.restart)
            yield from _variables(pod, f"{where}.template.spec", ways)
            if several:
                yield from _host_network(pod, f"{where}.template.spec")
    if not together:
        yield from _limit(specs, job.spec.run_policy, ways.restart)


def _restart(replica: ReplicaSpec, pod: Json, where: str, otherwise: str) -> Iterator[FieldError]:
    counts = replica.restart_policy or otherwise
    given = pod.get("restartPolicy")
    if given and given != counts:
        whose = "the replicas' own" if replica.restart_policy else "the default of this kind"
        problem = f"does not count: {whose}, {counts!r}, does"
        remedy = f"give {where}.restartPolicy only"
        yield FieldError(f"{where}.template.spec.restartPolicy", given, problem, remedy)


def _variables(pod: Json, where: str, ways: Ways) -> Iterator[FieldError]:
    for index, container in enumerate(_objects(pod.get("containers"))):
        if ways.container and container.get("name") != ways.container:
            continue
        for place, variable in enumerate(_objects(container.get("env"))):
            if variable.get("name") in ways.variables:
                path = f"{where}.containers[{index}].env[{place}]"
                problem = "is set by the operator: what is given here does not count"
                yield FieldError(path, variable["name"], problem, "leave the variable out")


def _host_network(pod: Json, where: str) -> Iterator[FieldError]:
    if not pod.get("hostNetwork"):
        return
    if pod.get("dnsPolicy") != "ClusterFirstWithHostNet":
        problem = "leaves the pods without the names of their peers"
        remedy = f"give {where}.dnsPolicy: ClusterFirstWithHostNet"
        yield FieldError(f"{where}.hostNetwork", True, problem, remedy)
    if not (pod.get("affinity") or {}).get("podAntiAffinity"):
        problem = "lets pods that share a node get into each other's ports"
        remedy = f"keep them apart by {where}.affinity.podAntiAffinity"
        yield FieldError(f"{where}.hostNetwork", True, problem, remedy)


def _limit(
    specs: Mapping[str, ReplicaSpec], policy: RunPolicy, otherwise: str
) -> Iterator[FieldError]:
    restarts = {replica.restart_policy or otherwise for replica in specs.values()}
    if policy.backoff_limit and restarts == {"Never"}:
        problem = "has no effect: the restart policy of every role is 'Never'"
        remedy = "give a role restartPolicy OnFailure or ExitCode"
        yield FieldError("spec.runPolicy.backoffLimit", policy.backoff_limit, problem, remedy)


def _objects(listed: Any) -> list[Json]:
    return [item for item in listed or () if isinstance(item, Mapping)]
