"""Small kinds of the core group and its neighbours, and re-exports of the larger ones.

Namespaces, ConfigMaps, Secrets, ServiceAccounts, Events, Leases, PriorityClasses and disruption
budgets have a few fields each, so they share this file.
"""

from datetime import datetime
from typing import Annotated

from gangline.api.describe import FreeForm, IntOrString, about
from gangline.api.meta import Condition, LabelSelector, Object, Wire
from gangline.api.node import Node, NodeSpec, NodeStatus, Taint
from gangline.api.reference import LocalObjectReference, ObjectReference
from gangline.api.service import Endpoints, EndpointSlice, Service
from gangline.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from gangline.api.workloads import Deployment, ReplicaSet


class NamespaceSpec(Wire):
    """Finalizers that must be removed before a namespace is deleted."""

    finalizers: Annotated[list[str], about("Components that still have to clean up.")] = []


class NamespaceStatus(Wire):
    """The phase of a namespace."""

    phase: Annotated[str, about("Active or Terminating.")] = ""
    conditions: Annotated[list[Condition], about("Current conditions.", keys=("type",))] = []


class Namespace(Object):
    """A scope for names: objects of different namespaces may have the same name."""

    spec: Annotated[NamespaceSpec, about("Its finalizers.")] = NamespaceSpec()
    status: Annotated[NamespaceStatus, about("Observed state.")] = NamespaceStatus()


class ConfigMap(Object):
    """Configuration for pods, as text or bytes by key."""

    data: Annotated[dict[str, str], about("Text by key.")] = {}
    binary_data: Annotated[dict[str, str], about("Bytes by key, in base64.")] = {}
    immutable: Annotated[bool | None, about("If true, it cannot be changed.")] = None


class Secret(Object):
    """Confidential data, by key."""

    type: Annotated[str, about("Purpose; Opaque when not given.")] = ""
    data: Annotated[dict[str, str], about("Bytes by key, in base64.")] = {}
    string_data: Annotated[dict[str, str], about("Text by key; written, never read.")] = {}
    immutable: Annotated[bool | None, about("If true, it cannot be changed.")] = None


class ServiceAccount(Object):
    """The identity of a pod at the API server."""

    secrets: Annotated[list[ObjectReference], about("Secrets it may use.", keys=("name",))] = []
    image_pull_secrets: Annotated[
        list[LocalObjectReference], about("Secrets its pods pull images with.")
    ] = []
    automount_service_account_token: Annotated[bool | None, about("Mount its token.")] = None


class EventSource(Wire):
    """The component that reported an event (old form)."""

    component: Annotated[str, about("Name of the component.")] = ""
    host: Annotated[str, about("Node that it ran on.")] = ""


class EventSeries(Wire):
    """Repetitions of an event."""

    count: Annotated[int, about("Number of occurrences.")] = 0
    last_observed_time: Annotated[datetime | None, about("Time of the last occurrence.")] = None


class Event(Object):
    """A report of something that happened to an object."""

    involved_object: Annotated[ObjectReference, about("The object it is about.", required=True)] = (
        ObjectReference()
    )
    reason: Annotated[str, about("What happened, as one CamelCase word.")] = ""
    message: Annotated[str, about("What happened, for users.")] = ""
    source: Annotated[EventSource, about("Component that reported it (old form).")] = EventSource()
    first_timestamp: Annotated[datetime | None, about("Time of the first occurrence.")] = None
    last_timestamp: Annotated[datetime | None, about("Time of the last occurrence.")] = None
    count: Annotated[int, about("Number of occurrences.")] = 0
    type: Annotated[str, about("Normal or Warning.")] = ""
    event_time: Annotated[datetime | None, about("Exact time.")] = None
    series: Annotated[EventSeries | None, about("Repetitions.")] = None
    action: Annotated[str, about("Action that was taken.")] = ""
    related: Annotated[ObjectReference | None, about("A second object.")] = None
    reporting_component: Annotated[str, about("Component that reported it.")] = ""
    reporting_instance: Annotated[str, about("Instance of the component.")] = ""


class EventsEvent(Object):
    """An event with the field names of ``events.k8s.io/v1``."""

    event_time: Annotated[datetime | None, about("Exact time.")] = None
    series: Annotated[EventSeries | None, about("Repetitions.")] = None
    reporting_controller: Annotated[str, about("Component that reported it.")] = ""
    reporting_instance: Annotated[str, about("Instance of the component.")] = ""
    action: Annotated[str, about("Action that was taken.")] = ""
    reason: Annotated[str, about("What happened, as one CamelCase word.")] = ""
    regarding: Annotated[ObjectReference, about("The object it is about.")] = ObjectReference()
    related: Annotated[ObjectReference | None, about("A second object.")] = None
    note: Annotated[str, about("What happened, for users.")] = ""
    type: Annotated[str, about("Normal or Warning.")] = ""
    deprecated_source: Annotated[EventSource, about("Component that reported it.")] = EventSource()
    deprecated_first_timestamp: Annotated[
        datetime | None, about("Time of the first occurrence.")
    ] = None
    deprecated_last_timestamp: Annotated[datetime | None, about("Time of the last occurrence.")] = (
        None
    )
    deprecated_count: Annotated[int, about("Number of occurrences.")] = 0


class Binding(Object):
    """Binds a pod to a node."""

    target: Annotated[ObjectReference, about("The node.", required=True)] = ObjectReference()


class Preconditions(Wire):
    """Conditions on the object that a deletion requires."""

    uid: Annotated[str | None, about("Unique id that the object must have.")] = None
    resource_version: Annotated[str | None, about("Version that the object must have.")] = None


class DeleteOptions(Wire):
    """How to delete an object."""

    api_version: Annotated[str, about("Version of this object.")] = ""
    kind: Annotated[str, about("Kind of this object.")] = ""
    grace_period_seconds: Annotated[int | None, about("Seconds for a graceful end.")] = None
    preconditions: Annotated[Preconditions | None, about("Preconditions of the deletion.")] = None
    orphan_dependents: Annotated[bool | None, about("Old form of Orphan.")] = None
    propagation_policy: Annotated[
        str | None,
        about("How owned objects are treated: Orphan, Background or Foreground."),
    ] = None
    dry_run: Annotated[list[str], about("All: change nothing.")] = []


class Eviction(Object):
    """Requests the deletion of a pod within its disruption budget."""

    delete_options: Annotated[DeleteOptions | None, about("How to delete it.")] = None


class LeaseSpec(Wire):
    """The holder of a lease, and its duration."""

    holder_identity: Annotated[str | None, about("Holder of the lease.")] = None
    lease_duration_seconds: Annotated[
        int | None, about("Seconds that it is valid without renewal.")
    ] = None
    acquire_time: Annotated[datetime | None, about("Time of acquisition.")] = None
    renew_time: Annotated[datetime | None, about("Time of the last renewal.")] = None
    lease_transitions: Annotated[int | None, about("Number of changes of the holder.")] = None
    strategy: Annotated[str | None, about("How a holder is chosen.")] = None
    preferred_holder: Annotated[str | None, about("Candidate that the holder should yield to.")] = (
        None
    )


class Lease(Object):
    """A lock with a heartbeat."""

    spec: Annotated[LeaseSpec, about("Holder of the lease.")] = LeaseSpec()


class PriorityClass(Object):
    """A name for a priority."""

    value: Annotated[int, about("Higher values are scheduled first.", required=True)] = 0
    global_default: Annotated[bool, about("For pods that name no class.")] = False
    description: Annotated[str, about("When to use it.")] = ""
    preemption_policy: Annotated[
        str, about("Whether its pods may preempt others.", values=("PreemptLowerPriority", "Never"))
    ] = ""


class PodDisruptionBudgetSpec(Wire):
    """How many pods may be unavailable concurrently."""

    selector: Annotated[LabelSelector | None, about("The pods.")] = None
    min_available: Annotated[IntOrString | None, about("Minimum number of available pods.")] = None
    max_unavailable: Annotated[IntOrString | None, about("Maximum number of unavailable pods.")] = (
        None
    )
    unhealthy_pod_eviction_policy: Annotated[
        str, about("May pods that are not ready be evicted? IfHealthyBudget or AlwaysAllow.")
    ] = ""


class PodDisruptionBudgetStatus(Wire):
    """How many pods may be evicted now."""

    observed_generation: Annotated[int | None, about("Generation that was observed.")] = None
    disruptions_allowed: Annotated[int, about("Number of pods that may be evicted now.")] = 0
    current_healthy: Annotated[int, about("Number of healthy pods.")] = 0
    desired_healthy: Annotated[int, about("Minimum number of healthy pods.")] = 0
    expected_pods: Annotated[int, about("Expected number of pods.")] = 0
    disrupted_pods: Annotated[
        dict[str, datetime], about("Pods that are evicted and not yet deleted.")
    ] = {}
    conditions: Annotated[list[Condition], about("Current conditions.", keys=("type",))] = []


class PodDisruptionBudget(Object):
    """Limits how many pods may be evicted concurrently."""

    spec: Annotated[PodDisruptionBudgetSpec, about("The limit.")] = PodDisruptionBudgetSpec()
    status: Annotated[PodDisruptionBudgetStatus, about("Observed state.")] = (
        PodDisruptionBudgetStatus()
    )


class ComponentStatus(Object):
    """Health of a control plane component (old form)."""

    conditions: Annotated[list[FreeForm], about("Its health.")] = []


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
