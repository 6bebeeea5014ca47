"""What every controller loop is given: a client, shared informers, settings, a voice for events."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from gangline.kube.client import Client
from gangline.kube.events import EventRecorder
from gangline.kube.shared import SharedInformers


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """How the controllers behave."""

    volumes: Path
    """Folder that volumes are made in, one folder for each."""

    node_silence_s: float = 40.0
    """How long a node may be silent before it counts as lost; Kubernetes' default. Tests and demos
    that want to see a node die quickly lower it; below three heartbeats it misjudges busy nodes."""

    event_ttl_s: float = 3600.0
    """How long events are kept."""


@dataclass(frozen=True, slots=True)
class Context:
    """The surroundings of a loop."""

    client: Client
    informers: SharedInformers
    recorder: EventRecorder
    settings: ControllerSettings


class Loop(Protocol):
    """One controller: its constructor asks for informers, ``run`` starts once they have synced."""

    def __init__(self, context: Context) -> None: ...

    async def run(self) -> None:
        """Work until cancelled."""
        ...


def now() -> datetime:
    """The present, as objects have it: in whole seconds."""
    return datetime.now(UTC).replace(microsecond=0)
