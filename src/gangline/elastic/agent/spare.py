"""One spare interpreter: it preloads modules, runs forks of itself, and finally becomes a worker.

It is started with a worker's command line; `gangline_worker_hook.py` stops it before the script.
Agent and hook exchange lines of JSON.
"""

import asyncio
import json
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from gangline.elastic.agent.logs import Streams
from gangline.elastic.agent.process import Process, hooked, start

_WARM_S = 300.0
"""Time limit for warming a spare."""


@dataclass(frozen=True, slots=True)
class Child:
    """A running fork, and the connection to it. Its end closes the connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


@dataclass(eq=False, slots=True)
class Spare:
    """A spare interpreter that waits for orders."""

    process: Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    is_whole: bool = False
    """True if all requested modules were imported."""

    @classmethod
    async def started(
        cls,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        prepare: Callable[[], None] | None = None,
    ) -> Self:
        """Start one. ``prepare`` is called in the new process before its program is loaded.

        Raises:
            StartError: the command cannot be started.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            hook = hooked(environment, "spare", theirs)
            process = start(arguments, hook, channel=theirs, prepare=prepare)
        return cls(process, *await asyncio.open_connection(sock=ours))

    async def warm(
        self, modules: Sequence[str], *, nice: int, step: bool = False, quiet: bool = True
    ) -> bool:
        """Import modules. Returns True if the spare can be used.

        Args:
            modules: names of modules. Missing ones clear ``has_all_modules``.
            nice: priority after warming.
            step: True to train one step of a tiny layer.
            quiet: True to discard what the modules print.
        """
        order = {"modules": list(modules), "step": step, "nice": nice, "quiet": quiet}
        try:
            await self._order(order)
            line = await asyncio.wait_for(self.reader.readline(), _WARM_S)
        except (TimeoutError, ConnectionError):
            return False
        self.is_whole = bool(line) and not json.loads(line)["missing"]
        return bool(line)

    async def lend(self, module: str, environment: Mapping[str, str]) -> Child:
        """Run ``main(descriptor)`` of a module in a fork, as a new interpreter would.

        Torch and similar libraries must not have computed in this process: their threads do not
        survive a fork. `wait_for_child` must be awaited before the next order.

        Raises:
            ConnectionError: the spare has died.
        """
        spec = {
            "module": module,
            "env": dict(environment),
            "path": sys.path,
            "processors": sorted(os.sched_getaffinity(0)),
        }
        ours, theirs = socket.socketpair()
        try:
            with theirs, self._socket() as channel:
                # A file descriptor must be sent with at least one byte; JSON ignores the space.
                socket.send_fds(channel, [b" "], [theirs.fileno()])
            await self._order({"child": spec})
        except BaseException:
            ours.close()
            raise
        return Child(*await asyncio.open_connection(sock=ours))

    async def returned(self) -> int | None:
        """Wait for the end of the fork; return its exit code, None if it is unknown."""
        try:
            line = await self.reader.readline()
        except ConnectionError:
            line = b""
        return int(json.loads(line)["ended"]) if line else None

    async def recall(self) -> None:
        """Kill the fork; `wait_for_child` returns when it has ended."""
        await self._order({})

    async def become(
        self, environment: Mapping[str, str], streams: Streams, *, learns: bool = False
    ) -> socket.socket | None:
        """Run the script now.

        Returns the channel on which it reports its imports, if it is asked to.

        Raises:
            ConnectionError: the spare has died.
        """
        paths = [str(path) if path else None for path in (streams.stdout, streams.stderr)]
        await self._order({"env": dict(environment), "streams": paths, "learns": learns})
        channel = self._socket() if learns else None
        self.writer.close()
        return channel

    async def _order(self, words: Mapping[str, object]) -> None:
        self.writer.write(json.dumps(words).encode() + b"\n")
        await self.writer.drain()

    def _socket(self) -> socket.socket:
        own: socket.socket = self.writer.get_extra_info("socket").dup()
        return own
