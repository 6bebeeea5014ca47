"""A model of any kind, by what a trace of one step counted (``sources.trace``).

Without knowledge of its layers it can only be spread by data parallelism: DDP, ZeRO and FSDP.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gangline.sizing.hardware import DeviceModel, StateBytes
from gangline.sizing.layout import Layout, LayoutPins, Sharding, powers
from gangline.sizing.memory import MemoryUse, runtime_bytes, zero_states
from gangline.sizing.model import Recompute, ShapeError
from gangline.sizing.steptime import (
    BUCKET_BYTES,
    StepTime,
    all_reduce_bytes,
    compute_time,
    contention_s,
    copied_bytes,
    data_parallel_time,
    sharded_bytes,
    update_s,
)

COVERED = 0.95
"""Below this share of operators with a formula the operations are a lower bound."""
MAX_MICRO_BATCH = 1024
_TRACED_ELEMENT = 4
"""Bytes of the elements in a trace, which runs in PyTorch's default format."""


@dataclass(frozen=True, slots=True)
class TracedModel:
    """A model that is given by a trace."""

    parameters: int
    batch: int
    """Samples of the traced step."""
    flops: float
    """Operations of the traced step, forward and backward."""
    saved_bytes: float
    """Activations that the traced step saved, in 32 bits."""
    largest_module: int
    peak_bytes: float = 0.0
    """Most bytes of activations and temporary tensors at one time; 0: ``saved_bytes``."""
    input_bytes: float = 0.0
    """Bytes of the inputs of the traced step; 0: unknown."""
    coverage: float = 1.0
    uncounted: Mapping[str, int] = field(default_factory=dict)

    @property
    def sample_tokens(self) -> int:
        return 1

    @property
    def sample_bytes(self) -> float:
        return self.input_bytes / self.batch

    @property
    def sample_flops(self) -> float:
        return self.flops / self.batch

    @property
    def is_lower_bound(self) -> bool:
        """True if too many operators have no formula."""
        return self.coverage < COVERED

    def layouts(
        self, device: DeviceModel, devices: int, global_batch: int, pins: LayoutPins
    ) -> Iterator[Layout]:
        """Propose data parallelism with all micro-batches that divide."""
        del device
        others = pins.degrees.keys() - {"data", "micro_batch"}
        if pins.recompute or any(pins.degrees[name] > 1 for name in others):
            raise ShapeError("layout", "a traced model is spread by dp, zero and mbs only")
        if global_batch % devices or pins.degrees.get("data", devices) != devices:
            return
        share = global_batch // devices
        shardings = [*Sharding] if devices > 1 else [Sharding.NONE]
        if pins.sharding is not None:
            shardings = [pins.sharding]
        for micro_batch in pins.choose("micro_batch", powers(min(share, MAX_MICRO_BATCH))):
            for sharding in shardings:
                yield Layout(
                    data=devices,
                    sharding=sharding,
                    recompute=Recompute.NONE,
                    micro_batch=micro_batch,
                    global_batch=global_batch,
                )

    def check(self, layout: Layout) -> None:
        """Check that the batch can be divided.

        Raises:
            ShapeError: it cannot.
        """
        if layout.global_batch % (layout.data * layout.micro_batch):
            raise ShapeError(
                "batch", f"{layout.global_batch} is not divisible by {layout.micro_batch}"
            )

    def memory(self, layout: Layout, states: StateBytes) -> MemoryUse:
        """Predict the memory of a rank."""
        weights, gradients, optimizer = zero_states(
            self.parameters, states, layout.sharding, layout.data
        )
        working = self.parameters * states.casts
        if layout.sharding is Sharding.PARAMETERS:
            working = 2 * self.largest_module * (states.weights + states.gradients)
        elif layout.data > 1 and layout.sharding is Sharding.NONE:
            working += self.parameters * states.gradients
        saved = (self.peak_bytes or self.saved_bytes) / self.batch * layout.micro_batch
        activations = saved * states.element / _TRACED_ELEMENT
        dynamic = weights + gradients + optimizer + working + activations
        runtime = runtime_bytes(dynamic, layout.devices)
        return MemoryUse(weights, gradients, optimizer, working, activations, 0.0, runtime)

    def step(
        self, layout: Layout, states: StateBytes, device: DeviceModel, efficiency: float
    ) -> StepTime:
        """Predict the time of an optimizer step."""
        work = self.sample_flops * layout.global_batch / layout.devices
        compute = compute_time(work, 0.0, device, states, efficiency)
        compute += layout.micro_batches * device.costs.pass_s
        sent = self.traffic(layout, states, full_reduce=device.full_reduce)
        data = data_parallel_time(sent, compute, layout, device, messages=sent / BUCKET_BYTES)
        own = self.parameters / (layout.data if layout.sharding > Sharding.NONE else 1)
        update = own * update_s(states, layout, device)
        copied = 0.0
        if layout.sharding is Sharding.PARAMETERS:
            copied = layout.micro_batches * copied_bytes(self._wire_bytes(states), 0.0, layout.data)
        copies = copied * device.costs.copy_s
        contention = contention_s(sent, data, layout, device)
        return StepTime(
            compute, 0.0, data, 0.0, 0.0, 0.0, update=update, contention=contention, copies=copies
        )

    def traffic(self, layout: Layout, states: StateBytes, *, full_reduce: bool = False) -> float:
        """Predict the bytes that a rank sends in an optimizer step."""
        if layout.sharding is Sharding.PARAMETERS:
            wire = self._wire_bytes(states)
            sent = sharded_bytes(wire, 0.0, layout.data, full_reduce=full_reduce)
            return layout.micro_batches * sent
        return all_reduce_bytes(self.parameters * states.gradients, layout.data)

    def _wire_bytes(self, states: StateBytes) -> float:
        """Bytes of all weights as FSDP gathers them."""
        return self.parameters * min(states.weights, states.element)


def read_trace(counts: Mapping[str, Any]) -> TracedModel:
    """Read the output of a trace.

    Raises:
        ShapeError: it is not one, or the model has no parameters.
    """
    try:
        model = TracedModel(
            parameters=int(counts["parameters"]),
            batch=int(counts["batch"]),
            flops=float(counts["forward_flops"]) + float(counts["backward_flops"]),
            saved_bytes=float(counts["saved_bytes"]),
            largest_module=int(counts["largest_module"]),
            peak_bytes=float(counts["peak_bytes"]),
            input_bytes=float(counts["input_bytes"]),
            coverage=float(counts["coverage"]),
            uncounted=dict(counts["uncounted_operators"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ShapeError("trace", f"is not the output of a trace: {error!r}") from error
    if model.parameters < 1 or model.batch < 1 or model.flops <= 0:
        raise ShapeError("trace", "the model has no parameters, or does no products")
    return model
