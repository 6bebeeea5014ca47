"""A plan: what a training needs, with ranges and reasons. Rendering is the callers' part.

The search tries all layouts that the model proposes. Order: fits at the upper end of its memory
range, then least time (within 3 %), fewest kinds of parallelism, largest micro-batch.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from gangline import display
from gangline.api.figures import format_count, format_figure, format_scaled, plain_number
from gangline.sizing.calibration import Calibration, Range
from gangline.sizing.efficiency import Efficiency, Runs, logit_range
from gangline.sizing.hardware import (
    DEVICES,
    DeviceModel,
    Optimizer,
    Precision,
    StateBytes,
    node_with,
    state_bytes,
)
from gangline.sizing.layout import FREE, PARTS, LayoutPins
from gangline.sizing.memory import trained_share
from gangline.sizing.model import TOKENS_PER_PARAMETER, ModelShape, ShapeError, model_per_token
from gangline.sizing.search import Candidate, SearchResult, near_batches, search
from gangline.sizing.steptime import bandwidth_needed
from gangline.sizing.storage import (
    LOADED_BYTES_PER_S,
    CheckpointPlan,
    HostPlan,
    goodput_share,
    plan_checkpoints,
    plan_host,
)
from gangline.sizing.traced import TracedModel
from gangline.sizing.transformer import TransformerModel

HOUR_S, DAY_S = 3600.0, 86_400.0
_SIZES = (1, 2, 4, 8, *(size << power for power in range(12) for size in (16, 24)), 65536)
"""Numbers of devices that are tried."""

_BATCH_TOKENS = ((2, 0.5e6), (20, 2e6), (200, 4e6), (math.inf, 16e6))
"""Tokens of an optimizer step for models below so many billions of parameters, as published ones
have: GPT-3 XL 1 M, Llama 2 4 M, BLOOM 4 M, Llama 3 405B 16 M.
"""


_ADAPTER_TOKENS = 100e6


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What to plan."""

    model: TransformerModel | TracedModel
    device: DeviceModel
    devices: int = 0
    """0: the least number that meets ``deadline_s`` and ``budget``, else one node."""
    tokens: float = 0.0
    """Tokens of the complete training, of a traced model its samples; 0: 20 for each parameter,
    100 million for adapters.
    """
    global_batch: int = 0
    """Samples of an optimizer step; 0: a usual one for the model's size."""
    precision: Precision = Precision.MIXED
    optimizer: Optimizer = Optimizer.ADAM
    adapter: str = ""
    """``lora`` or ``qlora`` if adapters are trained, not the model."""
    adapter_rank: int = 16
    offload: bool = False
    """Whether the optimizer and its states are in host memory."""
    compiled: bool = True
    """Whether ``torch.compile`` or hand-written kernels fuse the operations between products."""
    fused_loss: bool = False
    """Whether the loss is computed without logits in 32 bits."""
    pins: LayoutPins = FREE
    """Parts of the layout that are given."""
    runs: Runs = Runs.TUNED
    """The public runs whose efficiency is assumed if none is measured."""
    efficiency: float = 0.0
    """Measured share of the peak; 0: that of public runs."""
    price_per_device_hour: float = 0.0
    """Money for an hour of a device; 0: unknown. Prices are never built in."""
    deadline_s: float = 0.0
    """Longest training; 0: any."""
    budget: float = 0.0
    """Most money for the training; needs a price. 0: any."""
    calibration: Calibration | None = None
    """Measured figures of the device; they replace the prior."""
    sample_cpu_s: float = 0.0
    """Measured seconds that a core takes to load and prepare a sample; 0: assumed by its size."""

    @property
    def states(self) -> StateBytes:
        """Bytes that the training keeps for each parameter."""
        return state_bytes(
            self.precision,
            self.optimizer,
            adapter=self.adapter,
            rank=self.adapter_rank,
            offload=self.offload,
            compiled=self.compiled,
            fused_loss=self.fused_loss,
        )


CHOICE_HEAD = ("Layout", "Micro-batch", "Recompute", "Memory", "Step", "MFU", "Training")


@dataclass(frozen=True, slots=True, repr=False)
class LayoutChoice:
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

    def cells(self) -> tuple[object, ...]:
        """Return the row of this layout in the table of ``CHOICE_HEAD``."""
        return (
            self.layout_title,
            self.candidate.layout.micro_batch,
            self.candidate.layout.recompute_title,
            f"{format_figure(self.candidate.memory.total / 1e9)} GB",
            format_figure(self.step_s.middle, "s"),
            f"{self.utilisation:.0%}",
            _span(self.training_s.middle),
        )

    def __repr__(self) -> str:
        facts = zip(CHOICE_HEAD[1:], self.cells()[1:], strict=True)
        return f"<{self.layout_title}: {', '.join(f'{name} {cell}' for name, cell in facts)}>"


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """The answer."""

    request: PlanRequest
    """As asked for, with the device in nodes that the layouts fill."""
    tokens: float
    global_batch: int
    parameters: int
    model_flops: float
    """Of the complete training."""
    compute_optimal_tokens: float
    efficiency: Range
    choices: tuple[LayoutChoice, ...]
    """Layouts that fit, best first; empty if none fits."""
    nearest: Candidate | None
    """If none fits: the layout that needs the least memory."""
    fitting_devices: int | None
    """If none fits: the least number of devices that would."""
    checkpoints: CheckpointPlan
    host: HostPlan | None
    """Processors for the best layout; None if none fits."""
    cost: Range | None
    """Money; None without a price."""
    typical_s: Range | None
    """Training with the best layout as typical runs take; None if the efficiency is measured."""
    misses: tuple[str, ...]
    """What the plan does not meet, and what would."""
    assumptions: tuple[str, ...]

    @property
    def fits(self) -> bool:
        return bool(self.choices)

    @property
    def node_devices(self) -> int:
        """Devices of each node of the training."""
        return min(self.request.devices, self.request.device.node_devices)

    @property
    def nodes(self) -> int:
        return self.request.devices // self.node_devices

    def _title(self) -> str:
        billions, hardware = self.parameters / 1e9, self.request.device.name
        return f"{format_figure(billions)} B parameters on {self.request.devices} x {hardware}"

    def _notes(self) -> list[str]:
        missed = [f"Missed: {miss}" for miss in self.misses]
        return missed + [f"Assumed: {assumption}" for assumption in self.assumptions]

    def __repr__(self) -> str:
        rows = [choice.cells() for choice in self.choices]
        table = display.plain_table(CHOICE_HEAD, rows) if rows else self._unfit()
        return "\n".join([self._title(), table, *self._notes()])

    def _repr_html_(self) -> str:
        rows = [choice.cells() for choice in self.choices]
        table = display.table(CHOICE_HEAD, rows) if rows else display.note(self._unfit())
        title = display.heading(self._title(), "")
        return display.lines([title, table]) + display.bullets(self._notes())

    def _unfit(self) -> str:
        if self.fitting_devices:
            return f"No layout fits; {self.fitting_devices} devices of this kind would do."
        return "No layout fits; use a device with more memory."


def make_plan(request: PlanRequest, *, search_larger: bool = True) -> Plan:
    """Plan a training.

    Args:
        search_larger: whether the least number of devices is searched if no layout fits.

    Raises:
        ShapeError: the request contradicts itself; the message names the option.
    """
    _check(request)
    if request.calibration:
        request = replace(request, device=request.calibration.apply(request.device))
    if not request.devices:
        return _sized(request)
    model = request.model
    usual_tokens = TOKENS_PER_PARAMETER * float(model.parameters)
    tokens = request.tokens or (_ADAPTER_TOKENS if request.adapter else usual_tokens)
    batch, notes = _batch(request)
    assumptions = [*_model_assumptions(model), *notes]
    if not request.tokens:
        usual = f"{TOKENS_PER_PARAMETER} tokens for each parameter"
        assumptions.append("100M tokens, usual for adapters" if request.adapter else usual)
    efficiency = _efficiency(request)
    device, result = _search(request, batch, efficiency)
    if result.problem:
        raise _impossible(request, batch, result.problem)
    best = result.fitting[0] if result.fitting else result.nearest
    assert best is not None
    _note_efficiency(request, best.efficiency, assumptions)
    planned = replace(request, device=device)
    if device.node_devices != request.device.node_devices:
        assumptions.append(_nodes_note(planned, request.device.node_devices))
    trained = model.parameters * _trained(request)
    checkpoints = plan_checkpoints(trained, request.devices, device.node_devices)
    useful = goodput_share(request.devices, checkpoints.interval_s)
    choices = tuple(
        _choice(planned, candidate, batch, tokens, useful) for candidate in result.fitting
    )
    cost = _cost(request, choices)
    host = _host(planned, choices[0], assumptions) if choices else None
    return Plan(
        request=planned,
        tokens=tokens,
        global_batch=batch,
        parameters=model.parameters,
        model_flops=_sample_flops(request) / model.sample_tokens * tokens,
        compute_optimal_tokens=TOKENS_PER_PARAMETER * float(model.parameters),
        efficiency=best.efficiency,
        choices=choices,
        nearest=result.nearest,
        fitting_devices=_fitting_devices(request, efficiency)
        if search_larger and not choices
        else None,
        checkpoints=checkpoints,
        host=host,
        cost=cost,
        typical_s=_typical_s(planned, choices, batch, tokens, useful),
        misses=_misses(request, choices, cost),
        assumptions=tuple(assumptions),
    )


def _check(request: PlanRequest) -> None:
    """Check the figures of a request.

    Raises:
        ShapeError: one is impossible.
    """
    if request.devices < 0:
        raise ShapeError("gpus", f"is {request.devices}, must be at least 1")
    figures = {
        "tokens": request.tokens,
        "batch": request.global_batch,
        "price": request.price_per_device_hour,
        "deadline": request.deadline_s,
        "budget": request.budget,
        "sample-cpu": request.sample_cpu_s,
    }
    for name, figure in figures.items():
        if not 0 <= figure < math.inf:
            raise ShapeError(name, f"is {plain_number(figure)}, must be a positive number")
    if not 0 <= request.efficiency < 1:
        raise ShapeError(
            "efficiency", f"is {plain_number(request.efficiency)}, must be between 0 and 1"
        )
    if request.precision is Precision.FP8 and not request.device.fp8:
        able = ", ".join(device.name for device in DEVICES if device.fp8)
        raise ShapeError(
            "precision", f"is fp8, but {request.device.name} does not multiply in 8 bits; {able} do"
        )
    if request.adapter and isinstance(request.model, TracedModel):
        raise ShapeError("adapter", "needs a transformer: the layers of a traced model are unknown")
    if request.adapter_rank < 1:
        raise ShapeError("adapter-rank", f"is {request.adapter_rank}, must be at least 1")
    if request.budget and not request.price_per_device_hour:
        raise ShapeError("budget", "needs a price: prices are never built in")


def _sized(request: PlanRequest) -> Plan:
    """Plan with the least number of devices that meets the goals, else with the fastest."""
    if not (request.deadline_s or request.budget):
        return make_plan(replace(request, devices=request.device.node_devices))
    fastest: Plan | None = None
    # Planned without the goals: what would meet a missed one is searched once, for the result.
    for plan in _larger_plans(replace(request, deadline_s=0.0, budget=0.0), 0):
        if _meets_goals(request, plan):
            result = make_plan(replace(request, devices=plan.request.devices))
            note = f"{plan.request.devices} GPUs: the least number that meets the goals"
            return replace(result, assumptions=(note, *result.assumptions))
        if fastest is None or _middle_s(plan) < _middle_s(fastest):
            fastest = plan
    devices = fastest.request.devices if fastest is not None else request.device.node_devices
    return make_plan(replace(request, devices=devices))


def _meets_goals(request: PlanRequest, plan: Plan) -> bool:
    in_time = not request.deadline_s or _middle_s(plan) <= request.deadline_s
    return in_time and not (request.budget and plan.cost and plan.cost.middle > request.budget)


def _larger_plans(request: PlanRequest, devices: int) -> Iterator[Plan]:
    """Plan with each usual number of devices above ``devices`` on which the training fits."""
    for more in _SIZES:
        if more > devices:
            try:
                plan = make_plan(replace(request, devices=more))
            except ShapeError:
                continue  # the model or the batch cannot be divided by so many
            if plan.fits:
                yield plan


def _middle_s(plan: Plan) -> float:
    return plan.choices[0].training_s.middle


def _batch(request: PlanRequest) -> tuple[int, list[str]]:
    if batch := request.global_batch:
        sharing = math.gcd(batch, request.devices)
        if batch < request.devices or sharing == request.devices:
            return batch, []
        near = batch // request.devices * request.devices
        return batch, [
            f"{batch} samples a step, which at most {sharing} of {request.devices} GPUs can share "
            f"equally; {near} or {near + request.devices} allow all layouts"
        ]
    if isinstance(request.model, TracedModel):
        batch = request.model.batch * request.devices
        return batch, [f"a global batch of {batch} samples, the traced one on each GPU"]
    billions = request.model.parameters / 1e9
    usual = next(tokens for most, tokens in _BATCH_TOKENS if billions < most)
    odd = request.devices // (request.devices & -request.devices)
    # More devices than samples share samples or layers, at most as many as a node has.
    least = max(request.devices // request.device.node_devices, 1)
    power = max(usual / request.model.sample_tokens, least) / odd
    batch = 2 ** max(round(math.log2(power)), 0) * odd
    return batch, [
        f"a global batch of {batch} samples, usual for "
        f"{format_count(request.model.parameters)} parameters"
    ]


def _search(
    request: PlanRequest, batch: int, efficiency: Efficiency
) -> tuple[DeviceModel, SearchResult]:
    """Search the layouts; return them with the device in the nodes that they fill."""
    states, pins = request.states, request.pins
    first: tuple[DeviceModel, SearchResult] | None = None
    for size in _node_sizes(request.devices, request.device.node_devices):
        device = request.device
        if size != device.node_devices and size < request.devices:
            device = node_with(device, size)
        result = search(request.model, device, request.devices, batch, states, efficiency, pins)
        if result.fitting:
            return device, result
        if first is None or first[1].problem:
            first = device, result
    assert first is not None
    return first


def _node_sizes(devices: int, node_devices: int) -> list[int]:
    """List the numbers of devices of a node with which all nodes are equally full.

    The largest comes first. Where nodes are full there is no other: smaller groups of a node
    allow nothing that the complete node does not.
    """
    if devices <= node_devices or devices % node_devices == 0:
        return [min(devices, node_devices)]
    return [size for size in range(node_devices, 0, -1) if devices % size == 0]


def _impossible(request: PlanRequest, batch: int, problem: str) -> ShapeError:
    """Say which batches near this one can be divided, or that a pinned layout cannot be."""
    near = near_batches(request.model, request.device, request.devices, batch, request.pins)
    if not near:
        parts = [size for name in PARTS if (size := request.pins.degrees.get(name, 1)) > 1]
        if parts and request.devices % math.prod(parts):
            product = " x ".join(map(str, parts))
            problem = f"{product} ranks do not divide the {request.devices} GPUs"
        return ShapeError("layout" if request.pins != FREE else "batch", problem)
    return ShapeError(
        "batch",
        f"{batch} samples cannot be divided over {request.devices} GPUs ({problem}); "
        f"{' or '.join(map(str, near))} can",
    )


def _nodes_note(request: PlanRequest, node_devices: int) -> str:
    size = request.device.node_devices
    return (
        f"{request.devices // size} nodes with {size} GPU{'s' if size > 1 else ''} each: "
        f"{request.devices} GPUs do not fill nodes of {node_devices}"
    )


def _host(request: PlanRequest, choice: LayoutChoice, assumptions: list[str]) -> HostPlan:
    model = request.model
    host = plan_host(
        choice.tokens_per_s.high / model.sample_tokens,
        model.sample_bytes,
        choice.candidate.layout.data,
        sample_cpu_s=request.sample_cpu_s,
    )
    if not request.sample_cpu_s:
        assumptions.append(
            f"a core prepares {LOADED_BYTES_PER_S / 1e6:.0f} MB of samples a second, one in "
            f"{format_scaled(host.sample_cpu_s, 's', digits=2)} (--sample-cpu)"
        )
    return host


def _model_assumptions(model: TransformerModel | TracedModel) -> tuple[str, ...]:
    if isinstance(model, TracedModel):
        return ()
    if model.shape.vocab or model.assumed:
        return model.assumed
    return ("no vocabulary: embeddings and logits are not counted",)


def _sample_flops(request: PlanRequest) -> float:
    model = request.model
    if request.adapter and isinstance(model, TransformerModel):
        return model.sample_tokens * model_per_token(model.shape, frozen=True)
    return model.sample_flops


def _shape(model: TransformerModel | TracedModel) -> ModelShape | None:
    return model.shape if isinstance(model, TransformerModel) else None


def _trained(request: PlanRequest) -> float:
    """Share of the parameters that are trained."""
    shape = _shape(request.model)
    return trained_share(shape, request.states) if shape else 1.0


def _typical_s(
    request: PlanRequest,
    choices: tuple[LayoutChoice, ...],
    batch: int,
    tokens: float,
    useful: float,
) -> Range | None:
    shape = _shape(request.model)
    if not choices or shape is None or request.efficiency or request.calibration:
        return None
    best = choices[0].candidate
    reached = Efficiency(runs=Runs.TYPICAL).of(shape, best.layout, request.states, request.device)
    typical = replace(best, efficiency=reached)
    return _choice(request, typical, batch, tokens, useful).training_s


def _efficiency(request: PlanRequest) -> Efficiency:
    if request.efficiency:
        return Efficiency(logit_range(request.efficiency, 1.05))
    if request.calibration:
        return Efficiency(request.calibration.efficiency)
    return Efficiency(runs=request.runs)


def _note_efficiency(request: PlanRequest, reached: Range, assumptions: list[str]) -> None:
    if request.efficiency:
        return
    if request.calibration:
        assumptions.append(request.calibration.source)
        return
    if isinstance(request.model, TracedModel) and request.model.is_lower_bound:
        names = ", ".join(sorted(request.model.uncounted))
        assumptions.append(f"operations are a lower bound: no formula for {names}")
    runs = f", {request.runs.label}" if isinstance(request.model, TransformerModel) else ""
    assumptions.append(
        f"{reached.middle:.0%} of the peak of {request.device.name} while it computes, "
        f"{reached.low:.0%} to {reached.high:.0%}{runs}; measure it with 'gangline plan calibrate'"
    )


def _choice(
    request: PlanRequest,
    candidate: Candidate,
    batch: int,
    tokens: float,
    useful: float,
) -> LayoutChoice:
    model, device, layout = request.model, request.device, candidate.layout
    states, efficiency = request.states, candidate.efficiency
    slow, middle, fast = (
        model.step(layout, states, device, share).total
        for share in (efficiency.low, efficiency.middle, efficiency.high)
    )
    step_tokens = batch * model.sample_tokens
    steps = tokens / step_tokens
    work = batch * _sample_flops(request) / layout.devices
    return LayoutChoice(
        candidate,
        Range(fast, middle, slow),
        Range(step_tokens / slow, step_tokens / middle, step_tokens / fast),
        work / (device.peak(states.element, fp8=states.fp8) * middle),
        Range(*(steps * seconds / useful for seconds in (fast, middle, slow))),
        _limit(candidate, device),
        bandwidth_needed(
            lambda other: model.step(layout, states, other, efficiency.middle),
            device,
            layout.devices,
        ),
    )


def _limit(candidate: Candidate, device: DeviceModel) -> str:
    step, memory = candidate.step, candidate.memory
    shares = {
        "computing": step.compute,
        "the pipeline's start and end": step.bubble,
        "the gradients' network": step.data,
        "tensor parallelism within the node": step.tensor,
        "traffic between pipeline stages": step.pipeline,
        "traffic between experts": step.expert,
        "keys and values of other ranks": step.context,
        "the optimizer": step.update,
        "computing beside FSDP's traffic": step.contention,
        "copies of weights and gradients": step.copies,
    }
    name = max(shares, key=lambda key: shares[key])
    full = memory.high / device.memory_bytes
    return f"{name} ({shares[name] / step.total:.0%} of a step), memory {full:.0%} full"


def _cost(request: PlanRequest, choices: tuple[LayoutChoice, ...]) -> Range | None:
    if not request.price_per_device_hour or not choices:
        return None
    rate = request.price_per_device_hour * request.devices / HOUR_S
    took = choices[0].training_s
    return Range(took.low * rate, took.middle * rate, took.high * rate)


def _misses(
    request: PlanRequest, choices: tuple[LayoutChoice, ...], cost: Range | None
) -> tuple[str, ...]:
    missed = []
    if request.deadline_s and choices and choices[0].training_s.middle > request.deadline_s:
        missed.append(_late(request, choices[0]))
    if request.budget and cost and cost.middle > request.budget:
        affordable = request.budget / cost.middle
        missed.append(
            f"the budget of {request.budget:,.0f}: the training costs {cost.middle:,.0f}; it "
            f"would pay for {affordable:.2%} of the tokens, or for all of them at "
            f"{format_figure(request.price_per_device_hour * affordable, digits=2)} for a GPU hour"
        )
    return tuple(missed)


def _late(request: PlanRequest, choice: LayoutChoice) -> str:
    """Say what would meet the deadline: more devices, else fewer tokens."""
    deadline_s, least_s = request.deadline_s, choice.training_s.middle
    missed = f"the deadline of {_span(deadline_s)}: {request.devices} GPUs need {_span(least_s)}"
    free = replace(request, deadline_s=0.0, budget=0.0)
    count = request.devices
    for plan in _larger_plans(free, request.devices):
        if _middle_s(plan) <= request.deadline_s:
            return f"{missed}; {plan.request.devices} would meet it"
        if _middle_s(plan) < least_s:
            least_s, count = _middle_s(plan), plan.request.devices
    share = deadline_s / least_s
    return (
        f"{missed}; no number up to {_SIZES[-1]} meets it: the shortest is {_span(least_s)} with "
        f"{count} GPUs, where {share:.2%} of the tokens would meet it"
    )


def _span(seconds: float) -> str:
    """Return a time in hours, from two days on in days."""
    if seconds < 2 * DAY_S:
        return format_figure(seconds / HOUR_S, "h")
    return format_figure(seconds / DAY_S, "days")


def _fitting_devices(request: PlanRequest, efficiency: Efficiency) -> int | None:
    for devices in _SIZES:
        if devices <= request.devices:
            continue
        larger = replace(request, devices=devices)
        if _search(larger, _batch(larger)[0], efficiency)[1].fitting:
            return devices
    return None
