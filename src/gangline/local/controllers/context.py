"""What every controller gets: a client, shared informers, an event recorder, settings."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from gangline.kube.client.client import ApiClient
from gangline.kube.controller.event_recorder import EventRecorder
from gangline.kube.informers.shared_informers import SharedInformerFactory


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Settings of the controllers."""

    volumes: Path
    """The parent folder of new volumes, which get one folder each."""

    node_silence_s: float = 40.0
    """Seconds without a heartbeat after which a node counts as lost; Kubernetes' default. Tests and
    demos
    lower it. Below three heartbeats, busy nodes are misjudged.
    """

    event_ttl_s: float = 3600.0
    """Seconds after which events are deleted."""


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
