"""Deployments and ReplicaSets: a fixed number of equal pods."""

from typing import Annotated

from gangline.api.describe import IntOrString, about
from gangline.api.meta import Condition, LabelSelector, Object, Wire
from gangline.api.pod import PodTemplateSpec


class RollingUpdateDeployment(Wire):
    """The pace of a rolling update."""

    max_unavailable: Annotated[
        IntOrString | None, about("Maximum number of unavailable pods; 25% when not given.")
    ] = None
    max_surge: Annotated[
        IntOrString | None, about("Maximum number of extra pods; 25% when not given.")
    ] = None


class DeploymentStrategy(Wire):
    """How a deployment replaces pods when its template changes."""

    type: Annotated[
        str,
        about("RollingUpdate when not given.", values=("RollingUpdate", "Recreate")),
    ] = ""
    rolling_update: Annotated[RollingUpdateDeployment | None, about("Pace of the update.")] = None


class DeploymentSpec(Wire):
    """The desired state of a deployment."""

    replicas: Annotated[int | None, about("Number of pods; 1 when not given.")] = None
    selector: Annotated[LabelSelector, about("Labels of its pods.", required=True)] = (
        LabelSelector()
    )
    template: Annotated[PodTemplateSpec, about("Template of its pods.", required=True)] = (
        PodTemplateSpec()
    )
    strategy: Annotated[DeploymentStrategy, about("How pods are replaced.")] = DeploymentStrategy()
    min_ready_seconds: Annotated[
        int, about("Seconds that a pod must be ready to be available.")
    ] = 0
    revision_history_limit: Annotated[
        int | None, about("Number of old ReplicaSets retained; 10.")
    ] = None
    paused: Annotated[bool, about("Pause the roll-out.")] = False
    progress_deadline_seconds: Annotated[
        int | None, about("Seconds until a roll-out without progress has failed; 600.")
    ] = None


class DeploymentStatus(Wire):
    """The observed state of a deployment."""

    observed_generation: Annotated[int, about("Generation that was observed.")] = 0
    replicas: Annotated[int, about("Number of pods.")] = 0
    updated_replicas: Annotated[int, about("Of them, from the current template.")] = 0
    ready_replicas: Annotated[int, about("Of them, ready.")] = 0
    available_replicas: Annotated[int, about("Of them, available.")] = 0
    unavailable_replicas: Annotated[int, about("Pods that are unavailable.")] = 0
    terminating_replicas: Annotated[int | None, about("Pods that are terminating.")] = None
    collision_count: Annotated[int | None, about("Clashes of ReplicaSet names.")] = None
    conditions: Annotated[list[Condition], about("Current conditions.", keys=("type",))] = []


class Deployment(Object):
    """Keeps a number of equal pods, and replaces them when the template changes."""

    spec: Annotated[DeploymentSpec, about("Desired state.")] = DeploymentSpec()
    status: Annotated[DeploymentStatus, about("Observed state.")] = DeploymentStatus()


class ReplicaSetSpec(Wire):
    """The desired state of a ReplicaSet."""

    replicas: Annotated[int | None, about("Number of pods; 1 when not given.")] = None
    min_ready_seconds: Annotated[
        int, about("Seconds that a pod must be ready to be available.")
    ] = 0
    selector: Annotated[LabelSelector, about("Labels of its pods.", required=True)] = (
        LabelSelector()
    )
    template: Annotated[PodTemplateSpec, about("Template of its pods.")] = PodTemplateSpec()


class ReplicaSetStatus(Wire):
    """The observed state of a ReplicaSet."""

    replicas: Annotated[int, about("Number of pods.", required=True)] = 0
    fully_labeled_replicas: Annotated[int, about("Of them, with the template's labels.")] = 0
    ready_replicas: Annotated[int, about("Of them, ready.")] = 0
    available_replicas: Annotated[int, about("Of them, available.")] = 0
    terminating_replicas: Annotated[int | None, about("Pods that are terminating.")] = None
    observed_generation: Annotated[int, about("Generation that was observed.")] = 0
    conditions: Annotated[list[Condition], about("Current conditions.", keys=("type",))] = []


class ReplicaSet(Object):
    """Keeps a number of equal pods."""

    spec: Annotated[ReplicaSetSpec, about("Desired state.")] = ReplicaSetSpec()
    status: Annotated[ReplicaSetStatus, about("Observed state.")] = ReplicaSetStatus()
