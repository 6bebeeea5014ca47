"""Running ``ip`` from iproute2: batches in, JSON out, its complaints as `NetworkError`."""

import asyncio
import json
import subprocess
from collections.abc import Sequence
from typing import Any

from gangline.local.network.contract import NetworkError


class NotPermitted(NetworkError):
    """We may not, or this system cannot, make links and namespaces."""


async def run(*command: str, text: str = "") -> str:
    """Run a program with ``text`` on its standard input and return what it prints.

    Raises:
        NetworkError: it is not installed, or it failed; its own words are in the message.
    """
    try:
        # In a thread, since subprocess starts programs without copying our page tables (vfork):
        # ten times faster than an event loop's fork once this process is large.
        # In a session of its own, since a Ctrl-C at the terminal must not break a clean-up off.
        process = await asyncio.to_thread(
            subprocess.run,
            command,
            input=text.encode(),
            capture_output=True,
            check=False,
            start_new_session=True,
        )
    except OSError as exc:
        raise NetworkError(f"cannot run {command[0]}: {exc.strerror or exc}") from exc
    if process.returncode != 0:
        said = " ".join(process.stderr.decode(errors="replace").split())
        raise NetworkError(f"{' '.join(command)}: {said or f'exit code {process.returncode}'}")
    return process.stdout.decode()


async def batch(lines: Sequence[str], *, netns: str = "", force: bool = False) -> None:
    """Run many ``ip`` commands in one process, in the namespace ``netns`` if given.

    With ``force`` a failing line does not stop the others and nothing is raised for it.

    Raises:
        NetworkError: a line failed (without ``force``), or ``ip`` is missing.
    """
    inside = ("-n", netns) if netns else ()
    command = ("ip", *inside, *(("-force",) if force else ()), "-batch", "-")
    try:
        await run(*command, text="\n".join(lines) + "\n")
    except NetworkError:
        if not force:
            raise


async def query(*arguments: str) -> list[dict[str, Any]]:
    """Ask ``ip`` something and return its JSON list."""
    out = await run("ip", "-json", *arguments)
    found: list[dict[str, Any]] = json.loads(out or "[]")
    return found
