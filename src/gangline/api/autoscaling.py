"""HorizontalPodAutoscalers: how many replicas a workload gets, by what its pods use."""

from datetime import datetime
from typing import Annotated

import msgspec

from gangline.api.describe import Quantity, about
from gangline.api.meta import Condition, LabelSelector, Object, Wire

GROUP = "autoscaling"
METRIC_TYPES = ("ContainerResource", "External", "Object", "Pods", "Resource")
TARGET_TYPES = ("AverageValue", "Utilization", "Value")


class CrossVersionObjectReference(Wire):
    """The object that is meant, by kind and name."""

    api_version: Annotated[str, about("API version of the object.")] = ""
    kind: Annotated[str, about("Kind of the object.", required=True)] = ""
    name: Annotated[str, about("Name of the object.", required=True)] = ""


class MetricTarget(Wire):
    """What a measure is to be."""

    type: Annotated[str, about("Utilization, Value or AverageValue.", required=True)] = ""
    value: Annotated[Quantity | None, about("All pods together.")] = None
    average_value: Annotated[Quantity | None, about("Each pod on average.")] = None
    average_utilization: Annotated[
        int | None, about("Each pod on average, in percent of its request.")
    ] = None


class ResourceMetricSource(Wire):
    """What pods use of a resource."""

    name: Annotated[str, about("cpu or memory.", required=True)] = ""
    target: Annotated[MetricTarget, about("What it is to be.", required=True)] = MetricTarget()


class ContainerResourceMetricSource(Wire):
    """What one container of each pod uses of a resource."""

    name: Annotated[str, about("cpu or memory.", required=True)] = ""
    container: Annotated[str, about("Name of the container.", required=True)] = ""
    target: Annotated[MetricTarget, about("What it is to be.", required=True)] = MetricTarget()


class MetricIdentifier(Wire):
    """A measure by name."""

    name: Annotated[str, about("Name of the measure.", required=True)] = ""
    selector: Annotated[LabelSelector | None, about("Labels of the measure.")] = None


class PodsMetricSource(Wire):
    """A measure that pods tell of themselves."""

    metric: Annotated[MetricIdentifier, about("Which.", required=True)] = MetricIdentifier()
    target: Annotated[MetricTarget, about("What it is to be.", required=True)] = MetricTarget()


class ObjectMetricSource(Wire):
    """A measure of one object."""

    described_object: Annotated[
        CrossVersionObjectReference, about("The object.", required=True)
    ] = CrossVersionObjectReference()
    metric: Annotated[MetricIdentifier, about("Which.", required=True)] = MetricIdentifier()
    target: Annotated[MetricTarget, about("What it is to be.", required=True)] = MetricTarget()


class ExternalMetricSource(Wire):
    """A measure from outside the cluster."""

    metric: Annotated[MetricIdentifier, about("Which.", required=True)] = MetricIdentifier()
    target: Annotated[MetricTarget, about("What it is to be.", required=True)] = MetricTarget()


class MetricSpec(Wire):
    """One measure to scale by."""

    type: Annotated[str, about("Which of the sorts below.", required=True)] = ""
    resource: Annotated[ResourceMetricSource | None, about("A resource of pods.")] = None
    container_resource: Annotated[
        ContainerResourceMetricSource | None, about("A resource of one container.")
    ] = None
    pods: Annotated[PodsMetricSource | None, about("A measure of pods.")] = None
    object: Annotated[ObjectMetricSource | None, about("A measure of an object.")] = None
    external: Annotated[ExternalMetricSource | None, about("A measure from outside.")] = None


class ScalingPolicy(Wire):
    """How much may change in how long."""

    type: Annotated[str, about("Pods or Percent.", required=True)] = ""
    value: Annotated[int, about("How many, above zero.", required=True)] = 0
    period_seconds: Annotated[int, about("In how many seconds, 1 to 1800.", required=True)] = 0


class ScalingRules(Wire):
    """How fast replicas change in one direction."""

    stabilization_window_seconds: Annotated[
        int | None, about("Seconds to look back on; 0 up, 300 down.")
    ] = None
    select_policy: Annotated[str, about("Max, Min or Disabled.")] = ""
    policies: Annotated[list[ScalingPolicy], about("Limits.")] = []
    tolerance: Annotated[Quantity | None, about("Deviation that changes nothing.")] = None


class Behavior(Wire):
    """How fast replicas change."""

    scale_up: Annotated[ScalingRules | None, about("Upwards.")] = None
    scale_down: Annotated[ScalingRules | None, about("Downwards.")] = None


class HorizontalPodAutoscalerSpec(Wire):
    """What to scale, between which bounds, by what."""

    scale_target_ref: Annotated[
        CrossVersionObjectReference, about("The workload.", required=True)
    ] = CrossVersionObjectReference()
    min_replicas: Annotated[int | None, about("At least so many; 1 when not given.")] = None
    max_replicas: Annotated[int, about("At most so many.", required=True)] = 0
    metrics: Annotated[list[MetricSpec], about("Measures; 80% of the cpu when none.")] = []
    behavior: Annotated[Behavior | None, about("How fast.")] = None


class MetricValue(Wire):
    """What a measure is."""

    value: Annotated[Quantity | None, about("All pods together.")] = None
    average_value: Annotated[Quantity | None, about("Each pod on average.")] = None
    average_utilization: Annotated[int | None, about("In percent of the request.")] = None


class ResourceMetricStatus(Wire):
    """What pods use of a resource now."""

    name: Annotated[str, about("cpu or memory.", required=True)] = ""
    current: Annotated[MetricValue, about("What it is.", required=True)] = MetricValue()


class ContainerResourceMetricStatus(Wire):
    """What one container of each pod uses of a resource now."""

    name: Annotated[str, about("cpu or memory.", required=True)] = ""
    container: Annotated[str, about("Name of the container.", required=True)] = ""
    current: Annotated[MetricValue, about("What it is.", required=True)] = MetricValue()


class PodsMetricStatus(Wire):
    """A measure of pods now."""

    metric: Annotated[MetricIdentifier, about("Which.", required=True)] = MetricIdentifier()
    current: Annotated[MetricValue, about("What it is.", required=True)] = MetricValue()


class ObjectMetricStatus(Wire):
    """A measure of an object now."""

    metric: Annotated[MetricIdentifier, about("Which.", required=True)] = MetricIdentifier()
    current: Annotated[MetricValue, about("What it is.", required=True)] = MetricValue()
    described_object: Annotated[
        CrossVersionObjectReference, about("The object.", required=True)
    ] = CrossVersionObjectReference()


class MetricStatus(Wire):
    """One measure now."""

    type: Annotated[str, about("Which of the sorts below.", required=True)] = ""
    resource: Annotated[ResourceMetricStatus | None, about("A resource of pods.")] = None
    container_resource: Annotated[
        ContainerResourceMetricStatus | None, about("A resource of one container.")
    ] = None
    pods: Annotated[PodsMetricStatus | None, about("A measure of pods.")] = None
    object: Annotated[ObjectMetricStatus | None, about("A measure of an object.")] = None
    external: Annotated[PodsMetricStatus | None, about("A measure from outside.")] = None


class HorizontalPodAutoscalerStatus(Wire):
    """What the autoscaler saw and did last."""

    observed_generation: Annotated[int | None, about("Generation that this is about.")] = None
    last_scale_time: Annotated[datetime | None, about("When it changed replicas last.")] = None
    current_replicas: Annotated[int, about("Replicas it saw.")] = 0
    desired_replicas: Annotated[int, about("Replicas it wants.")] = 0
    current_metrics: Annotated[list[MetricStatus], about("Measures it saw.")] = []
    conditions: Annotated[list[Condition], about("What holds of it.", keys=("type",))] = []


class HorizontalPodAutoscaler(Object):
    """Scales a workload by what its pods use."""

    spec: Annotated[HorizontalPodAutoscalerSpec, about("What to scale.")] = (
        HorizontalPodAutoscalerSpec()
    )
    status: Annotated[HorizontalPodAutoscalerStatus, about("What it did.")] = (
        HorizontalPodAutoscalerStatus()
    )


class HorizontalPodAutoscalerSpecV1(Wire):
    """What to scale, between which bounds, by the share of the processor."""

    scale_target_ref: Annotated[
        CrossVersionObjectReference, about("The workload.", required=True)
    ] = CrossVersionObjectReference()
    min_replicas: Annotated[int | None, about("At least so many; 1 when not given.")] = None
    max_replicas: Annotated[int, about("At most so many.", required=True)] = 0
    target_cpu_utilization_percentage: Annotated[
        int | None, about("Percent of the cpu requested; 80 when not given.")
    ] = msgspec.field(name="targetCPUUtilizationPercentage", default=None)


class HorizontalPodAutoscalerStatusV1(Wire):
    """What the autoscaler saw and did last."""

    observed_generation: Annotated[int | None, about("Generation that this is about.")] = None
    last_scale_time: Annotated[datetime | None, about("When it changed replicas last.")] = None
    current_replicas: Annotated[int, about("Replicas it saw.")] = 0
    desired_replicas: Annotated[int, about("Replicas it wants.")] = 0
    current_cpu_utilization_percentage: Annotated[
        int | None, about("Percent of the cpu requested.")
    ] = msgspec.field(name="currentCPUUtilizationPercentage", default=None)


class HorizontalPodAutoscalerV1(Object):
    """The older face of an autoscaler."""

    spec: Annotated[HorizontalPodAutoscalerSpecV1, about("What to scale.")] = (
        HorizontalPodAutoscalerSpecV1()
    )
    status: Annotated[HorizontalPodAutoscalerStatusV1, about("What it did.")] = (
        HorizontalPodAutoscalerStatusV1()
    )
