"""Small kinds of the core group and its neighbours, and re-exports of the larger ones.

Namespaces, ConfigMaps, Secrets, ServiceAccounts, Events, Leases, PriorityClasses and disruption
budgets have a few fields each, so they share this file.
"""

from datetime import datetime
from typing import Annotated

from gangline.api.core.node import Node, NodeSpec, NodeStatus, Taint
from gangline.api.core.reference import LocalObjectReference, ObjectReference
from gangline.api.core.service import Endpoints, EndpointSlice, Service
from gangline.api.core.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from gangline.api.core.workloads import Deployment, ReplicaSet
from gangline.api.meta.field_doc import FreeForm, IntOrString, doc
from gangline.api.meta.objects import Condition, LabelSelector, Object, Wire


class NamespaceSpec(Wire):
    """Finalizers that must be removed before a namespace is deleted."""

    finalizers: Annotated[list[str], doc("Components that still have to clean up.")] = []


class NamespaceStatus(Wire):
    """The phase of a namespace."""

    phase: Annotated[str, doc("Active or Terminating.")] = ""
    conditions: Annotated[list[Condition], doc("Current conditions.", keys=("type",))] = []


class Namespace(Object):
    """A scope for names: objects of different namespaces may have the same name."""

    spec: Annotated[NamespaceSpec, doc("Its finalizers.")] = NamespaceSpec()
    status: Annotated[NamespaceStatus, doc("Observed state.")] = NamespaceStatus()


class ConfigMap(Object):
    """Configuration for pods, as text or bytes by key."""

    data: Annotated[dict[str, str], doc("Text by key.")] = {}
    binary_data: Annotated[dict[str, str], doc("Bytes by key, in base64.")] = {}
    immutable: Annotated[bool | None, doc("If true, it cannot be changed.")] = None


class Secret(Object):
    """Confidential data, by key."""

    type: Annotated[str, doc("Purpose; Opaque when not given.")] = ""
    data: Annotated[dict[str, str], doc("Bytes by key, in base64.")] = {}
    string_data: Annotated[dict[str, str], doc("Text by key; written, never read.")] = {}
    immutable: Annotated[bool | None, doc("If true, it cannot be changed.")] = None


class ServiceAccount(Object):
    """The identity of a pod at the API server."""

    secrets: Annotated[list[ObjectReference], doc("Secrets it may use.", keys=("name",))] = []
    image_pull_secrets: Annotated[
        list[LocalObjectReference], doc("Secrets its pods pull images with.")
    ] = []
    automount_service_account_token: Annotated[bool | None, doc("Mount its token.")] = None


class EventSource(Wire):
    """The component that reported an event (old form)."""

    component: Annotated[str, doc("Name of the component.")] = ""
    host: Annotated[str, doc("Node that it ran on.")] = ""


class EventSeries(Wire):
    """Repetitions of an event."""

    count: Annotated[int, doc("Number of occurrences.")] = 0
    last_observed_time: Annotated[datetime | None, doc("Time of the last occurrence.")] = None


class Event(Object):
    """A report of something that happened to an object."""

    involved_object: Annotated[ObjectReference, doc("The object it is about.", required=True)] = (
        ObjectReference()
    )
    reason: Annotated[str, doc("What happened, as one CamelCase word.")] = ""
    message: Annotated[str, doc("What happened, for users.")] = ""
    source: Annotated[EventSource, doc("Component that reported it (old form).")] = EventSource()
    first_timestamp: Annotated[datetime | None, doc("Time of the first occurrence.")] = None
    last_timestamp: Annotated[datetime | None, doc("Time of the last occurrence.")] = None
    count: Annotated[int, doc("Number of occurrences.")] = 0
    type: Annotated[str, doc("Normal or Warning.")] = ""
    event_time: Annotated[datetime | None, doc("Exact time.")] = None
    series: Annotated[EventSeries | None, doc("Repetitions.")] = None
    action: Annotated[str, doc("Action that was taken.")] = ""
    related: Annotated[ObjectReference | None, doc("A second object.")] = None
    reporting_component: Annotated[str, doc("Component that reported it.")] = ""
    reporting_instance: Annotated[str, doc("Instance of the component.")] = ""


class EventsEvent(Object):
    """An event with the field names of ``events.k8s.io/v1``."""

    event_time: Annotated[datetime | None, doc("Exact time.")] = None
    series: Annotated[EventSeries | None, doc("Repetitions.")] = None
    reporting_controller: Annotated[str, doc("Component that reported it.")] = ""
    reporting_instance: Annotated[str, doc("Instance of the component.")] = ""
    action: Annotated[str, doc("Action that was taken.")] = ""
    reason: Annotated[str, doc("What happened, as one CamelCase word.")] = ""
    regarding: Annotated[ObjectReference, doc("The object it is about.")] = ObjectReference()
    related: Annotated[ObjectReference | None, doc("A second object.")] = None
    note: Annotated[str, doc("What happened, for users.")] = ""
    type: Annotated[str, doc("Normal or Warning.")] = ""
    deprecated_source: Annotated[EventSource, doc("Component that reported it.")] = EventSource()
    deprecated_first_timestamp: Annotated[datetime | None, doc("Time of the first occurrence.")] = (
        None
    )
    deprecated_last_timestamp: Annotated[datetime | None, doc("Time of the last occurrence.")] = (
        None
    )
    deprecated_count: Annotated[int, doc("Number of occurrences.")] = 0


class Binding(Object):
    """Binds a pod to a node."""

    target: Annotated[ObjectReference, doc("The node.", required=True)] = ObjectReference()


class Preconditions(Wire):
    """Conditions on the object that a deletion requires."""

    uid: Annotated[str | None, doc("Unique id that the object must have.")] = None
    resource_version: Annotated[str | None, doc("Version that the object must have.")] = None


class DeleteOptions(Wire):
    """How to delete an object."""

    api_version: Annotated[str, doc("Version of this object.")] = ""
    kind: Annotated[str, doc("Kind of this object.")] = ""
    grace_period_seconds: Annotated[int | None, doc("Seconds for a graceful end.")] = None
    preconditions: Annotated[Preconditions | None, doc("Preconditions of the deletion.")] = None
    orphan_dependents: Annotated[bool | None, doc("Old form of Orphan.")] = None
    propagation_policy: Annotated[
        str | None,
        doc("How owned objects are treated: Orphan, Background or Foreground."),
    ] = None
    dry_run: Annotated[list[str], doc("All: change nothing.")] = []


class Eviction(Object):
    """Requests the deletion of a pod within its disruption budget."""

    delete_options: Annotated[DeleteOptions | None, doc("How to delete it.")] = None


class LeaseSpec(Wire):
    """The holder of a lease, and its duration."""

    holder_identity: Annotated[str | None, doc("Holder of the lease.")] = None
    lease_duration_seconds: Annotated[
        int | None, doc("Seconds that it is valid without renewal.")
    ] = None
    acquire_time: Annotated[datetime | None, doc("Time of acquisition.")] = None
    renew_time: Annotated[datetime | None, doc("Time of the last renewal.")] = None
    lease_transitions: Annotated[int | None, doc("Number of changes of the holder.")] = None
    strategy: Annotated[str | None, doc("How a holder is chosen.")] = None
    preferred_holder: Annotated[str | None, doc("Candidate that the holder should yield to.")] = (
        None
    )


class Lease(Object):
    """A lock with a heartbeat."""

    spec: Annotated[LeaseSpec, doc("Holder of the lease.")] = LeaseSpec()


class PriorityClass(Object):
    """A name for a priority."""

    value: Annotated[int, doc("Higher values are scheduled first.", required=True)] = 0
    global_default: Annotated[bool, doc("For pods that name no class.")] = False
    description: Annotated[str, doc("When to use it.")] = ""
    preemption_policy: Annotated[
        str,
        doc("Whether its pods may preempt others.", values=("PreemptLowerPriority", "Never")),
    ] = ""


class PodDisruptionBudgetSpec(Wire):
    """How many pods may be unavailable concurrently."""

    selector: Annotated[LabelSelector | None, doc("The pods.")] = None
    min_available: Annotated[IntOrString | None, doc("Minimum number of available pods.")] = None
    max_unavailable: Annotated[IntOrString | None, doc("Maximum number of unavailable pods.")] = (
        None
    )
    unhealthy_pod_eviction_policy: Annotated[
        str, doc("May pods that are not ready be evicted? IfHealthyBudget or AlwaysAllow.")
    ] = ""


class PodDisruptionBudgetStatus(Wire):
    """How many pods may be evicted now."""

    observed_generation: Annotated[int | None, doc("Generation that was observed.")] = None
    disruptions_allowed: Annotated[int, doc("Number of pods that may be evicted now.")] = 0
    current_healthy: Annotated[int, doc("Number of healthy pods.")] = 0
    desired_healthy: Annotated[int, doc("Minimum number of healthy pods.")] = 0
    expected_pods: Annotated[int, doc("Expected number of pods.")] = 0
    disrupted_pods: Annotated[
        dict[str, datetime], doc("Pods that are evicted and not yet deleted.")
    ] = {}
    conditions: Annotated[list[Condition], doc("Current conditions.", keys=("type",))] = []


class PodDisruptionBudget(Object):
    """Limits how many pods may be evicted concurrently."""

    spec: Annotated[PodDisruptionBudgetSpec, doc("The limit.")] = PodDisruptionBudgetSpec()
    status: Annotated[PodDisruptionBudgetStatus, doc("Observed state.")] = (
        PodDisruptionBudgetStatus()
    )


class ComponentStatus(Object):
    """Health of a control plane component (old form)."""

    conditions: Annotated[list[FreeForm], doc("Its health.")] = []


__all__ = [
    "Binding",
    "ComponentStatus",
    "ConfigMap",
    "DeleteOptions",
    "Deployment",
    "EndpointSlice",
    "Endpoints",
    "Event",
    "EventSeries",
    "EventSource",
    "EventsEvent",
    "Eviction",
    "Lease",
    "LeaseSpec",
    "LocalObjectReference",
    "Namespace",
    "NamespaceSpec",
    "NamespaceStatus",
    "Node",
    "NodeSpec",
    "NodeStatus",
    "ObjectReference",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "PodDisruptionBudget",
    "PodDisruptionBudgetSpec",
    "PodDisruptionBudgetStatus",
    "Preconditions",
    "PriorityClass",
    "ReplicaSet",
    "Secret",
    "Service",
    "ServiceAccount",
    "StorageClass",
    "Taint",
]
