"""HorizontalPodAutoscalers: the number of replicas of a workload follows the usage of its pods."""

from datetime import datetime
from typing import Annotated

import msgspec

from gangline.api.meta.field_doc import Quantity, doc
from gangline.api.meta.objects import Condition, LabelSelector, Object, Wire

GROUP = "autoscaling"
METRIC_TYPES = ("ContainerResource", "External", "Object", "Pods", "Resource")
TARGET_TYPES = ("AverageValue", "Utilization", "Value")


class CrossVersionObjectReference(Wire):
    """A reference to an object by kind and name."""

    api_version: Annotated[str, doc("API version of the object.")] = ""
    kind: Annotated[str, doc("Kind of the object.", required=True)] = ""
    name: Annotated[str, doc("Name of the object.", required=True)] = ""


class MetricTarget(Wire):
    """The target value of a metric."""

    type: Annotated[str, doc("Utilization, Value or AverageValue.", required=True)] = ""
    value: Annotated[Quantity | None, doc("Sum over all pods.")] = None
    average_value: Annotated[Quantity | None, doc("Average per pod.")] = None
    average_utilization: Annotated[
        int | None, doc("Average per pod, in percent of its request.")
    ] = None


class ResourceMetricSource(Wire):
    """The usage of a resource by pods."""

    name: Annotated[str, doc("cpu or memory.", required=True)] = ""
    target: Annotated[MetricTarget, doc("Target value.", required=True)] = MetricTarget()


class ContainerResourceMetricSource(Wire):
    """The usage of a resource by one container of each pod."""

    name: Annotated[str, doc("cpu or memory.", required=True)] = ""
    container: Annotated[str, doc("Name of the container.", required=True)] = ""
    target: Annotated[MetricTarget, doc("Target value.", required=True)] = MetricTarget()


class MetricIdentifier(Wire):
    """A metric by name."""

    name: Annotated[str, doc("Name of the metric.", required=True)] = ""
    selector: Annotated[LabelSelector | None, doc("Labels of the metric.")] = None


class PodsMetricSource(Wire):
    """A metric that pods report."""

    metric: Annotated[MetricIdentifier, doc("The metric.", required=True)] = MetricIdentifier()
    target: Annotated[MetricTarget, doc("Target value.", required=True)] = MetricTarget()


class ObjectMetricSource(Wire):
    """A metric of one object."""

    described_object: Annotated[CrossVersionObjectReference, doc("The object.", required=True)] = (
        CrossVersionObjectReference()
    )
    metric: Annotated[MetricIdentifier, doc("The metric.", required=True)] = MetricIdentifier()
    target: Annotated[MetricTarget, doc("Target value.", required=True)] = MetricTarget()


class ExternalMetricSource(Wire):
    """A metric from outside the cluster."""

    metric: Annotated[MetricIdentifier, doc("The metric.", required=True)] = MetricIdentifier()
    target: Annotated[MetricTarget, doc("Target value.", required=True)] = MetricTarget()


class MetricSpec(Wire):
    """One metric to scale by."""

    type: Annotated[str, doc("Name of the field below that is set.", required=True)] = ""
    resource: Annotated[ResourceMetricSource | None, doc("A resource of pods.")] = None
    container_resource: Annotated[
        ContainerResourceMetricSource | None, doc("A resource of one container.")
    ] = None
    pods: Annotated[PodsMetricSource | None, doc("A metric of pods.")] = None
    object: Annotated[ObjectMetricSource | None, doc("A metric of an object.")] = None
    external: Annotated[ExternalMetricSource | None, doc("An external metric.")] = None


class HPAScalingPolicy(Wire):
    """The largest change within a period."""

    type: Annotated[str, doc("Pods or Percent.", required=True)] = ""
    value: Annotated[int, doc("Largest change, above zero.", required=True)] = 0
    period_seconds: Annotated[
        int, doc("Length of the period in seconds, 1 to 1800.", required=True)
    ] = 0


class HPAScalingRules(Wire):
    """How fast the number of replicas changes in one direction."""

    stabilization_window_seconds: Annotated[
        int | None, doc("Seconds of past recommendations that count; 0 up, 300 down.")
    ] = None
    select_policy: Annotated[str, doc("Max, Min or Disabled.")] = ""
    policies: Annotated[list[HPAScalingPolicy], doc("Limits.")] = []
    tolerance: Annotated[Quantity | None, doc("Deviation that causes no change.")] = None


class HorizontalPodAutoscalerBehavior(Wire):
    """How fast the number of replicas changes."""

    scale_up: Annotated[HPAScalingRules | None, doc("Rules for scaling up.")] = None
    scale_down: Annotated[HPAScalingRules | None, doc("Rules for scaling down.")] = None


class HorizontalPodAutoscalerSpec(Wire):
    """The workload to scale, its bounds and its metrics."""

    scale_target_ref: Annotated[
        CrossVersionObjectReference, doc("The workload.", required=True)
    ] = CrossVersionObjectReference()
    min_replicas: Annotated[int | None, doc("Minimum number; 1 when not given.")] = None
    max_replicas: Annotated[int, doc("Maximum number.", required=True)] = 0
    metrics: Annotated[list[MetricSpec], doc("Metrics; 80% of the cpu when none.")] = []
    behavior: Annotated[HorizontalPodAutoscalerBehavior | None, doc("Pace of scaling.")] = None


class MetricValueStatus(Wire):
    """The current value of a metric."""

    value: Annotated[Quantity | None, doc("Sum over all pods.")] = None
    average_value: Annotated[Quantity | None, doc("Average per pod.")] = None
    average_utilization: Annotated[int | None, doc("In percent of the request.")] = None


class ResourceMetricStatus(Wire):
    """The current usage of a resource by pods."""

    name: Annotated[str, doc("cpu or memory.", required=True)] = ""
    current: Annotated[MetricValueStatus, doc("Current value.", required=True)] = (
        MetricValueStatus()
    )


class ContainerResourceMetricStatus(Wire):
    """The current usage of a resource by one container of each pod."""

    name: Annotated[str, doc("cpu or memory.", required=True)] = ""
    container: Annotated[str, doc("Name of the container.", required=True)] = ""
    current: Annotated[MetricValueStatus, doc("Current value.", required=True)] = (
        MetricValueStatus()
    )


class PodsMetricStatus(Wire):
    """The current value of a metric of pods."""

    metric: Annotated[MetricIdentifier, doc("The metric.", required=True)] = MetricIdentifier()
    current: Annotated[MetricValueStatus, doc("Current value.", required=True)] = (
        MetricValueStatus()
    )


class ObjectMetricStatus(Wire):
    """The current value of a metric of an object."""

    metric: Annotated[MetricIdentifier, doc("The metric.", required=True)] = MetricIdentifier()
    current: Annotated[MetricValueStatus, doc("Current value.", required=True)] = (
        MetricValueStatus()
    )
    described_object: Annotated[CrossVersionObjectReference, doc("The object.", required=True)] = (
        CrossVersionObjectReference()
    )


class MetricStatus(Wire):
    """The current value of one metric."""

    type: Annotated[str, doc("Name of the field below that is set.", required=True)] = ""
    resource: Annotated[ResourceMetricStatus | None, doc("A resource of pods.")] = None
    container_resource: Annotated[
        ContainerResourceMetricStatus | None, doc("A resource of one container.")
    ] = None
    pods: Annotated[PodsMetricStatus | None, doc("A metric of pods.")] = None
    object: Annotated[ObjectMetricStatus | None, doc("A metric of an object.")] = None
    external: Annotated[PodsMetricStatus | None, doc("An external metric.")] = None


class HorizontalPodAutoscalerStatus(Wire):
    """The last observation and decision of the autoscaler."""

    observed_generation: Annotated[int | None, doc("Generation that was observed.")] = None
    last_scale_time: Annotated[datetime | None, doc("Time of the last change of replicas.")] = None
    current_replicas: Annotated[int, doc("Observed replicas.")] = 0
    desired_replicas: Annotated[int, doc("Desired replicas.")] = 0
    current_metrics: Annotated[list[MetricStatus], doc("Observed metrics.")] = []
    conditions: Annotated[list[Condition], doc("Current conditions.", keys=("type",))] = []


class HorizontalPodAutoscaler(Object):
    """Scales a workload by the usage of its pods."""

    spec: Annotated[HorizontalPodAutoscalerSpec, doc("Desired state.")] = (
        HorizontalPodAutoscalerSpec()
    )
    status: Annotated[HorizontalPodAutoscalerStatus, doc("Observed state.")] = (
        HorizontalPodAutoscalerStatus()
    )


class HorizontalPodAutoscalerSpecV1(Wire):
    """The workload to scale, its bounds and its cpu target."""

    scale_target_ref: Annotated[
        CrossVersionObjectReference, doc("The workload.", required=True)
    ] = CrossVersionObjectReference()
    min_replicas: Annotated[int | None, doc("Minimum number; 1 when not given.")] = None
    max_replicas: Annotated[int, doc("Maximum number.", required=True)] = 0
    target_cpu_utilization_percentage: Annotated[
        int | None, doc("Percent of the cpu requested; 80 when not given.")
    ] = msgspec.field(name="targetCPUUtilizationPercentage", default=None)


class HorizontalPodAutoscalerStatusV1(Wire):
    """The last observation and decision of the autoscaler."""

    observed_generation: Annotated[int | None, doc("Generation that was observed.")] = None
    last_scale_time: Annotated[datetime | None, doc("Time of the last change of replicas.")] = None
    current_replicas: Annotated[int, doc("Observed replicas.")] = 0
    desired_replicas: Annotated[int, doc("Desired replicas.")] = 0
    current_cpu_utilization_percentage: Annotated[
        int | None, doc("Percent of the cpu requested.")
    ] = msgspec.field(name="currentCPUUtilizationPercentage", default=None)


class HorizontalPodAutoscalerV1(Object):
    """The autoscaling/v1 form of a HorizontalPodAutoscaler."""

    spec: Annotated[HorizontalPodAutoscalerSpecV1, doc("Desired state.")] = (
        HorizontalPodAutoscalerSpecV1()
    )
    status: Annotated[HorizontalPodAutoscalerStatusV1, doc("Observed state.")] = (
        HorizontalPodAutoscalerStatusV1()
    )
