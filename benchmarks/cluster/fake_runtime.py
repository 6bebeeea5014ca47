"""A runtime that starts no processes, for measuring the control plane with many pods.

A container "runs" until it is killed, or for the time in an annotation of its pod.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from gangline.local.kubelet.runtime.interface import (
    EXIT_START_FAILED,
    REASON_START_ERROR,
    ByteStreams,
    ContainerExit,
    ContainerPlan,
    ContainerStartError,
    ContainerUsage,
    ExecSession,
    OutputCallback,
)

RUN_SECONDS = "gangline.dev/fake-run-seconds"
EXIT_CODE = "gangline.dev/fake-exit-code"
_KILLED, _TERMINATED = 137, 143


class FakeContainer:
    """A container without a process."""

    def __init__(self, plan: ContainerPlan) -> None:
        self.container_id = plan.container_id
        self.started_at = datetime.now(UTC)
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[ContainerExit] = loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        if (seconds := plan.annotations.get(RUN_SECONDS)) is not None:
            code = int(plan.annotations.get(EXIT_CODE, "0"))
            self._timer = loop.call_later(float(seconds), self._end, code)

    async def wait(self) -> ContainerExit:
        return await asyncio.shield(self._ended)

    def terminate(self) -> None:
        self._end(_TERMINATED)

    def kill(self) -> None:
        self._end(_KILLED)

    def usage(self) -> ContainerUsage | None:
        return ContainerUsage(0, 0)

    def attach(self, output: OutputCallback) -> Callable[[], None]:
        return lambda: None

    def write(self, data: bytes) -> None: ...

    async def drain(self) -> None: ...

    def close_stdin(self) -> None: ...

    def resize(self, columns: int, rows: int) -> None: ...

    async def exec(
        self, argv: Sequence[str], output: OutputCallback, *, stdin: bool = False, tty: bool = False
    ) -> ExecSession:
        raise ContainerStartError(
            "this container has no process: the cluster runs with its fake runtime",
            REASON_START_ERROR,
            EXIT_START_FAILED,
        )

    def _end(self, code: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._ended.done():
            self._ended.set_result(ContainerExit(code, datetime.now(UTC)))


class FakeRuntime:
    """Starts containers without processes."""

    mounts_files = True

    async def start(self, plan: ContainerPlan, output: OutputCallback) -> FakeContainer:
        return FakeContainer(plan)

    def describe_limitations(self) -> str:
        return "fake runtime: containers have no processes"

    async def forward(self, netns: str | None, address: str, port: int) -> ByteStreams:
        raise ConnectionRefusedError("the container has no process")
