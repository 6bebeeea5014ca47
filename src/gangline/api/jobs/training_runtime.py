"""TrainingRuntime and ClusterTrainingRuntime (``trainer.kubeflow.org/v1alpha1``).

A runtime is the part of a training that an administrator writes once: a set of replicated jobs with
their pod templates, and the policy of the framework. A TrainJob names it and changes a few fields.
"""

from typing import Annotated

import msgspec

from gangline.api.core.pod import PodTemplateSpec
from gangline.api.core.storage import PersistentVolumeClaim
from gangline.api.meta.field_doc import FreeForm, IntOrString, doc
from gangline.api.meta.objects import Object, ObjectMeta, Wire

GROUP, VERSION = "trainer.kubeflow.org", "v1alpha1"
TRAINING_RUNTIME, CLUSTER_TRAINING_RUNTIME = "TrainingRuntime", "ClusterTrainingRuntime"

ANCESTOR_LABEL = "trainer.kubeflow.org/trainjob-ancestor-step"
"""On the template of a replicated job: the step of the TrainJob that overrides it."""
FRAMEWORK_LABEL = "trainer.kubeflow.org/framework"
"""On a runtime: its framework. The Kubeflow SDK ignores runtimes without it."""
VALIDATION_LABEL = "trainer.kubeflow.org/webhook-validation"
SUPPORT_LABEL = "trainer.kubeflow.org/support"
"""On a runtime that will be removed: ``deprecated``."""
TRAINER, DATASET_INITIALIZER, MODEL_INITIALIZER = (
    "trainer",
    "dataset-initializer",
    "model-initializer",
)
STEPS = (DATASET_INITIALIZER, MODEL_INITIALIZER, TRAINER)
NODE = "node"
"""The container that trains, in each job of the trainer step."""
LAUNCHER = "launcher"
"""The replicated job that runs ``mpirun``."""
STEP_CONTAINERS = {TRAINER: NODE, **{step: step for step in STEPS[:2]}}
"""The container of each step, which its overrides apply to."""
READY, COMPLETE = "Ready", "Complete"
OPEN_MPI = "OpenMPI"
INITIALIZER_VOLUME = "initializer"
"""The volume that initializers write and nodes read, at ``WORKSPACE``."""
WORKSPACE = "/workspace"
RUNTIME_COPY_LABEL = "gangline.dev/runtime-copy"
"""On a ConfigMap: it holds the copy of a runtime that is stored for a job."""
RUNTIME_COPY_KEY = "runtime"


def runtime_copy_name(job: str) -> str:
    return f"{job}-runtime-snapshot"


def _refused(remedy: str) -> msgspec.Meta:
    """Describe a field that is known so that the API server does not drop it silently."""
    return doc(f"Refused: {remedy}.")


class EnvInjectionTarget(Wire):
    """Further containers that get the variables of the framework."""

    job_name: Annotated[str, doc("Replicated job.", required=True)] = ""
    container_names: Annotated[
        list[str], doc("Containers of it.", required=True, minItems=1, maxItems=8)
    ] = []


class EnvInjection(Wire):
    """Where the variables of the framework are added, besides the container node."""

    targets: Annotated[list[EnvInjectionTarget], doc("Containers.", maxItems=16)] = []


class NodeRange(Wire):
    """How many nodes an elastic job may have."""

    min_nodes: Annotated[int, doc("Fewest nodes.", required=True, minimum=1)] = 1
    max_nodes: Annotated[int, doc("Most nodes.", required=True, minimum=1)] = 1


class TorchElasticPolicy(NodeRange):
    """Torch with a varying number of nodes: the c10d rendezvous of torchrun."""

    max_restarts: Annotated[
        int | None,
        doc(
            "How often each node restarts its processes, after a failure or when a node leaves; "
            "3 when not given.",
            minimum=0,
        ),
    ] = None
    metrics: Annotated[list[FreeForm], _refused("no autoscaler changes a TrainJob")] = []


class TorchPolicy(Wire):
    """Torch: variables of torchrun."""

    env_injection: Annotated[EnvInjection | None, doc("Further containers with the variables.")] = (
        None
    )
    num_proc_per_node: Annotated[
        IntOrString | None, doc("Removed upstream; refused. Now trainer.numProcPerNode.")
    ] = None
    elastic_policy: Annotated[
        TorchElasticPolicy | None, doc("The number of nodes may change while a job runs.")
    ] = None


class MPIPolicy(Wire):
    """MPI: a launcher that starts processes by SSH."""

    num_proc_per_node: Annotated[
        int | None, doc("Processes of each node.", minimum=1, default=1)
    ] = None
    mpi_implementation: Annotated[
        str | None, doc("Implementation.", values=(OPEN_MPI, ""), default=OPEN_MPI)
    ] = None
    ssh_auth_mount_path: Annotated[
        str | None, doc("Directory of the SSH keys.", default="/root/.ssh")
    ] = None
    run_launcher_as_node: Annotated[
        bool | None, doc("The launcher trains too, as node 0.", default=False)
    ] = None


class EmptyPolicy(Wire):
    """A policy without settings."""


class MLPolicy(Wire):
    """Number of nodes, and the framework that they run; at most one framework is given."""

    num_nodes: Annotated[
        int | None, doc("Nodes of a job that sets none; 1 when not given.", minimum=1)
    ] = None
    torch: Annotated[TorchPolicy | None, doc("PyTorch.")] = None
    mpi: Annotated[MPIPolicy | None, doc("MPI.")] = None
    jax: Annotated[EmptyPolicy | None, doc("JAX.")] = None
    xgboost: Annotated[EmptyPolicy | None, doc("XGBoost.")] = None
    flux: Annotated[FreeForm | None, doc("Not supported: such a runtime is refused.")] = None

    @property
    def framework(self) -> str:
        """The name of the policy that is given; ``plain`` if none is."""
        return next((name for name in FRAMEWORKS if getattr(self, name) is not None), PLAIN)


TORCH, MPI, JAX, XGBOOST, PLAIN = "torch", "mpi", "jax", "xgboost", "plain"
FRAMEWORKS = (TORCH, MPI, JAX, XGBOOST)


class CoschedulingPolicy(Wire):
    """The coscheduling plug-in of kube-scheduler; pods are a gang under every policy."""

    schedule_timeout_seconds: Annotated[
        int | None, doc("Read and not used: a gang waits without limit.", default=60)
    ] = None


class TopologyPolicy(Wire):
    """How close together in the network the nodes must be."""

    mode: Annotated[
        str,
        doc("hard requires it, soft prefers it.", values=("hard", "soft"), default="hard"),
    ] = "hard"
    highest_tier_allowed: Annotated[
        int, doc("Highest network tier that may separate the nodes.", default=1)
    ] = 1


class VolcanoPolicy(Wire):
    """Volcano; pods are a gang under every policy."""

    network_topology: Annotated[TopologyPolicy | None, doc("Topology of the group.")] = None


class PodGroupPolicy(Wire):
    """How pods are scheduled as a gang; at most one field is given."""

    coscheduling: Annotated[CoschedulingPolicy | None, doc("Coscheduling.")] = None
    volcano: Annotated[VolcanoPolicy | None, doc("Volcano.")] = None


class TemplateMeta(Wire):
    """Labels and annotations."""

    labels: Annotated[dict[str, str], doc("Labels.")] = {}
    annotations: Annotated[dict[str, str], doc("Annotations.")] = {}


class JobDependency(Wire):
    """A replicated job that must be in a state before another one starts."""

    name: Annotated[str, doc("An earlier replicated job.", required=True)] = ""
    status: Annotated[str, doc("Its state.", required=True, values=(READY, COMPLETE))] = ""


FAIL_JOB, COUNT, IGNORE = "FailJob", "Count", "Ignore"
IN, NOT_IN = "In", "NotIn"
IN_ORDER = "InOrder"
REFUSED_JOB_FIELDS = {
    "active_deadline_seconds": "set spec.activeDeadlineSeconds of the TrainJob",
    "backoff_limit_per_index": "use backoffLimit, which counts the failures of all pods of the job",
    "max_failed_indexes": "use backoffLimit, which counts the failures of all pods of the job",
    "success_policy": "use spec.template.spec.successPolicy",
    "suspend": "set spec.suspend of the TrainJob",
    "ttl_seconds_after_finished": "use spec.template.spec.ttlSecondsAfterFinished",
    "managed_by": "set spec.managedBy of the TrainJob",
    "selector": "remove it: pods are found by their labels",
    "manual_selector": "remove it: pods are found by their labels",
}
"""Fields of a batch Job that are refused, and what to do instead.

They are in the schema, since the API server drops others before any component sees them.
"""


class ExitCodeRequirement(Wire):
    """Exit codes of a failed pod."""

    container_name: Annotated[str, doc("Container whose exit code counts; any when not given.")] = (
        ""
    )
    operator: Annotated[str, doc("In or NotIn the values.", required=True, values=(IN, NOT_IN))] = (
        IN
    )
    values: Annotated[list[int], doc("Exit codes.", required=True, minItems=1, maxItems=255)] = []


class PodConditionPattern(Wire):
    """A condition of a failed pod."""

    type: Annotated[
        str, doc("Type; only this one is read.", required=True, values=("DisruptionTarget",))
    ] = ""
    status: Annotated[str, doc("Status; True when not given.")] = "True"


class PodFailureRule(Wire):
    """What the failure of a pod leads to, if the rule applies to it."""

    action: Annotated[
        str,
        doc(
            "FailJob ends the job; Count (and Ignore) replaces the pod and counts a restart.",
            required=True,
            values=(FAIL_JOB, COUNT, IGNORE),
        ),
    ] = ""
    on_exit_codes: Annotated[ExitCodeRequirement | None, doc("Applies by exit code.")] = None
    on_pod_conditions: Annotated[
        list[PodConditionPattern], doc("Applies by conditions, of which one must hold.")
    ] = []


class PodFailurePolicy(Wire):
    """Rules for failed pods; the first that applies counts."""

    rules: Annotated[list[PodFailureRule], doc("Rules.", required=True, maxItems=20)] = []


class BatchJobSpec(Wire):
    """The fields of a batch Job; counts are set from the number of nodes."""

    template: Annotated[
        FreeForm, doc("Template of the pods.", required=True, shape=PodTemplateSpec)
    ] = {}
    backoff_limit: Annotated[
        int | None, doc("Restarts until the job fails; 6 when not given.", minimum=0)
    ] = None
    pod_failure_policy: Annotated[
        PodFailurePolicy | None,
        doc("Failures that end the job; needs the restart policy Never."),
    ] = None
    parallelism: Annotated[int | None, doc("Set from the number of nodes.")] = None
    completions: Annotated[int | None, doc("Set from the number of nodes.")] = None
    completion_mode: Annotated[str, doc("Always Indexed.", values=("", "Indexed"))] = ""
    pod_replacement_policy: Annotated[
        str,
        doc(
            "Failed or TerminatingOrFailed: either way a pod is replaced when it has ended.",
            values=("", "Failed", "TerminatingOrFailed"),
        ),
    ] = ""
    active_deadline_seconds: Annotated[int | None, _refused("the TrainJob has one")] = None
    backoff_limit_per_index: Annotated[int | None, _refused("use backoffLimit")] = None
    max_failed_indexes: Annotated[int | None, _refused("use backoffLimit")] = None
    success_policy: Annotated[FreeForm | None, _refused("use that of the JobSet")] = None
    suspend: Annotated[bool | None, _refused("suspend the TrainJob")] = None
    ttl_seconds_after_finished: Annotated[int | None, _refused("use that of the JobSet")] = None
    managed_by: Annotated[str | None, _refused("the TrainJob has it")] = None
    selector: Annotated[FreeForm | None, _refused("pods are found by their labels")] = None
    manual_selector: Annotated[bool | None, _refused("pods are found by their labels")] = None


class BatchJobTemplate(Wire):
    """Template of one replicated job."""

    metadata: Annotated[ObjectMeta, doc("Labels, such as the step.")] = ObjectMeta()
    spec: Annotated[BatchJobSpec, doc("The job.", required=True)] = BatchJobSpec()


class ReplicatedJob(Wire):
    """Pods of one role."""

    name: Annotated[str, doc("Name of the role.", required=True)] = ""
    group_name: Annotated[str, doc("Group.", default="default")] = ""
    replicas: Annotated[
        int | None, doc("Batch Jobs of the role; 1 of a step.", minimum=0, default=1)
    ] = None
    depends_on: Annotated[
        list[JobDependency], doc("Earlier jobs that this one waits for.", maxItems=5)
    ] = []
    template: Annotated[BatchJobTemplate, doc("Template.", required=True)] = BatchJobTemplate()

    @property
    def step(self) -> str:
        """The step of the TrainJob that overrides it; empty if none does."""
        return self.template.metadata.labels.get(ANCESTOR_LABEL, "")


class SetNetwork(Wire):
    """Names of the pods."""

    enable_dns_hostnames: Annotated[bool | None, doc("Pods have names; true when not given.")] = (
        msgspec.field(name="enableDNSHostnames", default=None)
    )
    subdomain: Annotated[
        str | None, doc("Name of the headless service; the job's when not given.")
    ] = None
    publish_not_ready_addresses: Annotated[
        bool | None, doc("Names of pods that are not ready resolve; true when not given.")
    ] = None


class SetSuccessPolicy(Wire):
    """Which replicated jobs must succeed."""

    operator: Annotated[str, doc("All (when not given) or Any of them.", values=("All", "Any"))] = (
        ""
    )
    target_replicated_jobs: Annotated[list[str], doc("Replicated jobs; all when not given.")] = []


FAIL_SET, RESTART_SET, RESTART_SET_FREELY = (
    "FailJobSet",
    "RestartJobSet",
    "RestartJobSetAndIgnoreMaxRestarts",
)
BACKOFF_LIMIT_EXCEEDED, BY_POD_FAILURE_POLICY = "BackoffLimitExceeded", "PodFailurePolicy"
FAILURE_REASONS = (
    BACKOFF_LIMIT_EXCEEDED,
    "DeadlineExceeded",
    "FailedIndexes",
    "MaxFailedIndexesExceeded",
    BY_POD_FAILURE_POLICY,
)


class SetFailureRule(Wire):
    """What the failure of a replicated job leads to, if the rule applies to it."""

    name: Annotated[str, doc("Name of the rule.", required=True)] = ""
    action: Annotated[
        str,
        doc(
            "FailJobSet ends the TrainJob. RestartJobSet restarts all pods, and counts; "
            "RestartJobSetAndIgnoreMaxRestarts does not count.",
            required=True,
            values=(FAIL_SET, RESTART_SET, RESTART_SET_FREELY),
        ),
    ] = ""
    target_replicated_jobs: Annotated[
        list[str], doc("Replicated jobs that it applies to; all when not given.")
    ] = []
    on_job_failure_reasons: Annotated[
        list[str],
        doc(
            "Reasons that it applies to; all when not given. PodFailurePolicy, or "
            "BackoffLimitExceeded for all other failures; the others do not occur."
        ),
    ] = []
    on_job_failure_message_patterns: Annotated[
        list[str], _refused("there are no batch Jobs, whose messages they match")
    ] = []


class SetFailurePolicy(Wire):
    """What happens when a replicated job fails."""

    max_restarts: Annotated[
        int | None, doc("Restarts of all pods together; none when not given.", minimum=0)
    ] = None
    restart_strategy: Annotated[
        str,
        doc(
            "Recreate or BlockingRecreate: either way all former pods end before new ones start.",
            values=("Recreate", "BlockingRecreate"),
            default="Recreate",
        ),
    ] = ""
    rules: Annotated[
        list[SetFailureRule],
        doc("The first rule that applies counts; else all pods restart.", maxItems=20),
    ] = []


class Coordinator(Wire):
    """The pod whose address all pods have as a label and an annotation."""

    replicated_job: Annotated[str, doc("Its replicated job.", required=True)] = ""
    job_index: Annotated[
        int | None, doc("Number of its batch Job; 0 when not given.", minimum=0)
    ] = None
    pod_index: Annotated[int | None, doc("Its index; 0 when not given.", minimum=0)] = None


class StartupPolicy(Wire):
    """In which order replicated jobs start."""

    startup_policy_order: Annotated[
        str,
        doc(
            "AnyOrder (when not given), or InOrder: each when the one before it is ready.",
            values=("AnyOrder", IN_ORDER),
        ),
    ] = ""


class RetentionPolicy(Wire):
    """What happens to claims when the job is deleted."""

    when_deleted: Annotated[str, doc("Only Delete.", values=("Delete",), default="Delete")] = ""


class VolumeClaimPolicy(Wire):
    """Claims that are made for the job; pods mount them by the name of the template."""

    templates: Annotated[list[PersistentVolumeClaim], doc("Templates of claims.", brief=True)] = []
    retention_policy: Annotated[RetentionPolicy | None, doc("Retention.")] = None


class JobSetSpec(Wire):
    """The replicated jobs of a training."""

    replicated_jobs: Annotated[
        list[ReplicatedJob], doc("Roles, in order.", required=True, keys=("name",))
    ] = []
    network: Annotated[SetNetwork | None, doc("Names of the pods.")] = None
    success_policy: Annotated[SetSuccessPolicy | None, doc("Success.")] = None
    startup_policy: Annotated[StartupPolicy | None, doc("Order; not with dependsOn.")] = None
    failure_policy: Annotated[SetFailurePolicy | None, doc("Failure.")] = None
    coordinator: Annotated[
        Coordinator | None, doc("Pod whose address becomes a label of all pods.")
    ] = None
    suspend: Annotated[bool | None, _refused("suspend the TrainJob")] = None
    managed_by: Annotated[str | None, _refused("the TrainJob has it")] = None
    ttl_seconds_after_finished: Annotated[
        int | None,
        doc("Seconds after its end until a TrainJob is deleted.", minimum=0),
    ] = None
    volume_claim_policies: Annotated[list[VolumeClaimPolicy], doc("Claims.")] = []


class JobSetTemplate(Wire):
    """Template of what a TrainJob runs."""

    metadata: Annotated[TemplateMeta, doc("Labels and annotations.")] = TemplateMeta()
    spec: Annotated[JobSetSpec, doc("The replicated jobs.", required=True)] = JobSetSpec()


class JobSet(Object):
    """A set of batch Jobs, defined for programs that watch the kind: Gangline runs none."""

    spec: Annotated[FreeForm, doc("That of the JobSet project.")] = {}
    status: Annotated[FreeForm, doc("Written by the controller of JobSets, if there is one.")] = {}


class TrainingRuntimeSpec(Wire):
    """What TrainJobs of this runtime run."""

    ml_policy: Annotated[MLPolicy, doc("Nodes and framework.")] = MLPolicy()
    pod_group_policy: Annotated[PodGroupPolicy | None, doc("Gang of the pods.")] = None
    scheduling: Annotated[
        FreeForm | None, _refused("pods are a gang in any case; use podGroupPolicy")
    ] = None
    template: Annotated[JobSetTemplate, doc("Template.", required=True)] = JobSetTemplate()


class TrainingRuntime(Object):
    """A runtime for the TrainJobs of its namespace."""

    spec: Annotated[TrainingRuntimeSpec, doc("Desired state.", required=True)] = (
        TrainingRuntimeSpec()
    )


class ClusterTrainingRuntime(Object):
    """A runtime for the TrainJobs of all namespaces."""

    spec: Annotated[TrainingRuntimeSpec, doc("Desired state.", required=True)] = (
        TrainingRuntimeSpec()
    )
