"""The pipe on which a setup script reports success or an error."""

import asyncio
import contextlib
import os
import shlex
from pathlib import Path
from typing import Any, Self

from gangline.local.kubelet.runtime.child import ChildProcess
from gangline.local.kubelet.runtime.rootview import READY_MARK

_SET_UP_TIMEOUT_S = 30
_READ_BYTES = 65536


class SetupReport:
    """The pipe on which a setup script reports success or an error."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._text = b""

    @property
    def shell_path(self) -> str:
        """The pipe's path, quoted for a shell."""
        return shlex.quote(str(self._path))

    def __enter__(self) -> Self:
        self._path.unlink(missing_ok=True)
        os.mkfifo(self._path, 0o600)
        # Open for both: a read-only descriptor gets an end of file when the first writer closes.
        self._fd = os.open(self._path, os.O_RDWR | os.O_NONBLOCK)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
        self._path.unlink(missing_ok=True)

    async def wait_ready(self, child: ChildProcess) -> str | None:
        """Return None when the command is about to run, else the error of the setup."""
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(self._fd, self._read, ready)
        done = asyncio.create_task(ready.wait())
        either: set[asyncio.Future[Any]] = {done, child.exited}
        try:
            await asyncio.wait(
                either, timeout=_SET_UP_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            loop.remove_reader(self._fd)
            done.cancel()
        if not ready.is_set():
            self._read(ready)
        if ready.is_set():
            return None
        return self._text.decode(errors="replace").strip()

    def _read(self, ready: asyncio.Event) -> None:
        with contextlib.suppress(BlockingIOError):
            self._text += os.read(self._fd, _READ_BYTES)
        if self._text.endswith(READY_MARK):
            ready.set()
