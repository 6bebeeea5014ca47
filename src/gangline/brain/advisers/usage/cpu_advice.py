"""Advice on the CPU of a role: by use, and more where training waits for its data."""

from gangline.brain.advisers.advice import Advice, Reason, Unit, What
from gangline.brain.advisers.usage.cpu_size import (
    MARGIN,
    STARVED_SHARE,
    CpuSize,
    data_share,
    loader_value,
    size_cpu,
)
from gangline.brain.advisers.usage.rules import (
    UNCHANGED,
    Arguments,
    confidence_of,
    obstacle_to_lower,
    range_factor,
)
from gangline.brain.advisers.view import View
from gangline.brain.facts.records import RoleSize


def advise_cpu(view: View, size: RoleSize) -> list[Advice]:
    """Return advice on one role; nothing where its use was not measured."""
    role = size.role
    runs = view.similar.runs if view.similar else ()
    was = size.cpu_millis or None
    waits = data_share(view.run.segments)
    if waits is None:
        waits = data_share([segment for run in runs for segment in run.segments])
    starved = waits is not None and waits > STARVED_SHARE
    sized = size_cpu(runs, role, view.now_ms)
    if sized is None and starved:
        sized = size_cpu((view.run,), role, view.now_ms)
    if sized is None:
        return []
    value = loader_value(sized, was) if starved else sized.value_millis
    largest = view.cluster.largest_cpu_millis or None
    value = value if largest is None else min(value, largest)
    if was is not None and abs(value - was) < UNCHANGED * was:
        return []
    obstacle = obstacle_to_lower(view) if was is not None and value < was else ""
    level = view.similar.level if view.similar else 0
    wider = range_factor(level)
    return [
        Advice(
            what=What.CPU,
            role=role,
            unit=Unit.MILLICORES,
            was=was,
            value=was if obstacle else value,
            low=min(sized.low_millis, value) / wider,
            high=max(sized.high_millis, value) * wider,
            reason=_cpu_reason(view, size, sized, value, waits if starved else None),
            evidence=tuple(run.job.uid for run in runs) or (view.run.job.uid,),
            confidence=confidence_of(level, len(runs)),
        )
    ]


def _cpu_reason(
    view: View, size: RoleSize, sized: CpuSize, value: int, waits: float | None
) -> Reason:
    was = size.cpu_millis or None
    arguments: Arguments = {"role": size.role, "runs": sized.runs}
    if waits is not None:
        arguments |= {"data_percent": round(100 * waits), "p95_millis": sized.p95_millis}
        return Reason(code="LoaderStarved", arguments=arguments)
    arguments["level"] = view.similar.level if view.similar else 0
    if was is not None and value < was and (obstacle := obstacle_to_lower(view)):
        arguments |= {"estimate_millis": value, "because": obstacle}
        return Reason(code="NotLowered", arguments=arguments)
    arguments |= {
        "p95_millis": sized.p95_millis,
        "margin_percent": round(100 * (MARGIN - 1)),
        "replicas": size.replicas,
        "saved_millis": (was - value) * size.replicas if was is not None else 0,
    }
    return Reason(code="CpuUse", arguments=arguments)
