"""What every controller gets: a client, shared informers, an event recorder, settings, indexes."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from gangline.api.core.reference import ObjectReference
from gangline.api.meta.objects import Object
from gangline.api.meta.resource import Resource
from gangline.kube.client.client import ApiClient
from gangline.kube.controller.event_recorder import EventRecorder
from gangline.kube.informers.shared_informers import SharedInformerFactory

BY_NAMESPACE = "namespace"
BY_OWNER = "owner"
"""Names of informer indexes."""


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Settings of the controllers."""

    volumes: Path
    """The parent folder of new volumes, which get one folder each."""

    node_silence_s: float = 40.0
    """Seconds without a heartbeat after which a node counts as lost; Kubernetes' default. Tests and
    demos lower it. Below three heartbeats, busy nodes are misjudged."""


@dataclass(frozen=True, slots=True)
class ControllerContext:
    """The dependencies of a controller."""

    client: ApiClient
    informers: SharedInformerFactory
    recorder: EventRecorder
    settings: ControllerSettings


class ControllerLoop(Protocol):
    """One controller: its constructor requests informers, ``run`` starts after they have synced."""

    def __init__(self, context: ControllerContext) -> None: ...

    async def run(self) -> None:
        """Work until cancelled."""
        ...


def current_time() -> datetime:
    """The current time without fractions of a second, as in API objects."""
    return datetime.now(UTC).replace(microsecond=0)


def owner_uids(found: Object) -> Iterable[str]:
    """The uid of the object's controller, for the index `BY_OWNER`."""
    controller = found.metadata.controller
    return [controller.uid] if controller else []


def object_reference(resource: Resource[Any], found: Object) -> ObjectReference:
    """Return a reference to an object, for events."""
    return ObjectReference(
        api_version=resource.api_version,
        kind=resource.kind,
        namespace=found.metadata.namespace,
        name=found.metadata.name,
        uid=found.metadata.uid,
    )
