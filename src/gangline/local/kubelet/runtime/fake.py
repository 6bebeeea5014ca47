"""A runtime that only keeps the books: for measuring everything around it with many pods.

Containers "run" until they are killed, or for as long as an annotation of their pod says.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from gangline.local.kubelet.runtime.contract import (
    EXIT_KILLED,
    EXIT_START_FAILED,
    REASON_START_ERROR,
    ByteStream,
    ContainerPlan,
    ExecSession,
    Exit,
    Output,
    StartFailed,
    Usage,
)

RUN_SECONDS = "gangline.dev/fake-run-seconds"
EXIT_CODE = "gangline.dev/fake-exit-code"
_TERMINATED = 143


class FakeContainer:
    """A container without a process."""

    def __init__(self, plan: ContainerPlan) -> None:
        self.container_id = plan.container_id
        self.started_at = datetime.now(UTC)
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[Exit] = loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        if (seconds := plan.annotations.get(RUN_SECONDS)) is not None:
            code = int(plan.annotations.get(EXIT_CODE, "0"))
            self._timer = loop.call_later(float(seconds), self._end, code)

    async def wait(self) -> Exit:
        """How it ended."""
        return await asyncio.shield(self._ended)

    def terminate(self) -> None:
        """End as a process does that heeds the signal."""
        self._end(_TERMINATED)

    def kill(self) -> None:
        """End at once."""
        self._end(EXIT_KILLED)

    def usage(self) -> Usage | None:
        """It uses nothing."""
        return Usage(0, 0)

    def attach(self, output: Output) -> Callable[[], None]:
        """There is no output."""
        return lambda: None

    def write(self, data: bytes) -> None:
        """Nobody reads."""

    async def drain(self) -> None:
        """Nobody reads."""

    def close_stdin(self) -> None:
        """Nobody reads."""

    def resize(self, columns: int, rows: int) -> None:
        """There is no terminal."""

    async def exec(
        self, argv: Sequence[str], output: Output, *, stdin: bool = False, tty: bool = False
    ) -> ExecSession:
        """Nothing can be run in it."""
        raise StartFailed(
            "this container is only pretended: the cluster runs with its fake runtime",
            REASON_START_ERROR,
            EXIT_START_FAILED,
        )

    def _end(self, code: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._ended.done():
            self._ended.set_result(Exit(code, datetime.now(UTC)))


class FakeRuntime:
    """Starts pretended containers."""

    async def start(self, plan: ContainerPlan, output: Output) -> FakeContainer:
        """Pretend to start one."""
        return FakeContainer(plan)

    def describe_gaps(self) -> str:
        """That nothing really runs."""
        return "fake runtime: containers are only pretended"

    async def forward(self, netns: str | None, address: str, port: int) -> ByteStream:
        """Nothing listens in it."""
        raise ConnectionRefusedError("the container is only pretended")

    async def clean_up(self) -> None:
        """There is nothing to remove."""
