"""The price of a device: what the best refused use would gain with it, between 0 and 1.

1 is a pending gang that may start, or growth without loss; 0 is a cluster with idle devices. The
price is smoothed, so that one short job does not move the sizes of others.
"""

import math

import msgspec

SMOOTHING_S = 600.0
IDLE_S = 300.0


class PriceState(msgspec.Struct, frozen=True, kw_only=True):
    """The price, and since when devices are idle."""

    price: float = 0.0
    at_ms: int | None = None
    idle_since_ms: int | None = None
    """None: all devices are used, or other gangs need the free ones."""


def update_price(state: PriceState, refused: float, idle_devices: int, now_ms: int) -> PriceState:
    """Return the price after an observation.

    Args:
        state: before.
        refused: gain of the best refused device, 0 to 1.
        idle_devices: free devices that no pending pod can use.
        now_ms: time of the observation.
    """
    idle_since = None
    if idle_devices > 0:
        idle_since = now_ms if state.idle_since_ms is None else state.idle_since_ms
    if idle_since is not None and now_ms - idle_since >= IDLE_S * 1000:
        return PriceState(price=0.0, at_ms=now_ms, idle_since_ms=idle_since)
    elapsed_s = 0.0 if state.at_ms is None else max(now_ms - state.at_ms, 0) / 1000
    keep = math.exp(-elapsed_s / SMOOTHING_S) if state.at_ms is not None else 0.0
    target = min(max(refused, 0.0), 1.0)
    price = keep * state.price + (1 - keep) * target
    return PriceState(price=price, at_ms=now_ms, idle_since_ms=idle_since)
