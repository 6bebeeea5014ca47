"""A plan: what a training needs, with ranges and reasons. Rendering is the callers' part."""

import math
from dataclasses import dataclass, replace

from gangline.sizing.flops import (
    TOKENS_PER_PARAMETER,
    Recompute,
    hardware_per_token,
)
from gangline.sizing.hardware import Device
from gangline.sizing.model import ModelShape, ShapeError
from gangline.sizing.precision import Optimizer, Precision, state_bytes
from gangline.sizing.search import Candidate, search
from gangline.sizing.steptime import bandwidth_needed
from gangline.sizing.storage import CheckpointPlan, goodput_share, plan_checkpoints
from gangline.sizing.traced import TracedModel
from gangline.sizing.transformer import TransformerModel
from gangline.sizing.uncertainty import Range, efficiency_prior, logit_range, traced_prior

BYTES_PER_TOKEN = 4
"""Of a tokenised data set."""
HOUR_S, DAY_S = 3600.0, 86_400.0
_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096, 8192)


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What to plan."""

    model: TransformerModel | TracedModel
    device: Device
    devices: int
    tokens: float = 0.0
    """Tokens of the complete training, of a traced model its samples; 0: 20 for each parameter."""
    global_batch: int = 0
    """Samples of an optimizer step; 0: a usual one for the model's size."""
    precision: Precision = Precision.MIXED
    optimizer: Optimizer = Optimizer.ADAM
    efficiency: float = 0.0
    """Measured share of the peak; 0: the prior of the device."""
    price_per_device_hour: float = 0.0
    """Money for an hour of a device; 0: unknown. Prices are never built in."""
    deadline_s: float = 0.0
    budget: float = 0.0


@dataclass(frozen=True, slots=True)
class Choice:
    """A layout with its ranges."""

    candidate: Candidate
    step_s: Range
    tokens_per_s: Range
    utilisation: float
    """Model FLOPs utilisation (MFU) at the middle of the range."""
    training_s: Range
    """Of the complete training, failures and checkpoints included."""
    limited_by: str
    bandwidth_needed: float | None
    """Bytes per second of a node's network; 0: none; None: no network is fast enough."""

    @property
    def layout_title(self) -> str:
        return self.candidate.layout.title


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer."""

    request: PlanRequest
    tokens: float
    global_batch: int
    parameters: int
    model_flops: float
    """Of the complete training."""
    compute_optimal_tokens: float
    efficiency: Range
    choices: tuple[Choice, ...]
    """Layouts that fit, best first; empty if none fits."""
    nearest: Candidate | None
    """If none fits: the layout that needs the least memory."""
    fitting_devices: int | None
    """If none fits: the least number of devices that would."""
    checkpoints: CheckpointPlan
    data_bytes_per_s: float
    cost: Range | None
    """Money; None without a price."""
    misses: tuple[str, ...]
    """What the plan does not meet, and what would."""
    assumptions: tuple[str, ...]

    @property
    def fits(self) -> bool:
        return bool(self.choices)


def make_plan(request: PlanRequest) -> Plan:
    """Plan a training.

    Raises:
        ShapeError: the request contradicts itself; the message names the option.
    """
    model, device = request.model, request.device
    if request.devices < 1:
        raise ShapeError("gpus", f"is {request.devices}, must be at least 1")
    tokens = request.tokens or TOKENS_PER_PARAMETER * float(model.parameters)
    batch, assumptions = _batch(request)
    if not request.tokens:
        assumptions.append(f"{TOKENS_PER_PARAMETER} tokens for each parameter")
    efficiency = _efficiency(request, assumptions)
    states = state_bytes(request.precision, request.optimizer)
    found = search(model, device, request.devices, batch, states, efficiency.middle)
    if found.problem:
        raise ShapeError("batch", f"no layout is possible: {found.problem}")
    checkpoints = plan_checkpoints(model.parameters, request.devices, device.node_devices)
    useful = goodput_share(request.devices, checkpoints.interval_s)
    choices = tuple(
        _choice(request, each, batch, tokens, efficiency, useful) for each in found.fitting
    )
    cost = _cost(request, choices)
    return Plan(
        request=request,
        tokens=tokens,
        global_batch=batch,
        parameters=model.parameters,
        model_flops=model.sample_flops / model.sample_tokens * tokens,
        compute_optimal_tokens=TOKENS_PER_PARAMETER * float(model.parameters),
        efficiency=efficiency,
        choices=choices,
        nearest=found.nearest,
        fitting_devices=None if choices else _fitting_devices(request, efficiency.middle),
        checkpoints=checkpoints,
        data_bytes_per_s=choices[0].tokens_per_s.middle * BYTES_PER_TOKEN if choices else 0.0,
        cost=cost,
        misses=_misses(request, choices, cost, efficiency),
        assumptions=tuple(assumptions),
    )


def training_hours(
    shape: ModelShape,
    device: Device,
    tokens: float,
    efficiency: float,
    recompute: Recompute = Recompute.NONE,
) -> float:
    """Device hours of a training at an efficiency, without a layout."""
    work = hardware_per_token(shape, recompute) * tokens
    return work / (device.peak_flops * efficiency) / HOUR_S


def _batch(request: PlanRequest) -> tuple[int, list[str]]:
    if request.global_batch:
        return request.global_batch, []
    if isinstance(request.model, TracedModel):
        batch = request.model.batch * request.devices
        return batch, [f"a global batch of {batch} samples, the traced one on each GPU"]
    billions = request.model.parameters / 1e9
    usual = 0.5e6 if billions < 2 else 2e6 if billions < 20 else 4e6
    devices = request.devices
    power = max(round(usual / request.model.sample_tokens / devices), 1)
    batch = 2 ** round(math.log2(power)) * devices
    return batch, [f"a global batch of {batch} samples, usual for {billions:.3g} B parameters"]


def _efficiency(request: PlanRequest, assumptions: list[str]) -> Range:
    if request.efficiency:
        return logit_range(request.efficiency, 1.05)
    if isinstance(request.model, TracedModel):
        prior = traced_prior(request.device)
        if request.model.is_lower_bound:
            names = ", ".join(sorted(request.model.uncounted))
            assumptions.append(f"operations are a lower bound: no formula for {names}")
    else:
        prior = efficiency_prior(request.model.shape, request.device)
    assumptions.append(
        f"{prior.middle:.0%} of the peak of {request.device.name} while it computes, "
        f"{prior.low:.0%} to {prior.high:.0%}; some published trainings are lower: measure it"
    )
    return prior


def _choice(
    request: PlanRequest,
    candidate: Candidate,
    batch: int,
    tokens: float,
    efficiency: Range,
    useful: float,
) -> Choice:
    model, device, layout = request.model, request.device, candidate.layout
    states = state_bytes(request.precision, request.optimizer)
    slow, middle, fast = (
        model.step(layout, states, device, each).total
        for each in (efficiency.low, efficiency.middle, efficiency.high)
    )
    step_tokens = batch * model.sample_tokens
    steps = tokens / step_tokens
    work = batch * model.sample_flops / layout.devices
    return Choice(
        candidate,
        Range(fast, middle, slow),
        Range(step_tokens / slow, step_tokens / middle, step_tokens / fast),
        work / (device.peak_flops * middle),
        Range(*(steps * each / useful for each in (fast, middle, slow))),
        _limit(candidate, device),
        bandwidth_needed(
            lambda other: model.step(layout, states, other, efficiency.middle),
            device,
            layout.devices,
        ),
    )


def _limit(candidate: Candidate, device: Device) -> str:
    step, memory = candidate.step, candidate.memory
    shares = {
        "computing": step.compute,
        "the pipeline's start and end": step.bubble,
        "the gradients' network": step.data,
        "tensor parallelism within the node": step.tensor,
        "traffic between pipeline stages": step.pipeline,
        "traffic between experts": step.expert,
    }
    name = max(shares, key=lambda key: shares[key])
    full = memory.high / device.memory_bytes
    return f"{name} ({shares[name] / step.total:.0%} of a step), memory {full:.0%} full"


def _cost(request: PlanRequest, choices: tuple[Choice, ...]) -> Range | None:
    if not request.price_per_device_hour or not choices:
        return None
    rate = request.price_per_device_hour * request.devices / HOUR_S
    took = choices[0].training_s
    return Range(took.low * rate, took.middle * rate, took.high * rate)


def _misses(
    request: PlanRequest, choices: tuple[Choice, ...], cost: Range | None, efficiency: Range
) -> tuple[str, ...]:
    missed = []
    if request.deadline_s and choices and choices[0].training_s.middle > request.deadline_s:
        enough = next(
            (n for n in _SIZES if n > request.devices and _meets(request, n, efficiency.middle)),
            None,
        )
        advice = f"{enough} would meet it" if enough else f"not even {_SIZES[-1]} would meet it"
        missed.append(
            f"the deadline of {request.deadline_s / DAY_S:.3g} days: {request.devices} GPUs need "
            f"{choices[0].training_s.middle / DAY_S:.3g}; {advice}"
        )
    if request.budget and cost and cost.middle > request.budget:
        affordable = request.budget / cost.middle
        missed.append(
            f"the budget of {request.budget:,.0f}: the training costs {cost.middle:,.0f}; it "
            f"would pay for {affordable:.0%} of the tokens"
        )
    return tuple(missed)


def _meets(request: PlanRequest, devices: int, efficiency: float) -> bool:
    larger = replace(request, devices=devices, deadline_s=0.0, budget=0.0, efficiency=efficiency)
    try:
        plan = make_plan(larger)
    except ShapeError:
        return False
    return plan.fits and plan.choices[0].training_s.middle <= request.deadline_s


def _fitting_devices(request: PlanRequest, efficiency: float) -> int | None:
    states = state_bytes(request.precision, request.optimizer)
    for devices in _SIZES:
        if devices <= request.devices:
            continue
        batch = _batch(replace(request, devices=devices))[0]
        if search(request.model, request.device, devices, batch, states, efficiency).fitting:
            return devices
    return None
