"""The process that forecasts the starts of pending gangs for the scheduler.

It has the lowest priority, reads the cluster once, writes the forecasts to its standard output and
ends. The request comes by standard input, so that credentials are in no list of processes. The
kernel kills it with the scheduler (prctl(2)), and an alarm ends it if the scheduler does not.

Its answers are what the status of each gang says. Times are stated in UTC instead of relative to
now, so that the text stays true while time passes. A new forecast differs a little from the last
one; it replaces it only if it is another statement.
"""

import asyncio
import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Self

import msgspec

from gangline.kube.client.client import ApiClient
from gangline.kube.config.config import ClusterConfig
from gangline.kube.config.credentials import Credential, StaticCredential
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cycle.cycle import run_cycle
from gangline.scheduler.forecast import (
    BUDGET_S,
    MAX_AHEAD,
    Forecaster,
    line_position,
    pending_queues,
)
from gangline.scheduler.plugins.scores import ScoreWeights
from gangline.scheduler.preemption.preempt import EvictionPolicy
from gangline.scheduler.reporting.replay import read_cluster_state
from gangline.scheduler.settings import SchedulerSettings
from gangline.scheduler.types import GangId, gang_name

MAX_GROUPS = 20
"""Number of pending gangs whose start is forecast: the first ones."""
MIN_SHIFT_S = 60.0
MIN_SHIFT = 0.25
"""A bound of the interval has changed if it moved by these seconds, and by this part of the time
until the end of the interval.
"""


class StatedStart(msgspec.Struct, frozen=True):
    """What the status of a gang says about its start."""

    queue: str
    place: int
    """Its place in the line of its queue; 1: the first."""
    ahead: tuple[str, ...]
    """Names of the first of the gangs that are served before it."""
    earliest: float | None
    """Begin of the interval in seconds since the epoch; None: it is not expected to start."""
    latest: float | None
    """End of the interval; None: it is unknown."""

    def text(self) -> str:
        """Return the message of the condition."""
        ahead = ""
        if self.ahead:
            more = self.place - 1 - len(self.ahead)
            ahead = f", after {', '.join(self.ahead)}" + (f" and {more} more" if more > 0 else "")
        return f"Place {self.place} in queue {self.queue!r}{ahead}. {self._interval()}"

    def _interval(self) -> str:
        if self.earliest is None:
            return "No start is expected in the next 30 days."
        if self.latest is None:
            return f"Expected to start after {_time(self.earliest)}; the latest time is unknown."
        if _time(self.earliest) == _time(self.latest):
            return f"Expected to start at {_time(self.earliest)}."
        return (
            f"Expected to start between {_time(self.earliest)} and {_time(self.latest)} "
            "(80 % of the simulations)."
        )


def stated_starts(
    state: SchedulerCache,
    groups: Iterable[str],
    now: float,
    policy: EvictionPolicy,
    budget_s: float = BUDGET_S,
) -> dict[str, StatedStart]:
    """Forecast the starts of pending gangs, without those that do not wait for their turn.

    Args:
        state: the state of the cluster; it is not changed.
        groups: names of gangs; of these the first ``MAX_GROUPS`` are forecast.
        now: the time of the state in seconds since the epoch.
    """
    result = run_cycle(state, now, policy)
    queues = pending_queues(state)
    positions = {
        gang: position
        for gang in map(GangId, groups)
        if gang in queues
        and (position := line_position(result, queues[gang], gang, queues)) is not None
    }
    targets = list(positions)[:MAX_GROUPS]
    starts = Forecaster(state, now, policy).forecast_all(targets, budget_s=budget_s)
    return {
        str(gang): StatedStart(
            queue=positions[gang].queue,
            place=positions[gang].place,
            ahead=tuple(map(gang_name, positions[gang].ahead[:MAX_AHEAD])),
            earliest=None if start.earliest_s is None else now + start.earliest_s,
            latest=None if start.latest_s is None else now + start.latest_s,
        )
        for gang, start in starts.items()
    }


def updated_starts(
    stated: Mapping[str, StatedStart], forecast: Mapping[str, StatedStart], now: float
) -> dict[str, StatedStart]:
    """Return what the status of each forecast gang has to say: the earlier statement as long as
    the new forecast agrees with it.
    """
    return {
        name: earlier
        if (earlier := stated.get(name)) is not None and _agrees(earlier, new, now)
        else new
        for name, new in forecast.items()
    }


def _agrees(earlier: StatedStart, new: StatedStart, now: float) -> bool:
    if (earlier.queue, earlier.place, earlier.ahead) != (new.queue, new.place, new.ahead):
        return False
    last = new.latest or new.earliest or now
    tolerance = max(MIN_SHIFT_S, MIN_SHIFT * (last - now))
    return _is_near(earlier.earliest, new.earliest, tolerance) and _is_near(
        earlier.latest, new.latest, tolerance
    )


def _is_near(one: float | None, other: float | None, tolerance_s: float) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= tolerance_s


def _time(seconds: float) -> str:
    return format(datetime.fromtimestamp(seconds, UTC), "%Y-%m-%d %H:%M UTC")


TIME_LIMIT_S = 120
LOWEST_PRIORITY = 19
_PR_SET_PDEATHSIG = 1


class ForecastRequest(msgspec.Struct, frozen=True):
    """Which gangs to forecast, on which cluster."""

    groups: list[str]
    server: str
    credential: Credential
    certificate_authority: bytes | None
    verify: bool
    tls_server_name: str
    proxy_url: str
    headers: tuple[tuple[str, str], ...]
    scheduler_names: frozenset[str]
    weights: ScoreWeights
    hierarchical: bool
    policy: EvictionPolicy

    @classmethod
    async def create(
        cls, groups: list[str], config: ClusterConfig, settings: SchedulerSettings
    ) -> Self:
        """Return the request of a scheduler with its current credential.

        Raises:
            ConfigError: no credential is available.
        """
        return cls(
            groups=groups,
            server=config.server,
            credential=await config.credentials.current(),
            certificate_authority=config.certificate_authority,
            verify=config.verify,
            tls_server_name=config.tls_server_name,
            proxy_url=config.proxy_url,
            headers=config.headers,
            scheduler_names=settings.scheduler_names,
            weights=settings.weights,
            hierarchical=settings.hierarchical,
            policy=settings.policy,
        )

    def cluster(self) -> ClusterConfig:
        """Return the address and the credentials of the cluster."""
        return ClusterConfig(
            server=self.server,
            credentials=StaticCredential(self.credential),
            certificate_authority=self.certificate_authority,
            verify=self.verify,
            tls_server_name=self.tls_server_name,
            proxy_url=self.proxy_url,
            headers=self.headers,
        )


Forecasts = dict[str, StatedStart]
"""The answer: forecasts by the name of the gang."""


async def forecast(request: ForecastRequest) -> Forecasts:
    """Read the cluster and forecast the starts.

    Raises:
        ApiError: nodes or pods cannot be read.
    """
    async with ApiClient(request.cluster(), "gangline-forecast") as client:
        state = await read_cluster_state(
            client, request.scheduler_names, request.weights, request.hierarchical
        )
    return stated_starts(state, request.groups, time.time(), request.policy)


def main() -> None:
    """Answer the request on standard input."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.nice(LOWEST_PRIORITY)
    signal.alarm(TIME_LIMIT_S)
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=ForecastRequest)
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(forecast(request))))


if __name__ == "__main__":
    main()
