"""The search of layouts: all that a model proposes, or those with the pinned parts.

Order: fits at the upper end of its memory range, then least time (within 3 %), fewest kinds of
parallelism, largest micro-batch.
"""

import contextlib
import math
from dataclasses import dataclass

from gangline.sizing.calibration import Range
from gangline.sizing.efficiency import Efficiency
from gangline.sizing.hardware import DeviceModel, StateBytes
from gangline.sizing.layout import FREE, Layout, LayoutPins, Sharding
from gangline.sizing.memory import MemoryUse
from gangline.sizing.model import Recompute, ShapeError
from gangline.sizing.steptime import StepTime
from gangline.sizing.traced import TracedModel
from gangline.sizing.transformer import TransformerModel

TIGHT = 0.95
"""Share of a device's memory that the upper end of the range may take."""
SAME_TIME = math.log(1.03)
CHOICES = 5


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layout with its memory and the time of a step."""

    layout: Layout
    memory: MemoryUse
    step: StepTime
    """At the middle of the efficiency's range."""
    efficiency: Range
    """Share of the peak while it computes."""

    def is_tight(self, device: DeviceModel) -> bool:
        """Whether it may fit, but not at the upper end of the range."""
        return not _fits(self.memory, device) and self.memory.total <= device.memory_bytes


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
    model: TransformerModel | TracedModel,
    device: DeviceModel,
    devices: int,
    global_batch: int,
    states: StateBytes,
    efficiency: Efficiency,
    pins: LayoutPins = FREE,
) -> SearchResult:
    """Try all layouts of a model on ``devices`` devices."""
    best: dict[str, Candidate] = {}
    nearest: tuple[Layout, MemoryUse] | None = None
    fitted: Layout | None = None
    too_large: set[tuple[int, int, int, Sharding]] = set()
    problem = ""

    shape = model.shape if isinstance(model, TransformerModel) else None
    ranges: dict[tuple[int, int, int, str], Range] = {}

    def timed(layout: Layout, memory: MemoryUse) -> Candidate:
        key = (layout.tensor, layout.context, layout.micro_batch, layout.recompute.value)
        reached = ranges.get(key)
        if reached is None:
            reached = ranges[key] = efficiency.of(shape, layout, states, device)
        step = model.step(layout, states, device, reached.middle)
        return Candidate(layout, memory, step, reached)

    for layout in model.layouts(device, devices, global_batch, pins):
        try:
            model.check(layout)
        except ShapeError as error:
            problem = problem or str(error)
            continue
        if fitted is not None and _differ_by_recompute(fitted, layout):
            continue  # slower: it computes more again than needed
        degrees = (layout.tensor, layout.context, layout.expert, layout.sharding)
        if layout.pipeline == 1 and degrees in too_large:
            continue  # a smaller micro-batch did not fit
        memory = model.memory(layout, states)
        if nearest is None or memory.high < nearest[1].high:
            nearest = layout, memory
        if _fits(memory, device):  # most do not: their time is not predicted
            fitted = layout
            candidate = timed(layout, memory)
            former = best.get(layout.title)
            if former is None or _order(candidate) < _order(former):
                best[layout.title] = candidate
        elif layout.pipeline == 1 and layout.recompute in (Recompute.FULL, pins.recompute):
            too_large.add(degrees)
    if nearest is None and not problem:
        problem = (
            f"no data parallelism of {devices} devices divides the global batch {global_batch}"
        )
    fitting = tuple(sorted(best.values(), key=_order)[:CHOICES])
    closest = timed(*nearest) if nearest and not fitting else None
    return SearchResult(fitting, closest, "" if nearest else problem)


def _differ_by_recompute(one: Layout, other: Layout) -> bool:
    return (
        one.micro_batch == other.micro_batch
        and one.sharding is other.sharding
        and one.virtual == other.virtual
        and (one.data, one.tensor, one.pipeline, one.context, one.expert)
        == (other.data, other.tensor, other.pipeline, other.context, other.expert)
    )


def _fits(memory: MemoryUse, device: DeviceModel) -> bool:
    """Whether it fits, even at the upper end of the range."""
    return memory.high <= TIGHT * device.memory_bytes


def _order(candidate: Candidate) -> tuple[int, int, int, float]:
    layout, total = candidate.layout, candidate.step.total
    return (
        round(math.log(total) / SAME_TIME),
        layout.kinds + (layout.sharding > Sharding.OPTIMIZER),
        -layout.micro_batch,
        total,
    )


_TRIED_BATCHES = 2048


def near_batches(
    model: TransformerModel | TracedModel,
    device: DeviceModel,
    devices: int,
    batch: int,
    pins: LayoutPins,
) -> list[int]:
    """Return the nearest smaller and the nearest larger batch for which there is a layout."""
    sharing = pins.degrees.get("data", 1) * pins.degrees.get("micro_batch", 1)

    def is_possible(size: int) -> bool:
        for layout in model.layouts(device, devices, size, pins):
            with contextlib.suppress(ShapeError):
                model.check(layout)
                return True
        return False

    smaller = (batch // sharing - step for step in range(batch % sharing == 0, _TRIED_BATCHES))
    larger = (batch // sharing + step for step in range(1, _TRIED_BATCHES))
    nearest = (
        next((size * sharing for size in sizes if size > 0 and is_possible(size * sharing)), 0)
        for sizes in (smaller, larger)
    )
    return [size for size in nearest if size]
