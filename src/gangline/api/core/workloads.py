"""Deployments and ReplicaSets: a fixed number of equal pods."""

from typing import Annotated

from gangline.api.core.pod import PodTemplateSpec
from gangline.api.meta.field_doc import IntOrString, doc
from gangline.api.meta.objects import Condition, LabelSelector, Object, Wire

JOB_UID_LABEL = "batch.kubernetes.io/controller-uid"
"""Label of the pods of a batch/v1 Job with its uid, which the Job selects."""


class RollingUpdateDeployment(Wire):
    """The pace of a rolling update."""

    max_unavailable: Annotated[
        IntOrString | None, doc("Maximum number of unavailable pods; 25% when not given.")
    ] = None
    max_surge: Annotated[
        IntOrString | None, doc("Maximum number of extra pods; 25% when not given.")
    ] = None


class DeploymentStrategy(Wire):
    """How a deployment replaces pods when its template changes."""

    type: Annotated[
        str,
        doc("RollingUpdate when not given.", values=("RollingUpdate", "Recreate")),
    ] = ""
    rolling_update: Annotated[RollingUpdateDeployment | None, doc("Pace of the update.")] = None


class DeploymentSpec(Wire):
    """The desired state of a deployment."""

    replicas: Annotated[int | None, doc("Number of pods; 1 when not given.")] = None
    selector: Annotated[LabelSelector, doc("Labels of its pods.", required=True)] = LabelSelector()
    template: Annotated[PodTemplateSpec, doc("Template of its pods.", required=True)] = (
        PodTemplateSpec()
    )
    strategy: Annotated[DeploymentStrategy, doc("How pods are replaced.")] = DeploymentStrategy()
    min_ready_seconds: Annotated[int, doc("Seconds that a pod must be ready to be available.")] = 0
    revision_history_limit: Annotated[
        int | None, doc("Number of old ReplicaSets retained; 10.")
    ] = None
    paused: Annotated[bool, doc("Pause the roll-out.")] = False
    progress_deadline_seconds: Annotated[
        int | None, doc("Seconds until a roll-out without progress has failed; 600.")
    ] = None


class DeploymentStatus(Wire):
    """The observed state of a deployment."""

    observed_generation: Annotated[int, doc("Generation that was observed.")] = 0
    replicas: Annotated[int, doc("Number of pods.")] = 0
    updated_replicas: Annotated[int, doc("Of them, from the current template.")] = 0
    ready_replicas: Annotated[int, doc("Of them, ready.")] = 0
    available_replicas: Annotated[int, doc("Of them, available.")] = 0
    unavailable_replicas: Annotated[int, doc("Pods that are unavailable.")] = 0
    terminating_replicas: Annotated[int | None, doc("Pods that are terminating.")] = None
    collision_count: Annotated[int | None, doc("Clashes of ReplicaSet names.")] = None
    conditions: Annotated[list[Condition], doc("Current conditions.", keys=("type",))] = []


class Deployment(Object):
    """Keeps a number of equal pods, and replaces them when the template changes."""

    spec: Annotated[DeploymentSpec, doc("Desired state.")] = DeploymentSpec()
    status: Annotated[DeploymentStatus, doc("Observed state.")] = DeploymentStatus()


class ReplicaSetSpec(Wire):
    """The desired state of a ReplicaSet."""

    replicas: Annotated[int | None, doc("Number of pods; 1 when not given.")] = None
    min_ready_seconds: Annotated[int, doc("Seconds that a pod must be ready to be available.")] = 0
    selector: Annotated[LabelSelector, doc("Labels of its pods.", required=True)] = LabelSelector()
    template: Annotated[PodTemplateSpec, doc("Template of its pods.")] = PodTemplateSpec()


class ReplicaSetStatus(Wire):
    """The observed state of a ReplicaSet."""

    replicas: Annotated[int, doc("Number of pods.", required=True)] = 0
    fully_labeled_replicas: Annotated[int, doc("Of them, with the template's labels.")] = 0
    ready_replicas: Annotated[int, doc("Of them, ready.")] = 0
    available_replicas: Annotated[int, doc("Of them, available.")] = 0
    terminating_replicas: Annotated[int | None, doc("Pods that are terminating.")] = None
    observed_generation: Annotated[int, doc("Generation that was observed.")] = 0
    conditions: Annotated[list[Condition], doc("Current conditions.", keys=("type",))] = []


class ReplicaSet(Object):
    """Keeps a number of equal pods."""

    spec: Annotated[ReplicaSetSpec, doc("Desired state.")] = ReplicaSetSpec()
    status: Annotated[ReplicaSetStatus, doc("Observed state.")] = ReplicaSetStatus()
