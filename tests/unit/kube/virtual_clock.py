"""An event loop in virtual time: its clock stands still, and jumps to the next timer."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, TypeVar

R = TypeVar("R")


class JumpingSelector(selectors.DefaultSelector):  # type: ignore[misc,valid-type]
    """Looks for what is ready now; when nothing is, the clock jumps to the loop's next timer."""

    ahead = 0.0
    threads = 0
    """Calls that run in threads now: a timeout around one must not end before it."""

    def select(self, timeout: float | None = None) -> list[Any]:
        # A moment of real time, so that sockets get their turn before the clock jumps.
        ready = super().select(0 if timeout == 0 else 0.003)
        if not ready and timeout and not self.threads:
            self.ahead += timeout
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.jumps = JumpingSelector()
        super().__init__(self.jumps)

    def time(self) -> float:
        # Without the real time: a machine that stands still for a second changes no scenario.
        return self.jumps.ahead

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> "asyncio.Future[Any]":
        self.jumps.threads += 1
        running = super().run_in_executor(executor, func, *args)
        running.add_done_callback(self._thread_done)
        return running

    def _thread_done(self, _: "asyncio.Future[Any]") -> None:
        self.jumps.threads -= 1


def run_jumping(scenario: Coroutine[Any, Any, R]) -> R:
    """Run a scenario to its end, without waiting for any timer in real time."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(asyncio.wait_for(scenario, 100_000))


def virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an asynchronous test without waiting for any timer in real time."""

    @wraps(test)
    def run(*args: Any, **fixtures: Any) -> None:
        run_jumping(test(*args, **fixtures))

    return run
