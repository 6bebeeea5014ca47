"""A stand-in for an accelerator, which no machine that runs the tests need have.

It takes the place of PyTorch's device module (``torch.cuda``) for tensors of the processor: notes
what streams are asked for, and says when copies arrive.
"""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch

from gangline.elastic.checkpoint.snapshot import copy
from gangline.elastic.checkpoint.snapshot import copy as accelerator

HERE = torch.device("cpu")


@dataclass
class Stream:
    """Notes what it is to do, in order."""

    module: "Module"
    name: str

    def wait_stream(self, other: "Stream") -> None:
        self.module.notes.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: "Event") -> None:
        self.module.notes.append(f"{self.name} waits for event {event.number}")

    def record_event(self) -> "Event":
        self.module.events.append(Event(self.module, len(self.module.events)))
        self.module.notes.append(f"{self.name} records event {self.module.events[-1].number}")
        return self.module.events[-1]


@dataclass
class Event:
    """Happens when the test says so."""

    module: "Module"
    number: int
    happened: threading.Event = field(default_factory=threading.Event)
    failure: str = ""

    def synchronize(self) -> None:
        if self.module.holds_back:
            assert self.happened.wait(60)
        if self.failure:
            raise RuntimeError(self.failure)


class Module:
    """What ``torch.cuda`` is to checkpoints."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.events: list[Event] = []
        self.holds_back = False
        self._computing = Stream(self, "computing")

    def Stream(self, device: torch.device) -> Stream:
        assert device == HERE
        self.notes.append("a new stream")
        return Stream(self, "copying")

    def current_stream(self, device: torch.device) -> Stream:
        assert device == HERE
        return self._computing

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        self.notes.append(f"{stream.name} begins")
        yield


def install(patch: pytest.MonkeyPatch) -> Module:
    """Have all tensors of the processor be an accelerator's."""
    module = Module()
    patch.setattr(accelerator, "_module", lambda device: module)
    patch.setattr(copy, "_is_parallel", lambda place, tensor: False)
    return module
