"""The share of the peak that a training reaches while it computes, without a measurement.

A roofline: the products of the layers, the attention and the operations between products take their
time one after another. Products reach less of the peak where a rank has few tokens or narrow parts
of matrices; the operations between them are bound by the memory's bandwidth.

The constants are fitted to published trainings (``benchmarks/sizing/published.json``). Two ranges
of 80 % follow: one of tuned public runs, one of typical runs, which are slower for reasons that no
layout shows: untuned software, older kernels, restarts, stragglers.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from gangline.sizing.calibration import Range
from gangline.sizing.hardware import DeviceModel, StateBytes
from gangline.sizing.layout import Layout
from gangline.sizing.memory import stored_bytes
from gangline.sizing.model import (
    ModelShape,
    Recompute,
    attention_per_token,
    hardware_per_token,
    products_again,
)


@dataclass(frozen=True, slots=True)
class RooflineConstants:
    """What was fitted."""

    products_8bit: float = 0.9
    """Efficiency of products in 8 bits, as a share of that in 16."""
    few_tokens: float = 230.0
    """Tokens of a micro-batch with which products reach half of their efficiency."""
    narrow: float = 540.0
    """Sum of the widths of a layer's matrices on a rank with which products reach half of it."""
    passes: float = 6.6
    """Times that activations are read or written by operations between products."""
    eager: float = 2.5
    """As ``passes``, a factor without ``torch.compile`` or fused kernels."""


FITTED = RooflineConstants()


def roofline(
    shape: ModelShape,
    layout: Layout,
    states: StateBytes,
    device: DeviceModel,
    constants: RooflineConstants = FITTED,
) -> float:
    """Return the share of the peak that a tuned training reaches while it computes."""
    tokens = layout.micro_batch * shape.sequence / layout.context
    frozen = bool(states.adapter_rank)
    again = {Recompute.FULL: 1.0, Recompute.ALTERNATE: 1 / layout.recompute_every}
    repeated = again.get(layout.recompute, 0.0)
    products = (4 if frozen else 6) * shape.layers * shape.active_layer
    products += products_again(shape, layout.recompute, layout.recompute_every)
    width = shape.active_layer / shape.hidden / layout.tensor
    reached = device.efficiency / (1 + constants.few_tokens / tokens + constants.narrow / width)
    peak = device.peak(states.element)
    eight = 2 * constants.products_8bit if states.fp8 else 1.0
    output = (4 if frozen else 6) * shape.vocab * shape.hidden
    seconds = (products / eight + output) / (peak * reached)
    # The fitted efficiency of the attention is that of all pairs, although kernels omit later ones.
    pairs = attention_per_token(shape) * (2 if shape.causal else 1)
    attention = pairs * (1 + repeated / 3)
    seconds += attention / (peak * device.attention_efficiency)
    passed = stored_bytes(shape, 1.0, states.element) * shape.layers * constants.passes
    passed *= (1 + repeated / 3) * (1.0 if states.compiled else constants.eager)
    passed += 4 * shape.vocab * states.element
    if states.quantized:  # all weights are converted for both passes of each micro-batch
        passed += 2 * (states.frozen + 4) * shape.parameters / tokens
    seconds += passed / device.memory_rate
    counted = hardware_per_token(shape, layout.recompute, layout.recompute_every, frozen=frozen)
    return counted / (seconds * device.peak(states.element, fp8=states.fp8))


class Runs(StrEnum):
    """Which public runs a range describes."""

    TUNED = "tuned"
    TYPICAL = "typical"

    @property
    def label(self) -> str:
        return "as measured by tuned public runs" if self is Runs.TUNED else "typical"


_RANGES = {Runs.TUNED: (1.0, 1.25, 1.27), Runs.TYPICAL: (0.75, 1.30, 1.30)}
"""Median of the efficiency as a share of the roofline, and the factors to the ends of its range."""
_MOST = 0.95


@dataclass(frozen=True, slots=True)
class Efficiency:
    """The efficiency of any layout: measured, or that of public runs."""

    measured: Range | None = None
    """The same for all layouts."""
    runs: Runs = Runs.TUNED

    def of(
        self, shape: ModelShape | None, layout: Layout, states: StateBytes, device: DeviceModel
    ) -> Range:
        """Return the range of a layout.

        Args:
            shape: None for a model whose layers are not known.
        """
        if self.measured:
            return self.measured
        if shape is None:
            return traced_prior(device)
        share, slower, faster = _RANGES[self.runs]
        middle = min(share * roofline(shape, layout, states, device), _MOST)
        return Range(middle / slower, middle, min(middle * faster, _MOST))


_UNKNOWN_SPREAD = 2.0
_TRACED_SHARE = 0.5
"""Of the efficiency of large products: models of unknown layers are rarely products alone."""


def traced_prior(device: DeviceModel) -> Range:
    """The efficiency of a traced model: little is known, so the range is wide."""
    return logit_range(device.efficiency * _TRACED_SHARE, _UNKNOWN_SPREAD)


def logit_range(centre: float, spread: float) -> Range:
    """A logit-normal range whose lower end is ``centre / spread``."""
    middle, low = math.log(centre / (1 - centre)), centre / spread
    return Range(low, centre, 1 / (1 + math.exp(math.log(low / (1 - low)) - 2 * middle)))
