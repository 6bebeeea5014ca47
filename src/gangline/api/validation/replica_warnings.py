"""Warnings about replica specs, for the kinds that have replica specs and a run policy.

Each names a field, its effect (or that it has none), and the probable intention.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gangline.api.jobs.kubeflow import RESTART_ANNOTATION, ReplicaSpec, RunPolicy
from gangline.api.meta.json_objects import objects_in, subobject
from gangline.api.schema.field_error import FieldError, child_path
from gangline.api.validation import common_rules

Json = Mapping[str, Any]

_OPERATOR_LABELS = ("training.kubeflow.org/", "paddle-res-", "elasticjob.dlrover/")
"""Prefixes of labels by which pods and services belong to their job."""


@dataclass(frozen=True, slots=True)
class ReplicaRules:
    """The properties of a kind that the warnings depend on."""

    path: str
    """Path of the replica specs: ``spec.tfReplicaSpecs``."""
    roles: tuple[str, ...]
    default_restart_policy: str
    """Restart policy of a role that does not set one."""
    container: str = ""
    """The only container in which the operator sets variables; empty if it sets them in all."""
    operator_variables: Collection[str] = ()
    """Environment variables that the operator sets, also over a value of the user."""
    operator_labels: Collection[str] = ()
    """Labels without one of the usual prefixes that the operator sets."""
    endless_roles: Collection[str] = ()
    """Roles whose pods need not end for the job to succeed."""


def common_replica_warnings(
    specs: Mapping[str, ReplicaSpec], job: common_rules.JobWithRunPolicy, rules: ReplicaRules
) -> Iterator[FieldError]:
    """Return the warnings that all kinds with replica specs share."""
    together = job.metadata.annotations.get(RESTART_ANNOTATION) == "gang"
    spelt = {role.lower(): role for role in rules.roles}
    several = sum(common_rules.replica_count(replica) for replica in specs.values()) > 1
    for key, replica in specs.items():
        where = child_path(rules.path, key)
        role = spelt.get(key.lower(), key)
        if key != role:
            problem = f"is read as {role!r}; kubectl scale does not find this spelling"
            yield FieldError(where, key, problem, f"write {role}")
        endless = role in rules.endless_roles or together
        if replica.restart_policy == "Always" and not endless:
            problem = "restarts a replica that has finished: the job never succeeds"
            yield FieldError(f"{where}.restartPolicy", "Always", problem, "use OnFailure")
        pod = replica.template.get("spec")
        if isinstance(pod, Mapping):
            yield from _restart_policy_warnings(replica, pod, where, rules.default_restart_policy)
            yield from template_warnings(
                replica.template,
                f"{where}.template",
                rules.operator_variables,
                rules.container,
                rules.operator_labels,
            )
            if several:
                yield from _host_network_warnings(pod, f"{where}.template.spec")
    if not together:
        yield from _backoff_limit_warnings(specs, job.spec.run_policy, rules.default_restart_policy)


def _restart_policy_warnings(
    replica: ReplicaSpec, pod: Json, where: str, otherwise: str
) -> Iterator[FieldError]:
    counts = replica.restart_policy or otherwise
    given = pod.get("restartPolicy")
    if given and given != counts:
        problem = f"is ignored: {where}.restartPolicy, {counts!r}, takes precedence"
        remedy = f"give {where}.restartPolicy only"
        yield FieldError(f"{where}.template.spec.restartPolicy", given, problem, remedy)


def template_warnings(
    template: Json,
    where: str,
    variables: Collection[str],
    only: str = "",
    labels: Collection[str] = (),
) -> Iterator[FieldError]:
    """Return a warning for each value of a template that the operator's own replaces.

    It sets ``variables`` in all containers, or in the main container, the one named ``only``, and
    besides its usual labels the given ones.
    """
    problem = "is set by the operator: this value is ignored"
    for key in subobject(template, "metadata", "labels"):
        if key.startswith(_OPERATOR_LABELS) or key in labels:
            path = child_path(f"{where}.metadata.labels", key)
            yield FieldError(path, None, problem, "omit the label")
    containers = objects_in(subobject(template, "spec").get("containers"))
    named = [container for container in containers if container.get("name") == only]
    chosen = (named or containers)[:1] if only else containers
    for index, container in enumerate(containers):
        for place, variable in enumerate(objects_in(container.get("env"))):
            if variable.get("name") in variables and container in chosen:
                path = f"{where}.spec.containers[{index}].env[{place}]"
                yield FieldError(path, variable["name"], problem, "omit the variable")


def _host_network_warnings(pod: Json, where: str) -> Iterator[FieldError]:
    if not pod.get("hostNetwork"):
        return
    if pod.get("dnsPolicy") != "ClusterFirstWithHostNet":
        problem = "prevents the pods from resolving the names of their peers"
        remedy = f"give {where}.dnsPolicy: ClusterFirstWithHostNet"
        yield FieldError(f"{where}.hostNetwork", True, problem, remedy)
    if not (pod.get("affinity") or {}).get("podAntiAffinity"):
        problem = "makes pods on the same node conflict over ports"
        remedy = f"separate them by {where}.affinity.podAntiAffinity"
        yield FieldError(f"{where}.hostNetwork", True, problem, remedy)


def _backoff_limit_warnings(
    specs: Mapping[str, ReplicaSpec], policy: RunPolicy, otherwise: str
) -> Iterator[FieldError]:
    restarts = {replica.restart_policy or otherwise for replica in specs.values()}
    if policy.backoff_limit and restarts == {"Never"}:
        problem = "has no effect: the restart policy of every role is 'Never'"
        remedy = "give a role restartPolicy OnFailure or ExitCode"
        yield FieldError("spec.runPolicy.backoffLimit", policy.backoff_limit, problem, remedy)
