"""The time and the cost of a training over the number of devices."""

from dataclasses import dataclass, replace

from gangline.sizing.calibration import Range
from gangline.sizing.model import ShapeError
from gangline.sizing.plan import Plan, PlanRequest, make_plan


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The training on another number of devices."""

    devices: int
    training_s: Range | None
    """None: it does not fit, or cannot be divided."""
    cost: Range | None = None


_CURVE = (0.25, 0.5, 1, 2, 4)
"""Numbers of devices of a curve, as shares of the planned one."""


def time_curve(request: PlanRequest, plan: Plan) -> tuple[CurvePoint, ...]:
    """Plan a training on fewer and on more devices, with the same batch where it divides."""
    degrees = {name: size for name, size in request.pins.degrees.items() if name != "data"}
    free = replace(
        request,
        deadline_s=0.0,
        budget=0.0,
        global_batch=plan.global_batch,
        pins=replace(request.pins, degrees=degrees),
    )
    counts = (plan.request.devices * share for share in _CURVE)
    return tuple(_curve_point(free, plan, int(count)) for count in counts if count % 1 == 0)


def _curve_point(request: PlanRequest, plan: Plan, devices: int) -> CurvePoint:
    if devices == plan.request.devices:
        return CurvePoint(devices, plan.choices[0].training_s if plan.fits else None, plan.cost)
    try:
        other = make_plan(replace(request, devices=devices), search_larger=False)
    except ShapeError:
        return CurvePoint(devices, None)
    return CurvePoint(devices, other.choices[0].training_s if other.fits else None, other.cost)
