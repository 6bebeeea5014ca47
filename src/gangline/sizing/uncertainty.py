"""Ranges of 80 %: what a plan does not know, and where its figures come from."""

import math
from dataclasses import dataclass

from gangline.sizing.hardware import Device
from gangline.sizing.model import ModelShape

SPREAD = 1.25
"""Factor between the centre and the ends of the range of the efficiency."""
_Z = 1.2815515655446004
"""The 90th percentile of the standard normal distribution."""
WIDE = 4096
"""Models of this width reach the device's usual efficiency; narrower ones less."""


@dataclass(frozen=True, slots=True)
class Range:
    """10th, 50th and 90th percentile."""

    low: float
    middle: float
    high: float

    def contains(self, value: float) -> bool:
        return self.low <= value <= self.high


def efficiency_prior(shape: ModelShape, device: Device) -> Range:
    """The share of the peak that training of this model usually reaches on the device.

    Logit-normal, so that it stays between 0 and 1. The centre falls with the fourth root of the
    width below 4,096: smaller products use the device less. Of ten published trainings seven lie
    within; Llama 3.1 8B and 70B and MPT-7B are lower.
    """
    centre = device.efficiency * min(1.0, (shape.hidden / WIDE) ** 0.25)
    return logit_range(centre, SPREAD)


UNKNOWN_SPREAD = 2.0
"""As ``SPREAD``, for models whose layers are not known."""


def traced_prior(device: Device) -> Range:
    """The efficiency of a traced model: little is known, so the range is wide."""
    return logit_range(device.efficiency / UNKNOWN_SPREAD**0.5, UNKNOWN_SPREAD)


def logit_range(centre: float, spread: float) -> Range:
    """A logit-normal range whose lower end is ``centre / spread``."""
    middle = math.log(centre / (1 - centre))
    low = centre / spread
    sigma = (middle - math.log(low / (1 - low))) / _Z
    return Range(low, centre, 1 / (1 + math.exp(-(middle + _Z * sigma))))
