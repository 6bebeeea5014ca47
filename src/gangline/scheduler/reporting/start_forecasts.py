"""Keeps the expected starts of pending gangs up to date, off the scheduling cycle.

A process of the lowest priority computes them. It runs only while gangs wait longer than one
interval, when no binding is in flight, and for at most a twentieth of the time; large clusters, of
which a copy would be expensive, are left out. ``gangline explain`` forecasts on any cluster.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Protocol

import msgspec

from gangline.kube.client.client import ApiClient
from gangline.kube.errors import KubeError
from gangline.scheduler.apply.throttle import BindingsInFlight
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.queueing import messages
from gangline.scheduler.reporting import forecast_process
from gangline.scheduler.reporting.forecast_process import (
    MAX_GROUPS,
    TIME_LIMIT_S,
    ForecastRequest,
    Forecasts,
    StatedStart,
    updated_starts,
)
from gangline.scheduler.settings import SchedulerSettings
from gangline.scheduler.types import GroupKey, PendingReason

log = logging.getLogger(__name__)

MAX_PODS = 20_000
"""Number of pods above which nothing is forecast: reading them takes seconds of the API server."""
REST_FACTOR = 20
"""The pause after a forecast is at least this many times as long as the forecast took."""
MAX_PAUSE_S = 3600.0
MAX_BINDING_DELAY_S = 60.0
"""Maximal delay of a forecast behind bindings."""
WAITING = frozenset({messages.NOT_ENOUGH_RESOURCES, messages.QUEUE_LIMIT})
"""Reasons of gangs that wait for their turn."""
ForecastStarts = Callable[[list[str]], Awaitable[Forecasts]]
"""Forecasts gangs.

Raises:
    ForecastError: the forecast has failed.
"""


class ForecastError(Exception):
    """The process that forecasts has failed."""


class ExpectedStartReporter(Protocol):
    """Knows the pending gangs, and writes their expected starts."""

    def pending_groups(self) -> Mapping[GroupKey, PendingReason]:
        """Return the pending gangs of the last cycle, in the order in which it served them."""

    def set_expected_starts(self, expected: Mapping[GroupKey, str]) -> None:
        """Replace the expected starts."""


class StartForecasts:
    """Forecasts the starts of pending gangs until cancelled.

    Args:
        interval_s: minimal seconds between two forecasts.
    """

    def __init__(
        self,
        state: SchedulerCache,
        reporter: ExpectedStartReporter,
        bindings: BindingsInFlight,
        forecast: ForecastStarts,
        interval_s: float,
    ) -> None:
        self._state, self._reporter, self._bindings = state, reporter, bindings
        self._forecast, self._interval_s = forecast, interval_s
        self._pending: set[GroupKey] = set()
        """Gangs that were pending an interval ago."""
        self._stated: dict[str, StatedStart] = {}

    async def run(self) -> None:
        """Forecast whenever the pause is over."""
        pause_s = self._interval_s
        while True:
            await asyncio.sleep(pause_s)
            await self._bindings.wait_until_idle(MAX_BINDING_DELAY_S)
            began = time.monotonic()
            try:
                await self.update()
            except ForecastError as error:
                log.warning("the starts of pending gangs cannot be forecast: %s", error)
                pause_s = min(2 * pause_s, MAX_PAUSE_S)
            else:
                pause_s = max(self._interval_s, REST_FACTOR * (time.monotonic() - began))

    async def update(self) -> None:
        """Forecast the gangs that still wait, and report what has changed.

        Raises:
            ForecastError: the forecast has failed; the earlier forecasts stay.
        """
        pending = {
            key: verdict
            for key, verdict in self._reporter.pending_groups().items()
            if verdict.reason in WAITING and verdict.message
        }
        waiting = [str(key) for key in pending if key in self._pending][:MAX_GROUPS]
        self._pending = set(pending)
        forecast: Forecasts = {}
        if waiting and len(self._state.pods) <= MAX_PODS:
            forecast = await self._forecast(waiting)
        self._stated = updated_starts(self._stated, forecast, time.time())
        self._reporter.set_expected_starts(
            {GroupKey(name): start.text() for name, start in self._stated.items()}
        )


def forecast_in_process(client: ApiClient, settings: SchedulerSettings) -> ForecastStarts:
    """Return a function that forecasts in a process of its own."""

    async def forecast(groups: list[str]) -> Forecasts:
        try:
            request = await ForecastRequest.create(groups, client.config, settings)
        except KubeError as error:
            raise ForecastError(str(error)) from error
        return await _run_process(msgspec.json.encode(request))

    return forecast


async def _run_process(request: bytes) -> Forecasts:
    try:
        process = await asyncio.create_subprocess_exec(
            # -P: modules of the working directory are not imported.
            *(sys.executable, "-P", "-m", forecast_process.__name__),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise ForecastError(f"the process cannot be started: {error}") from error
    try:
        async with asyncio.timeout(TIME_LIMIT_S):
            output, errors = await process.communicate(request)
    except TimeoutError as error:
        raise ForecastError(f"it takes longer than {TIME_LIMIT_S} s") from error
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    if process.returncode:
        lines = errors.decode(errors="replace").strip().splitlines()
        raise ForecastError(lines[-1] if lines else f"exit status {process.returncode}")
    try:
        return msgspec.json.decode(output, type=Forecasts)
    except msgspec.MsgspecError as error:
        raise ForecastError(f"its output cannot be read: {error}") from error
