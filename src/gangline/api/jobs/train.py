"""TrainJob (``trainer.kubeflow.org/v1alpha1``): a runtime, and what one training changes in it.

Upstream's fields. ``status.gangline`` is ours: clients of upstream take every condition that they
do not expect for a job that does not run, so the engine's status is stored below that field.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated

import msgspec

from gangline.api.core.affinity import Affinity, Toleration
from gangline.api.core.container import EnvVar, ResourceRequirements, VolumeMount
from gangline.api.core.pod import PodSchedulingGate
from gangline.api.core.reference import LocalObjectReference
from gangline.api.core.security import PodSecurityContext
from gangline.api.core.volumes import Volume
from gangline.api.job_names import MANAGED_BY_MULTI_KUEUE
from gangline.api.jobs.kubeflow import (
    CommonStatus,
    JobStatus,
    RunPolicy,
    SchedulingPolicy,
    ValidSpec,
)
from gangline.api.jobs.progress import TrainerStatus
from gangline.api.jobs.spec_record import unpack_spec
from gangline.api.jobs.training_runtime import (
    CLUSTER_TRAINING_RUNTIME,
    GROUP,
    LAUNCHER,
    NODE,
    TRAINING_RUNTIME,
    NodeRange,
    TemplateMeta,
    TorchElasticPolicy,
)
from gangline.api.meta.field_doc import FreeForm, doc
from gangline.api.meta.objects import Condition, Object, Wire

MANAGED_BY_TRAINER = "trainer.kubeflow.org/trainjob-controller"
TTL_ANNOTATION = "gangline.dev/ttl-seconds-after-finished"
"""On a TrainJob: seconds after its end until it is deleted; replaces the runtime's."""
STATUS_FIELD = "gangline"
COMPLETE, FAILED, SUSPENDED = "Complete", "Failed", "Suspended"


class RuntimeRef(Wire):
    """The runtime of a job."""

    name: Annotated[str, doc("Name of the runtime.", required=True, minLength=1, maxLength=253)] = (
        ""
    )
    api_group: Annotated[str, doc("Group.", maxLength=253, default=GROUP)] = GROUP
    kind: Annotated[
        str,
        doc(
            f"{CLUSTER_TRAINING_RUNTIME} or {TRAINING_RUNTIME}.",
            maxLength=63,
            default=CLUSTER_TRAINING_RUNTIME,
        ),
    ] = CLUSTER_TRAINING_RUNTIME


class StepInitializer(Wire):
    """Fetches data or a model before the training."""

    storage_uri: Annotated[
        str | None,
        doc("Source, such as hf://OWNER/NAME or s3://BUCKET/PATH.", maxLength=2048),
    ] = None
    env: Annotated[list[EnvVar], doc("Variables.", keys=("name",), maxItems=128)] = []
    secret_ref: Annotated[
        LocalObjectReference | None, doc("Secret whose values are variables.")
    ] = None


class Initializer(Wire):
    """Steps before the training."""

    dataset: Annotated[StepInitializer | None, doc("Fetches the data.")] = None
    model: Annotated[StepInitializer | None, doc("Fetches the model.")] = None


class Trainer(Wire):
    """What the training changes in the container node of the runtime."""

    image: Annotated[str | None, doc("Image.", maxLength=500)] = None
    command: Annotated[list[str], doc("Entry point.", maxItems=128)] = []
    args: Annotated[list[str], doc("Arguments.", maxItems=128)] = []
    env: Annotated[
        list[EnvVar],
        doc("Variables; each replaces the runtime's.", keys=("name",), maxItems=128),
    ] = []
    num_nodes: Annotated[
        int | None,
        doc(
            "Nodes; the runtime's number when not given. May change while the job is suspended, "
            "and within elasticPolicy also while it runs.",
            minimum=0,
        ),
    ] = None
    elastic_policy: Annotated[
        TorchElasticPolicy | None, doc("Replaces the runtime's mlPolicy.torch.elasticPolicy.")
    ] = None
    resources_per_node: Annotated[
        ResourceRequirements | None, doc("Resources; each replaces the runtime's.")
    ] = None
    num_proc_per_node: Annotated[int | None, doc("Processes of each node.", minimum=1)] = None


class ContainerPatch(Wire):
    """Fields of a container that a patch may change."""

    name: Annotated[str, doc("Name of the container.", required=True)] = ""
    env: Annotated[list[EnvVar], doc("Variables.", keys=("name",))] = []
    volume_mounts: Annotated[list[VolumeMount], doc("Mounted volumes.", keys=("mountPath",))] = []
    security_context: Annotated[FreeForm | None, doc("Rights.")] = None


class PodSpecPatch(Wire):
    """Fields of a pod that a patch may change."""

    service_account_name: Annotated[str | None, doc("Account.")] = None
    node_selector: Annotated[dict[str, str], doc("Labels that the node must have.")] = {}
    affinity: Annotated[Affinity | None, doc("Affinity rules.")] = None
    tolerations: Annotated[list[Toleration], doc("Tolerated taints.")] = []
    volumes: Annotated[list[Volume], doc("Volumes.", keys=("name",), maxItems=128)] = []
    init_containers: Annotated[
        list[ContainerPatch], doc("Init containers.", keys=("name",), maxItems=64)
    ] = []
    containers: Annotated[
        list[ContainerPatch], doc("Containers.", keys=("name",), maxItems=64)
    ] = []
    image_pull_secrets: Annotated[
        list[LocalObjectReference], doc("Secrets to pull images with.", keys=("name",))
    ] = []
    security_context: Annotated[PodSecurityContext | None, doc("Rights.")] = None
    scheduling_gates: Annotated[list[PodSchedulingGate], doc("Gates.", keys=("name",))] = []
    termination_grace_period_seconds: Annotated[
        int | None, doc("Seconds between SIGTERM and SIGKILL.", minimum=0)
    ] = None


class PodTemplatePatch(Wire):
    """Changes of a pod template."""

    metadata: Annotated[TemplateMeta | None, doc("Labels and annotations.")] = None
    spec: Annotated[FreeForm | None, doc("The pod.", shape=PodSpecPatch)] = None


class BatchJobSpecPatch(Wire):
    """Changes of a batch Job."""

    template: Annotated[PodTemplatePatch | None, doc("Template of the pods.")] = None


class BatchJobTemplatePatch(Wire):
    """Changes of the template of a replicated job."""

    metadata: Annotated[TemplateMeta | None, doc("Labels and annotations.")] = None
    spec: Annotated[BatchJobSpecPatch | None, doc("The job.")] = None


class ReplicatedJobPatch(Wire):
    """Changes of one replicated job."""

    name: Annotated[str, doc("Name of the replicated job.", required=True)] = ""
    template: Annotated[BatchJobTemplatePatch | None, doc("Template.")] = None


class JobSetSpecPatch(Wire):
    """Changes of the replicated jobs."""

    replicated_jobs: Annotated[
        list[ReplicatedJobPatch], doc("Replicated jobs.", keys=("name",))
    ] = []


class JobSetTemplatePatch(Wire):
    """Changes of the template of a runtime."""

    metadata: Annotated[TemplateMeta | None, doc("Labels and annotations.")] = None
    spec: Annotated[JobSetSpecPatch | None, doc("The replicated jobs.")] = None


class RuntimeSpecPatch(Wire):
    """Changes of a runtime."""

    template: Annotated[JobSetTemplatePatch | None, doc("Template.")] = None


class RuntimePatch(Wire):
    """Changes of the runtime by one component, such as Kueue."""

    manager: Annotated[
        str, doc("The component, such as example.com/name.", required=True, minLength=1)
    ] = ""
    time: Annotated[datetime | None, doc("Time of the last change.")] = None
    training_runtime_spec: Annotated[RuntimeSpecPatch | None, doc("The changes.")] = None


class TrainJobSpec(Wire):
    """The desired state of a TrainJob."""

    runtime_ref: Annotated[RuntimeRef, doc("The runtime.", required=True)] = RuntimeRef()
    initializer: Annotated[Initializer | None, doc("Steps before the training.")] = None
    trainer: Annotated[Trainer | None, doc("The training.")] = None
    runtime_patches: Annotated[
        list[RuntimePatch],
        doc("Changes of the runtime, in order.", keys=("manager",), maxItems=16),
    ] = []
    pod_template_overrides: Annotated[
        list[FreeForm], doc("Removed upstream; refused. Now runtimePatches.")
    ] = []
    labels: Annotated[dict[str, str], doc("Removed upstream; refused. Now runtimePatches.")] = {}
    annotations: Annotated[
        dict[str, str], doc("Removed upstream; refused. Now runtimePatches.")
    ] = {}
    suspend: Annotated[
        bool | None, doc("True deletes the pods until it is false again.", default=False)
    ] = None
    active_deadline_seconds: Annotated[
        int | None, doc("Seconds from its start until an unfinished job fails.", minimum=1)
    ] = None
    managed_by: Annotated[
        str | None,
        doc(
            "Controller that runs the job; cannot be changed.",
            values=(MANAGED_BY_TRAINER, MANAGED_BY_MULTI_KUEUE),
            default=MANAGED_BY_TRAINER,
        ),
    ] = MANAGED_BY_TRAINER

    @property
    def run_policy(self) -> RunPolicy:
        """The run policy in the form that other kinds have."""
        return RunPolicy(
            suspend=self.suspend,
            active_deadline_seconds=self.active_deadline_seconds,
            managed_by=self.managed_by,
            scheduling_policy=SchedulingPolicy(),
        )


class StepStatus(Wire):
    """State of one replicated job: how many of its batch Jobs are in it."""

    name: Annotated[str, doc("Name of the replicated job.", required=True)] = ""
    ready: Annotated[int, doc("Jobs whose pods are all ready.", required=True)] = 0
    succeeded: Annotated[int, doc("Jobs that have succeeded.", required=True)] = 0
    failed: Annotated[int, doc("Jobs that have failed.", required=True)] = 0
    active: Annotated[int, doc("Jobs with running pods.", required=True)] = 0
    suspended: Annotated[int, doc("Jobs that are suspended.", required=True)] = 0


class RoleSummary(Wire):
    """The pods of one replicated job, for lists of jobs."""

    replicas: Annotated[int | None, doc("How many pods.")] = None
    template: Annotated[FreeForm, doc("Image, command and resources.")] = {}


class TrainJobProgress(CommonStatus):
    """The observed state, in the form that other kinds have, and what upstream does not report."""

    phase: Annotated[
        str,
        doc(
            "Pending, Initializing, Starting, Running, Restarting, Suspending, Suspended, "
            "Succeeded or Failed."
        ),
    ] = ""
    message: Annotated[str, doc("Why it waits or failed.")] = ""
    nodes_ready: Annotated[int, doc("Nodes whose pod is ready.")] = 0
    node_range: Annotated[
        NodeRange | None, doc("How many nodes it may have; not given unless it is elastic.")
    ] = None
    effective: Annotated[str, doc("ConfigMap with the copy of the runtime.")] = ""
    roles: Annotated[dict[str, RoleSummary], doc("What runs, by replicated job.")] = {}


class TrainJobStatus(Wire):
    """The observed state of a TrainJob."""

    conditions: Annotated[list[Condition], doc("Suspended, Complete, Failed.", maxItems=8)] = []
    jobs_status: Annotated[
        list[StepStatus], doc("State of each replicated job.", keys=("name",))
    ] = []
    trainer_status: Annotated[
        TrainerStatus | None, doc("Progress and metrics that its pods have reported last.")
    ] = None
    gangline: Annotated[TrainJobProgress, doc("What upstream's fields do not show.")] = (
        TrainJobProgress()
    )


class TrainJob(Object):
    """A training by a runtime."""

    spec: Annotated[TrainJobSpec, doc("Desired state.", required=True)] = TrainJobSpec()
    status: Annotated[TrainJobStatus, doc("Observed state; written by the operator.")] = (
        TrainJobStatus()
    )

    def common_status(self) -> JobStatus:
        fields = CommonStatus.__struct_fields__
        common = {name: getattr(self.status.gangline, name) for name in fields}
        return JobStatus(**common, trainer_status=self.status.trainer_status)

    def replica_specs(self) -> Mapping[str, RoleSummary]:
        """Return the roles that the operator reports; before that, what the job itself gives.

        A launcher leads, else the nodes. An API server stores roles in the order of their names.
        """
        trainer, roles = self.spec.trainer, self.status.gangline.roles
        if roles or trainer is None:
            return {name: roles[name] for name in (LAUNCHER, NODE, *roles) if name in roles}
        container: FreeForm = {"name": NODE, "command": trainer.command, "args": trainer.args}
        if trainer.image:
            container["image"] = trainer.image
        if trainer.resources_per_node:
            container["resources"] = msgspec.to_builtins(trainer.resources_per_node)
        return {NODE: RoleSummary(trainer.num_nodes, {"spec": {"containers": [container]}})}


class _StoredStatus(msgspec.Struct, rename="camel"):
    """The fields of a stored status that show which operator wrote it."""

    jobs_status: list[msgspec.Raw] = []
    gangline: msgspec.Raw | None = None


class _Record(msgspec.Struct, rename="camel", frozen=True):
    last_valid_spec: ValidSpec | None = None


class _RecordedStatus(msgspec.Struct):
    gangline: _Record = _Record()


def has_upstream_status(status: bytes | msgspec.Raw) -> bool:
    """Return whether the status of a TrainJob was written by the operator of Kubeflow Trainer.

    It has counts of replicated jobs then, and nothing of ours, which every write of ours has. The
    pods of such a job belong to a JobSet.
    """
    try:
        stored = msgspec.json.decode(status, type=_StoredStatus)
    except msgspec.MsgspecError:
        return False
    return bool(stored.jobs_status) and stored.gangline is None


def last_valid_spec(status: bytes | msgspec.Raw) -> TrainJobSpec | None:
    """Return the specification by which a job runs; None if its status records none."""
    try:
        record = msgspec.json.decode(status, type=_RecordedStatus).gangline.last_valid_spec
        text = unpack_spec(record.spec) if record else None
        return None if text is None else msgspec.json.decode(text, type=TrainJobSpec)
    except msgspec.MsgspecError:
        return None
