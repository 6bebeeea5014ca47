"""A container's supervisor that a fork server has forked, as the event loop sees a child."""

import contextlib
import io
import os
import signal
from typing import IO

_READ_BYTES = 64


class ForkedProcess:
    """The supervisor of a container: its end of a pipe tells when it ends, and the exit code.

    It is a child of the fork server, so its exit status is not available here. It kills the
    container when this process ends, because the pipe has no reader then.
    """

    def __init__(self, pid: int, stdout: int, stderr: int, exit_code: int) -> None:
        """Take over the reading ends of the pipes."""
        self.pid = pid
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = io.FileIO(stdout)
        self.stderr: IO[bytes] | None = io.FileIO(stderr)
        self.returncode: int | None = None
        self._exit_code = exit_code

    def wait(self) -> int:
        """The exit code, negative for a signal; call it when the pipe is readable."""
        if self.returncode is None:
            text = os.read(self._exit_code, _READ_BYTES)
            # A supervisor that was killed has reported nothing, and the container died with it.
            self.returncode = int(text) if text else -signal.SIGKILL
        return self.returncode

    def kill(self) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
