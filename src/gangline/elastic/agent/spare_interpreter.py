"""One spare interpreter: it preloads modules, runs forks of itself, and finally becomes a worker.

It is started with a worker's command line; `gangline_worker_hook.py` stops it before the script.
Agent and hook exchange lines of JSON. Which modules a script imports first is read from its source:
only a docstring and imports of installed libraries may come before them, since nothing else is
known to leave them as they are.
"""

import ast
import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from gangline.elastic.agent.logs import WorkerFiles
from gangline.elastic.agent.process import (
    Process,
    end_processes,
    hook_environment,
    start_process,
)

_WARM_TIMEOUT_S = 300.0
_TORCH = "torch"
_FIRST_PACKAGES = frozenset({_TORCH, "numpy", "torchvision"})
"""Packages that are imported for the first workers; others may depend on the process."""
_HARMLESS_MODULES = sys.stdlib_module_names | {"numpy"}
"""Modules that set nothing on which an import of PyTorch depends."""
_TRAINING_NAMES = frozenset(
    {"optim", "DistributedDataParallel", "DDP", "FullyShardedDataParallel", "fully_shard"}
)
_TRAINING_MODULE = "torch._dynamo"
"""Module that PyTorch imports when the first optimizer is made."""


@dataclass(frozen=True, slots=True)
class ForkedChild:
    """A running fork, and the connection to it. Its end closes the connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


@dataclass(eq=False, slots=True)
class SpareInterpreter:
    """A spare interpreter that waits for orders."""

    process: Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    has_all_modules: bool = False

    @classmethod
    async def start(
        cls,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        prepare: Callable[[], None] | None = None,
    ) -> Self:
        """Start one. ``prepare`` is called in the new process before its program is loaded."""
        ours, theirs = socket.socketpair()
        with theirs:
            hook = hook_environment(environment, "spare", theirs)
            process = start_process(arguments, hook, channel=theirs, prepare=prepare)
        return cls(process, *await asyncio.open_connection(sock=ours))

    async def warm(self, modules: Sequence[str]) -> bool:
        """Import modules. Returns True if the spare can be used."""
        try:
            await self._send_order({"modules": list(modules)})
            line = await asyncio.wait_for(self.reader.readline(), _WARM_TIMEOUT_S)
        except (TimeoutError, ConnectionError):
            return False
        self.has_all_modules = bool(line) and not json.loads(line)["missing"]
        return bool(line)

    async def fork_child(self, module: str, environment: Mapping[str, str]) -> ForkedChild:
        """Run ``main(descriptor)`` of a module in a fork, as a new interpreter would.

        Torch and similar libraries must not have computed in this process: their threads do not
        survive a fork. `wait_for_child` must be awaited before the next order. Raises
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
            await self._send_order({"child": spec})
        except BaseException:
            ours.close()
            raise
        return ForkedChild(*await asyncio.open_connection(sock=ours))

    async def wait_for_child(self) -> int | None:
        """Wait for the end of the fork; return its exit code, None if it is unknown."""
        try:
            line = await self.reader.readline()
        except ConnectionError:
            line = b""
        return int(json.loads(line)["ended"]) if line else None

    async def end_child(self) -> None:
        """Kill the fork; `wait_for_child` returns when it has ended."""
        await self._send_order({})

    async def activate(
        self, environment: Mapping[str, str], streams: WorkerFiles, *, reports_imports: bool = False
    ) -> socket.socket | None:
        """Run the script now.

        Returns the channel on which it reports its imports, if it is asked to. Raises
        ConnectionError: the spare has died.
        """
        paths = [str(path) if path else None for path in (streams.stdout, streams.stderr)]
        await self._send_order(
            {"env": dict(environment), "streams": paths, "learns": reports_imports}
        )
        channel = self._socket() if reports_imports else None
        self.writer.close()
        return channel

    async def _send_order(self, order: Mapping[str, object]) -> None:
        self.writer.write(json.dumps(order).encode() + b"\n")
        await self.writer.drain()

    def _socket(self) -> socket.socket:
        own: socket.socket = self.writer.get_extra_info("socket").dup()
        return own


async def end_spares(spares: Collection[SpareInterpreter]) -> None:
    for spare in spares:
        spare.writer.close()
    await end_processes([spare.process for spare in spares], signal.SIGKILL, 0)


def first_imports(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the modules that the first workers of a command line certainly import.

    Empty unless PyTorch is among them: other imports are short. A module (``-m``) is not searched:
    that might import its parent packages.
    """
    script = Path(arguments[2]) if len(arguments) > 2 and arguments[2] != "-m" else None
    if script is None or script.name.startswith("-"):
        return ()
    try:
        source = script.read_bytes()
    except OSError:
        return ()
    return leading_imports(source, script.parent)


def leading_imports(source: bytes, folder: Path) -> tuple[str, ...]:
    """Return the leading imports of PyTorch and its companions; empty without PyTorch.

    Args:
        folder: the script's folder, whose modules end the list.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ()
    modules: list[str] = []
    for name in _leading_modules(tree):
        package = name.partition(".")[0]
        if (folder / f"{package}.py").exists() or (folder / package).is_dir():
            break
        if package in _FIRST_PACKAGES:
            modules.append(name)
        elif package not in _HARMLESS_MODULES:
            break
    if not any(name.partition(".")[0] == _TORCH for name in modules):
        return ()
    if any(_is_training_name(node) for node in ast.walk(tree)):
        modules.append(_TRAINING_MODULE)
    return tuple(dict.fromkeys(modules))


def imports_torch_first(source: bytes) -> bool:
    """Return whether nothing that affects PyTorch comes before its import in a script."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return False
    for name in _leading_modules(tree):
        package = name.partition(".")[0]
        if package == _TORCH:
            return True
        if package not in _HARMLESS_MODULES:
            return False
    return False


def _leading_modules(tree: ast.Module) -> Iterator[str]:
    body = tree.body[1:] if ast.get_docstring(tree, clean=False) is not None else tree.body
    for statement in body:
        match statement:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module
            case _:
                return


def _is_training_name(node: ast.AST) -> bool:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
            return name.rpartition(".")[2] in _TRAINING_NAMES
    return False
