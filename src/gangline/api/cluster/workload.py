"""Kubernetes' own gangs (``scheduling.k8s.io``): Workload, and PodGroup as a run of its template.

Kubernetes serves them from 1.37 on, with the feature gate GenericWorkload. A pod names its PodGroup
in ``spec.schedulingGroup.podGroupName``. Composite groups and shared claims of devices, which have
gates of their own, are not described.
"""

from typing import Annotated

from gangline.api.meta.field_doc import FreeForm, doc
from gangline.api.meta.objects import Condition, Object, Wire

GROUP = "scheduling.k8s.io"
VERSION = "v1beta1"
INITIALLY_SCHEDULED = "PodGroupInitiallyScheduled"
"""Condition: whether the group got its nodes. Once True it stays True."""


class GangPolicy(Wire):
    """Pods are placed together or not at all."""

    min_count: Annotated[
        int, doc("Pods that must fit together, or none is placed.", required=True, minimum=1)
    ] = 0


class GroupSchedulingPolicy(Wire):
    """How the pods of a group are placed: exactly one field is set."""

    basic: Annotated[FreeForm | None, doc("Pods are placed one by one.")] = None
    gang: Annotated[GangPolicy | None, doc("Pods are placed together or not at all.")] = None


class TopologyConstraint(Wire):
    """All pods of the group run on nodes with the same value of a label."""

    key: Annotated[str, doc("The node label.", required=True)] = ""


class GroupSchedulingConstraints(Wire):
    """Where the pods of a group may run."""

    topology: Annotated[
        list[TopologyConstraint], doc("Topology constraints; at most one.", maxItems=1)
    ] = []


class DisruptionMode(Wire):
    """What is evicted together: exactly one field is set."""

    single: Annotated[FreeForm | None, doc("Pods are evicted one by one.")] = None
    all: Annotated[FreeForm | None, doc("All pods are evicted together.")] = None


class GroupRequirements(Wire):
    """What a group of pods and its template have in common."""

    scheduling_policy: Annotated[
        GroupSchedulingPolicy, doc("How its pods are placed.", required=True)
    ] = GroupSchedulingPolicy()
    scheduling_constraints: Annotated[
        GroupSchedulingConstraints | None, doc("Where its pods may run.")
    ] = None
    disruption_mode: Annotated[
        DisruptionMode | None, doc("What is evicted together; single pods when not given.")
    ] = None
    priority_class_name: Annotated[str, doc("Class that its priority comes from.")] = ""
    priority: Annotated[int | None, doc("Its priority; filled in from the class.")] = None


class PodGroupTemplate(GroupRequirements):
    """The requirements of groups that are made from a Workload."""

    name: Annotated[str, doc("Name in the Workload.", required=True)] = ""


class ControllerReference(Wire):
    """The object that a Workload is for."""

    api_group: Annotated[str, doc("API group; empty for core kinds.")] = ""
    kind: Annotated[str, doc("Kind.", required=True)] = ""
    name: Annotated[str, doc("Name.", required=True)] = ""


class WorkloadSpec(Wire):
    """The groups that a workload consists of."""

    controller_ref: Annotated[
        ControllerReference | None, doc("The object that the Workload is for.")
    ] = None
    pod_group_templates: Annotated[
        list[PodGroupTemplate],
        doc("Templates of its groups.", required=True, keys=("name",), minItems=1, maxItems=8),
    ] = []


class Workload(Object):
    """Templates of the groups of pods that one controller creates."""

    spec: Annotated[WorkloadSpec, doc("Desired state.", required=True)] = WorkloadSpec()


class WorkloadReference(Wire):
    """The template that a group is made from."""

    workload_name: Annotated[str, doc("Name of the Workload.", required=True)] = ""
    template_name: Annotated[str, doc("Name of its template.", required=True)] = ""


class KubernetesPodGroupSpec(GroupRequirements):
    """The requirements of a group of pods."""

    workload_ref: Annotated[WorkloadReference | None, doc("The template it is made from.")] = None


class KubernetesPodGroupStatus(Wire):
    """The observed state of a group of pods."""

    conditions: Annotated[
        list[Condition],
        doc("PodGroupInitiallyScheduled and DisruptionTarget.", keys=("type",)),
    ] = []


class KubernetesPodGroup(Object):
    """Pods that are scheduled together, by one policy."""

    spec: Annotated[KubernetesPodGroupSpec, doc("Desired state.", required=True)] = (
        KubernetesPodGroupSpec()
    )
    status: Annotated[KubernetesPodGroupStatus, doc("Observed state.")] = KubernetesPodGroupStatus()
