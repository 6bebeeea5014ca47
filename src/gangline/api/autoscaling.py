"""HorizontalPodAutoscalers: the number of replicas of a workload follows the usage of its pods."""

from datetime import datetime
from typing import Annotated

import msgspec

from gangline.api.describe import Quantity, about
from gangline.api.meta import Condition, LabelSelector, Object, Wire

GROUP = "autoscaling"
METRIC_TYPES = ("ContainerResource", "External", "Object", "Pods", "Resource")
TARGET_TYPES = ("AverageValue", "Utilization", "Value")


class CrossVersionObjectReference(Wire):
    """A reference to an object by kind and name."""

    api_version: Annotated[str, about("API version of the object.")] = ""
    kind: Annotated[str, about("Kind of the object.", required=True)] = ""
    name: Annotated[str, about("Name of the object.", required=True)] = ""


class MetricTarget(Wire):
    """The target value of a metric."""

    type: Annotated[str, about("Utilization, Value or AverageValue.", required=True)] = ""
    value: Annotated[Quantity | None, about("Sum over all pods.")] = None
    average_value: Annotated[Quantity | None, about("Average per pod.")] = None
    average_utilization: Annotated[
        int | None, about("Average per pod, in percent of its request.")
    ] = None


class ResourceMetricSource(Wire):
    """The usage of a resource by pods."""

    name: Annotated[str, about("cpu or memory.", required=True)] = ""
    target: Annotated[MetricTarget, about("Target value.", required=True)] = MetricTarget()


class ContainerResourceMetricSource(Wire):
    """The usage of a resource by one container of each pod."""

    name: Annotated[str, about("cpu or memory.", required=True)] = ""
    container: Annotated[str, about("Name of the container.", required=True)] = ""
    target: Annotated[MetricTarget, about("Target value.", required=True)] = MetricTarget()


class MetricIdentifier(Wire):
    """A metric by name."""

    name: Annotated[str, about("Name of the metric.", required=True)] = ""
    selector: Annotated[LabelSelector | None, about("Labels of the metric.")] = None


class PodsMetricSource(Wire):
    """A metric that pods report."""

    metric: Annotated[MetricIdentifier, about("The metric.", required=True)] = MetricIdentifier()
    target: Annotated[MetricTarget, about("Target value.", required=True)] = MetricTarget()


class ObjectMetricSource(Wire):
    """A metric of one object."""

    described_object: Annotated[
        CrossVersionObjectReference, about("The object.", required=True)
    ] = CrossVersionObjectReference()
    metric: Annotated[MetricIdentifier, about("The metric.", required=True)] = MetricIdentifier()
    target: Annotated[MetricTarget, about("Target value.", required=True)] = MetricTarget()


class ExternalMetricSource(Wire):
    """A metric from outside the cluster."""

    metric: Annotated[MetricIdentifier, about("The metric.", required=True)] = MetricIdentifier()
    target: Annotated[MetricTarget, about("Target value.", required=True)] = MetricTarget()


class MetricSpec(Wire):
    """One metric to scale by."""

    type: Annotated[str, about("Name of the field below that is set.", required=True)] = ""
    resource: Annotated[ResourceMetricSource | None, about("A resource of pods.")] = None
    container_resource: Annotated[
        ContainerResourceMetricSource | None, about("A resource of one container.")
    ] = None
    pods: Annotated[PodsMetricSource | None, about("A metric of pods.")] = None
    object: Annotated[ObjectMetricSource | None, about("A metric of an object.")] = None
    external: Annotated[ExternalMetricSource | None, about("An external metric.")] = None


class ScalingPolicy(Wire):
    """The largest change within a period."""

    type: Annotated[str, about("Pods or Percent.", required=True)] = ""
    value: Annotated[int, about("Largest change, above zero.", required=True)] = 0
    period_seconds: Annotated[
        int, about("Length of the period in seconds, 1 to 1800.", required=True)
    ] = 0


class ScalingRules(Wire):
    """How fast the number of replicas changes in one direction."""

    stabilization_window_seconds: Annotated[
        int | None, about("Seconds of past recommendations that count; 0 up, 300 down.")
    ] = None
    select_policy: Annotated[str, about("Max, Min or Disabled.")] = ""
    policies: Annotated[list[ScalingPolicy], about("Limits.")] = []
    tolerance: Annotated[Quantity | None, about("Deviation that causes no change.")] = None


class Behavior(Wire):
    """How fast the number of replicas changes."""

    scale_up: Annotated[ScalingRules | None, about("Rules for scaling up.")] = None
    scale_down: Annotated[ScalingRules | None, about("Rules for scaling down.")] = None


class HorizontalPodAutoscalerSpec(Wire):
    """The workload to scale, its bounds and its metrics."""

    scale_target_ref: Annotated[
        CrossVersionObjectReference, about("The workload.", required=True)
    ] = CrossVersionObjectReference()
    min_replicas: Annotated[int | None, about("Minimum number; 1 when not given.")] = None
    max_replicas: Annotated[int, about("Maximum number.", required=True)] = 0
    metrics: Annotated[list[MetricSpec], about("Metrics; 80% of the cpu when none.")] = []
    behavior: Annotated[Behavior | None, about("Pace of scaling.")] = None


class MetricValue(Wire):
    """The current value of a metric."""

    value: Annotated[Quantity | None, about("Sum over all pods.")] = None
    average_value: Annotated[Quantity | None, about("Average per pod.")] = None
    average_utilization: Annotated[int | None, about("In percent of the request.")] = None


class ResourceMetricStatus(Wire):
    """The current usage of a resource by pods."""

    name: Annotated[str, about("cpu or memory.", required=True)] = ""
    current: Annotated[MetricValue, about("Current value.", required=True)] = MetricValue()


class ContainerResourceMetricStatus(Wire):
    """The current usage of a resource by one container of each pod."""

    name: Annotated[str, about("cpu or memory.", required=True)] = ""
    container: Annotated[str, about("Name of the container.", required=True)] = ""
    current: Annotated[MetricValue, about("Current value.", required=True)] = MetricValue()


class PodsMetricStatus(Wire):
    """The current value of a metric of pods."""

    metric: Annotated[MetricIdentifier, about("The metric.", required=True)] = MetricIdentifier()
    current: Annotated[MetricValue, about("Current value.", required=True)] = MetricValue()


class ObjectMetricStatus(Wire):
    """The current value of a metric of an object."""

    metric: Annotated[MetricIdentifier, about("The metric.", required=True)] = MetricIdentifier()
    current: Annotated[MetricValue, about("Current value.", required=True)] = MetricValue()
    described_object: Annotated[
        CrossVersionObjectReference, about("The object.", required=True)
    ] = CrossVersionObjectReference()


class MetricStatus(Wire):
    """The current value of one metric."""

    type: Annotated[str, about("Name of the field below that is set.", required=True)] = ""
    resource: Annotated[ResourceMetricStatus | None, about("A resource of pods.")] = None
    container_resource: Annotated[
        ContainerResourceMetricStatus | None, about("A resource of one container.")
    ] = None
    pods: Annotated[PodsMetricStatus | None, about("A metric of pods.")] = None
    object: Annotated[ObjectMetricStatus | None, about("A metric of an object.")] = None
    external: Annotated[PodsMetricStatus | None, about("An external metric.")] = None


class HorizontalPodAutoscalerStatus(Wire):
    """The last observation and decision of the autoscaler."""

    observed_generation: Annotated[int | None, about("Generation that was observed.")] = None
    last_scale_time: Annotated[datetime | None, about("Time of the last change of replicas.")] = (
        None
    )
    current_replicas: Annotated[int, about("Observed replicas.")] = 0
    desired_replicas: Annotated[int, about("Desired replicas.")] = 0
    current_metrics: Annotated[list[MetricStatus], about("Observed metrics.")] = []
    conditions: Annotated[list[Condition], about("Current conditions.", keys=("type",))] = []


class HorizontalPodAutoscaler(Object):
    """Scales a workload by the usage of its pods."""

    spec: Annotated[HorizontalPodAutoscalerSpec, about("Desired state.")] = (
        HorizontalPodAutoscalerSpec()
    )
    status: Annotated[HorizontalPodAutoscalerStatus, about("Observed state.")] = (
        HorizontalPodAutoscalerStatus()
    )


class HorizontalPodAutoscalerSpecV1(Wire):
    """The workload to scale, its bounds and its cpu target."""

    scale_target_ref: Annotated[
        CrossVersionObjectReference, about("The workload.", required=True)
    ] = CrossVersionObjectReference()
    min_replicas: Annotated[int | None, about("Minimum number; 1 when not given.")] = None
    max_replicas: Annotated[int, about("Maximum number.", required=True)] = 0
    target_cpu_utilization_percentage: Annotated[
        int | None, about("Percent of the cpu requested; 80 when not given.")
    ] = msgspec.field(name="targetCPUUtilizationPercentage", default=None)


class HorizontalPodAutoscalerStatusV1(Wire):
    """The last observation and decision of the autoscaler."""

    observed_generation: Annotated[int | None, about("Generation that was observed.")] = None
    last_scale_time: Annotated[datetime | None, about("Time of the last change of replicas.")] = (
        None
    )
    current_replicas: Annotated[int, about("Observed replicas.")] = 0
    desired_replicas: Annotated[int, about("Desired replicas.")] = 0
    current_cpu_utilization_percentage: Annotated[
        int | None, about("Percent of the cpu requested.")
    ] = msgspec.field(name="currentCPUUtilizationPercentage", default=None)


class HorizontalPodAutoscalerV1(Object):
    """The autoscaling/v1 form of a HorizontalPodAutoscaler."""

    spec: Annotated[HorizontalPodAutoscalerSpecV1, about("Desired state.")] = (
        HorizontalPodAutoscalerSpecV1()
    )
    status: Annotated[HorizontalPodAutoscalerStatusV1, about("Observed state.")] = (
        HorizontalPodAutoscalerStatusV1()
    )
