"""Where a worker is that does not say so itself, as py-spy sees it, if that is installed.

A process that is stopped, or waits in the kernel, runs no handler of signals. py-spy reads the
stacks from its memory, without stopping it for that.
"""

import asyncio
import logging
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from gangline.elastic.agent.process import StartError, end_all, start

log = logging.getLogger(__name__)

LOOK_S = 3.0
"""So long py-spy may take; after that it is killed."""


class _Frame(msgspec.Struct):
    name: str
    filename: str
    line: int = 0


class _Thread(msgspec.Struct):
    frames: list[_Frame]
    thread_id: int = 0
    thread_name: str | None = None
    os_thread_id: int | None = None


_decoder = msgspec.json.Decoder(list[_Thread])


async def stacks_of(pid: int, folder: Path, environment: Mapping[str, str] = os.environ) -> str:
    """Return the stacks of a process in the form of faulthandler's; empty where there are none.

    Args:
        pid: the process.
        folder: where py-spy's words may lie meanwhile.
        environment: how py-spy is found, and what it runs in.
    """
    program = shutil.which("py-spy", path=environment.get("PATH"))
    if program is None:
        return ""
    out, err = folder / "py_spy.json", folder / "py_spy.err"
    arguments = [program, "dump", "--nonblocking", "--json", "--pid", str(pid)]
    try:
        process = start(arguments, environment, stdout=out, stderr=err)
        await asyncio.wait([process.ended], timeout=LOOK_S)
        await end_all([process], signal.SIGKILL, LOOK_S)
        return told(_decoder.decode(out.read_bytes()), pid)
    except (StartError, OSError, msgspec.DecodeError) as error:
        log.warning("py-spy does not see process %d: %s", pid, _last_line(err) or error)
        return ""
    finally:
        for file in (out, err):
            file.unlink(missing_ok=True)


def told(threads: Sequence[_Thread], pid: int) -> str:
    """Write stacks down as faulthandler does: the main thread is the last of them."""
    main = [each for each in threads if each.os_thread_id == pid or each.thread_name == _MAIN]
    others = [each for each in threads if each not in main]
    lines: list[str] = []
    for thread in (*others, *main):
        lines.append(f"Thread {thread.thread_id:#018x}, seen by py-spy (most recent call first):")
        lines += [
            f'  File "{each.filename}", line {each.line} in {each.name}' for each in thread.frames
        ]
    return "".join(f"{line}\n" for line in lines)


_MAIN = "MainThread"


def _last_line(file: Path) -> str:
    try:
        lines = file.read_text(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
