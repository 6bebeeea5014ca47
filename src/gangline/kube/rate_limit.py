"""A token bucket: ``rate`` per second on average, ``burst`` at a time."""

import asyncio
import time
from collections.abc import Awaitable, Callable


class TokenBucket:
    """Contains at most ``burst`` tokens and gains ``rate`` tokens per second."""

    def __init__(
        self,
        rate: float,
        burst: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if rate <= 0 or burst < 1:
            raise ValueError(f"rate {rate} and burst {burst}: both must be above zero")
        self._rate, self._burst = rate, burst
        self._clock, self._sleep = clock, sleep
        self._tokens = float(burst)
        self._at = clock()

    def try_take(self) -> bool:
        """Take a token; return False if there is none."""
        self._refill()
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    async def take(self) -> None:
        """Take a token, waiting if necessary; waiters are served in order."""
        self._refill()
        self._tokens -= 1
        if self._tokens < 0:
            await self._sleep(-self._tokens / self._rate)

    def _refill(self) -> None:
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
