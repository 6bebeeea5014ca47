"""Deployments and ReplicaSets: pods kept in number."""

from typing import Annotated

from gangline.api.describe import IntOrString, about
from gangline.api.meta import Condition, LabelSelector, Object, Wire
from gangline.api.pod import PodTemplateSpec


class RollingUpdateDeployment(Wire):
    """How fast a deployment changes over."""

    max_unavailable: Annotated[
        IntOrString | None, about("How many may be missing; 25% when not given.")
    ] = None
    max_surge: Annotated[
        IntOrString | None, about("How many may be extra; 25% when not given.")
    ] = None


class DeploymentStrategy(Wire):
    """How a deployment changes over to a new template."""

    type: Annotated[
        str,
        about("RollingUpdate when not given.", values=("RollingUpdate", "Recreate")),
    ] = ""
    rolling_update: Annotated[RollingUpdateDeployment | None, about("How fast.")] = None


class DeploymentSpec(Wire):
    """Which pods a deployment keeps."""

    replicas: Annotated[int | None, about("How many; 1 when not given.")] = None
    selector: Annotated[LabelSelector, about("Labels of its pods.", required=True)] = (
        LabelSelector()
    )
    template: Annotated[PodTemplateSpec, about("What its pods look like.", required=True)] = (
        PodTemplateSpec()
    )
    strategy: Annotated[DeploymentStrategy, about("How to change over.")] = DeploymentStrategy()
    min_ready_seconds: Annotated[int, about("Ready for so long counts as available.")] = 0
    revision_history_limit: Annotated[int | None, about("Old versions kept; 10.")] = None
    paused: Annotated[bool, about("Do not change over for now.")] = False
    progress_deadline_seconds: Annotated[int | None, about("When a change failed; 600.")] = None


class DeploymentStatus(Wire):
    """How far a deployment is."""

    observed_generation: Annotated[int, about("Generation that this is about.")] = 0
    replicas: Annotated[int, about("Pods there are.")] = 0
    updated_replicas: Annotated[int, about("Of them, from the current template.")] = 0
    ready_replicas: Annotated[int, about("Of them, ready.")] = 0
    available_replicas: Annotated[int, about("Of them, available.")] = 0
    unavailable_replicas: Annotated[int, about("Still missing.")] = 0
    terminating_replicas: Annotated[int | None, about("Still going.")] = None
    collision_count: Annotated[int | None, about("Clashes of ReplicaSet names.")] = None
    conditions: Annotated[list[Condition], about("What holds of it.", keys=("type",))] = []


class Deployment(Object):
    """Keeps a number of equal pods, and changes them over to new versions."""

    spec: Annotated[DeploymentSpec, about("Which pods.")] = DeploymentSpec()
    status: Annotated[DeploymentStatus, about("How far it is.")] = DeploymentStatus()


class ReplicaSetSpec(Wire):
    """Which pods a ReplicaSet keeps."""

    replicas: Annotated[int | None, about("How many; 1 when not given.")] = None
    min_ready_seconds: Annotated[int, about("Ready for so long counts as available.")] = 0
    selector: Annotated[LabelSelector, about("Labels of its pods.", required=True)] = (
        LabelSelector()
    )
    template: Annotated[PodTemplateSpec, about("What its pods look like.")] = PodTemplateSpec()


class ReplicaSetStatus(Wire):
    """How far a ReplicaSet is."""

    replicas: Annotated[int, about("Pods there are.", required=True)] = 0
    fully_labeled_replicas: Annotated[int, about("Of them, with the template's labels.")] = 0
    ready_replicas: Annotated[int, about("Of them, ready.")] = 0
    available_replicas: Annotated[int, about("Of them, available.")] = 0
    terminating_replicas: Annotated[int | None, about("Still going.")] = None
    observed_generation: Annotated[int, about("Generation that this is about.")] = 0
    conditions: Annotated[list[Condition], about("What holds of it.", keys=("type",))] = []


class ReplicaSet(Object):
    """Keeps a number of equal pods."""

    spec: Annotated[ReplicaSetSpec, about("Which pods.")] = ReplicaSetSpec()
    status: Annotated[ReplicaSetStatus, about("How far it is.")] = ReplicaSetStatus()
