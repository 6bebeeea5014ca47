"""The rules of TrainJobs: order of the roles, names, labels, objects, success.

Pods are a gang by phases: first the roles that others wait for to complete (each pod of them is
needed), then the roles that train. Upstream's gang counts the pods of all phases, which no cluster
can place at the same time as their own predecessors run.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gangline.api.jobs.kubeflow import JobStatus
from gangline.api.jobs.mpi import ROOT_SSH_PATH
from gangline.api.jobs.train import Trainer, TrainJobSpec
from gangline.api.jobs.training_runtime import (
    COMPLETE,
    JAX,
    LAUNCHER,
    NODE,
    RUNTIME_COPY_KEY,
    RUNTIME_COPY_LABEL,
    TORCH,
    JobDependency,
    runtime_copy_name,
)
from gangline.api.trainer.effective import (
    EffectiveJob,
    EffectiveRole,
    claim_name,
    claim_templates,
    find_container,
    with_container,
)
from gangline.api.trainer.merge import upsert_env
from gangline.api.trainer.policy import (
    HOST_FILE_PATH,
    INDEX_KEY,
    RENDEZVOUS_CONF,
    mpi_hosts,
    mpi_slots,
)
from gangline.operator.frameworks.mpi.objects import format_host_file
from gangline.operator.frameworks.mpi.ssh import key_secret, with_keys
from gangline.operator.frameworks.train import status as set_failure
from gangline.operator.frameworks.train.status import train_status_fields
from gangline.operator.model import pod_template
from gangline.operator.model.framework import RuntimeCopy
from gangline.operator.model.job import Manifest, NormalizedJob, ReplicaRole
from gangline.operator.model.replicas import (
    ObservedPod,
    ReplicaGang,
    ReplicaSlots,
    parse_indexes,
)
from gangline.operator.policies import gang_restart
from gangline.operator.policies.replica_tracker import ReplicaTracker

JOB_SET = "jobset.sigs.k8s.io/"
JOB_SET_NAME = f"{JOB_SET}jobset-name"
HOST_FILE = "hostfile"
_NONE: frozenset[str] = frozenset()

_KEY_MODES: Mapping[str, int] = {"id_rsa": 0o640, "id_rsa.pub": 0o644, "authorized_keys": 0o644}
_ROOT_KEY_MODES: Mapping[str, int] = {**_KEY_MODES, "id_rsa": 0o600}
"""OpenSSH refuses a key of its user that others can read. Other users read it by their group."""
_HOST_FILE_VOLUME = "mpi-hostfile"


def host_file_name(job: str) -> str:
    return f"{job}-mpi-hostfile"


def job_set_labels(
    job: NormalizedJob, merged: EffectiveJob, role: EffectiveRole, index: int, attempt: int
) -> dict[str, str]:
    """Return the labels that JobSet and batch Job give a pod; they are its annotations too."""
    job_index, pod_index = divmod(index, role.pods_per_job)
    name = f"{job.name}-{role.name}-{job_index}"
    earlier = merged.roles[: merged.roles.index(role)]
    own_group = [peer for peer in merged.roles if peer.group == role.group]
    key = hashlib.sha1(f"{job.meta.namespace}/{name}".encode(), usedforsecurity=False).hexdigest()
    values = {
        "jobset-name": job.name,
        "jobset-uid": job.meta.uid,
        "replicatedjob-name": role.name,
        "replicatedjob-replicas": str(role.jobs),
        "global-replicas": str(sum(peer.jobs for peer in merged.roles)),
        "restart-attempt": str(attempt),
        "job-index": str(job_index),
        "job-global-index": str(job_index + sum(peer.jobs for peer in earlier)),
        "job-key": key,
        "group-name": role.group,
        "group-replicas": str(sum(peer.jobs for peer in own_group)),
        "job-group-index": str(
            job_index + sum(peer.jobs for peer in earlier if peer.group == role.group)
        ),
        **({"coordinator": merged.coordinator} if merged.coordinator else {}),
    }
    return {
        **{f"{JOB_SET}{name}": value for name, value in values.items()},
        INDEX_KEY: str(pod_index),
        "batch.kubernetes.io/job-name": name,
        "job-name": name,
    }


def with_host_name(
    merged: EffectiveJob, role: EffectiveRole, index: int, pod: Manifest
) -> Manifest:
    """Give a pod its name below the headless service, unless the runtime disables names."""
    network = merged.spec.template.spec.network
    if network and network.enable_dns_hostnames is False:
        return pod
    name = role.pod_name(merged.name, index)
    return pod_template.with_spec(pod, hostname=name, subdomain=merged.subdomain)


def with_mpi_files(
    job: NormalizedJob, merged: EffectiveJob, role: EffectiveRole, pod: Manifest
) -> Manifest:
    """Mount the key pair in the pods of an MPI job, and the host file in its launcher."""
    mpi = merged.mpi
    if mpi is None or role.name not in (NODE, LAUNCHER):
        return pod
    path = mpi.ssh_auth_mount_path or ROOT_SSH_PATH
    pod = with_keys(job, pod, NODE, path, _ROOT_KEY_MODES if path == ROOT_SSH_PATH else _KEY_MODES)
    if role.name != LAUNCHER:
        return pod
    items = [{"key": HOST_FILE, "path": HOST_FILE}]
    source = {"name": host_file_name(job.name), "items": items}
    folder = HOST_FILE_PATH.rpartition("/")[0]
    mount = {"name": _HOST_FILE_VOLUME, "mountPath": folder}
    volume = {"name": _HOST_FILE_VOLUME, "configMap": source}
    return pod_template.with_volume(pod, NODE, volume, mount)


def with_rendezvous_host(
    merged: EffectiveJob, role: EffectiveRole, index: int, pod: Manifest
) -> Manifest:
    """Let the first node of an elastic job host the store of the rendezvous.

    Agents compare the address of the store with their host name, which lacks the subdomain.
    """
    container = find_container(pod, NODE)
    if container is None or not merged.is_elastic(role):
        return pod
    own = {variable.get("name"): variable.get("value") for variable in container.get("env") or []}
    settings = [own.get(RENDEZVOUS_CONF) or "", f"is_host={str(index == 0).lower()}"]
    if "is_host=" in settings[0]:
        return pod
    value = ",".join(filter(None, settings))
    return with_container(pod, upsert_env(container, [{"name": RENDEZVOUS_CONF, "value": value}]))


RUNTIME_GRACE = timedelta(seconds=10)
"""How long a job waits for a runtime that does not exist; the operator may not have seen it yet."""


@dataclass(frozen=True, slots=True)
class TrainRules(ReplicaTracker):
    spec: TrainJobSpec
    merged: EffectiveJob
    runtime: RuntimeCopy

    def pod_name(self, job: NormalizedJob, role: ReplicaRole, index: int) -> str:
        return self._role(role.name).pod_name(job.name, index)

    def is_replaced(
        self, job: NormalizedJob, role: ReplicaRole, index: int, pod: ObservedPod
    ) -> bool:
        """A batch Job replaces failed pods under every policy, up to its limit."""
        return True

    def service_name(self, job: NormalizedJob, role: ReplicaRole, index: int) -> str:
        return self.merged.subdomain

    def service_overrides(
        self, job: NormalizedJob, role: ReplicaRole, index: int
    ) -> Manifest | None:
        """One headless service names all pods; the first of them stands for it."""
        if (role.name, index) != (self._with_pods(self.merged.roles)[0].name, 0):
            return None
        network = self.merged.spec.template.spec.network
        early = network.publish_not_ready_addresses if network else None
        return {
            "selector": {JOB_SET_NAME: job.name},
            "ports": None,
            "publishNotReadyAddresses": early is not False,
        }

    def environment(
        self, job: NormalizedJob, role: ReplicaRole, index: int, gang: ReplicaGang
    ) -> list[Manifest]:
        return []

    def shape_pod(
        self, job: NormalizedJob, role: ReplicaRole, index: int, pod: Manifest, gang: ReplicaGang
    ) -> Manifest:
        merged_role = self._role(role.name)
        notes = (pod.get("metadata") or {}).get("annotations") or {}
        written = notes.get(gang_restart.GENERATION_ANNOTATION, "0")
        attempt = int(written) if written.isdecimal() else 0
        own = job_set_labels(job, self.merged, merged_role, index, attempt)
        pod = pod_template.with_metadata(pod, own, own)
        pod = with_host_name(self.merged, merged_role, index, pod)
        pod = with_rendezvous_host(self.merged, merged_role, index, pod)
        return with_mpi_files(job, self.merged, merged_role, pod)

    def can_start(
        self, job: NormalizedJob, role: ReplicaRole, index: int, gang: ReplicaGang
    ) -> bool:
        """Pods follow the stored copy of the runtime, and the jobs that their role waits for."""
        if not self.runtime.is_stored:
            return False
        waits = self._role(role.name).depends_on
        return all(_is_met(wait, job, gang[wait.name]) for wait in waits)

    def is_fatal(self, job: NormalizedJob, role: ReplicaRole, pod: ObservedPod) -> bool:
        """Apply the pod failure policy of the batch Job, and the failure policy of the JobSet."""
        policy = self.merged.spec.template.spec.failure_policy
        return set_failure.pod_ends_job(policy, self._role(role.name), pod)

    def counts_restart(self, job: NormalizedJob, role: ReplicaRole, pod: ObservedPod) -> bool:
        policy = self.merged.spec.template.spec.failure_policy
        return set_failure.is_counted(policy, self._role(role.name), pod)

    def owned_objects(self, job: NormalizedJob, gang: ReplicaGang) -> list[Manifest]:
        claims: list[Manifest] = [
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {**(claim.get("metadata") or {}), "name": claim_name(claim, job.name)},
                "spec": claim.get("spec") or {},
            }
            for claim in claim_templates(self.merged.spec.template.spec)
        ]
        objects = [self._runtime_copy(job), *claims]
        if self.merged.mpi is not None:
            slots = mpi_slots(self.merged, self.spec.trainer or Trainer())
            data = {HOST_FILE: format_host_file(mpi_hosts(self.merged), slots)}
            objects += [key_secret(job), _config_map(host_file_name(job.name), data)]
        return objects

    def is_retained(self, name: str) -> bool:
        """The copy of the runtime and the claims stay while the job is suspended."""
        templates = claim_templates(self.merged.spec.template.spec)
        kept = {claim_name(template, self.merged.name) for template in templates}
        return name in kept or self.is_needed_early(name)

    def is_needed_early(self, name: str) -> bool:
        """A job is made from the runtime of the time when it was first seen."""
        return name == runtime_copy_name(self.merged.name)

    def restore_from_status(self, job: NormalizedJob, status: JobStatus) -> NormalizedJob:
        """Count only the roles of the present phase towards the gang."""
        completed = {
            role.name
            for role in self.merged.roles
            if (counted := status.replica_statuses.get(role.name))
            and len(parse_indexes(counted.completed_indexes)) >= role.replicas
        }
        roles = [
            role
            if role.name not in completed and self._is_in_phase(role.name, completed)
            else replace(role, min_replicas=0, joins_later=False)
            for role in job.roles
        ]
        return replace(job, roles=roles)

    def is_master(self, job: NormalizedJob, role: ReplicaRole, index: int) -> bool:
        roles = self._with_pods((*self.merged.training_roles, *self.merged.roles))
        launcher = self.merged.mpi and self.merged.find_role(LAUNCHER)
        return (role.name, index) == ((launcher or roles[0]).name, 0)

    def has_succeeded(self, job: NormalizedJob, gang: ReplicaGang) -> bool:
        """All replicated jobs must succeed, or those that the success policy names."""
        policy = self.merged.spec.template.spec.success_policy
        named: Sequence[str] = policy.target_replicated_jobs if policy else ()
        roles = self._with_pods(self.merged.roles)
        targets = [role for role in roles if role.name in named] or roles
        done = [
            slots.agents_succeeded if self.merged.is_elastic(role) else slots.all_succeeded
            for role in targets
            for slots in [gang[role.name]]
        ]
        return any(done) if policy and policy.operator == "Any" else bool(done) and all(done)

    def is_running(self, job: NormalizedJob, gang: ReplicaGang) -> bool:
        return any(gang[role.name].active for role in self.merged.training_roles)

    def needs_all_ranks(self, job: NormalizedJob) -> bool:
        return self.merged.framework in (TORCH, JAX) and self.merged.elastic is None

    def status_fields(self, job: NormalizedJob, gang: ReplicaGang, status: JobStatus) -> Manifest:
        return train_status_fields(job, self.merged, gang, status)

    def _is_in_phase(self, name: str, completed: set[str], above: frozenset[str] = _NONE) -> bool:
        """Return whether a role starts now, or when the pods of this phase are ready.

        An invalid runtime may have unknown dependencies, and those of roles on each other
        (``above``).
        """
        role, above = self.merged.find_role(name), above | {name}
        return role is not None and all(
            dependency.name in completed
            or (
                dependency.status != COMPLETE
                and dependency.name not in above
                and self._is_in_phase(dependency.name, completed, above)
            )
            for dependency in role.depends_on
        )

    @staticmethod
    def _with_pods(roles: Iterable[EffectiveRole]) -> list[EffectiveRole]:
        return [role for role in roles if role.replicas]

    def _role(self, name: str) -> EffectiveRole:
        role = self.merged.find_role(name)
        assert role is not None, name
        return role

    def _runtime_copy(self, job: NormalizedJob) -> Manifest:
        data = {RUNTIME_COPY_KEY: self.runtime.manifest.decode()}
        copy = _config_map(runtime_copy_name(job.name), data)
        copy["metadata"]["labels"] = {RUNTIME_COPY_LABEL: "true"}
        # A change would reach pods that are created later, and no others.
        return {**copy, "immutable": True}


@dataclass(frozen=True, slots=True)
class MissingRuntimeRules(ReplicaTracker):
    """The rules of a TrainJob whose runtime does not exist, or is not observed yet."""

    kind: str
    name: str
    is_known: bool
    """True if the runtime does not exist; False if runtimes were not read yet."""

    def environment(
        self, job: NormalizedJob, role: ReplicaRole, index: int, gang: ReplicaGang
    ) -> list[Manifest]:
        return []

    def is_master(self, job: NormalizedJob, role: ReplicaRole, index: int) -> bool:
        return False

    def has_succeeded(self, job: NormalizedJob, gang: ReplicaGang) -> bool:
        return False

    def is_running(self, job: NormalizedJob, gang: ReplicaGang) -> bool:
        return False

    def is_retained(self, name: str) -> bool:
        """Everything stays: without a runtime it is unknown what belongs to the job."""
        return True

    def is_needed_early(self, name: str) -> bool:
        return False

    def is_awaited(self, job: NormalizedJob, pod: ObservedPod, gang: ReplicaGang) -> bool:
        """No pod is surplus while it is unknown which pods the job has."""
        return True

    def owned_objects(self, job: NormalizedJob, gang: ReplicaGang) -> list[Manifest]:
        return []

    def pending_timeout(
        self, job: NormalizedJob, gang: ReplicaGang, now: datetime
    ) -> tuple[timedelta | None, str]:
        if not self.is_known:
            return RUNTIME_GRACE, ""
        created = job.meta.creation_timestamp
        left = created + RUNTIME_GRACE - now if created else RUNTIME_GRACE
        return left, f"{self.kind} {self.name} does not exist."

    def status_fields(self, job: NormalizedJob, gang: ReplicaGang, status: JobStatus) -> Manifest:
        return train_status_fields(job, None, gang, status)


def _is_met(dependency: JobDependency, job: NormalizedJob, slots: ReplicaSlots) -> bool:
    if dependency.status == COMPLETE:
        # Invariant: the gang of the next phase counts in the pod group before its pods exist. The
        # group follows the stored status, by which a completed role has no minimum any more.
        role = job.find_role(dependency.name)
        return slots.all_succeeded and role is not None and role.min_replicas == 0
    return all(pod is not None and (pod.succeeded or pod.is_ready) for pod in slots.pods)


def _config_map(name: str, data: dict[str, str]) -> Manifest:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
