"""What a calibration has measured on a node, and what follows for its device.

The measurements are those of ``sources.timed_slice``: a large matrix product, two layers of the
model with several numbers of samples, the output layer, the optimizer, a copy, all-reduces of
several sizes. A line through the fewest and the most samples parts the time of a layer that does
not depend on them. Where that is most of the time, as in a small batch, the line's slope is the
difference of two nearly equal times: its error is part of the range of the efficiency. Ranges are
of 80 %; without a calibration they are priors.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gangline.api.figures import format_scaled
from gangline.sizing.hardware import DeviceModel, MeasuredCosts, UnknownDeviceError, find_device
from gangline.sizing.model import ShapeError

_Z = 1.2815515655446004
"""The 90th percentile of the standard normal distribution."""


@dataclass(frozen=True, slots=True)
class Range:
    """10th, 50th and 90th percentile."""

    low: float
    middle: float
    high: float

    def contains(self, value: float) -> bool:
        return self.low <= value <= self.high


FORMAT = "gangline.dev/calibration"
VERSION = 1


_MEDIAN_ERROR = 1.2533
"""Standard error of a median, in standard deviations over the root of the number of values."""
LEAST_SPREAD = 1.05
"""Between the centre and the ends of the efficiency's range, however even the steps were."""
_MOST_EFFICIENCY = 0.95


@dataclass(frozen=True, slots=True)
class Calibration:
    """Measured figures of a kind of device."""

    device: DeviceModel
    """The device with everything that was measured, except for the efficiency."""
    efficiency: Range
    element: int
    """Bytes of the numbers that were multiplied."""
    source: str
    """One line for the assumptions of a plan."""

    def apply(self, device: DeviceModel) -> DeviceModel:
        """Return ``device`` with the measured figures in place of its own."""
        measured = self.device
        changed = replace(
            device,
            costs=measured.costs,
            bus_bandwidth=measured.bus_bandwidth,
            collective_s=measured.collective_s,
        )
        return _with_peak(changed, self.element, measured.peak(self.element))


def read_calibration(content: Mapping[str, Any], file: str = "the calibration") -> Calibration:
    """Read the content of a calibration file.

    Raises:
        ShapeError: it is not one, or it was written by a later version.
    """
    if content.get("format") != FORMAT:
        raise ShapeError("calibration", f"{file} is not the output of 'gangline plan calibrate'")
    if content.get("version") != VERSION:
        raise ShapeError(
            "calibration", f"{file} has version {content.get('version')!r}, known is {VERSION}"
        )
    try:
        return _fit(content, file)
    except (KeyError, TypeError, ValueError, ZeroDivisionError, IndexError) as error:
        raise ShapeError("calibration", f"{file} is damaged: {error!r}") from error


def _fit(content: Mapping[str, Any], file: str) -> Calibration:
    element, devices = int(content["element"]), int(content["devices"])
    layers = content["layers"]
    rate, pass_s = _layer_line(layers["runs"], int(layers["count"]))
    product = content["product"]
    peak = float(product["flops"]) / min(product["seconds"])
    device = _device(str(content["device"]), peak, float(content["memory_bytes"]), devices, element)
    peak = max(device.peak(element), rate / _MOST_EFFICIENCY)
    output = content.get("output")
    output_rate = float(output["flops"]) / _median(output) if output else rate
    update, copy = content["update"], content["copy"]
    costs = MeasuredCosts(
        pass_s=pass_s,
        output_efficiency=output_rate / rate,
        update_s=_median(update) / float(update["parameters"]),
        copy_s=_median(copy) / float(copy["bytes"]),
    )
    start_s, bandwidth = _bus(content["all_reduce"], devices, device.bus_bandwidth)
    device = replace(device, costs=costs, collective_s=start_s, bus_bandwidth=bandwidth)
    device = _with_peak(device, element, peak)
    efficiency = _range(rate / peak, layers["runs"][-1], _slope_error(layers["runs"]))
    source = (
        f"{efficiency.middle:.0%} of {format_scaled(peak, 'FLOP/s')} while it computes, "
        f"{efficiency.low:.0%} to {efficiency.high:.0%}, and an all-reduce of "
        f"{format_scaled(bandwidth, 'B/s')}: measured ({file})"
    )
    return Calibration(device, efficiency, element, source)


def _device(name: str, peak: float, memory: float, devices: int, element: int) -> DeviceModel:
    try:
        return find_device(name)
    except UnknownDeviceError:
        pass
    processor = name.upper() == "CPU"
    return DeviceModel(
        name.upper() if processor else name,
        peak_flops=peak,
        memory_bytes=memory,
        efficiency=0.4,
        node_devices=devices,
        fp32_flops=peak if element == 4 else 0.0,
        overlaps=not processor,
        full_reduce=processor,
    )


def _with_peak(device: DeviceModel, element: int, peak: float) -> DeviceModel:
    if element == 2:
        return replace(device, peak_flops=peak)
    return replace(device, fp32_flops=peak)


def _layer_line(runs: Sequence[Mapping[str, Any]], layers: int) -> tuple[float, float]:
    """Return operations per second of more samples, and the seconds that a layer takes anyway."""
    few, many = runs[0], runs[-1]
    most = float(many["flops"]) / _median(many)
    work = float(many["flops"]) - float(few["flops"])
    taken = _median(many) - _median(few)
    if work <= 0 or taken <= 0:
        return most, 0.0
    rate = work / taken
    left = _median(many) - float(many["flops"]) / rate
    return (rate, left / layers) if left > 0 else (most, 0.0)


def _slope_error(runs: Sequence[Mapping[str, Any]]) -> float:
    """Return the relative standard error of the rate of the line; 0 if there is none."""
    taken = _median(runs[-1]) - _median(runs[0])
    if len(runs) < 2 or taken <= 0:
        return 0.0
    return math.hypot(*(_median_error(run) for run in runs)) / taken


def _median_error(run: Mapping[str, Any]) -> float:
    """Return the standard error of the median of a run, in seconds."""
    seconds = sorted(float(second) for second in run["seconds"])
    tenth = len(seconds) // 10
    deviation = (seconds[-1 - tenth] - seconds[tenth]) / (2 * _Z)
    return _MEDIAN_ERROR * deviation / math.sqrt(len(seconds))


def _bus(sweep: Sequence[Mapping[str, Any]], devices: int, default: float) -> tuple[float, float]:
    """Fit seconds = start + bytes / bandwidth, with equal weight for equal relative errors."""
    if devices < 2 or len(sweep) < 2:
        return 0.0, default
    sent = [2 * (devices - 1) / devices * float(run["bytes"]) for run in sweep]
    taken = [_median(run) for run in sweep]
    weights = [1 / (seconds * seconds) for seconds in taken]
    total = sum(weights)
    mean_sent = sum(w * x for w, x in zip(weights, sent, strict=True)) / total
    mean_taken = sum(w * y for w, y in zip(weights, taken, strict=True)) / total
    spread = sum(w * (x - mean_sent) ** 2 for w, x in zip(weights, sent, strict=True))
    pairs = zip(weights, sent, taken, strict=True)
    slope = sum(w * (x - mean_sent) * (y - mean_taken) for w, x, y in pairs) / spread
    if slope <= 0:
        return 0.0, sent[-1] / taken[-1]
    return max(mean_taken - slope * mean_sent, 0.0), 1 / slope


def _median(run: Mapping[str, Any]) -> float:
    seconds = [float(second) for second in run["seconds"]]
    middle = statistics.median(seconds)
    if not 0 < middle < float("inf"):
        raise ValueError(f"a run of {middle} s")
    return middle


def _range(efficiency: float, run: Mapping[str, Any], slope_error: float) -> Range:
    """Return the range of single steps and of the line's slope, which are independent."""
    seconds = sorted(float(second) for second in run["seconds"])
    middle = statistics.median(seconds)
    tenth = len(seconds) // 10
    slow, fast = seconds[-1 - tenth] / middle, middle / seconds[tenth]
    slow, fast = (
        math.exp(math.hypot(math.log(max(steps, LEAST_SPREAD)), _Z * slope_error))
        for steps in (slow, fast)
    )
    return Range(efficiency / slow, efficiency, max(min(efficiency * fast, 0.99), efficiency))
