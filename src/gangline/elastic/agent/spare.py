"""One spare interpreter: it imports ahead, lends forks of itself, and becomes a worker in the end.

It runs a worker's command line, and `hook/gangline_worker_hook.py` holds it before the script. Both
speak lines of JSON.
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
"""A spare that is not warm by then is given up."""


@dataclass(frozen=True, slots=True)
class Child:
    """A fork that has been lent, and what is said to it; it ends what it says when it ends."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


@dataclass(eq=False, slots=True)
class Spare:
    """An interpreter that waits."""

    process: Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    is_whole: bool = False
    """Whether all has been imported that should be."""

    @classmethod
    async def started(
        cls,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        prepare: Callable[[], None] | None = None,
    ) -> Self:
        """Start one; ``prepare`` is called in the new process before its program is loaded.

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
        """Let it import; return whether it can be used.

        Args:
            modules: their names; whether all could be imported is noted.
            nice: the priority to go on with.
            step: whether one step of a tiny layer is trained, too.
            quiet: whether nobody shall read what the modules print.
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
        """Have a fork of it run ``main(descriptor)`` of a module, as a new interpreter would.

        Neither torch nor a library of its kind may have computed in this process: their threads
        do not live on in a fork. `returned` must be awaited before anything else is wanted.

        Raises:
            ConnectionError: it has died meanwhile.
        """
        wanted = {
            "module": module,
            "env": dict(environment),
            "path": sys.path,
            "processors": sorted(os.sched_getaffinity(0)),
        }
        ours, theirs = socket.socketpair()
        try:
            with theirs, self._socket() as channel:
                # A descriptor comes with the first byte of what is said about it.
                socket.send_fds(channel, [b" "], [theirs.fileno()])
            await self._order({"child": wanted})
        except BaseException:
            ours.close()
            raise
        return Child(*await asyncio.open_connection(sock=ours))

    async def returned(self) -> int | None:
        """Wait until the fork that was lent has ended; return its exit code if it is known."""
        try:
            line = await self.reader.readline()
        except ConnectionError:
            line = b""
        return int(json.loads(line)["ended"]) if line else None

    async def recall(self) -> None:
        """End the fork that was lent; `returned` tells when that is done."""
        await self._order({})

    async def become(
        self, environment: Mapping[str, str], streams: Streams, *, learns: bool = False
    ) -> socket.socket | None:
        """Let it run the script now.

        Returns the channel on which it tells what it has imported, if it ``learns`` that.

        Raises:
            ConnectionError: it has died meanwhile.
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
