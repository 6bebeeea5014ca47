"""The output of ``gangline plan`` for people: at most 80 columns."""

import re
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gangline.api.figures import format_count, format_figure, format_scaled
from gangline.cli.render.output import format_table

if TYPE_CHECKING:
    from gangline.sizing.calibration import Range
    from gangline.sizing.curve import CurvePoint
    from gangline.sizing.goals import ResourceFinding
    from gangline.sizing.layout import Layout
    from gangline.sizing.plan import LayoutChoice, Plan

GIGABYTE = 1e9
WIDTH = 80
_INDENT = 11
_BAR = 32
"""Characters of a bar."""
_REASON_INDENT = 21
_UNIT = re.compile(r"(?<=\d) (?=(?:[kMGTPEZ]?(?:B|bit|FLOP)|[µm]?s|min|h|d)\b)")
"""The space between a figure and its unit."""
_SAME_TIME = 1.03
"""Layouts whose times differ by less are ordered by their simplicity."""
_SHARED = (
    "{} copies of the model, which reduce their gradients",
    "{} copies of the model, which share the optimizer states",
    "{} copies of the weights, which share gradients and optimizer states",
    "{} ranks share weights, gradients and optimizer states",
)
"""What data parallelism of each kind of sharding does."""


def plan_table(plan: "Plan", curve: "tuple[CurvePoint, ...]" = ()) -> str:
    """Return everything that a plan says to people."""
    return "\n".join(_lines(plan, curve))


def deepspeed_table(plan: "Plan") -> str:
    """Return what DeepSpeed's estimators say."""
    from gangline.sizing.memory import deepspeed_estimates, largest_module
    from gangline.sizing.traced import TracedModel

    model, devices = plan.request.model, plan.request.devices
    if isinstance(model, TracedModel):
        largest = model.largest_module
    else:
        largest = largest_module(model.shape)
    estimates = deepspeed_estimates(model.parameters, largest, devices)
    head = ("STAGE", "IN HOST MEMORY", "PER GPU")
    rows = [(f"ZeRO-{e.stage}", e.offload, f"{e.device_bytes / 2**30:.2f} GiB") for e in estimates]
    return format_table(head, rows)


def check_table(findings: "tuple[ResourceFinding, ...]") -> str:
    """Return what the check of a job has found."""
    head = ("RESOURCE", "REQUESTED", "NEEDED", "VERDICT")
    rows = [
        (finding.resource, finding.requested, finding.needed, finding.verdict.value)
        for finding in findings
    ]
    reasons = [
        _line(finding.resource, finding.reason, indent=_REASON_INDENT)
        for finding in findings
        if finding.reason
    ]
    return "\n".join([format_table(head, rows), "", *reasons])


def shortfall(plan: "Plan") -> str:
    """Say what is short if no layout fits, and what would fit."""
    assert plan.nearest is not None
    device = plan.request.device
    text = (
        f"the smallest, {plan.nearest.layout.title}, needs "
        f"{plan.nearest.memory.high / GIGABYTE:.0f} GB of the "
        f"{device.memory_bytes / GIGABYTE:.0f} GB of a GPU."
    )
    if plan.nearest.is_tight(device):
        text += " It is tight: it may fit, but not at the upper end of its range."
    if plan.fitting_devices:
        return f"{text} {plan.fitting_devices} GPUs of this kind would do"
    return f"{text} Use a GPU with more memory"


def _lines(plan: "Plan", curve: "tuple[CurvePoint, ...]") -> Iterator[str]:
    request = plan.request
    yield _line("Model", f"{format_count(plan.parameters)} parameters, {_dimensions(plan)}")
    yield _line(
        "Training",
        f"{format_count(plan.tokens)} {_unit(plan)}, {format_scaled(plan.model_flops, 'FLOP')}, "
        f"{plan.global_batch} samples a step",
    )
    memory = f"{request.device.memory_bytes / GIGABYTE:.0f} GB each"
    yield _line("Hardware", f"{request.devices} x {request.device.name}, {memory}")
    yield from _answers(plan)
    yield ""
    if plan.choices:
        yield _choices(plan)
        yield ""
        yield from _best(plan)
        yield from _curve_lines(plan, curve)
    else:
        yield _line("Unfit", f"no layout fits: {shortfall(plan)}")
    for miss in plan.misses:
        yield _line("Missed", miss)
    for assumed in plan.assumptions:
        yield _line("Assumed", assumed)


def _answers(plan: "Plan") -> Iterator[str]:
    """Say whether the training fits, and how long it takes."""
    limit = plan.request.device.memory_bytes
    candidate = plan.choices[0].candidate if plan.choices else plan.nearest
    if candidate is None:
        return
    used, high = candidate.memory.total, candidate.memory.high
    figures = f"{format_figure(used / GIGABYTE)} of {limit / GIGABYTE:.0f} GB"
    verdict = "yes" if plan.fits else "no "
    yield f"{'Fits':<{_INDENT}}{verdict} {memory_bar(used, high, limit)} {figures}"
    if plan.choices:
        kind = "" if plan.typical_s is None else f", {plan.request.runs.label}"
        yield _line("Takes", f"{_span(plan.choices[0].training_s)}{kind}")
        if plan.typical_s and plan.request.runs.value == "tuned":
            yield _line("", f"{_span(plan.typical_s)}, typical")


def memory_bar(used: float, high: float, limit: float, width: int = _BAR) -> str:
    """Draw the used part of a memory, and its range, against the limit."""
    full = min(round(used / limit * width), width)
    most = min(max(round(high / limit * width), full), width)
    return "█" * full + "▒" * (most - full) + "░" * (width - most)


def _curve_lines(plan: "Plan", curve: "tuple[CurvePoint, ...]") -> Iterator[str]:
    """Draw the time over the number of GPUs."""
    timed = [point.training_s.middle for point in curve if point.training_s]
    if not timed:
        return
    yield ""
    width = max(len(str(point.devices)) for point in curve)
    for point in curve:
        head = f"{'Curve' if point is curve[0] else '':<{_INDENT}}{point.devices:>{width}} GPUs "
        if point.training_s is None:
            yield f"{head} does not fit, or cannot be divided"
            continue
        bar = "█" * max(round(point.training_s.middle / max(timed) * _BAR), 1)
        cost = f", costs {point.cost.middle:,.0f}" if point.cost else ""
        here = "  <- this plan" if point.devices == plan.request.devices else ""
        yield f"{head} {bar} {span_middle(point.training_s)}{cost}{here}"


def _line(name: str, text: str, indent: int = _INDENT) -> str:
    # textwrap breaks no line at a no-break space, so a figure stays beside its unit.
    return textwrap.fill(
        _UNIT.sub("\u00a0", text),
        WIDTH,
        initial_indent=name.ljust(indent),
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
    ).replace("\u00a0", " ")


def _dimensions(plan: "Plan") -> str:
    from gangline.sizing.traced import TracedModel

    model = plan.request.model
    if isinstance(model, TracedModel):
        return f"traced, {format_count(model.sample_flops)} operations a sample"
    return f"{model.shape.layers} layers, {model.shape.sequence} tokens a sample"


def _unit(plan: "Plan") -> str:
    return "tokens" if plan.request.model.sample_tokens > 1 else "samples"


def _choices(plan: "Plan") -> str:
    head = ("LAYOUT", "MICRO", "RECOMPUTE", "MEMORY", "STEP", "MFU", "TRAINING")
    rows = [
        (
            _abbreviated(choice.candidate.layout),
            choice.candidate.layout.micro_batch,
            choice.candidate.layout.recompute_title,
            format_scaled(choice.candidate.memory.total, "B"),
            format_scaled(choice.step_s.middle, "s"),
            f"{choice.utilisation:.0%}",
            _span(choice.training_s, "-"),
        )
        for choice in plan.choices
    ]
    return format_table(head, rows)


def _abbreviated(layout: "Layout") -> str:
    """Name a layout as the field does: ``TP8 PP4 ZeRO-1 16``."""
    degrees = (
        ("TP", layout.tensor),
        ("PP", layout.pipeline),
        ("CP", layout.context),
        ("EP", layout.expert),
    )
    parts = [f"{name}{degree}" for name, degree in degrees if degree > 1]
    if layout.data > 1 or not parts:
        parts.append(f"{layout.sharding.title} {layout.data}")
    return " ".join(parts)


def _best(plan: "Plan") -> Iterator[str]:
    best = plan.choices[0]
    memory = best.candidate.memory
    yield _line("Best", f"{best.layout_title}: {_explanation(plan)}")
    yield _line("Limit", best.limited_by)
    yield _line(
        "Memory",
        f"states {memory.states / GIGABYTE:.1f}, activations {memory.activations / GIGABYTE:.1f}, "
        f"logits {memory.logits / GIGABYTE:.1f}, working {memory.working / GIGABYTE:.1f}, "
        f"runtime {memory.runtime / GIGABYTE:.1f} GB; at most {memory.high / GIGABYTE:.0f} GB",
    )
    speed = best.tokens_per_s
    speeds = " - ".join(format_count(rate) for rate in (speed.low, speed.middle, speed.high))
    yield _line("Speed", f"{speeds} {_unit(plan)}/s; a step {_span(best.step_s)}")
    yield from _network(best)
    yield _line("CPU", _processors(plan))
    checkpoints = plan.checkpoints
    yield _line(
        "Storage",
        f"{format_scaled(checkpoints.size_bytes, 'B')} a checkpoint, every "
        f"{format_figure(checkpoints.interval_s / 60)} min; "
        f"{format_scaled(checkpoints.host_bytes_per_node, 'B')} of host memory per node for "
        "checkpoints in memory",
    )
    if plan.cost:
        costs = (plan.cost.low, plan.cost.middle, plan.cost.high)
        yield _line("Cost", " - ".join(f"{cost:,.0f}" for cost in costs))
    efficiency = plan.efficiency
    low, high = (end / efficiency.middle - 1 for end in (efficiency.low, efficiency.high))
    yield _line(
        "Ranges",
        f"p10 - p50 - p90. Time: the efficiency alone, {low:+.0%} to {high:+.0%}. Memory: states "
        "are exact, the rest is +-10%",
    )


def _processors(plan: "Plan") -> str:
    assert plan.host is not None
    workers, cores = plan.host.loader_workers, plan.host.device_cpus
    text = (
        f"{cores} cores for each GPU, {cores * plan.node_devices} for a node: "
        f"{workers} of a GPU's load{'s' if workers == 1 else ''} data"
    )
    if plan.host.data_bytes_per_s is None:
        return text
    return f"{text}, {format_scaled(plan.host.data_bytes_per_s, 'B/s')} in all"


def _network(best: "LayoutChoice") -> Iterator[str]:
    if best.bandwidth_needed is None:
        yield _line("Network", "communication takes more than 5% of a step on any network")
    elif best.bandwidth_needed:
        yield _line(
            "Network",
            f"{format_scaled(best.bandwidth_needed * 8, 'bit/s')} per node keep exposed "
            "communication below 5%",
        )


def _explanation(plan: "Plan") -> str:
    layout = plan.choices[0].candidate.layout
    parts = []
    if layout.data > 1:
        parts.append(_SHARED[layout.sharding].format(layout.data))
    if layout.tensor > 1:
        parts.append(f"each layer over {layout.tensor} GPUs of a node")
    if layout.pipeline > 1:
        parts.append(f"the layers in {layout.pipeline} stages")
    if layout.context > 1:
        parts.append(f"each sample over {layout.context} GPUs")
    if layout.expert > 1:
        parts.append(f"the experts over {layout.expert} GPUs")
    return f"{', '.join(parts) or 'one GPU'}. {_preference(plan)}"


def _preference(plan: "Plan") -> str:
    best, *others = plan.choices
    if not others:
        return "No other layout fits"
    second = others[0]
    ratio = second.step_s.middle / best.step_s.middle
    if ratio > _SAME_TIME:
        return f"It is {ratio - 1:.0%} faster than the next, {second.layout_title}"
    if second.candidate.layout.kinds > best.candidate.layout.kinds:
        return f"It is as fast as {second.layout_title}, with fewer kinds of parallelism"
    if second.candidate.layout.micro_batch < best.candidate.layout.micro_batch:
        return f"It is as fast as {second.layout_title}, with larger micro-batches"
    return f"It is as fast as {second.layout_title}, and simpler"


def span_middle(seconds: "Range") -> str:
    """Write the median with its unit."""
    unit, name = _unit_of(seconds.middle)
    return f"{format_figure(seconds.middle / unit)} {name}"


def _span(seconds: "Range", dash: str = " - ") -> str:
    """Write the three percentiles with one unit."""
    unit, name = _unit_of(seconds.middle)
    values = (duration / unit for duration in (seconds.low, seconds.middle, seconds.high))
    numbers = map(format_figure, values)
    return f"{dash.join(numbers)} {name}"


def _unit_of(seconds: float) -> tuple[float, str]:
    units = ((86_400.0, 2, "d"), (3600.0, 2, "h"), (60.0, 2, "min"), (1.0, 1, "s"))
    fitting = ((unit, name) for unit, least, name in units if seconds >= least * unit)
    return next(fitting, (1e-3, "ms"))
