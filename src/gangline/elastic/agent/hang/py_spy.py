"""Stacks of a worker that does not write them itself, read with py-spy if that is installed.

A process that is stopped, or blocks in the kernel, runs no signal handlers. py-spy reads the stacks
from its memory without stopping it.
"""

import asyncio
import logging
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from gangline.elastic.agent.process import StartError, end_processes, start_process

log = logging.getLogger(__name__)

PY_SPY_TIMEOUT_S = 3.0
"""Time limit for py-spy, after which it is killed."""


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


async def py_spy_stacks(pid: int, folder: Path, environment: Mapping[str, str] = os.environ) -> str:
    """Return the stacks of a process in the format of faulthandler; empty if they cannot be read.

    Args:
        pid: the process.
        folder: folder for temporary files.
        environment: environment of py-spy, and the PATH on which it is searched.
    """
    program = shutil.which("py-spy", path=environment.get("PATH"))
    if program is None:
        return ""
    out, err = folder / "py_spy.json", folder / "py_spy.err"
    arguments = [program, "dump", "--nonblocking", "--json", "--pid", str(pid)]
    try:
        process = start_process(arguments, environment, stdout=out, stderr=err)
        await asyncio.wait([process.ended], timeout=PY_SPY_TIMEOUT_S)
        await end_processes([process], signal.SIGKILL, PY_SPY_TIMEOUT_S)
        return format_stacks(_decoder.decode(out.read_bytes()), pid)
    except (StartError, OSError, msgspec.DecodeError) as error:
        log.warning("py-spy cannot read process %d: %s", pid, _last_line(err) or error)
        return ""
    finally:
        for file in (out, err):
            file.unlink(missing_ok=True)


def format_stacks(threads: Sequence[_Thread], pid: int) -> str:
    """Format stacks as faulthandler does, with the main thread last."""
    main = [each for each in threads if each.os_thread_id == pid or each.thread_name == _MAIN]
    others = [each for each in threads if each not in main]
    lines: list[str] = []
    for thread in (*others, *main):
        lines.append(f"Thread {thread.thread_id:#018x}, seen by py-spy (most recent call first):")
        lines += [
            f'  File "{frame.filename}", line {frame.line} in {frame.name}'
            for frame in thread.frames
        ]
    return "".join(f"{line}\n" for line in lines)


_MAIN = "MainThread"


def _last_line(file: Path) -> str:
    try:
        lines = file.read_text(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
