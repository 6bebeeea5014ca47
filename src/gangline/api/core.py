"""Small kinds of the core group, and what is asked about whole objects; re-exports the rest.

Namespaces, configuration, accounts, events, leases, priorities: kinds of a few fields each.
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
    """What must happen before a namespace goes."""

    finalizers: Annotated[list[str], about("Who still has to clean up.")] = []


class NamespaceStatus(Wire):
    """Where a namespace is in its life."""

    phase: Annotated[str, about("Active or Terminating.")] = ""
    conditions: Annotated[list[Condition], about("What holds it up.", keys=("type",))] = []


class Namespace(Object):
    """A room for names: objects of different namespaces do not clash."""

    spec: Annotated[NamespaceSpec, about("Its finalizers.")] = NamespaceSpec()
    status: Annotated[NamespaceStatus, about("Where it is in its life.")] = NamespaceStatus()


class ConfigMap(Object):
    """Configuration for pods, as text or bytes by key."""

    data: Annotated[dict[str, str], about("Text by key.")] = {}
    binary_data: Annotated[dict[str, str], about("Bytes by key, in base64.")] = {}
    immutable: Annotated[bool | None, about("May not be changed any more.")] = None


class Secret(Object):
    """Something to keep from prying eyes, by key."""

    type: Annotated[str, about("What it is for; Opaque when not given.")] = ""
    data: Annotated[dict[str, str], about("Bytes by key, in base64.")] = {}
    string_data: Annotated[dict[str, str], about("Text by key; written, never read.")] = {}
    immutable: Annotated[bool | None, about("May not be changed any more.")] = None


class ServiceAccount(Object):
    """Who a pod is to the API server."""

    secrets: Annotated[list[ObjectReference], about("Secrets it may use.", keys=("name",))] = []
    image_pull_secrets: Annotated[
        list[LocalObjectReference], about("Secrets its pods pull images with.")
    ] = []
    automount_service_account_token: Annotated[bool | None, about("Mount its token.")] = None


class EventSource(Wire):
    """Who reported an event (old form)."""

    component: Annotated[str, about("Name of the component.")] = ""
    host: Annotated[str, about("Node that it ran on.")] = ""


class EventSeries(Wire):
    """How often an event happened lately."""

    count: Annotated[int, about("How often.")] = 0
    last_observed_time: Annotated[datetime | None, about("When last.")] = None


class Event(Object):
    """Something that happened to an object, told to people."""

    involved_object: Annotated[ObjectReference, about("What it happened to.", required=True)] = (
        ObjectReference()
    )
    reason: Annotated[str, about("What happened, in one CamelCase word.")] = ""
    message: Annotated[str, about("What happened, for people.")] = ""
    source: Annotated[EventSource, about("Who reported it (old form).")] = EventSource()
    first_timestamp: Annotated[datetime | None, about("When first.")] = None
    last_timestamp: Annotated[datetime | None, about("When last.")] = None
    count: Annotated[int, about("How often.")] = 0
    type: Annotated[str, about("Normal or Warning.")] = ""
    event_time: Annotated[datetime | None, about("When, exactly.")] = None
    series: Annotated[EventSeries | None, about("Repetitions.")] = None
    action: Annotated[str, about("What was done about it.")] = ""
    related: Annotated[ObjectReference | None, about("A second object.")] = None
    reporting_component: Annotated[str, about("Who reported it.")] = ""
    reporting_instance: Annotated[str, about("Which one of them.")] = ""


class EventsEvent(Object):
    """The same event as ``events.k8s.io/v1`` names its fields."""

    event_time: Annotated[datetime | None, about("When, exactly.")] = None
    series: Annotated[EventSeries | None, about("Repetitions.")] = None
    reporting_controller: Annotated[str, about("Who reported it.")] = ""
    reporting_instance: Annotated[str, about("Which one of them.")] = ""
    action: Annotated[str, about("What was done about it.")] = ""
    reason: Annotated[str, about("What happened, in one CamelCase word.")] = ""
    regarding: Annotated[ObjectReference, about("What it happened to.")] = ObjectReference()
    related: Annotated[ObjectReference | None, about("A second object.")] = None
    note: Annotated[str, about("What happened, for people.")] = ""
    type: Annotated[str, about("Normal or Warning.")] = ""
    deprecated_source: Annotated[EventSource, about("Who reported it.")] = EventSource()
    deprecated_first_timestamp: Annotated[datetime | None, about("When first.")] = None
    deprecated_last_timestamp: Annotated[datetime | None, about("When last.")] = None
    deprecated_count: Annotated[int, about("How often.")] = 0


class Binding(Object):
    """Puts a pod on a node."""

    target: Annotated[ObjectReference, about("The node.", required=True)] = ObjectReference()


class Preconditions(Wire):
    """What must hold for a deletion to go ahead."""

    uid: Annotated[str | None, about("Unique id that the object must have.")] = None
    resource_version: Annotated[str | None, about("Version that the object must have.")] = None


class DeleteOptions(Wire):
    """How to delete an object."""

    api_version: Annotated[str, about("Version of this object.")] = ""
    kind: Annotated[str, about("Kind of this object.")] = ""
    grace_period_seconds: Annotated[int | None, about("Seconds to end well.")] = None
    preconditions: Annotated[Preconditions | None, about("What must hold.")] = None
    orphan_dependents: Annotated[bool | None, about("Old form of Orphan.")] = None
    propagation_policy: Annotated[
        str | None,
        about("What becomes of owned objects: Orphan, Background or Foreground."),
    ] = None
    dry_run: Annotated[list[str], about("All: change nothing.")] = []


class Eviction(Object):
    """Asks to delete a pod, if its disruption budget allows."""

    delete_options: Annotated[DeleteOptions | None, about("How to delete it.")] = None


class LeaseSpec(Wire):
    """Who holds a lease, and for how long."""

    holder_identity: Annotated[str | None, about("Who holds it.")] = None
    lease_duration_seconds: Annotated[int | None, about("How long without renewal.")] = None
    acquire_time: Annotated[datetime | None, about("Since when.")] = None
    renew_time: Annotated[datetime | None, about("When last renewed.")] = None
    lease_transitions: Annotated[int | None, about("How often the holder changed.")] = None
    strategy: Annotated[str | None, about("How a holder is chosen.")] = None
    preferred_holder: Annotated[str | None, about("Whom the holder should yield to.")] = None


class Lease(Object):
    """A lock with a heartbeat."""

    spec: Annotated[LeaseSpec, about("Who holds it.")] = LeaseSpec()


class PriorityClass(Object):
    """A name for a priority."""

    value: Annotated[int, about("Higher goes first.", required=True)] = 0
    global_default: Annotated[bool, about("For pods that name no class.")] = False
    description: Annotated[str, about("When to use it.")] = ""
    preemption_policy: Annotated[
        str, about("May its pods push others out?", values=("PreemptLowerPriority", "Never"))
    ] = ""


class PodDisruptionBudgetSpec(Wire):
    """How many pods may be missing at once."""

    selector: Annotated[LabelSelector | None, about("The pods.")] = None
    min_available: Annotated[IntOrString | None, about("At least so many stay.")] = None
    max_unavailable: Annotated[IntOrString | None, about("At most so many are missing.")] = None
    unhealthy_pod_eviction_policy: Annotated[
        str, about("May pods that are not ready be evicted? IfHealthyBudget or AlwaysAllow.")
    ] = ""


class PodDisruptionBudgetStatus(Wire):
    """How many may be missing now."""

    observed_generation: Annotated[int | None, about("Generation that this is about.")] = None
    disruptions_allowed: Annotated[int, about("How many may go now.")] = 0
    current_healthy: Annotated[int, about("How many are there.")] = 0
    desired_healthy: Annotated[int, about("How many must stay.")] = 0
    expected_pods: Annotated[int, about("How many there should be.")] = 0
    disrupted_pods: Annotated[dict[str, datetime], about("Evicted, not yet gone.")] = {}
    conditions: Annotated[list[Condition], about("What holds of it.", keys=("type",))] = []


class PodDisruptionBudget(Object):
    """Limits how many pods may be evicted at once."""

    spec: Annotated[PodDisruptionBudgetSpec, about("The limit.")] = PodDisruptionBudgetSpec()
    status: Annotated[PodDisruptionBudgetStatus, about("Where it stands.")] = (
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
