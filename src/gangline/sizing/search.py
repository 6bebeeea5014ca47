"""The layouts of a training that fit into its devices, best first.

The search tries all layouts that the model proposes. Order: fits at the upper end of its memory
range, then least time (within 3 %), fewest kinds of parallelism, largest micro-batch.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from gangline.sizing.hardware import Device, StateBytes
from gangline.sizing.layout import Layout, Sharding
from gangline.sizing.memory import MemoryUse
from gangline.sizing.model import ShapeError
from gangline.sizing.steptime import StepTime

TIGHT = 0.95
"""Share of a device's memory that the upper end of the range may take."""
SAME_TIME = math.log(1.03)
CHOICES = 5


class TrainedModel(Protocol):
    """A model whose training is planned."""

    @property
    def parameters(self) -> int: ...

    @property
    def sample_tokens(self) -> int:
        """What a sample counts as: tokens, or 1 for one sample."""

    @property
    def sample_bytes(self) -> float:
        """Bytes that are loaded for a sample; 0: unknown."""

    @property
    def sample_flops(self) -> float:
        """Operations that a sample needs, forward and backward."""

    def layouts(self, device: Device, devices: int, global_batch: int) -> Iterable[Layout]:
        """Propose layouts; they need not be possible."""

    def check(self, layout: Layout) -> None:
        """Raise ``ShapeError`` if the model cannot be spread in this way."""

    def memory(self, layout: Layout, states: StateBytes) -> MemoryUse: ...

    def step(
        self, layout: Layout, states: StateBytes, device: Device, efficiency: float
    ) -> StepTime: ...


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layout with its memory and the time of a step."""

    layout: Layout
    memory: MemoryUse
    step: StepTime
    """At the middle of the efficiency's range."""

    def fits(self, device: Device) -> bool:
        """Whether it fits, even at the upper end of the range."""
        return self.memory.high <= TIGHT * device.memory_bytes

    def is_tight(self, device: Device) -> bool:
        """Whether it may fit, but not at the upper end of the range."""
        return not self.fits(device) and self.memory.total <= device.memory_bytes


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search found."""

    fitting: tuple[Candidate, ...]
    """Best first, one for each combination of parallelism, at most five."""
    nearest: Candidate | None
    """If none fits: the one with the least memory."""
    problem: str = ""
    """Why no layout could be tried at all."""


def search(
    model: TrainedModel,
    device: Device,
    devices: int,
    global_batch: int,
    states: StateBytes,
    efficiency: float,
) -> SearchResult:
    """Try all layouts of a model on ``devices`` devices.

    Args:
        model: what is trained.
        device: the kind of device and its node.
        devices: their number.
        global_batch: samples of an optimizer step.
        states: bytes for each parameter.
        efficiency: share of the peak that computing reaches.
    """
    best: dict[str, Candidate] = {}
    nearest: Candidate | None = None
    problem = ""
    for layout in model.layouts(device, devices, global_batch):
        try:
            model.check(layout)
        except ShapeError as error:
            problem = problem or str(error)
            continue
        memory = model.memory(layout, states)
        time = model.step(layout, states, device, efficiency)
        candidate = Candidate(layout, memory, time)
        if nearest is None or memory.high < nearest.memory.high:
            nearest = candidate
        if candidate.fits(device):
            known = best.get(layout.title)
            if known is None or _order(candidate) < _order(known):
                best[layout.title] = candidate
    if nearest is None and not problem:
        problem = (
            f"no data parallelism of {devices} devices divides the global batch {global_batch}"
        )
    fitting = tuple(sorted(best.values(), key=_order)[:CHOICES])
    return SearchResult(fitting, None if fitting else nearest, "" if nearest else problem)


def _order(candidate: Candidate) -> tuple[int, int, int, float]:
    layout, total = candidate.layout, candidate.step.total
    return (
        round(math.log(total) / SAME_TIME),
        layout.kinds + (layout.sharding > Sharding.OPTIMIZER),
        -layout.micro_batch,
        total,
    )
